"""One subtask between two restores: barriers in, acknowledgements out, commits when decided.

Alignment (`penstock.barrier`) comes before this machine and the loop that moves records beside it;
this one decides what follows from a barrier: forward it, freeze the state, pre-commit, acknowledge
when everything is durable, commit after Complete, stop at a newer attempt.

Invariants (tests cite them):
- T1 (L6, L4) at a barrier the effects are, in this order: ForwardBarrier, Freeze, then each sink's
  PreCommit; and no record is processed between them.
- T2 (L2, L13) Acknowledge(n) only when chunk n and all before it in the chain are stored and every
  transaction up to n is pre-committed.
- T3 (L11) after Cease nothing is acknowledged, committed or begun for the attempt.
- T4 (L14) a commit only after Complete of the same attempt.
- T5 a checkpoint aborted, superseded or declined is never acknowledged.
- T6 (L2) a Complete of a checkpoint that was not acknowledged here is a ProtocolViolation.
"""

from typing import TypeAlias

import msgspec

from penstock.control import Committable
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, CheckpointId
from penstock.sink import transaction as tx


class Pending(msgspec.Struct, frozen=True):
    """A checkpoint whose barrier passed here and which is not acknowledged yet."""

    checkpoint: CheckpointId
    stored: bool = False


class Subtask(msgspec.Struct, frozen=True):
    """State of one subtask in one attempt."""

    attempt: Attempt
    sinks: tuple[tuple[str, tx.Sink], ...]
    barrier: CheckpointId = CheckpointId(0)
    """Greatest barrier that passed."""
    pending: Pending | None = None
    acknowledged: CheckpointId = CheckpointId(0)
    """Greatest checkpoint that was acknowledged."""
    stopping: CheckpointId | None = None
    ended: bool = False


class BarrierPassed(msgspec.Struct, frozen=True):
    """A source's Trigger, or Aligned: the subtask stands exactly at barrier ``checkpoint``."""

    checkpoint: CheckpointId


class SnapshotStored(msgspec.Struct, frozen=True):
    """Chunk ``checkpoint`` and all older ones of the chain are durable (or inline)."""

    checkpoint: CheckpointId


class SnapshotFailed(msgspec.Struct, frozen=True):
    """The store did not take the chunk; it stays in the chain and is tried again with the next."""

    checkpoint: CheckpointId
    reason: str


class SinkChanged(msgspec.Struct, frozen=True):
    """Something happened to the pool of sink ``uid``."""

    uid: str
    event: tx.SlotOpened | tx.TransactionNeeded | tx.Prepared | tx.Committed


class CheckpointCompleted(msgspec.Struct, frozen=True):
    """The decision log holds Complete(checkpoint) of this attempt."""

    checkpoint: CheckpointId


class CheckpointAborted(msgspec.Struct, frozen=True):
    """The decision log holds Abort(checkpoint)."""

    checkpoint: CheckpointId


class Superseded(msgspec.Struct, frozen=True):
    """The decision log holds Restore or Deploy of a greater attempt."""

    attempt: Attempt


class StopDecided(msgspec.Struct, frozen=True):
    """The decision log holds Stop: leave once everything completed is committed."""

    checkpoint: CheckpointId | None


Event: TypeAlias = (
    BarrierPassed
    | SnapshotStored
    | SnapshotFailed
    | SinkChanged
    | CheckpointCompleted
    | CheckpointAborted
    | Superseded
    | StopDecided
)


class ForwardBarrier(msgspec.Struct, frozen=True):
    """Flush every edge and write the barrier to every lane of it (L6)."""

    checkpoint: CheckpointId


class Freeze(msgspec.Struct, frozen=True):
    """Take the synchronous part of the snapshot (L18)."""

    checkpoint: CheckpointId


class OnSink(msgspec.Struct, frozen=True):
    """An effect of one sink's pool."""

    uid: str
    effect: tx.Effect


class Acknowledge(msgspec.Struct, frozen=True):
    """Report the snapshot with these transactions."""

    checkpoint: CheckpointId
    transactions: tuple[Committable, ...]


class Decline(msgspec.Struct, frozen=True):
    """Report that this checkpoint cannot be taken here."""

    checkpoint: CheckpointId
    reason: str


class Cease(msgspec.Struct, frozen=True):
    """Stop acting for the attempt: close clients, commit nothing (L11)."""


class Finish(msgspec.Struct, frozen=True):
    """Everything up to Stop is committed: leave."""


Effect: TypeAlias = ForwardBarrier | Freeze | OnSink | Acknowledge | Decline | Cease | Finish
Step: TypeAlias = tuple[Subtask, tuple[Effect, ...]]


def subtask(
    attempt: Attempt, restored: CheckpointId | None, sinks: tuple[str, ...], pool: int
) -> Step:
    """The machine after a restore from ``restored``, and the effects that warm its sinks."""
    pools, effects = [], []
    for uid in sinks:
        pool_state, opened = tx.sink(pool)
        pools.append((uid, pool_state))
        effects += [OnSink(uid, effect) for effect in opened]
    start = Subtask(
        attempt,
        tuple(pools),
        barrier=CheckpointId(restored or 0),
        acknowledged=CheckpointId(restored or 0),
    )
    return start, tuple(effects)


def step(state: Subtask, event: Event) -> Step:
    """One step; raises ProtocolViolation where the law leaves no choice."""
    if state.ended:
        return state, ()
    match event:
        case BarrierPassed(checkpoint):
            return _barrier(state, checkpoint)
        case SnapshotStored(checkpoint):
            return _stored(state, checkpoint)
        case SnapshotFailed(checkpoint, reason):
            return _failed(state, checkpoint, reason)
        case SinkChanged(uid, change):
            return _acknowledged(*_on_sink(state, uid, change))
        case CheckpointCompleted(checkpoint):
            return _completed(state, checkpoint)
        case CheckpointAborted(checkpoint):
            return _aborted(state, checkpoint), ()
        case Superseded(attempt):
            if attempt <= state.attempt:
                return state, ()
            return msgspec.structs.replace(state, ended=True), (Cease(),)
        case StopDecided(checkpoint):
            stopping = CheckpointId(checkpoint or 0)
            return _finished(msgspec.structs.replace(state, stopping=stopping), ())


def sink_of(state: Subtask, uid: str) -> tx.Sink:
    """The pool of sink ``uid``."""
    return next(pool for name, pool in state.sinks if name == uid)


def _barrier(state: Subtask, checkpoint: CheckpointId) -> Step:
    if checkpoint <= state.barrier:
        raise ProtocolViolation(f"barrier {checkpoint} after barrier {state.barrier}")
    effects: list[Effect] = [ForwardBarrier(checkpoint), Freeze(checkpoint)]
    pools = []
    for uid, pool in state.sinks:
        changed, asked = tx.step(pool, tx.BarrierReached(checkpoint))
        pools.append((uid, changed))
        effects += [OnSink(uid, effect) for effect in asked]
    passed = msgspec.structs.replace(
        state, sinks=tuple(pools), barrier=checkpoint, pending=Pending(checkpoint)
    )
    return passed, tuple(effects)


def _stored(state: Subtask, checkpoint: CheckpointId) -> Step:
    if state.pending is None or state.pending.checkpoint != checkpoint:
        return state, ()
    return _acknowledged(
        msgspec.structs.replace(state, pending=Pending(checkpoint, stored=True)), ()
    )


def _failed(state: Subtask, checkpoint: CheckpointId, reason: str) -> Step:
    if state.pending is None or state.pending.checkpoint != checkpoint:
        return state, ()
    return msgspec.structs.replace(state, pending=None), (Decline(checkpoint, reason),)


def _on_sink(state: Subtask, uid: str, event: tx.Event) -> Step:
    changed, effects = tx.step(sink_of(state, uid), event)
    pools = tuple((name, changed if name == uid else pool) for name, pool in state.sinks)
    state = msgspec.structs.replace(state, sinks=pools)
    return _finished(state, tuple(OnSink(uid, effect) for effect in effects))


def _acknowledged(state: Subtask, effects: tuple[Effect, ...]) -> Step:
    pending = state.pending
    if pending is None or not pending.stored:
        return state, effects
    if not all(tx.is_prepared(pool, pending.checkpoint) for _, pool in state.sinks):
        return state, effects
    transactions = tuple(
        committable
        for _, pool in state.sinks
        for committable in tx.listed(pool, pending.checkpoint)
    )
    pools = tuple(
        (uid, tx.step(pool, tx.Acknowledged(pending.checkpoint))[0]) for uid, pool in state.sinks
    )
    state = msgspec.structs.replace(
        state, sinks=pools, pending=None, acknowledged=pending.checkpoint
    )
    return state, (*effects, Acknowledge(pending.checkpoint, transactions))


def _completed(state: Subtask, checkpoint: CheckpointId) -> Step:
    if checkpoint > state.acknowledged:
        raise ProtocolViolation(
            f"Complete({checkpoint}) of attempt {state.attempt}: not acknowledged by this subtask"
        )
    effects: tuple[Effect, ...] = ()
    for uid, _ in state.sinks:
        state, asked = _on_sink(state, uid, tx.CheckpointCompleted(checkpoint))
        effects += asked
    return _finished(state, effects)


def _aborted(state: Subtask, checkpoint: CheckpointId) -> Subtask:
    if state.pending is None or state.pending.checkpoint > checkpoint:
        return state
    return msgspec.structs.replace(state, pending=None)


def _finished(state: Subtask, effects: tuple[Effect, ...]) -> Step:
    """Leave once Stop's checkpoint has completed here and its commits are proven.

    What was opened after Stop's barrier belongs to no checkpoint: recovery's fence aborts it (L16).
    """
    stop = state.stopping
    if stop is None or state.ended:
        return state, effects
    waiting = any(
        slot.phase in (tx.Phase.PREPARED, tx.Phase.FLUSHING, tx.Phase.COMMITTING)
        and slot.checkpoint is not None
        and slot.checkpoint <= stop
        for _, pool in state.sinks
        for slot in pool.slots
    )
    if waiting:
        return state, effects
    return msgspec.structs.replace(state, ended=True), (*effects, Finish())
