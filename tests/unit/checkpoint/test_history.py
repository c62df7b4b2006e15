"""The fold of the decision log; H1-H4 (L1, L2, L3, L14)."""

from typing import Any

import pytest
from penstock.checkpoint.history import (
    REMEMBERED,
    History,
    applied,
    completed_at,
    retained,
    summary,
)
from penstock.control import (
    Abort,
    AnyDecision,
    Complete,
    Deploy,
    Restore,
    Stop,
    Summary,
    TermBegan,
    Trigger,
    decode_decision,
    encode,
)
from penstock.failure import ProtocolViolation
from penstock.graph import ServiceSpec, SinkSpec, SourceSpec, StageSpec
from penstock.ids import Attempt, CheckpointId, Term

TERM = Term(0)


def n(number: int) -> CheckpointId:
    return CheckpointId(number)


def trigger(number: int, term: int = TERM, kind: str = "checkpoint") -> Trigger:
    return Trigger(term=Term(term), attempt=Attempt(1), checkpoint=n(number), kind=kind)


def complete(number: int, term: int = TERM) -> Complete:
    return Complete(
        term=Term(term), attempt=Attempt(1), checkpoint=n(number), manifest=f"m{number}"
    )


def abort(number: int, term: int = TERM) -> Abort:
    return Abort(term=Term(term), attempt=Attempt(1), checkpoint=n(number), reason="")


def restore(attempt: int, checkpoint: int | None, term: int = TERM) -> Restore:
    chosen = None if checkpoint is None else n(checkpoint)
    return Restore(
        term=Term(term), attempt=Attempt(attempt), checkpoint=chosen, manifest=None, reason=""
    )


def deploy(attempt: int, parallelism: int = 2, pool: int = 5) -> Deploy:
    stage = StageSpec(
        name="s.in",
        input=SourceSpec(uid="in", topic="t", value="str"),
        operators=(),
        edges=(),
        sinks=(SinkSpec(uid="out", topic="o"),),
    )
    return Deploy(
        term=TERM,
        attempt=Attempt(attempt),
        checkpoint=None,
        manifest=None,
        services=(ServiceSpec(name="s", app="a", stages=(stage,)),),
        parallelism={"s": parallelism},
        assignment={},
        edge_starts={},
        pool=pool,
    )


def folded(*decisions: AnyDecision) -> History:
    history = History()
    for offset, decision in enumerate(decisions):
        history, _ = applied(history, offset, decode_decision(encode(decision)))
    return history


def test_a_checkpoint_is_complete_when_the_log_says_so() -> None:
    """H2 (L2)."""
    history = folded(TermBegan(leader="a"), trigger(1))
    assert history.in_flight == 1
    assert completed_at(history, n(1)) is None
    history = folded(TermBegan(leader="a"), trigger(1), complete(1))
    assert history.completed == ((1, "m1"),)
    assert completed_at(history, n(1)) == "m1"
    assert history.in_flight is None


def test_a_lesser_term_after_a_greater_one_is_void() -> None:
    """H1 (L1): the paused leader's Complete does not undo the new leader's Abort."""
    log = [TermBegan(leader="a"), trigger(1), TermBegan(leader="b"), abort(1, term=2)]
    before = folded(*log)
    after, counts = applied(before, 4, complete(1, term=0))
    assert not counts
    assert after == before
    assert before.completed == ()


def test_a_reader_that_begins_at_a_summary_knows_the_term() -> None:
    """H1: else a stale record behind the summary would count."""
    history = folded(
        Summary(
            term=Term(7),
            attempt=Attempt(3),
            next_checkpoint=n(10),
            retained=((n(9), "m9"),),
            sinks={"out": (2, 5)},
        )
    )
    assert history.term == 7
    assert applied(history, 1, trigger(10, term=5))[1] is False
    assert history.completed == ((9, "m9"),)
    assert history.last_checkpoint == 9


@pytest.mark.parametrize(
    ("log", "record"),
    [
        ([trigger(2), abort(2)], trigger(2)),
        ([trigger(1), abort(1)], complete(1)),
        ([trigger(1), complete(1)], complete(1)),
        ([restore(2, None)], restore(2, None)),
        ([restore(3, None)], deploy(2)),
    ],
    ids=["trigger again", "complete after abort", "complete twice", "restore again", "old deploy"],
)
def test_what_goes_back_is_a_violation(log: list[Any], record: AnyDecision) -> None:
    """H3 (L3)."""
    with pytest.raises(ProtocolViolation, match="go back"):
        folded(TermBegan(leader="a"), *log, record)


def test_a_restore_ends_the_line_after_its_checkpoint() -> None:
    """H4 (L14): what it fences can never be restored again."""
    history = folded(
        TermBegan(leader="a"), trigger(1), complete(1), trigger(2), complete(2), restore(2, 1)
    )
    assert history.completed == ((1, "m1"),)
    assert history.last_checkpoint == 2
    assert history.attempt == 2
    assert history.deploy is None


def test_sinks_remember_the_greatest_pool() -> None:
    """L16: every id that any deployment could have used."""
    history = folded(deploy(1, parallelism=4, pool=5), deploy(2, parallelism=2, pool=9))
    assert history.sinks == {"out": (4, 9)}
    assert history.parallelism == {"s": 2}


def test_a_stopped_application_can_start_again() -> None:
    history = folded(
        TermBegan(leader="a"), deploy(1), trigger(1, kind="stop"), complete(1),
        Stop(term=TERM, attempt=Attempt(1), checkpoint=n(1)),
    )  # fmt: skip
    assert history.stopped
    assert history.stopping is None
    again = applied(history, 5, restore(2, 1))[0]
    assert not again.stopped


def test_a_stop_on_its_way_is_remembered() -> None:
    """C8: a leader that finds Complete of a stop without its Stop must finish the stop."""
    log = [TermBegan(leader="a"), deploy(1), trigger(1, kind="stop")]
    assert folded(*log).stopping == 1
    assert folded(*log, complete(1)).stopping == 1
    assert folded(*log, abort(1)).stopping is None


def test_a_summary_stands_for_the_log_before_it() -> None:
    history = folded(TermBegan(leader="a"), deploy(1), trigger(1), complete(1))
    again, _ = applied(History(), 9, summary(history, 2))
    assert again.completed == history.completed
    assert again.last_checkpoint == history.last_checkpoint
    assert again.deploy == history.deploy
    assert again.sinks == history.sinks


def test_a_summary_of_a_stopped_application_does_not_run_it() -> None:
    history = folded(deploy(1), Stop(term=TERM, attempt=Attempt(1), checkpoint=None))
    assert applied(History(), 9, summary(history, 2))[0].deploy is None


def test_no_summary_hides_a_checkpoint_in_flight() -> None:
    """L3: the next leader must abort it."""
    with pytest.raises(ValueError, match="in flight"):
        summary(folded(TermBegan(leader="a"), trigger(1)), 2)


def test_memory_is_bounded() -> None:
    log = [d for i in range(1, 100) for d in (trigger(i), complete(i))]
    history = folded(TermBegan(leader="a"), *log)
    assert len(history.completed) == REMEMBERED
    assert retained(history, 2) == ((98, "m98"), (99, "m99"))
