"""A replay as a Spark job: the stages of the plan, each a shuffle behind the one before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from penstock.record import MIN_WATERMARK
from penstock.schema import ANY, Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from penstock_spark.kafka_offsets import sliced
from penstock_spark.kafka_options import Wanted
from penstock_spark.replay.keyed import KeyedTask, Written, kinds_of
from penstock_spark.replay.places import Reached, final_watermark
from penstock_spark.replay.plan import ReplayPlan, ReplayStage
from penstock_spark.replay.reading import SourceTask
from penstock_spark.replay.resuming import Begun, StateTask
from penstock_spark.replay.rows import REPORT, SCHEMA
from penstock_spark.replay.running import Batches, Common
from penstock_spark.replay.states import StateId, layout_of

_ROWS = from_arrow_schema(SCHEMA)
_RECORD = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(kw_only=True)
class Job:
    """The stages of one replay as DataFrames.

    Args:
        spark: the session.
        common: what the tasks know.
        records: the records of the topics; None: each task reads Kafka by ``wanted``.
        wanted: how to read Kafka.
        parallelism: tasks of each shuffle.
        rows_per_slice: offsets of a task that reads Kafka.
        begun: the savepoint that the replay goes on from.
    """

    spark: SparkSession
    common: Common
    records: DataFrame | None
    wanted: Wanted | None
    parallelism: int
    rows_per_slice: int | None
    begun: Begun | None = None
    watermarks: dict[str, int] = field(default_factory=dict)
    """Of each stage at the end of the replay; filled as stages are made."""
    _cached: list[DataFrame] = field(default_factory=list)

    @property
    def plan(self) -> ReplayPlan:
        """What is replayed."""
        return self.common.recipe.plan()

    @contextmanager
    def frames(
        self, *, target: str | None = None, shown: StateId | None = None, key: Schema | None = None
    ) -> Iterator[dict[str, DataFrame]]:
        """The rows of every stage by its name, up to that of ``shown``.

        What several stages need is kept by Spark until the end of the ``with`` block.
        """
        made: dict[str, DataFrame] = {}
        try:
            for stage in self.plan.stages:
                if stage.reads is None:
                    made[stage.name] = self._source(stage, is_kept=shown is not None)
                else:
                    made[stage.name] = self._behind(stage, made, target, shown, key)
                if shown is not None and _has(stage, shown):
                    break
            yield made
        finally:
            for frame in self._cached:
                frame.unpersist()
            self._cached.clear()

    def written(self, frames: dict[str, DataFrame]) -> Iterator[tuple[ReplayStage, Written]]:
        """What each task says of its files; this is where the work is done."""
        decode = msgspec.json.Decoder(Written).decode
        for stage in self.plan.stages:
            if stage.is_keyed:
                for value in _reports(frames[stage.name]):
                    yield stage, decode(value)

    def _source(self, stage: ReplayStage, *, is_kept: bool) -> DataFrame:
        parts = [r for r in self.common.places.ranges if r.topic == stage.live.topic]
        if self.records is not None:
            task = SourceTask(self.common, stage.name, None, ())
            frame = self.records.where(f.col("topic") == stage.live.topic).select(*_RECORD)
            if self.plan.by_clock:
                frame = frame.repartition(max(1, len(parts)), "partition").sortWithinPartitions(
                    "partition", "offset"
                )
        else:
            slices = sliced(parts, None if self.plan.by_clock else self.rows_per_slice)
            task = SourceTask(self.common, stage.name, self.wanted, slices)
            frame = self.spark.range(0, len(slices), 1, max(1, len(slices)))
        rows = frame.mapInArrow(_function(task), _ROWS)
        if is_kept or self.plan.by_clock or self._is_shared(stage):
            rows = self._kept(rows)
        self.watermarks[stage.name] = self._final(stage, rows)
        return rows

    def _final(self, stage: ReplayStage, rows: DataFrame) -> int:
        """The watermark of a source stage at the end of the replay."""
        begin_ms = self._begin(stage)
        policy = stage.live.watermark
        if not stage.has_event_time or policy is None:
            return begin_ms
        reached = [msgspec.json.decode(value, type=Reached) for value in _reports(rows)]
        partitions = self.common.partitions[stage.live.topic]
        skips_empty = policy.idle_ms is not None
        final = final_watermark(reached, stage.name, partitions, skips_empty=skips_empty)
        return max(begin_ms, final)

    def _begin(self, stage: ReplayStage) -> int:
        """The watermark of a stage at the beginning of the replay."""
        return MIN_WATERMARK if self.begun is None else self.begun.watermarks[stage.live.name]

    def _behind(
        self,
        stage: ReplayStage,
        made: dict[str, DataFrame],
        target: str | None,
        shown: StateId | None,
        key: Schema | None,
    ) -> DataFrame:
        begin_ms = self._begin(stage)
        final_ms = max(begin_ms, min(self.watermarks[name] for name in stage.sources))
        self.watermarks[stage.name] = final_ms
        rows = self._input(stage, made)
        if shown is not None and _has(stage, shown):
            partitions = self.common.partitions.get(stage.live.topic, stage.live.partitions)
            kind = _kind_of_keys(rows)
            schema = layout_of(stage, shown, partitions, kind).arrow_schema
            shows = KeyedTask(self.common, stage.name, begin_ms, final_ms, shown=shown, key=kind)
            return rows.mapInArrow(_function(shows), from_arrow_schema(schema))
        task = KeyedTask(
            self.common,
            stage.name,
            begin_ms,
            final_ms,
            target=target if stage.is_keyed else None,
            key=key,
        )
        frame = rows.mapInArrow(_function(task), _ROWS)
        is_kept = shown is not None or self._is_shared(stage, and_written=target)
        return self._kept(frame) if is_kept else frame

    def _input(self, stage: ReplayStage, made: dict[str, DataFrame]) -> DataFrame:
        assert stage.reads is not None, "a source reads topics"
        number = self.plan.edges.index(stage.reads)
        rows: DataFrame | None = None
        for writer in self.plan.writers(stage.reads):
            more = made[writer.name].where(f.col("to") == number)
            rows = more if rows is None else rows.unionByName(more)
        assert rows is not None, "the plan has a writer of every edge"
        if not stage.is_keyed:
            return rows
        if self.begun is not None:
            rows = rows.unionByName(self._state_before(self.begun, stage, number))
        return self._by_key_group(rows)

    def _state_before(self, begun: Begun, stage: ReplayStage, edge: int) -> DataFrame:
        """The state of a stage in the savepoint that the replay goes on from."""
        parts = begun.parts(stage)
        task = StateTask(begun.url, edge, sorted(stage.states), parts)
        numbers = self.spark.range(0, len(parts), 1, max(1, len(parts)))
        return numbers.mapInArrow(_function(task), _ROWS)

    def _by_key_group(self, rows: DataFrame) -> DataFrame:
        """Every key group in one task, its bundles in the order of their first records."""
        groups = self.plan.max_parallelism
        tasks = min(self.parallelism, groups)
        rows = rows.repartitionById(tasks, f.expr(f"cast(key_group * {tasks} div {groups} as int)"))
        return rows.sortWithinPartitions("key_group", "owner", "clock", "place", "number")

    def _is_shared(self, stage: ReplayStage, and_written: str | None = None) -> bool:
        """Whether its rows are asked for more than once."""
        readers = sum(len(self.plan.readers(step.topic)) for step in stage.edges)
        return readers + (and_written is not None and stage.is_keyed and readers > 0) > 1

    def _kept(self, frame: DataFrame) -> DataFrame:
        frame = frame.persist()
        self._cached.append(frame)
        return frame


def _reports(frame: DataFrame) -> list[bytes]:
    found = frame.where(f.col("to") == REPORT).select("values").collect()
    return [bytes(row["values"]) for row in found]


def _kind_of_keys(rows: DataFrame) -> Schema:
    """The type of all keys: str, int, or not known."""
    found = rows.mapInArrow(_function(kinds_of), "kind string").distinct().collect()
    kinds = {row.kind for row in found}
    return Schema("str") if kinds == {"str"} else Schema("int") if kinds == {"int"} else ANY


def _has(stage: ReplayStage, state: StateId) -> bool:
    return stage.is_keyed and state in stage.states


def _function(task: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Spark takes a function only."""

    def run(batches: Batches) -> Batches:
        return task(batches)

    return run
