"""The source: records of owned partitions, read committed, as columns."""

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import compress, groupby
from operator import itemgetter, not_
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from penstock.ids import Position
from penstock.runtime.ports import SourceRun

from penstock_kafka.client import LOG, take
from penstock_kafka.reading import Reading

_SETTINGS: Final[dict[str, Any]] = {
    "isolation.level": "read_committed",
    "queued.min.messages": 100_000,
    "queued.max.messages.kbytes": 32 * 1024,
    "fetch.message.max.bytes": 4 * 1024 * 1024,
    "fetch.max.bytes": 16 * 1024 * 1024,
}
"""Bounds a reader's memory at about 50 MB however far it lags."""

_second = itemgetter(1)


class KafkaSourceReader:
    """Reads the owned partitions of one topic, read_committed, by static assignment (L5).

    ``started`` holds the position that each partition was started from: for a start at "latest" it
    belongs in the first snapshot, else records written before the first one read could be lost.

    With ``until`` a partition ends at that offset, and its position becomes exactly that, whether
    or not the offsets before it hold records: aborted ones and transaction markers leave gaps.
    """

    def __init__(
        self,
        base: dict[str, Any],
        topic: str,
        *,
        positions: dict[int, Position | None],
        start: str,
        group: str,
        want_keys: bool = True,
        until: Mapping[int, int] | None = None,
    ) -> None:
        settings = _SETTINGS | {"on_commit": _committed, "enable.partition.eof": True}
        self._reading = Reading(base, topic, group, settings)
        self._want_keys = want_keys
        self._until = {} if until is None else {p: until[p] for p in positions}
        try:
            self._reading.assign(positions, start)
        except BaseException:
            self._reading.close()
            raise
        self._consumer = self._reading.consumer
        self._next: dict[int, Position] = dict(self._reading.started)
        self.started = self._reading.started
        self._is_bounded = until is not None
        for partition in [p for p, end in self._until.items() if self.started[p] >= end]:
            self._end(partition)

    @property
    def exhausted(self) -> bool:
        """Every partition was given up to its end; False for ever without ``until``."""
        return self._is_bounded and not self._until

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRun]:
        """Records ready now, waiting at most ``timeout_s`` for the first; [] when there are none.

        One run per partition; no Python code per record. Raises TransportFailed, or
        ConfigurationError when a position or the topic is gone.
        """
        if not self._next:
            return []
        messages = take(self._consumer, max_records, timeout_s)
        if not messages:
            self._reading.errors.check(f"source topic {self._reading.topic}")
            return []
        ends: dict[int, int] = {}
        if any(map(Message.error, messages)):
            errors = list(map(Message.error, messages))
            told = list(compress(messages, errors))
            messages = list(compress(messages, map(not_, errors)))
            ends = {_partition(m): _offset(m) for m in told if _is_end(m)}
            self._reading.records([m for m in told if not _is_end(m)], self._next.__getitem__)
        if len(self._next) > 1:
            messages.sort(key=_partition)  # stable: the order in a partition stays
        runs = {partition: list(run) for partition, run in groupby(messages, _partition)}
        runs |= {partition: [] for partition in ends if partition not in runs}
        if self._is_bounded:
            return self._bounded(runs, ends)
        return [self._run(p, run, ends.get(p, -1)) for p, run in runs.items()]

    def _bounded(self, runs: dict[int, list[Message]], ends: dict[int, int]) -> list[SourceRun]:
        """The runs as far as they lie before the ends; a partition that ends is read no more."""
        found = []
        for partition, messages in runs.items():
            until = self._until.get(partition)
            if until is None:
                continue  # read ahead before its partition was given up
            end = ends.get(partition, -1)
            if end >= until or (messages and _offset(messages[-1]) >= until - 1):
                before = messages[: bisect_left(messages, until, key=_offset)]
                found.append(
                    self._run(partition, before, end)._replace(
                        next_position=Position(until), is_at_end=True
                    )
                )
                self._end(partition)
            else:
                found.append(self._run(partition, messages, end))
        return found

    def _end(self, partition: int) -> None:
        del self._until[partition]
        self._consumer.pause([TopicPartition(self._reading.topic, partition)])

    def _run(self, partition: int, messages: list[Message], end: int) -> SourceRun:
        """A run; ``end``: where the partition was found to end, before or behind its messages."""
        position = Position(_offset(messages[-1]) + 1) if messages else self._next[partition]
        self._next[partition] = position
        return SourceRun(
            partition,
            messages,
            list(map(Message.key, messages)) if self._want_keys else [None] * len(messages),
            list(map(Message.value, messages)),
            list(map(_second, map(Message.timestamp, messages))),
            position,
            end >= position,
        )

    def offset_of(self, message: Any) -> int:
        """The offset of a message of a run."""
        return int(message.offset())

    def commit_for_monitoring(self, positions: dict[int, Position]) -> None:
        """Give positions to the consumer group for lag dashboards; never blocks or fails."""
        try:
            self._consumer.commit(
                offsets=[
                    TopicPartition(self._reading.topic, partition, position)
                    for partition, position in positions.items()
                ],
                asynchronous=True,
            )
        except KafkaException as error:
            LOG.debug("positions for monitoring were not committed: %s", error)

    def close(self) -> None:
        """Give up the client without waiting.

        Closing waits for the answer to positions that are on their way: more than a minute beside a
        broker that is paused. Nobody needs that answer, and the worker has its next attempt to run.
        """
        threading.Thread(target=self._reading.close, name="closing", daemon=True).start()


_partition: Callable[[Message], int] = cast("Any", Message.partition)
_offset: Callable[[Message], int] = cast("Any", Message.offset)


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001


def _committed(error: Any, partitions: Any) -> None:
    if error is not None:
        LOG.debug("positions for monitoring were not committed: %s (%s)", error, partitions)
