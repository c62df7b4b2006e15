"""The independent reader: plain confluent-kafka, read_committed, from the first offset to the last.

It shares no code with the framework. Its thread feeds an audit; others ask how far it is.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its own documented place
    AdminClient,
    OffsetSpec,
)

from mainjob.audit import Findings
from mainjob.failure import JobFailed
from mainjob.topics import PARTITIONS

T = TypeVar("T")
In_contra = TypeVar("In_contra", contravariant=True)
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "queued.min.messages": 50_000,
    "fetch.queue.backoff.ms": 10,
}


class Audit(Protocol[In_contra]):
    """Takes every record once and says at the end what is wrong."""

    expected_records: int

    def take(self, records: Iterable[In_contra]) -> None: ...
    def finish(self) -> Findings: ...


class CommittedReader(Generic[T]):
    """Reads one topic's committed records into an audit, on a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, kind: type[T], audit: Audit[T]) -> None:
        self.topic = topic
        self.audit = audit
        self.records = 0
        self.first_at = 0.0
        self.last_at = time.time()
        self._bootstrap = bootstrap
        # One C call decodes a whole batch.
        self._decode: Callable[[bytes], list[T]] = msgspec.json.Decoder(list[kind]).decode  # type: ignore[valid-type]  # a type made at run time
        self._ends = [0] * PARTITIONS
        self._kills: list[float] = []
        self._recoveries_s: list[float] = []
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"read-{topic}", daemon=True)
        self._thread.start()

    @property
    def fraction(self) -> float:
        """How much of what is expected has come, from 0 to 1 (more, if there are duplicates)."""
        return self.records / self.audit.expected_records

    def killed(self) -> None:
        """A process of the application was killed right now; watch for output written after it."""
        self._kills.append(time.time())

    @property
    def is_waiting(self) -> bool:
        """Whether nothing new has come since the last kill."""
        return bool(self._kills)

    @property
    def recoveries_s(self) -> list[float]:
        """For each kill, the time until this reader saw a record that was written after it."""
        return list(self._recoveries_s)

    def check(self) -> None:
        """Raise JobFailed when reading failed."""
        if self._failure is not None:
            raise JobFailed(f"the reader of {self.topic!r} failed: {self._failure!r}")

    def read_to_end(self, timeout_s: float) -> None:
        """Return when everything that is committed now has been read.

        Raises:
            JobFailed: records stay uncommitted, or it takes longer than ``timeout_s``.
        """
        give_up = time.monotonic() + timeout_s
        stable = self._log_ends(IsolationLevel.READ_COMMITTED)
        written = self._log_ends(IsolationLevel.READ_UNCOMMITTED)
        if stable != written:
            raise JobFailed(
                f"topic {self.topic!r} ends at {written} but is readable only to {stable}: "
                "a transaction is open"
            )
        while any(end < wanted for end, wanted in zip(self._ends, stable, strict=True)):
            self.check()
            if time.monotonic() > give_up:
                raise JobFailed(
                    f"topic {self.topic!r} was not read to {stable} within {timeout_s:.0f} s"
                )
            time.sleep(0.02)

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(10)

    def _log_ends(self, isolation: IsolationLevel) -> list[int]:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 3})
        partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        asked = dict.fromkeys(partitions, LATEST)
        answers = admin.list_offsets(asked, isolation_level=isolation)
        by_number = {p.partition: answer.result(10).offset for p, answer in answers.items()}
        return [by_number[number] for number in range(PARTITIONS)]

    def _run(self) -> None:
        try:
            settings = {**CONSUMER, "bootstrap.servers": self._bootstrap, "group.id": "auditor"}
            consumer = Consumer(settings)
            consumer.assign([TopicPartition(self.topic, p, 0) for p in range(PARTITIONS)])
            while not self._ended.is_set():
                if messages := consumer.consume(5000, 0.02):
                    self._take(messages)
            consumer.close()
        except BaseException as failure:  # raised in the thread that asks
            self._failure = failure

    def _take(self, messages: list[Any]) -> None:
        values: list[bytes] = []
        ends: dict[int, int] = {}
        written_ms = 0
        for message in messages:
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (its public name)
                ends[message.partition()] = message.offset()
            else:
                raise KafkaException(error)
        if values:
            self.audit.take(self._decode(b"[" + b",".join(values) + b"]"))
            self.records += len(values)
            self.last_at = time.time()
            self.first_at = self.first_at or self.last_at
            if self._kills:
                written_ms = max(_append_time_ms(m) for m in messages if m.error() is None)
        for partition, end in ends.items():  # after the audit: the end counts once it was checked
            self._ends[partition] = end
        while self._kills and written_ms > self._kills[0] * 1000:
            self._recoveries_s.append(time.time() - self._kills.pop(0))


def _append_time_ms(message: Any) -> int:
    kind, time_ms = message.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise JobFailed(f"topic {message.topic()!r} does not carry the broker's append time")
    return int(time_ms)
