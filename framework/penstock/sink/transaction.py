"""The two-phase commit of one sink subtask over a bounded pool of producers (L13-L17).

One slot of the pool is one transactional id. Records of an epoch go into the open slot's
transaction; at the barrier it is pre-committed and another slot takes the next epoch. An aborted
checkpoint aborts no transaction while the attempt goes on: its records are processed and the
positions have moved past them, so they are committed with the next checkpoint that completes
(decision 0004).

Invariants (tests cite them):
- S1 (L13) at most one transaction is open, and it belongs to the current epoch.
- S2 (L14) a commit is asked for only after Complete(m) with m >= the transaction's checkpoint.
- S3 (L17) a slot begins a new transaction only if its last one is proven committed and a
  checkpoint has completed whose snapshot no longer lists it; or after its producer was made anew.
- S4 (L13) an acknowledgement lists every transaction of its epoch and older that is not proven
  committed.
- S5 (L16) no slot beyond ``limit`` is ever used: ids come from a bounded pool.
- S6 a transaction begins only when the one before it is flushed, so that the records of a key stand
  in the topic in the order in which they were written, over epochs and producers.
"""

from enum import Enum
from typing import TypeAlias

import msgspec

from penstock.control import Committable
from penstock.failure import ProtocolViolation
from penstock.ids import CheckpointId


class Phase(Enum):
    """Where a slot's producer is."""

    COLD = "cold"
    OPENING = "opening"
    WARM = "warm"
    OPEN = "open"
    FLUSHING = "flushing"
    PREPARED = "prepared"
    COMMITTING = "committing"
    PROVEN = "proven"


class Slot(msgspec.Struct, frozen=True):
    """One transactional id and the transaction it holds, if any."""

    phase: Phase = Phase.COLD
    checkpoint: CheckpointId | None = None
    """The checkpoint whose barrier closed the transaction's epoch."""
    committable: Committable | None = None
    absent_from: CheckpointId | None = None
    """First acknowledged checkpoint that did not list the proven transaction any more."""


class Sink(msgspec.Struct, frozen=True):
    """State of one sink subtask's pool."""

    slots: tuple[Slot, ...]
    limit: int
    completed: CheckpointId = CheckpointId(0)


class CommitPermit(msgspec.Struct, frozen=True):
    """The right to commit one transaction; only this module makes it, out of a Complete (L14)."""

    slot: int
    checkpoint: CheckpointId


class SlotOpened(msgspec.Struct, frozen=True):
    """The slot's producer has initialised its transactional id."""

    slot: int


class TransactionNeeded(msgspec.Struct, frozen=True):
    """Records of an epoch without a transaction are there to be written."""


class BarrierReached(msgspec.Struct, frozen=True):
    """All records of the epoch of ``checkpoint`` were written."""

    checkpoint: CheckpointId


class Prepared(msgspec.Struct, frozen=True):
    """The slot's transaction is flushed with not one failed delivery (L13)."""

    slot: int
    committable: Committable


class Acknowledged(msgspec.Struct, frozen=True):
    """The snapshot of ``checkpoint`` was acknowledged with what `listed` gave."""

    checkpoint: CheckpointId


class CheckpointCompleted(msgspec.Struct, frozen=True):
    """The decision log holds Complete(checkpoint)."""

    checkpoint: CheckpointId


class Committed(msgspec.Struct, frozen=True):
    """The slot's transaction is committed.

    ``definite`` when nothing on the way was indefinite (L17).
    """

    slot: int
    definite: bool


Event: TypeAlias = (
    SlotOpened
    | TransactionNeeded
    | BarrierReached
    | Prepared
    | Acknowledged
    | CheckpointCompleted
    | Committed
)


class Open(msgspec.Struct, frozen=True):
    """Make a producer for the slot's id and initialise it, in the background."""

    slot: int


class Begin(msgspec.Struct, frozen=True):
    """Begin a transaction on the slot's warm producer."""

    slot: int


class PreCommit(msgspec.Struct, frozen=True):
    """Write the witness, flush, check every delivery, in the background."""

    slot: int
    checkpoint: CheckpointId


class Commit(msgspec.Struct, frozen=True):
    """Commit, in the background."""

    permit: CommitPermit


class Renew(msgspec.Struct, frozen=True):
    """Throw the slot's producer away; an Open follows."""

    slot: int


class Exhausted(msgspec.Struct, frozen=True):
    """Every id of the pool holds an undecided transaction: the attempt cannot go on."""

    undecided: int


Effect: TypeAlias = Open | Begin | PreCommit | Commit | Renew | Exhausted

SPARE = 2
"""Producers kept warm or on their way: init_transactions takes up to 500 ms, off the path."""


def sink(limit: int) -> tuple[Sink, tuple[Effect, ...]]:
    """A new pool of ``limit`` ids; at least 3: one open, one prepared, one proven but listed."""
    if limit < 3:
        raise ValueError(f"a sink's pool needs at least 3 transactional ids, not {limit}")
    return _stocked(Sink((Slot(),) * limit, limit), ())


def step(state: Sink, event: Event) -> tuple[Sink, tuple[Effect, ...]]:
    """One step; raises ProtocolViolation for an event that the slot's phase does not allow."""
    match event:
        case SlotOpened(slot):
            return _moved(state, slot, Phase.OPENING, Slot(Phase.WARM)), ()
        case TransactionNeeded():
            return _begun(state)
        case BarrierReached(checkpoint):
            return _closed(state, checkpoint)
        case Prepared(slot, committable):
            return _prepared(state, slot, committable), ()
        case Acknowledged(checkpoint):
            return _acknowledged(state, checkpoint), ()
        case CheckpointCompleted(checkpoint):
            return _completed(state, checkpoint)
        case Committed(slot, definite):
            return _committed(state, slot, definite)


def listed(state: Sink, checkpoint: CheckpointId) -> tuple[Committable, ...]:
    """The transactions that the snapshot of ``checkpoint`` must carry (S4)."""
    return tuple(
        slot.committable
        for slot in state.slots
        if slot.phase in (Phase.PREPARED, Phase.COMMITTING)
        and slot.committable is not None
        and slot.checkpoint is not None
        and slot.checkpoint <= checkpoint
    )


def is_prepared(state: Sink, checkpoint: CheckpointId) -> bool:
    """Whether every transaction of ``checkpoint`` and before is flushed."""
    return not any(
        slot.phase is Phase.FLUSHING
        and slot.checkpoint is not None
        and slot.checkpoint <= checkpoint
        for slot in state.slots
    )


def open_slot(state: Sink) -> int | None:
    """The slot whose transaction takes records now, if any."""
    return next((i for i, slot in enumerate(state.slots) if slot.phase is Phase.OPEN), None)


def is_settled(state: Sink) -> bool:
    """Whether no transaction is undecided (nothing open, flushing, prepared or committing)."""
    return not any(slot.phase in _UNDECIDED for slot in state.slots)


_UNDECIDED = (Phase.OPEN, Phase.FLUSHING, Phase.PREPARED, Phase.COMMITTING)


def _begun(state: Sink) -> tuple[Sink, tuple[Effect, ...]]:
    if open_slot(state) is not None:
        raise ProtocolViolation("a second transaction was asked for in one epoch (S1)")
    if any(slot.phase is Phase.FLUSHING for slot in state.slots):
        return state, ()  # the driver asks again after Prepared (S6)
    warm = next((i for i, slot in enumerate(state.slots) if slot.phase is Phase.WARM), None)
    if warm is not None:
        begun = _put(state, warm, Slot(Phase.OPEN))
        return _stocked(begun, (Begin(warm),))
    if any(slot.phase in (Phase.OPENING, Phase.COLD) for slot in state.slots):
        return _stocked(state, ())  # the driver waits for SlotOpened and asks again
    proven = next((i for i, slot in enumerate(state.slots) if slot.phase is Phase.PROVEN), None)
    if proven is not None:  # a new producer epoch makes the slot safe at once (S3)
        return _put(state, proven, Slot(Phase.OPENING)), (Renew(proven), Open(proven))
    if any(slot.phase is Phase.COMMITTING for slot in state.slots):
        return state, ()
    return state, (Exhausted(sum(slot.phase in _UNDECIDED for slot in state.slots)),)


def _closed(state: Sink, checkpoint: CheckpointId) -> tuple[Sink, tuple[Effect, ...]]:
    at = open_slot(state)
    if at is None:
        return state, ()
    return _put(state, at, Slot(Phase.FLUSHING, checkpoint)), (PreCommit(at, checkpoint),)


def _prepared(state: Sink, slot: int, committable: Committable) -> Sink:
    held = _slot(state, slot)
    prepared = _moved(
        state, slot, Phase.FLUSHING, Slot(Phase.PREPARED, held.checkpoint, committable)
    )
    if committable.checkpoint != held.checkpoint:
        raise ProtocolViolation(
            f"slot {slot} was pre-committed for checkpoint {committable.checkpoint}, expected "
            f"{held.checkpoint}: its witness would prove the wrong thing (L15)"
        )
    return prepared


def _acknowledged(state: Sink, checkpoint: CheckpointId) -> Sink:
    slots = tuple(
        msgspec.structs.replace(slot, absent_from=checkpoint)
        if slot.phase is Phase.PROVEN and slot.absent_from is None
        else slot
        for slot in state.slots
    )
    return msgspec.structs.replace(state, slots=slots)


def _completed(state: Sink, checkpoint: CheckpointId) -> tuple[Sink, tuple[Effect, ...]]:
    effects: list[Effect] = []
    slots = list(state.slots)
    for i, slot in enumerate(slots):
        if slot.phase is Phase.PROVEN:
            if slot.absent_from is not None and slot.absent_from <= checkpoint:
                slots[i] = Slot(Phase.WARM)
        elif slot.checkpoint is not None and slot.checkpoint <= checkpoint:
            if slot.phase is Phase.FLUSHING:
                raise ProtocolViolation(
                    f"Complete({checkpoint}) while the transaction of checkpoint {slot.checkpoint} "
                    "is not pre-committed: it was acknowledged by somebody else (L13)"
                )
            if slot.phase is Phase.PREPARED:
                slots[i] = msgspec.structs.replace(slot, phase=Phase.COMMITTING)
                effects.append(Commit(CommitPermit(i, checkpoint)))
    completed = max(state.completed, checkpoint)
    return Sink(tuple(slots), state.limit, completed), tuple(effects)


def _committed(state: Sink, slot: int, definite: bool) -> tuple[Sink, tuple[Effect, ...]]:
    held = _slot(state, slot)
    if definite:
        proven = Slot(Phase.PROVEN, held.checkpoint)
        return _moved(state, slot, Phase.COMMITTING, proven), ()
    cold = _moved(state, slot, Phase.COMMITTING, Slot())
    return _stocked(cold, (Renew(slot),))


def _stocked(state: Sink, effects: tuple[Effect, ...]) -> tuple[Sink, tuple[Effect, ...]]:
    """Open cold slots until SPARE are warm or will be (S3: proven ones come back by themselves)."""
    spare = sum(slot.phase in (Phase.WARM, Phase.OPENING, Phase.PROVEN) for slot in state.slots)
    for i, slot in enumerate(state.slots):
        if slot.phase is Phase.COLD and spare < SPARE:
            state, spare = _put(state, i, Slot(Phase.OPENING)), spare + 1
            effects = (*effects, Open(i))
    if not any(slot.phase in (Phase.WARM, Phase.OPENING) for slot in state.slots):
        cold = next((i for i, slot in enumerate(state.slots) if slot.phase is Phase.COLD), None)
        if cold is not None:
            state, effects = _put(state, cold, Slot(Phase.OPENING)), (*effects, Open(cold))
    return state, effects


def _slot(state: Sink, at: int) -> Slot:
    if not 0 <= at < len(state.slots):
        raise ProtocolViolation(f"slot {at} is not of this pool of {len(state.slots)} (S5)")
    return state.slots[at]


def _moved(state: Sink, at: int, expected: Phase, slot: Slot) -> Sink:
    found = _slot(state, at).phase
    if found is not expected:
        raise ProtocolViolation(f"slot {at} is {found.value}, expected {expected.value}")
    return _put(state, at, slot)


def _put(state: Sink, at: int, slot: Slot) -> Sink:
    slots = (*state.slots[:at], slot, *state.slots[at + 1 :])
    return msgspec.structs.replace(state, slots=slots)
