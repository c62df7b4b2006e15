"""The pool of one sink, step by step; S1-S5 (L13-L17)."""

from typing import Any

import pytest
from penstock.control import Committable
from penstock.failure import ProtocolViolation
from penstock.ids import CheckpointId
from penstock.sink import transaction as tx
from penstock.sink.transaction import (
    Acknowledged,
    BarrierReached,
    Begin,
    CheckpointCompleted,
    Commit,
    CommitPermit,
    Committed,
    Exhausted,
    Open,
    Phase,
    PreCommit,
    Prepared,
    Renew,
    Sink,
    Slot,
    SlotOpened,
    TransactionNeeded,
    listed,
    sink,
    step,
)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def committable(slot: int, checkpoint: int) -> Committable:
    return Committable(f"id{slot}", 1000 + slot, 0, n(checkpoint), "out", (0,), 1)


def prepared(slot: int, checkpoint: int) -> Prepared:
    return Prepared(slot, committable(slot, checkpoint))


def after(state: Sink, *events: Any) -> tuple[Sink, list[Any]]:
    effects: list[Any] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    return state, effects


def warm(limit: int = 5) -> Sink:
    return after(sink(limit)[0], SlotOpened(0), SlotOpened(1))[0]


def phases(state: Sink) -> list[Phase]:
    return [slot.phase for slot in state.slots]


def test_a_new_pool_warms_two_producers() -> None:
    state, effects = sink(5)
    assert effects == (Open(0), Open(1))
    assert phases(state) == [Phase.OPENING] * 2 + [Phase.COLD] * 3


def test_a_pool_of_two_is_too_small() -> None:
    """S5 (L16)."""
    with pytest.raises(ValueError, match="at least 3"):
        sink(2)


def test_an_epoch_from_its_first_record_to_its_commit() -> None:
    """S1, S2, S4 (L13, L14)."""
    state, effects = after(warm(), TransactionNeeded())
    assert effects == [Begin(0), Open(2)]
    assert tx.open_slot(state) == 0
    state, effects = after(state, BarrierReached(n(1)))
    assert effects == [PreCommit(0, n(1))]
    assert not tx.is_prepared(state, n(1))
    state, effects = after(state, prepared(0, 1))
    assert effects == []
    assert listed(state, n(1)) == (committable(0, 1),)
    state, effects = after(state, Acknowledged(n(1)), CheckpointCompleted(n(1)))
    assert effects == [Commit(CommitPermit(0, n(1)))]
    assert listed(state, n(1)) == (committable(0, 1),)
    state, effects = after(state, Committed(0, definite=True))
    assert listed(state, n(2)) == ()
    assert tx.is_settled(state)


def test_a_producer_comes_back_when_a_complete_checkpoint_does_not_list_it() -> None:
    """S3 (L17; decision 0005)."""
    state, _ = after(
        warm(), TransactionNeeded(), BarrierReached(n(1)), prepared(0, 1), Acknowledged(n(1)),
        CheckpointCompleted(n(1)), Committed(0, definite=True), SlotOpened(2),
    )  # fmt: skip
    assert state.slots[0].phase is Phase.PROVEN
    state, _ = after(state, CheckpointCompleted(n(1)))
    assert state.slots[0].phase is Phase.PROVEN
    state, _ = after(state, Acknowledged(n(2)))
    assert state.slots[0].phase is Phase.PROVEN
    state, _ = after(state, CheckpointCompleted(n(2)))
    assert state.slots[0].phase is Phase.WARM


def test_proof_after_the_acknowledgement_waits_for_one_checkpoint_more() -> None:
    """S3: checkpoint 2 was acknowledged while transaction 1 was being committed, so it lists it."""
    state, _ = after(
        warm(), TransactionNeeded(), BarrierReached(n(1)), prepared(0, 1), Acknowledged(n(1)),
        CheckpointCompleted(n(1)), BarrierReached(n(2)),
    )  # fmt: skip
    assert listed(state, n(2)) == (committable(0, 1),)
    state, _ = after(
        state, Acknowledged(n(2)), Committed(0, definite=True), CheckpointCompleted(n(2))
    )
    assert state.slots[0].phase is Phase.PROVEN
    state, _ = after(state, Acknowledged(n(3)), CheckpointCompleted(n(3)))
    assert state.slots[0].phase is Phase.WARM


def test_an_indefinite_commit_throws_the_producer_away() -> None:
    """L17: a copy of its request may come late and would end its next transaction."""
    state, _ = after(
        warm(3), TransactionNeeded(), SlotOpened(2), BarrierReached(n(1)), prepared(0, 1),
        CheckpointCompleted(n(1)),
    )  # fmt: skip
    state, effects = after(state, Committed(0, definite=False))
    assert effects[0] == Renew(0)
    assert state.slots[0] == Slot(Phase.COLD)
    assert Begin(0) not in effects


def test_an_aborted_checkpoint_keeps_its_transaction_for_the_next() -> None:
    """S2, S4 (L14; decision 0004): its records go with the next checkpoint that completes."""
    state, _ = after(
        warm(), TransactionNeeded(), BarrierReached(n(1)), prepared(0, 1),
        TransactionNeeded(), BarrierReached(n(2)), prepared(1, 2),
    )  # fmt: skip
    assert listed(state, n(2)) == (committable(0, 1), committable(1, 2))
    _, effects = after(state, CheckpointCompleted(n(2)))
    assert effects == [Commit(CommitPermit(0, n(2))), Commit(CommitPermit(1, n(2)))]


def test_an_epoch_without_records_has_no_transaction() -> None:
    state, effects = after(warm(), BarrierReached(n(1)))
    assert effects == []
    assert listed(state, n(1)) == ()


def test_a_second_transaction_in_an_epoch_is_a_violation() -> None:
    """S1 (L13)."""
    with pytest.raises(ProtocolViolation, match="S1"):
        after(warm(), TransactionNeeded(), TransactionNeeded())


def test_complete_before_the_pre_commit_is_a_violation() -> None:
    """L13."""
    with pytest.raises(ProtocolViolation, match="not pre-committed"):
        after(warm(), TransactionNeeded(), BarrierReached(n(1)), CheckpointCompleted(n(1)))


def test_a_pre_commit_of_another_checkpoint_is_a_violation() -> None:
    """L15: its witness would prove the wrong thing."""
    with pytest.raises(ProtocolViolation, match="witness"):
        after(warm(), TransactionNeeded(), BarrierReached(n(1)), prepared(0, 2))


def test_a_dry_pool_asks_again_renews_or_gives_up() -> None:
    """S5 (L16): ids are bounded, so a pool can run dry; it never takes an id that is in doubt."""
    opening = sink(3)[0]
    assert after(opening, TransactionNeeded())[1] == []
    proven = Sink((Slot(Phase.PROVEN, n(1)), _held(1), _held(2)), 3)
    assert after(proven, TransactionNeeded())[1] == [Renew(0), Open(0)]
    committing = Sink((_held(0, Phase.COMMITTING), _held(1), _held(2)), 3)
    assert after(committing, TransactionNeeded())[1] == []
    dry = Sink((_held(0), _held(1), _held(2)), 3)
    assert after(dry, TransactionNeeded())[1] == [Exhausted(3)]


def _held(slot: int, phase: Phase = Phase.PREPARED) -> Slot:
    return Slot(phase, n(1), committable(slot, 1))


LEGAL = {
    Phase.COLD: set(),
    Phase.OPENING: {SlotOpened},
    Phase.WARM: set(),
    Phase.OPEN: set(),
    Phase.FLUSHING: {Prepared},
    Phase.PREPARED: set(),
    Phase.COMMITTING: {Committed},
    Phase.PROVEN: set(),
}
"""What may happen to a slot, by its phase; everything else about one slot is a violation."""


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("slot", [-1, 0, 3])
def test_events_of_a_slot_by_its_phase(phase: Phase, slot: int) -> None:
    state = Sink((_held(0, phase), Slot(Phase.WARM), Slot(Phase.WARM)), 3)
    events: list[Any] = [SlotOpened(slot), prepared(slot, 1)]
    events += [Committed(slot, definite=True), Committed(slot, definite=False)]
    for event in events:
        if slot == 0 and type(event) in LEGAL[phase]:
            assert step(state, event)[0] != state
        else:
            with pytest.raises(ProtocolViolation, match=f"slot {slot}"):
                step(state, event)


def test_totality() -> None:
    """Every event in every state that can be reached is legal or a ProtocolViolation (S1, S5)."""
    events: list[Any] = [TransactionNeeded()]
    for slot in range(3):
        events += [
            SlotOpened(slot),
            Committed(slot, definite=True),
            Committed(slot, definite=False),
        ]
        events += [prepared(slot, 1), prepared(slot, 2)]
    for number in (1, 2):
        events += [BarrierReached(n(number)), Acknowledged(n(number))]
        events += [CheckpointCompleted(n(number))]
    edge, seen = {sink(3)[0]}, set()
    while edge and len(seen) < 3000:
        seen |= edge
        edge = {found for state in edge for event in events for found in _next(state, event)} - seen
    assert len(seen) > 1000
    for state in seen:
        assert phases(state).count(Phase.OPEN) <= 1
        assert len(state.slots) == 3


def _next(state: Sink, event: Any) -> list[Sink]:
    try:
        return [step(state, event)[0]]
    except ProtocolViolation:
        return []
