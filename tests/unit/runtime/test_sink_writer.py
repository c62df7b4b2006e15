"""A sink's writer: records wait for a warm producer, a barrier waits for the records (L13, L17).

The pool's machine is real; producers are faked and warm up when the test says so.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from penstock.control import Committable
from penstock.failure import TransportFailed
from penstock.ids import Attempt, CheckpointId
from penstock.runtime import sinks
from penstock.runtime.background import Background
from penstock.runtime.sinks import SinkWriter
from penstock.sink import transaction as tx
from penstock.task.subtask import SinkChanged


class FakeProducer:
    """A producer whose calls are recorded, and held up by the events of its cluster."""

    def __init__(self, cluster: "Cluster", transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._cluster = cluster
        self.calls: list[Any] = []
        self.values: list[bytes | None] = []

    def open(self) -> None:
        assert self._cluster.may_open.wait(10)
        if self._cluster.refusal is not None:
            raise self._cluster.refusal
        self.calls.append("open")

    def begin(self) -> None:
        assert self.calls[-1] in ("open", "commit")
        self.calls.append("begin")
        self._cluster.begun.append(self)

    def write(self, keys: Any, values: list[bytes | None], times: Any) -> None:
        del keys, times
        assert self.calls[-1] in ("begin", "write")
        self.calls.append("write")
        self.values += values

    def precommit(self, checkpoint: CheckpointId) -> Committable:
        assert self._cluster.may_flush.wait(10)
        self.calls.append("precommit")
        return Committable(self.transactional_id, 7, 0, checkpoint, "out", (0,), len(self.values))

    def commit(self) -> bool:
        self.calls.append("commit")
        return True

    def look(self) -> None:
        if self._cluster.lost is not None:
            raise self._cluster.lost

    def close(self) -> None:
        self.calls.append("close")


class Cluster:
    """Makes producers, and stands for the subtask that owns the sink."""

    def __init__(self, pool: int = 4) -> None:
        self.may_open = threading.Event()
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.refusal: Exception | None = None
        self.lost: Exception | None = None
        self.producers: list[FakeProducer] = []
        self.begun: list[FakeProducer] = []
        self.now = 0.0
        self.step_s = 0.01
        self.work = Background(4, "test")
        self.machine, first = tx.sink(pool)
        self.writer = SinkWriter(
            self, self, self.work,  # type: ignore[arg-type]
            app="app", uid="out", index=0, topic="out", timeout_ms=60_000,
            clock_s=self._clock, attempt=Attempt(2),
        )  # fmt: skip
        self._perform(first)

    def sink_producer(self, app: str, topic: str, name: str, timeout_ms: int) -> FakeProducer:
        assert (app, topic, timeout_ms) == ("app", "out", 60_000)
        self.producers.append(FakeProducer(self, name))
        return self.producers[-1]

    def event(self, event: SinkChanged) -> None:
        assert event.uid == "out"
        self.machine, effects = tx.step(self.machine, event.event)
        self._perform(effects)

    def _perform(self, effects: tuple[tx.Effect, ...]) -> None:
        for effect in effects:
            self.writer.perform(effect)

    def _clock(self) -> float:
        self.now += self.step_s
        return self.now

    def barrier(self, checkpoint: int) -> None:
        self.writer.settle()
        self.event(SinkChanged("out", tx.BarrierReached(CheckpointId(checkpoint))))  # type: ignore[arg-type]

    def until(self, condition: Callable[[], object]) -> None:
        for _ in range(2000):
            if condition():
                return
            self.work.wait(0.01)
            self.work.drain()
        raise AssertionError("it did not happen")

    def write(self, *values: bytes) -> None:
        self.writer.write([None] * len(values), list(values), None)

    @property
    def written(self) -> list[list[bytes | None]]:
        """The records of each transaction, in the order of their beginning."""
        return [producer.values for producer in self.begun if producer.values]


def test_records_wait_for_a_producer_and_keep_their_order() -> None:
    """The loop is not held up while producers warm up: records wait in memory."""
    cluster = Cluster()
    cluster.write(b"1", b"2")
    cluster.write(b"3")
    assert cluster.written == []
    cluster.may_open.set()
    cluster.until(lambda: cluster.written)
    cluster.write(b"4")
    assert cluster.written == [[b"1", b"2", b"3", b"4"]]
    assert cluster.writer.records == 4
    assert {p.transactional_id for p in cluster.producers} == {
        f"penstock.app!2!out!0!{slot}" for slot in range(len(cluster.producers))
    }


def test_nothing_is_opened_for_no_records() -> None:
    cluster = Cluster()
    cluster.may_open.set()
    cluster.write()
    cluster.until(lambda: [p for p in cluster.producers if p.calls == ["open"]])
    cluster.barrier(1)
    assert all("begin" not in producer.calls for producer in cluster.producers)


def test_past_the_bound_the_loop_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "HELD_RECORDS", 3)
    cluster = Cluster()
    cluster.write(b"1", b"2", b"3")
    threading.Timer(0.05, cluster.may_open.set).start()
    cluster.write(b"4")
    assert cluster.written == [[b"1", b"2", b"3", b"4"]]


def test_a_barrier_waits_for_what_is_held_back() -> None:
    """L13: a transaction holds the records of its epoch and no others."""
    cluster = Cluster()
    cluster.write(b"1")
    threading.Timer(0.05, cluster.may_open.set).start()
    cluster.barrier(1)
    cluster.write(b"2")
    cluster.until(lambda: len(cluster.written) == 2)
    assert cluster.written == [[b"1"], [b"2"]]


def test_the_next_epoch_waits_for_the_flush_of_the_one_before() -> None:
    """S6: and its records come, in order, when it is flushed."""
    cluster = Cluster()
    cluster.may_open.set()
    cluster.may_flush.clear()
    cluster.write(b"1")
    cluster.barrier(1)
    cluster.write(b"2")
    cluster.write(b"3")
    assert cluster.written == [[b"1"]]
    cluster.may_flush.set()
    cluster.until(lambda: len(cluster.written) == 2)
    assert cluster.written == [[b"1"], [b"2", b"3"]]


def test_without_any_producer_the_attempt_ends_with_a_clear_error() -> None:
    cluster = Cluster()
    cluster.write(b"1")
    cluster.step_s = 30.0
    with pytest.raises(TransportFailed, match="sink 'out' got no transactional producer within"):
        cluster.writer.settle()
    cluster.may_open.set()


def test_a_producer_that_cannot_be_opened_ends_the_attempt() -> None:
    cluster = Cluster()
    cluster.refusal = TransportFailed("transactional id penstock.app!2!out!0!0 cannot be")
    cluster.write(b"1")
    cluster.may_open.set()
    with pytest.raises(TransportFailed, match="cannot be"):
        cluster.writer.settle()


def test_a_producer_that_can_never_go_on_ends_the_attempt_at_once() -> None:
    """Its own calls would tell after a minute or two."""
    cluster = Cluster()
    cluster.write(b"1")
    cluster.writer.look()
    cluster.lost = TransportFailed("the client has forgotten every broker")
    with pytest.raises(TransportFailed, match="forgotten every broker"):
        cluster.writer.look()
    with pytest.raises(TransportFailed, match="forgotten every broker"):
        cluster.writer.settle()
    cluster.may_open.set()


def test_failed_checkpoints_use_up_the_pool_and_then_say_so() -> None:
    """Decision 0004: their transactions live on; output waits, and ids come from a bounded pool."""
    cluster = Cluster(pool=4)
    cluster.may_open.set()
    for checkpoint in range(1, 5):
        cluster.write(b"%d" % checkpoint)
        cluster.barrier(checkpoint)
        cluster.until(lambda: all("precommit" in p.calls for p in cluster.producers if p.values))
    with pytest.raises(TransportFailed, match=r"4 undecided transactions.*--tolerable-failures"):
        cluster.write(b"5")


def test_closing_gives_up_every_client_and_writes_no_more() -> None:
    """L11: what is open is left to the recovery."""
    cluster = Cluster()
    cluster.may_open.set()
    cluster.write(b"1")
    cluster.until(lambda: cluster.written)
    for close in cluster.writer.close():
        close()
    assert all(producer.calls[-1] == "close" for producer in cluster.producers)
