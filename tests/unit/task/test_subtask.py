"""One subtask, step by step; T1-T6 (L2, L4, L6, L11, L13, L14)."""

import itertools
from typing import Any

import pytest
from penstock.control import Committable
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, CheckpointId
from penstock.sink import transaction as tx
from penstock.task.subtask import (
    Acknowledge,
    BarrierPassed,
    Cease,
    CheckpointAborted,
    CheckpointCompleted,
    Decline,
    Finish,
    ForwardBarrier,
    Freeze,
    OnSink,
    SinkChanged,
    SnapshotFailed,
    SnapshotStored,
    StopDecided,
    Subtask,
    Superseded,
    sink_of,
    step,
    subtask,
)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def changed(event: Any) -> SinkChanged:
    return SinkChanged("out", event)


def committable(slot: int, checkpoint: int) -> Committable:
    return Committable(f"id{slot}", 1, 0, n(checkpoint), "out", (0,), 1)


def prepared(slot: int, checkpoint: int) -> SinkChanged:
    return changed(tx.Prepared(slot, committable(slot, checkpoint)))


def after(state: Subtask, *events: Any) -> tuple[Subtask, list[Any]]:
    effects: list[Any] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    return state, effects


def writing() -> Subtask:
    """A subtask with an open transaction."""
    state, effects = subtask(Attempt(3), None, ("out",), 4)
    assert effects == (OnSink("out", tx.Open(0)), OnSink("out", tx.Open(1)))
    opened = [changed(tx.SlotOpened(slot)) for slot in (0, 1)]
    return after(state, *opened, changed(tx.TransactionNeeded()))[0]


def test_at_a_barrier() -> None:
    """T1 (L4, L6): forward, freeze, pre-commit, in this order."""
    _, effects = after(writing(), BarrierPassed(n(1)))
    assert effects == [ForwardBarrier(n(1)), Freeze(n(1)), OnSink("out", tx.PreCommit(0, n(1)))]


@pytest.mark.parametrize("order", [0, 1])
def test_acknowledged_when_stored_and_pre_committed(order: int) -> None:
    """T2 (L2, L13): both, in either order."""
    last = [SnapshotStored(n(1)), prepared(0, 1)]
    first, second = last if order == 0 else last[::-1]
    state, effects = after(writing(), BarrierPassed(n(1)), first)
    assert not any(isinstance(effect, Acknowledge) for effect in effects)
    state, effects = after(state, second)
    assert effects == [Acknowledge(n(1), (committable(0, 1),))]
    assert state.acknowledged == 1
    assert state.pending is None


def test_committed_only_after_complete() -> None:
    """T4 (L14)."""
    state, _ = after(writing(), BarrierPassed(n(1)), SnapshotStored(n(1)), prepared(0, 1))
    state, effects = after(state, CheckpointCompleted(n(1)))
    assert effects == [OnSink("out", tx.Commit(tx.CommitPermit(0, n(1))))]


def test_an_aborted_checkpoint_is_not_acknowledged_and_aborts_no_transaction() -> None:
    """T5 (L14; decision 0004)."""
    state, effects = after(
        writing(), BarrierPassed(n(1)), CheckpointAborted(n(1)), SnapshotStored(n(1)),
        prepared(0, 1),
    )  # fmt: skip
    assert effects == [ForwardBarrier(n(1)), Freeze(n(1)), OnSink("out", tx.PreCommit(0, n(1)))]
    assert sink_of(state, "out").slots[0].phase is tx.Phase.PREPARED
    _, effects = after(state, BarrierPassed(n(2)), SnapshotStored(n(2)), CheckpointCompleted(n(2)))
    assert Acknowledge(n(2), (committable(0, 1),)) in effects
    assert OnSink("out", tx.Commit(tx.CommitPermit(0, n(2)))) in effects


def test_a_superseded_checkpoint_is_not_acknowledged() -> None:
    """T5."""
    state, effects = after(writing(), BarrierPassed(n(1)), BarrierPassed(n(2)))
    state, effects = after(state, SnapshotStored(n(1)), prepared(0, 1))
    assert effects == []
    _, effects = after(state, SnapshotStored(n(2)))
    assert effects == [Acknowledge(n(2), (committable(0, 1),))]


def test_a_late_abort_does_not_touch_a_newer_checkpoint() -> None:
    state, _ = after(writing(), BarrierPassed(n(2)), CheckpointAborted(n(1)))
    assert state.pending is not None


def test_a_failed_snapshot_is_declined() -> None:
    """T5: once, and not acknowledged."""
    state, effects = after(writing(), BarrierPassed(n(1)), SnapshotFailed(n(1), "down"))
    assert effects[-1] == Decline(n(1), "down")
    _, effects = after(state, SnapshotStored(n(1)), prepared(0, 1), SnapshotFailed(n(1), "down"))
    assert effects == []


def test_a_barrier_does_not_come_twice() -> None:
    state, _ = after(writing(), BarrierPassed(n(2)))
    for again in (1, 2):
        with pytest.raises(ProtocolViolation, match="after barrier 2"):
            step(state, BarrierPassed(n(again)))


def test_a_complete_that_was_not_acknowledged_is_a_violation() -> None:
    """T6 (L2): somebody else acknowledged in our name."""
    state, _ = after(writing(), BarrierPassed(n(1)))
    with pytest.raises(ProtocolViolation, match="not acknowledged"):
        step(state, CheckpointCompleted(n(1)))
    declined, _ = after(state, SnapshotFailed(n(1), "down"))
    with pytest.raises(ProtocolViolation, match="not acknowledged"):
        step(declined, CheckpointCompleted(n(1)))


def test_a_greater_attempt_ends_it() -> None:
    """T3 (L11): after Cease nothing is acknowledged, committed or begun."""
    state, _ = after(writing(), BarrierPassed(n(1)), SnapshotStored(n(1)))
    assert after(state, Superseded(Attempt(3)))[1] == []
    state, effects = after(state, Superseded(Attempt(4)))
    assert effects == [Cease()]
    _, effects = after(
        state, prepared(0, 1), BarrierPassed(n(2)), CheckpointCompleted(n(1)),
        changed(tx.TransactionNeeded()), StopDecided(n(1)),
    )  # fmt: skip
    assert effects == []


def test_a_stop_waits_for_its_commits() -> None:
    """L14: Stop is the last word, its transactions are proven first."""
    state, _ = after(
        writing(), BarrierPassed(n(1)), SnapshotStored(n(1)), prepared(0, 1),
        CheckpointCompleted(n(1)),
    )  # fmt: skip
    state, effects = after(state, StopDecided(n(1)))
    assert effects == []
    _, effects = after(state, changed(tx.Committed(0, definite=True)))
    assert effects == [Finish()]


def test_a_stop_with_nothing_to_commit_is_at_once() -> None:
    state, _ = subtask(Attempt(1), None, (), 4)
    assert after(state, StopDecided(None))[1] == [Finish()]


def test_a_restored_subtask_goes_on_after_its_checkpoint() -> None:
    """L12."""
    state, _ = subtask(Attempt(2), n(7), (), 4)
    with pytest.raises(ProtocolViolation):
        step(state, BarrierPassed(n(7)))
    assert after(state, BarrierPassed(n(8)))[1] == [ForwardBarrier(n(8)), Freeze(n(8))]


def test_totality() -> None:
    """Every event after every short history is legal or a ProtocolViolation."""
    events: list[Any] = [
        BarrierPassed(n(1)), BarrierPassed(n(2)), SnapshotStored(n(1)), SnapshotStored(n(2)),
        SnapshotFailed(n(1), "down"), prepared(0, 1), changed(tx.Committed(0, definite=True)),
        changed(tx.TransactionNeeded()), changed(tx.SlotOpened(1)), CheckpointCompleted(n(1)),
        CheckpointCompleted(n(2)), CheckpointAborted(n(1)), Superseded(Attempt(4)),
        StopDecided(n(1)), StopDecided(None),
    ]  # fmt: skip
    seen, edge = {writing()}, {writing()}
    for _ in itertools.repeat(None, 6):
        found = set()
        for state in edge:
            for event in events:
                try:
                    found.add(step(state, event)[0])
                except ProtocolViolation:
                    continue
        edge = found - seen
        seen |= edge
    assert len(seen) > 100
