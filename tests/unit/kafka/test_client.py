"""What the clients have in common, without a broker."""

import logging
from typing import Any

import pytest
from confluent_kafka import KafkaError
from penstock.failure import ConfigurationError, TransportFailed
from penstock_kafka.client import Backoff, Errors, Watchdog, failure, queue_all, take
from penstock_kafka.settings import CLIENT_LOG


class FullAt:
    """A producer whose queue is full at some records until it is polled."""

    def __init__(self, *full: int) -> None:
        self.full = set(full)
        self.got: list[tuple[Any, ...]] = []

    def produce(self, *args: Any) -> None:
        if len(self.got) in self.full:
            raise BufferError
        self.got.append(args)

    def poll(self, _: float) -> None:
        self.full.discard(len(self.got))


@pytest.mark.parametrize("full", [(), (0,), (3,), (9,), (0, 1, 2, 9), tuple(range(10))])
@pytest.mark.parametrize("timed", [True, False])
def test_every_record_is_queued_once_and_in_order(full: tuple[int, ...], timed: bool) -> None:
    producer: Any = FullAt(*full)
    keys = [b"k%d" % i for i in range(10)]
    values = [b"v%d" % i for i in range(10)]
    times = [1000 + i for i in range(10)] if timed else None
    queue_all(producer, "t", keys=keys, values=values, times=times, wait_s=5)
    assert producer.got == [
        ("t", v, k, -1, None, None, 1000 + i if timed else 0)
        for i, (k, v) in enumerate(zip(keys, values, strict=True))
    ]


def test_a_queue_that_stays_full_is_an_error() -> None:
    producer: Any = FullAt(2)
    producer.poll = lambda _: None
    with pytest.raises(TransportFailed, match="queue of records for t has been full"):
        queue_all(producer, "t", keys=[None] * 4, values=[b""] * 4, times=None, wait_s=0.01)
    assert len(producer.got) == 2


class Messages:
    """A consumer with some messages ready, and more to come when it waits."""

    def __init__(self, ready: list[int], later: list[int]) -> None:
        self.ready, self.later = ready, later

    def consume(self, n: int, timeout: float) -> list[int]:
        assert timeout == 0, "consume waits for all n"
        taken, self.ready = self.ready[:n], self.ready[n:]
        return taken

    def poll(self, _: float) -> int | None:
        self.ready, self.later = self.ready + self.later, []
        return self.ready.pop(0) if self.ready else None


@pytest.mark.parametrize(
    ("ready", "later", "n", "taken"),
    [
        ([1, 2, 3], [], 2, [1, 2]),
        ([1], [2], 5, [1]),
        ([], [1, 2], 5, [1, 2]),
        ([], [1, 2, 3], 2, [1, 2]),
        ([], [1, 2], 1, [1]),
        ([], [], 5, []),
    ],
)
def test_take_waits_for_the_first_only(
    ready: list[int], later: list[int], n: int, taken: list[int]
) -> None:
    consumer: Any = Messages(ready, later)
    assert take(consumer, n, 1.0) == taken


def test_who_must_act() -> None:
    denied = failure("x", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    assert isinstance(denied, ConfigurationError)
    assert isinstance(failure("x", KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)), TransportFailed)
    errors = Errors()
    errors(KafkaError(KafkaError._TRANSPORT))
    errors.check("x")
    assert errors.seen == 1
    errors(KafkaError(KafkaError._FATAL, "dead", True))
    with pytest.raises(TransportFailed, match="x: the client has stopped"):
        errors.check("x")


def test_the_watchdog_knows_what_is_overdue() -> None:
    dog = Watchdog(grace_s=1.0)
    with dog.over("commit of a", 10.0):
        assert dog.overdue(0.0) is None
        assert dog.overdue(1e12) == "commit of a"
    assert dog.overdue(1e12) is None


def test_backoff_ends() -> None:
    backoff = Backoff(0.02)
    for _ in range(1000):
        if not backoff.wait():
            return
    raise AssertionError("no end")


def test_the_clients_log_does_not_repeat_itself(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, CLIENT_LOG.name):
        for after in range(5):
            CLIENT_LOG.warning("refused (after %dms in state CONNECT)", after)
    assert len(caplog.records) == 1
