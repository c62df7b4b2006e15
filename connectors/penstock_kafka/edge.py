"""The edge transport: frames as Kafka messages, in order per partition (L6, L9, L10).

Frames are batches already, so nothing lingers: one hop takes about a millisecond.
"""

import time
from itertools import repeat
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from penstock.failure import PenstockError, TransportFailed
from penstock.ids import Position
from penstock.runtime.ports import EdgeFrame

from penstock_kafka.client import Errors, failure, producer_config, take, watched
from penstock_kafka.reading import Reading

_READER: Final[dict[str, Any]] = {
    "isolation.level": "read_uncommitted",
    "queued.min.messages": 2_000,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "fetch.max.bytes": 16 * 1024 * 1024,
}
"""Bounds a reader's memory at about 50 MB however far it lags: Kafka is the spill (L7)."""

_SENDER: Final[dict[str, Any]] = {
    "linger.ms": 0,
    "batch.size": 1_000_000,
    "delivery.timeout.ms": 60_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 64 * 1024,
}

FULL_QUEUE_S: Final = 60.0


class KafkaEdgeReader:
    """Reads the owned partitions of one edge topic from given positions."""

    def __init__(self, base: dict[str, Any], topic: str, positions: dict[int, Position]) -> None:
        self._reading = Reading(base, topic, f"{topic}.reader", _READER)
        self._reading.assign(dict(positions), "earliest")
        self._next: dict[int, int] = dict(positions)
        self._consumer = self._reading.consumer

    def poll(self, max_frames: int, timeout_s: float) -> list[EdgeFrame]:
        """Frames ready now, waiting at most ``timeout_s`` for the first. Raises TransportFailed."""
        if not self._next:
            return []
        messages = take(self._consumer, max_frames, timeout_s)
        if not messages:
            self._reading.errors.check(f"edge topic {self._reading.topic}")
            return []
        if any(map(Message.error, messages)):
            messages = self._reading.records(messages, self._next.__getitem__)
        offsets = list(map(Message.offset, messages))
        columns = zip(map(Message.partition, messages), offsets, map(Message.value, messages),
                      strict=True)  # fmt: skip
        frames = list(map(tuple.__new__, repeat(EdgeFrame), columns))
        for partition, offset, _ in frames:
            self._next[partition] = offset + 1
        return frames

    def seek(self, partition: int, position: Position) -> None:
        """Read ``partition`` again from ``position`` (L7: Kafka is the spill).

        Nothing from before the seek is handed out after it.
        """
        target = TopicPartition(self._reading.topic, partition, position)
        try:
            self._consumer.seek(target)
        except KafkaException:  # the partition's fetcher has not started yet
            self._consumer.incremental_unassign([target])
            self._consumer.incremental_assign([target])
        self._next[partition] = position

    def close(self) -> None:
        """Close the client."""
        self._reading.close()


class KafkaEdgeSender:
    """Writes frames to edge topics, idempotently, in order per partition."""

    def __init__(self, base: dict[str, Any], app: str) -> None:
        self._errors = Errors()
        self._failed: PenstockError | None = None
        self._prefix = f"{app}.edge."
        self._topics: dict[str, str] = {}
        self._producer = Producer(
            producer_config(base, self._errors)
            | watched(self._errors)
            | _SENDER
            | {"on_delivery": self._delivered}
        )

    def send(self, edge: str, partition: int, frame: bytes) -> None:
        """Queue one frame; waits only when the client's queue is full."""
        topic = self._topics.get(edge)
        if topic is None:
            topic = self._topics[edge] = self._prefix + edge
        try:
            self._producer.produce(topic, frame, None, partition)
        except BufferError:
            self._wait_and_send(topic, partition, frame)

    def _wait_and_send(self, topic: str, partition: int, frame: bytes) -> None:
        deadline = time.monotonic() + FULL_QUEUE_S
        while True:
            self._producer.poll(0.005)
            self._check()
            try:
                self._producer.produce(topic, frame, None, partition)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise TransportFailed(
                        f"the queue of frames for {topic}[{partition}] has been full for "
                        f"{FULL_QUEUE_S:.0f} s: the brokers take nothing; look at their health"
                    ) from None

    def poll(self) -> None:
        """Serve delivery reports; raises TransportFailed when a frame could not be delivered."""
        self._producer.poll(0)
        self._check()

    def flush(self, timeout_s: float) -> None:
        """Blocking: wait until every frame is written; raises TransportFailed."""
        left = self._producer.flush(timeout_s)
        self._check()
        if left:
            raise TransportFailed(f"{left} frames were not written within {timeout_s:.1f} s")

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        self._errors.check("edge sender")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            where = f"a frame for {message.topic()}[{message.partition()}] was not written"
            self._failed = failure(where, error)

    def close(self) -> None:
        """Drop what is queued and close: the attempt is over or everything was flushed."""
        self._producer.purge()
        self._producer.close()
