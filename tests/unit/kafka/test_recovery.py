"""The table of what EndTxn's answers mean (docs/concepts/sinks.md), every row."""

from typing import Any

import pytest
from penstock.control import Committable
from penstock.failure import ConfigurationError, ProtocolViolation, TransportFailed
from penstock.ids import CheckpointId
from penstock.runtime.ports import Outcome
from penstock_kafka.recovery import KafkaRecovery, _witness
from penstock_kafka.wire import UNANSWERED

A = Committable(
    transactional_id="penstock.a!s!0!0",
    producer_id=5,
    producer_epoch=2,
    checkpoint=CheckpointId(9),
    topic="t",
    partitions=(0,),
    records=1,
)


class Answers:
    """A wire that answers from a list and notes what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    def end(self, *args: Any, commit: bool) -> int:
        self.asked.append((*args, commit))
        return int(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def initialise(self, names: list[str], timeout_ms: int) -> dict[str, int]:
        self.asked.append(names)
        codes = self.answers.pop(0)
        return {name: codes.get(name, 0) for name in names}


def over(wire: Answers, timeout_s: float = 20.0) -> KafkaRecovery:
    make: Any = lambda _: wire  # noqa: E731
    return KafkaRecovery(make, {}, "a.witness", timeout_s)


@pytest.mark.parametrize("passing", [UNANSWERED, 7, 13, 14, 15, 16, 51])
@pytest.mark.parametrize(
    ("last", "outcome"),
    [
        (0, Outcome.COMMITTED),
        (47, Outcome.AMBIGUOUS),
        (48, Outcome.AMBIGUOUS),
        (49, Outcome.AMBIGUOUS),
        (90, Outcome.AMBIGUOUS),
    ],
)
def test_every_answer(passing: int, last: int, outcome: Outcome) -> None:
    """L14, L15: passing answers are asked again, with the same pid and epoch, until one decides."""
    wire = Answers(passing, passing, last)
    assert over(wire).commit(A) is outcome
    assert wire.asked == [("penstock.a!s!0!0", 5, 2, True)] * 3


def test_refused_by_acl_is_for_a_person() -> None:
    with pytest.raises(ConfigurationError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        over(Answers(53)).commit(A)


@pytest.mark.parametrize(("code", "said"), [(51, "CONCURRENT"), (UNANSWERED, "no answer")])
def test_a_deadline_ends_the_asking(code: int, said: str) -> None:
    with pytest.raises(TransportFailed, match=rf"of checkpoint 9: .*{said}"):
        over(Answers(code), 0.05).commit(A)


def test_an_answer_that_is_not_in_the_table_is_no_outcome() -> None:
    with pytest.raises(TransportFailed, match="committing"):
        over(Answers(87)).commit(A)


def test_fencing_asks_again_only_those_that_are_left() -> None:
    """L16: until every id is initialised."""
    wire = Answers({"b": 51, "c": 14}, {"b": 51, "c": 0}, {"b": 16}, {})
    over(wire).fence(["c", "a", "b"])
    assert wire.asked == [["a", "b", "c"], ["b", "c"], ["b"], ["b"]]


def test_a_witness_is_a_number() -> None:
    assert _witness(b"penstock.a!s!0!0", b"12", 3) == ("penstock.a!s!0!0", 12)
    for key, value in [(None, b"1"), (b"k", None), (b"k", b"x"), (b"k", b"-1")]:
        with pytest.raises(ProtocolViolation, match="record 3 of the witness topic"):
            _witness(key, value, 3)
