"""Alignment, step by step; B1-B4 (L4, L7, L9, L11)."""

import itertools

import pytest
from penstock.barrier.alignment import (
    Aligned,
    Alignment,
    BarrierArrived,
    Began,
    CheckpointAborted,
    Hold,
    Release,
    alignment,
    step,
)
from penstock.failure import ProtocolViolation
from penstock.ids import ChannelId, CheckpointId

A, B, C = (ChannelId("e", 0, upstream) for upstream in range(3))


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def after(state: Alignment, *events: object) -> tuple[Alignment, list[object]]:
    effects: list[object] = []
    for event in events:
        state, more = step(state, event)  # type: ignore[arg-type]
        effects += more
    return state, effects


def arrived(channel: ChannelId, number: int) -> BarrierArrived:
    return BarrierArrived(channel, n(number))


def test_a_checkpoint_is_aligned_when_all_channels_met_their_barrier() -> None:
    """B1 (L4)."""
    state = alignment(frozenset({A, B, C}), None)
    state, effects = after(state, arrived(A, 1))
    assert effects == [Began(n(1)), Hold(A)]
    state, effects = after(state, arrived(C, 1))
    assert effects == [Hold(C)]
    state, effects = after(state, arrived(B, 1))
    assert effects == [Aligned(n(1)), Release()]
    assert state.aligning is None


def test_one_channel_needs_no_holding() -> None:
    _, effects = after(alignment(frozenset({A}), None), arrived(A, 1), arrived(A, 2))
    assert effects == [
        Began(n(1)),
        Aligned(n(1)),
        Release(),
        Began(n(2)),
        Aligned(n(2)),
        Release(),
    ]


def test_an_abort_releases_what_is_held() -> None:
    """B2, B3 (L7): and a late barrier of the aborted checkpoint holds nothing."""
    state = alignment(frozenset({A, B}), None)
    state, effects = after(state, arrived(A, 1), CheckpointAborted(n(1)))
    assert effects[-1] == Release()
    state, effects = after(state, arrived(B, 1))
    assert effects == []
    _, effects = after(state, arrived(A, 2), arrived(B, 2))
    assert Aligned(n(2)) in effects


def test_an_abort_may_come_before_the_first_barrier() -> None:
    state = alignment(frozenset({A, B}), None)
    state, effects = after(state, CheckpointAborted(n(1)), arrived(A, 1), arrived(B, 1))
    assert effects == []


def test_a_late_abort_does_not_end_a_newer_alignment() -> None:
    state = alignment(frozenset({A, B}), None)
    state, effects = after(state, arrived(A, 2), CheckpointAborted(n(1)), arrived(B, 2))
    assert effects == [Began(n(2)), Hold(A), Aligned(n(2)), Release()]


def test_a_newer_barrier_ends_the_older_alignment() -> None:
    """B3: release first, then hold for the newer one."""
    state = alignment(frozenset({A, B}), None)
    state, effects = after(state, arrived(A, 1), arrived(B, 2))
    assert effects == [Began(n(1)), Hold(A), Release(), Began(n(2)), Hold(B)]
    _, effects = after(state, arrived(A, 2))
    assert effects == [Aligned(n(2)), Release()]


def test_at_least_once_holds_nothing() -> None:
    """L4: records beyond the barrier may be reflected, never fewer."""
    state = alignment(frozenset({A, B}), None, exactly_once=False)
    _, effects = after(state, arrived(A, 1), arrived(B, 1))
    assert effects == [Began(n(1)), Aligned(n(1)), Release()]


@pytest.mark.parametrize("again", [1, 2])
def test_barriers_of_a_channel_increase(again: int) -> None:
    """B4 (L9)."""
    state, _ = after(alignment(frozenset({A, B}), None), arrived(A, 2))
    with pytest.raises(ProtocolViolation, match="must increase"):
        step(state, arrived(A, again))


def test_a_restored_alignment_knows_older_barriers() -> None:
    """L10: nothing at or before the restored checkpoint can come in the new attempt."""
    state = alignment(frozenset({A}), n(5))
    with pytest.raises(ProtocolViolation):
        step(state, arrived(A, 5))
    assert after(state, arrived(A, 6))[1][0] == Began(n(6))


def test_a_barrier_of_a_foreign_channel_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="not ours"):
        step(alignment(frozenset({A}), None), arrived(B, 1))


def test_totality() -> None:
    """Every event in every state that four events can reach is legal or a ProtocolViolation."""
    events = [
        *(arrived(channel, number) for channel in (A, B) for number in (1, 2)),
        CheckpointAborted(n(1)),
        CheckpointAborted(n(2)),
    ]
    for exactly_once in (True, False):
        begin = alignment(frozenset({A, B}), None, exactly_once=exactly_once)
        for history in itertools.product(events, repeat=4):
            state, aligned = begin, []
            for event in history:
                try:
                    state, effects = step(state, event)
                except ProtocolViolation:
                    break
                aligned += [e.checkpoint for e in effects if isinstance(e, Aligned)]
            assert aligned == sorted(set(aligned))
            assert state.aligning is not None or not state.arrived
