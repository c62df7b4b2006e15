"""A replay without Spark: the same tasks, with a shuffle and a sort made of lists."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from penstock import Service
from penstock.record import MIN_WATERMARK
from penstock.schema import ANY
from penstock_spark.kafka_offsets import OffsetRange
from penstock_spark.replay.keyed import KeyedTask
from penstock_spark.replay.places import Places, Reached, final_watermark
from penstock_spark.replay.plan import Mode, ReplayPlan, ReplayStage
from penstock_spark.replay.reading import SourceTask
from penstock_spark.replay.rows import REPORT
from penstock_spark.replay.running import Common
from penstock_spark.replay.services import recipe
from penstock_spark.replay.states import layout_of

RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


BY_FIRST = ("clock", "place", "number")


class Record(NamedTuple):
    """A record of a topic."""

    topic: str
    partition: int
    value: Any
    time: int = 0
    key: str | None = None
    """Bytes as they are, anything else as JSON."""


def plain(value: Any) -> Any:
    """A value as msgpack has it: what was a Struct, a Raw or a tuple no longer matters."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), strict=False)


class Here:
    """A replay of some records in this process."""

    def __init__(
        self,
        services: Service | Sequence[Service],
        records: Sequence[Record],
        *,
        mode: Mode = "replay",
        outputs: bool = False,
        tasks: int = 3,
        batch: int = 7,
        now_ms: int = 0,
        partitions: int = 2,
    ) -> None:
        self._tasks = tasks
        self._batch = batch
        ends: dict[tuple[str, int], int] = {}
        self._rows: list[dict[str, Any]] = []
        for record in records:
            at = (record.topic, record.partition)
            offset = ends[at] = ends.get(at, 0) + 1
            value = record.value
            raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
            self._rows.append(
                {
                    "key": None if record.key is None else record.key.encode(),
                    "value": raw,
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": offset - 1,
                    "timestamp": record.time * 1000,
                }
            )
        made = recipe(services, mode, with_outputs=outputs)
        self.plan: ReplayPlan = made.plan()
        topics = self.plan.topics
        self.common = Common(
            recipe=made,
            places=Places(
                [OffsetRange(t, p, 0, ends[t, p]) for t, p in sorted(ends) if t in topics]
            ),
            now_ms=now_ms,
            partitions=dict.fromkeys(topics, partitions),
        )

    def state(self, operator: str, name: str) -> dict[Any, Any]:
        """Key -> value; of timers (domain, ms, key) -> registration."""
        stage = next(s for s in self.plan.stages if s.is_keyed and (operator, name) in s.states)
        layout = layout_of(stage, (operator, name), self._partitions(stage))
        found: dict[Any, Any] = {}
        last: list[Any] = []
        for rows in self._run(stage.name, shown=(operator, name)):
            table = pa.Table.from_batches(list(rows), layout.arrow_schema)
            order = [tuple(row.values()) for row in table.select(layout.sort_columns).to_pylist()]
            if order != sorted(order) or (last and order and order[0] < last[-1]):
                raise AssertionError(f"rows of {operator}.{name} are not sorted")
            last = order or last
            for _, _, key, value in layout.entries(table):
                if key in found:
                    raise AssertionError(f"{key!r} is there twice")
                found[key] = plain(value)
        return dict(sorted(found.items(), key=lambda item: repr(item[0])))

    def output(self, sink: str) -> list[tuple[bytes | None, Any, int]]:
        """(key, value, time) of what a sink was given, in an order that the topics give."""
        number = len(self.plan.edges) + self.plan.sinks.index(sink)
        stage = next(s for s in self.plan.stages if any(step.uid == sink for step in s.sinks))
        rows = [
            row
            for batches in self._run(stage.name)
            for batch in batches
            for row in batch.to_pylist()
            if row["to"] == number
        ]
        rows.sort(key=lambda row: (row["clock"], row["place"], row["number"]))
        return [(row["keys"], msgspec.json.decode(row["values"]), row["time"]) for row in rows]

    def watermark(self, stage: str) -> int:
        """The watermark of a stage at the end."""
        return min(self._final(source) for source in self.plan.stage(stage).sources)

    def _partitions(self, stage: ReplayStage) -> int:
        return self.common.partitions.get(stage.live.topic, stage.live.partitions)

    def _final(self, source: str) -> int:
        stage = self.plan.stage(source)
        policy = stage.live.watermark
        if policy is None or not stage.has_event_time:
            return MIN_WATERMARK
        reached = [
            msgspec.json.decode(row["values"], type=Reached)
            for batches in self._run(source)
            for batch in batches
            for row in batch.to_pylist()
            if row["to"] == REPORT
        ]
        return final_watermark(
            reached, source, self._partitions(stage), skips_empty=policy.idle_ms is not None
        )

    def _run(self, name: str, shown: tuple[str, str] | None = None) -> list[list[pa.RecordBatch]]:
        """What each task of a stage gives."""
        stage = self.plan.stage(name)
        if stage.reads is None:
            task = SourceTask(self.common, name, None, ())
            inputs = self._of_partitions(stage.live.topic)
            return [list(task(iter(batches))) for batches in inputs]
        final_ms = self.watermark(name)
        keyed = KeyedTask(self.common, name, MIN_WATERMARK, final_ms, shown=shown, key=ANY)
        return [list(keyed(iter(batches))) for batches in self._shuffled(stage)]

    def _of_partitions(self, topic: str) -> Iterator[list[pa.RecordBatch]]:
        rows = [row for row in self._rows if row["topic"] == topic]
        for partition in sorted({row["partition"] for row in rows}):
            mine = [row for row in rows if row["partition"] == partition]
            yield self._batched(mine, RECORDS)

    def _shuffled(self, stage: ReplayStage) -> Iterator[list[pa.RecordBatch]]:
        assert stage.reads is not None
        number = self.plan.edges.index(stage.reads)
        rows: list[dict[str, Any]] = []
        schema = None
        for writer in self.plan.writers(stage.reads):
            for batches in self._run(writer.name):
                for batch in batches:
                    schema = batch.schema
                    rows += [row for row in batch.to_pylist() if row["to"] == number]
        assert schema is not None
        groups = self.plan.max_parallelism
        if stage.is_keyed:
            rows.sort(key=lambda r: [r[n] for n in ("key_group", "owner", *BY_FIRST)])
        for task in range(self._tasks):
            mine = [row for row in rows if row["key_group"] * self._tasks // groups == task]
            yield self._batched(mine, schema)

    def _batched(self, rows: list[dict[str, Any]], schema: pa.Schema) -> list[pa.RecordBatch]:
        return [
            pa.RecordBatch.from_pylist(rows[at : at + self._batch], schema)
            for at in range(0, len(rows), self._batch)
        ]
