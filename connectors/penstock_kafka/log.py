"""The control topics: one partition, appended in order, read from an offset on (L1)."""

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer
from penstock.failure import ConfigurationError, PenstockError, TransportFailed
from penstock.ids import Position
from penstock.runtime.ports import LogRecord

from penstock_kafka.client import Errors, failure, producer_config, take, watched
from penstock_kafka.reading import Reading

_AT_ONCE: Final = 1_000

_WRITER: Final[dict[str, Any]] = {
    "linger.ms": 0,
    "delivery.timeout.ms": 60_000,
    "queue.buffering.max.kbytes": 128 * 1024,
    "delivery.report.only.error": False,
}

_READER: Final[dict[str, Any]] = {
    "isolation.level": "read_uncommitted",
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
}


class KafkaLogWriter:
    """Appends to one single-partition control topic, acks=all, idempotent, in order."""

    def __init__(self, base: dict[str, Any], topic: str) -> None:
        self._topic = topic
        self._errors = Errors()
        self._failed: PenstockError | None = None
        self._producer = Producer(
            producer_config(base, self._errors) | watched(self._errors) | _WRITER
        )

    def append(
        self, data: bytes, on_written: Callable[[int | None, str | None], None] | None = None
    ) -> None:
        """Queue a record; ``on_written(offset, error)`` is called from ``poll`` or ``flush``.

        A record that fails without an ``on_written`` is raised by the next poll or flush.
        """

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                if on_written is not None:
                    on_written(message.offset(), None)
                return
            if on_written is not None:
                on_written(None, f"{error.name()}: {error.str()}")
            elif self._failed is None:
                self._failed = failure(f"a record for {self._topic} was not written", error)

        try:
            self._producer.produce(self._topic, data, None, 0, delivered)
        except BufferError:
            raise TransportFailed(
                f"the queue of records for {self._topic} is full: the brokers take nothing; "
                "look at their health"
            ) from None

    def poll(self, timeout_s: float = 0.0) -> None:
        """Serve ``on_written``; raises TransportFailed for a failed record nobody answers for."""
        self._producer.poll(timeout_s)
        self._check()

    def flush(self, timeout_s: float) -> None:
        """Blocking: wait until all is written; raises TransportFailed."""
        left = self._producer.flush(timeout_s)
        self._check()
        if left:
            cause = self._errors.texts[-1] if self._errors.texts else "no error was reported"
            raise TransportFailed(
                f"{left} records of {self._topic} were not written within {timeout_s:.1f} s: "
                f"{cause}"
            )

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._errors.check(f"writer of {self._topic}")

    def close(self) -> None:
        """Drop what is queued and close."""
        self._producer.purge()
        self._producer.close()


class KafkaLogReader:
    """Reads one single-partition control topic from an offset on, in order."""

    def __init__(self, base: dict[str, Any], topic: str, start: int | str) -> None:
        if not isinstance(start, int) and start not in ("earliest", "latest"):
            raise ConfigurationError(f"start {start!r} of {topic}: an offset, earliest or latest")
        self._reading = Reading(base, topic, f"{topic}.reader", _READER)
        try:
            if isinstance(start, int):
                self._reading.assign({0: Position(start)}, "earliest")
            else:
                self._reading.assign({0: None}, start)
        except BaseException:
            self._reading.close()
            raise
        self._next = int(self._reading.started[0])

    def poll(self, timeout_s: float) -> list[LogRecord]:
        """Records ready now, waiting at most ``timeout_s`` for the first; TransportFailed."""
        messages = take(self._reading.consumer, _AT_ONCE, timeout_s)
        if not messages:
            self._reading.errors.check(f"reader of {self._reading.topic}")
            return []
        if any(map(Message.error, messages)):
            messages = self._reading.records(messages, lambda _: self._next)
        records = [LogRecord(m.offset() or 0, m.value() or b"") for m in messages]
        if records:
            self._next = records[-1].offset + 1
        return records

    def close(self) -> None:
        """Close the client."""
        self._reading.close()
