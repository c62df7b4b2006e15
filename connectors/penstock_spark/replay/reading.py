"""A source stage in a task: records of a topic in, rows of edges out."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from penstock.failure import ConfigurationError, UserCodeFailed
from penstock.record import OperatorFailed

from penstock_spark.kafka_offsets import OffsetRange
from penstock_spark.kafka_options import Wanted
from penstock_spark.kafka_slice import SliceReader
from penstock_spark.replay.places import Clock, Places, Reached
from penstock_spark.replay.rows import report
from penstock_spark.replay.running import Batches, Common, RunningStage

_second = itemgetter(1)


class Run(NamedTuple):
    """Some records of one partition, in order."""

    topic: str
    partition: int
    keys: list[Any]
    values: list[Any]
    times: list[int]
    """Of Kafka, ms."""
    offsets: Any
    """An array."""


class SourceTask:
    """The function that Spark calls with the records of one task.

    Args:
        common: the replay.
        stage: the stage's name.
        wanted: how the topic is read here; None: the batches are its records.
        slices: what the numbers in the batches stand for, when they are no records.
    """

    def __init__(
        self, common: Common, stage: str, wanted: Wanted | None, slices: Sequence[OffsetRange]
    ) -> None:
        self._common = common
        self._name = stage
        self._wanted = wanted
        self._slices = tuple(slices)

    def __call__(self, batches: Batches) -> Batches:
        """The rows that the stage makes of the records."""
        source = _Source(self._common, self._name)
        for run in self._runs(batches, want_keys=source.wants_keys):
            source.take(run)
            yield from source.written()
        if source.plan.by_clock:
            yield from map(report, source.reached())

    def _runs(self, batches: Batches, *, want_keys: bool) -> Iterator[Run]:
        if self._wanted is None:
            for batch in batches:
                yield from runs_of_frame(batch, self._common.places, want_keys=want_keys)
            return
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from runs_of_slice(self._wanted, self._slices[number], want_keys=want_keys)


class _Source(RunningStage):
    def __init__(self, common: Common, name: str) -> None:
        policy = common.recipe.plan().stage(name).live.watermark
        self._less = 0 if policy is None else policy.out_of_orderness_ms
        self._clock_of: dict[int, Clock] = {}
        self._next: dict[int, int] = {}
        self._run: Run | None = None
        super().__init__(common, name)
        self.wants_keys = self.chain.takes_source_keys

    def take(self, run: Run) -> None:
        """Push a run of records. Raises UserCodeFailed naming the record."""
        self._run = run
        if self.plan.by_clock:
            self._check_order(run)
        if self.outbox is not None and self.stage.is_partitioned:
            self.outbox.owner = run.partition
        try:
            self.chain.push_source(run.partition, run.keys, run.values, run.times)
        except OperatorFailed as error:
            raise _located(error, run) from error

    def arrived(self, times: list[int]) -> list[Any]:
        """Also: how far the partition's event time has come, and the records' places."""
        run = self._run
        assert run is not None, "records come by take()"
        self.places = self.common.places.of(run.topic, run.partition, run.offsets)
        if self.plan.by_clock:
            clock = self._clock_of.get(run.partition)
            if clock is None:
                clock = self._clock_of[run.partition] = Clock(self._less)
            self.clocks = clock.passed(times)
        else:
            self.clocks = np.zeros(len(times), np.int64)
        return super().arrived(times)

    def reached(self) -> Iterator[Reached]:
        """The clocks of the partitions that this task has read."""
        for partition, clock in self._clock_of.items():
            yield Reached(self.stage.name, partition, clock.reached)

    def _check_order(self, run: Run) -> None:
        first, last = int(run.offsets[0]), int(run.offsets[-1])
        if first < self._next.get(run.partition, 0) or not (np.diff(run.offsets) > 0).all():
            raise ConfigurationError(
                f"the records of {run.topic}[{run.partition}] do not come in the order of their "
                f"offsets ({first} to {last}); event time needs them so, each partition in one task"
            )
        self._next[run.partition] = last + 1


def runs_of_slice(wanted: Wanted, part: OffsetRange, *, want_keys: bool) -> Iterator[Run]:
    """The records of a slice, straight from Kafka."""
    reader = SliceReader(wanted, part)
    try:
        while (messages := reader.take()) is not None:
            if messages:
                offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
                yield Run(
                    part.topic,
                    part.partition,
                    list(map(Message.key, messages)) if want_keys else [None] * len(messages),
                    list(map(Message.value, messages)),
                    list(map(_second, map(Message.timestamp, messages))),
                    offsets,
                )
    finally:
        reader.close()


def runs_of_frame(batch: pa.RecordBatch, places: Places, *, want_keys: bool) -> Iterator[Run]:
    """The records of a batch with the columns of Spark's Kafka source, those that are replayed."""
    topics = batch["topic"].dictionary_encode()
    partitions = batch["partition"].to_numpy(zero_copy_only=False)
    where = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32 | partitions
    starts = [0, *(np.flatnonzero(np.diff(where)) + 1).tolist(), batch.num_rows]
    for start, end in pairwise(starts):
        if start == end:
            continue
        rows = batch.slice(start, end - start)
        part = places.range_of(rows["topic"][0].as_py(), rows["partition"][0].as_py())
        if part is None:
            continue
        offset = rows["offset"]
        rows = rows.filter(pc.and_(pc.greater_equal(offset, part.start), pc.less(offset, part.end)))
        if rows.num_rows:
            times = rows["timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
            yield Run(
                part.topic,
                part.partition,
                _bytes(rows["key"]) if want_keys else [None] * rows.num_rows,
                _bytes(rows["value"]),
                times.to_numpy(zero_copy_only=False).tolist(),
                rows["offset"].to_numpy(zero_copy_only=False),
            )


def _bytes(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def _located(error: OperatorFailed, run: Run) -> UserCodeFailed:
    if error.index is None:
        return UserCodeFailed(str(error))
    return UserCodeFailed(
        f"{error}; record: topic {run.topic!r}, partition {run.partition}, offset "
        f"{run.offsets[error.index]}"
    )
