"""One slice of a partition as Arrow batches: every record of [start, end), then nothing more.

The end is reached in one of two ways. A record at or behind it came; or the broker said that
nothing is left, at a position at or behind it: aborted records, transaction markers and compaction
leave gaps, so the last offset of a range may never be handed out.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile
from operator import itemgetter
from time import monotonic
from typing import Any, Final, cast

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from penstock.failure import ConfigurationError, TransportFailed
from penstock_kafka.client import LOG, Errors, consumer_config, failure, passes, take
from penstock_kafka.settings import librdkafka

from penstock_spark.kafka_offsets import OffsetRange, lost
from penstock_spark.kafka_options import Wanted

BATCH_RECORDS: Final = 10_000
_SETTINGS: Final[dict[str, Any]] = {
    "enable.partition.eof": True,
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "fetch.max.bytes": 16 * 1024 * 1024,
}
"""Bounds a slice's memory at about 50 MB; large fetches keep the brokers' share small."""
_GONE: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_second = itemgetter(1)


def batches(wanted: Wanted, part: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a slice with the columns of ``schema``; see `SliceReader`."""
    reader = SliceReader(wanted, part)
    make = [_COLUMNS[name] for name in schema.names]
    try:
        while (messages := reader.take()) is not None:
            if messages:
                columns = [column(part, messages) for column in make]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
    finally:
        reader.close()


class SliceReader:
    """A consumer at one slice of one partition."""

    def __init__(self, wanted: Wanted, part: OffsetRange) -> None:
        self._part = part
        self._fails_on_loss = wanted.fails_on_loss
        self._patience_s = wanted.poll_timeout_ms / 1000
        self._errors = Errors()
        cluster = wanted.cluster
        isolation = "read_committed" if wanted.is_committed else "read_uncommitted"
        self._consumer = Consumer(
            consumer_config(
                librdkafka(cluster.bootstrap, dict(cluster.settings)),
                self._errors,
                "penstock-spark",
            )
            | _SETTINGS
            | {"isolation.level": isolation}
        )
        self._next = part.start
        self._deadline = monotonic() + self._patience_s
        self._ended = False
        self._assign(part.start)

    def take(self) -> list[Message] | None:
        """The next records, perhaps none yet; None at the end of the slice.

        Raises TransportFailed when nothing has come for too long, ConfigurationError when the
        records are gone.
        """
        if self._ended:
            return None
        messages = take(self._consumer, BATCH_RECORDS, 1.0)
        if not messages:
            self._wait()
            return []
        if any(map(Message.error, messages)):
            messages = [m for m in messages if m.error() is None or not self._look(m)]
        if not messages:
            return []
        self._deadline = monotonic() + self._patience_s
        self._next = _offset(messages[-1]) + 1
        end = self._part.end
        if self._next >= end:
            self._ended = True
            if self._next > end:
                return list(takewhile(lambda m: _offset(m) < end, messages))
        return messages

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    @property
    def _where(self) -> str:
        return f"{self._part.topic}[{self._part.partition}]"

    def _assign(self, position: int) -> None:
        at = TopicPartition(self._part.topic, self._part.partition, position)
        self._consumer.assign([at])

    def _wait(self) -> None:
        self._errors.check(self._where)
        if monotonic() > self._deadline:
            raise TransportFailed(
                f"{self._where}: nothing came for {self._patience_s:.0f} s at offset {self._next} "
                f"of the range {self._part.start} to {self._part.end}"
                + (f" ({causes})" if (causes := self._errors.causes()) else "")
                + "; look at the brokers' health, or raise pollTimeoutMs"
            )

    def _look(self, message: Message) -> bool:
        """Deal with what came in place of a record; True: it is none."""
        error = message.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # At an earlier position it speaks of what this broker knew then: more will come.
            self._ended = self._ended or _offset(message) >= self._part.end
        elif error.code() in _GONE:
            self._expired()
        elif not passes(error):
            raise failure(f"{self._where} cannot be read", error)
        return True

    def _expired(self) -> None:
        low, high = self._consumer.get_watermark_offsets(
            TopicPartition(self._part.topic, self._part.partition), timeout=30.0
        )
        if low <= self._next <= high:
            raise TransportFailed(
                f"{self._where} refused offset {self._next} within {low} to {high}; a broker that "
                "follows had not caught up: try again"
            )
        gone: ConfigurationError = lost(
            self._part.topic, self._part.partition, self._next, low, high
        )
        if self._fails_on_loss:
            raise gone
        LOG.warning("%s (accepted)", gone)
        if low >= self._part.end or self._next > high:
            self._ended = True
        else:
            self._next = low
            self._assign(low)


_offset: Callable[[Message], int] = cast("Any", Message.offset)


def _timestamps(_: OffsetRange, messages: list[Message]) -> pa.Array:
    found = map(_second, map(Message.timestamp, messages))
    return pa.array(found, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))


def _timestamp_types(_: OffsetRange, messages: list[Message]) -> pa.Array:
    # librdkafka counts from 0 (none), Kafka and Spark from -1
    return pa.array([kind - 1 for kind, _ in map(Message.timestamp, messages)], pa.int32())


def _headers(_: OffsetRange, messages: list[Message]) -> pa.Array:
    return pa.array([_named(message.headers()) for message in messages], _HEADERS)


def _named(headers: Any) -> list[dict[str, Any]] | None:
    if not headers:
        return None
    return [{"key": name, "value": value} for name, value in headers]


_COLUMNS: Final[dict[str, Callable[[OffsetRange, list[Message]], pa.Array]]] = {
    "key": lambda _, messages: pa.array(map(Message.key, messages), pa.binary()),
    "value": lambda _, messages: pa.array(map(Message.value, messages), pa.binary()),
    "topic": lambda part, messages: pa.repeat(pa.scalar(part.topic, pa.string()), len(messages)),
    "partition": lambda part, messages: pa.repeat(
        pa.scalar(part.partition, pa.int32()), len(messages)
    ),
    "offset": lambda _, messages: pa.array(map(_offset, messages), pa.int64()),
    "timestamp": _timestamps,
    "timestampType": _timestamp_types,
    "headers": _headers,
}
