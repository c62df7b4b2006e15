"""The verdict of a restore; R1-R4 (L14-L16)."""

import pytest
from penstock.checkpoint.restore import (
    FallBack,
    Proceed,
    Refuse,
    fenceable,
    is_proven,
    loss_report,
    verdict,
)
from penstock.control import Committable
from penstock.ids import Attempt, CheckpointId, transactional_id

NEWEST, OLDER = CheckpointId(8), CheckpointId(7)


def transaction(slot: int, checkpoint: int = NEWEST) -> Committable:
    name = transactional_id("app", "out", 0, slot, Attempt(3))
    return Committable(name, 100 + slot, 0, CheckpointId(checkpoint), "orders", (0, 2), 41)


A, B = transaction(0), transaction(1)
NONE: frozenset[Committable] = frozenset()


def test_everything_committed_goes_on() -> None:
    assert verdict((A, B), frozenset({A, B}), {}, OLDER) == Proceed()
    assert verdict((), NONE, {}, None) == Proceed()


def test_a_witness_is_proof() -> None:
    """L15: fenced, unknown and empty say nothing by themselves."""
    witnesses = {A.transactional_id: NEWEST, B.transactional_id: NEWEST}
    assert verdict((A, B), NONE, witnesses, OLDER) == Proceed()
    older = {A.transactional_id: OLDER}
    assert not is_proven(A, older)


def test_all_lost_falls_back() -> None:
    """R2."""
    assert verdict((A, B), NONE, {}, OLDER) == FallBack(OLDER, (A, B))


def test_what_an_older_checkpoint_committed_does_not_hinder() -> None:
    """R2: a transaction of the older checkpoint, proven after the newest was acknowledged."""
    before = transaction(2, OLDER)
    assert verdict((A, before), frozenset({before}), {}, OLDER) == FallBack(OLDER, (A,))


def test_some_lost_is_refused() -> None:
    """R3."""
    assert verdict((A, B), frozenset({A}), {}, OLDER) == Refuse((B,), (A,))


def test_all_lost_without_an_older_checkpoint_is_refused() -> None:
    """R1, R3: never skipped."""
    assert verdict((A,), NONE, {}, None) == Refuse((A,), ())


def test_only_a_person_accepts_loss() -> None:
    assert verdict((A, B), frozenset({A}), {}, OLDER, accept_loss=True) == Proceed()


def test_the_report_names_what_is_lost_and_the_remedy() -> None:
    report = loss_report(Refuse((B,), (A,)))
    for part in ("41 records", "checkpoint 8", "'orders'", "[0, 2]", "--accept-loss", "1 of 2"):
        assert part in report


@pytest.mark.parametrize(("attempt", "fenced"), [(1, []), (3, [2]), (4, [2, 3])])
def test_only_older_attempts_are_fenced(attempt: int, fenced: list[int]) -> None:
    """R4 (L16; decision 0007): a recovery that slept cannot end a newer attempt's transactions."""
    names = {a: transactional_id("app", "out", 0, 0, Attempt(a)) for a in (2, 3, 4)}
    assert fenceable(names.values(), Attempt(attempt)) == {names[a] for a in fenced}


def test_a_foreign_id_under_the_prefix_is_fenced() -> None:
    """L16: nothing open stays behind, whoever made it."""
    assert fenceable(["penstock.app!old"], Attempt(1)) == {"penstock.app!old"}
