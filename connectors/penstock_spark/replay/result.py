"""`replayed`: what a service would have made of a topic's history, as the state of a savepoint."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata

import pyarrow as pa
from penstock.failure import ConfigurationError
from penstock.graph import SourceSpec
from penstock.record import MIN_WATERMARK
from penstock.runtime.connectors import store_from
from penstock.savepoint.layout import StateLayout
from penstock.savepoint.manifest import (
    MANIFEST_KEY,
    POSITIONS,
    FileEntry,
    OperatorEntry,
    SavepointManifest,
    SourceEntry,
    StateEntry,
    WatermarkEntry,
    encode,
    load,
)
from penstock.savepoint.store import SavepointStore
from penstock.savepoint.writing import SavepointFiles, publish
from penstock.schema import ANY, Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock_spark.enabling import enable
from penstock_spark.kafka_offsets import OffsetRange
from penstock_spark.replay.job import Job
from penstock_spark.replay.places import Places
from penstock_spark.replay.plan import Mode, ReplayStage
from penstock_spark.replay.ranges import Positions, Reader, Until, input_of
from penstock_spark.replay.resuming import begun
from penstock_spark.replay.running import Common
from penstock_spark.replay.services import Given, recipe
from penstock_spark.replay.states import StateId, operator_entry

_HANDED_ON = "PENSTOCK_KAFKA_"


def replayed(
    spark: SparkSession,
    services: Given | Sequence[Given],
    *,
    until: Until,
    since: str | None = None,
    mode: Mode = "replay",
    reader: Reader | DataFrame = "penstock",
    options: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    outputs: bool = False,
    allow_truncated: bool = False,
    parallelism: int | None = None,
    rows_per_task: int | None = None,
    now_ms: int | None = None,
) -> "Replayed":
    """Run services over the history of their topics; nothing is read before it is asked for.

    Args:
        spark: the session.
        services: files or `Service` objects, with every writer of an edge that they read.
        until: the NEXT offset of each partition, which the savepoint stands at; ``latest`` is what
            is committed now.
        since: location of a savepoint to go on from; by default the topics' beginning.
        mode: ``replay`` fires event timers as event time passes, ``bootstrap`` fires none.
        reader: ``penstock``, ``spark-kafka`` (Spark's own, by its jars) or a DataFrame like its.
        options: of format("penstock_kafka"), for the connection.
        env: the settings PENSTOCK_…, by default those of this process.
        outputs: what the services emit is wanted, see `Replayed.output`.
        allow_truncated: topics may have lost their beginning to retention.
        parallelism: tasks behind a shuffle; by default as many as run at once.
        rows_per_task: offsets that a task reads; by default all of a partition.
        now_ms: what ``ctx.now_ms`` says, by default now; processing timers never fire.

    Raises ConfigurationError for what cannot be replayed exactly, and for records that are gone.
    """
    given = {**(os.environ if env is None else env)}
    _hand_on(spark, given)
    made = recipe(services, mode, with_outputs=outputs)
    plan = made.plan()
    before = None if since is None else begun(_store(since, given), plan)
    starts: Positions = {} if before is None else before.positions
    found = input_of(
        spark, plan, reader, until, starts, options or {}, given, allow_truncated=allow_truncated
    )
    counts = {topic: sum(p.topic == topic for p in found.ranges) for topic in plan.topics}
    if before is not None:
        before.check(plan, counts)
    clock = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    job = Job(
        spark=spark,
        common=Common(made, Places([r for r in found.ranges if r.start < r.end]), clock, counts),
        records=found.records,
        wanted=found.wanted,
        parallelism=parallelism or spark.sparkContext.defaultParallelism,
        rows_per_slice=rows_per_task,
        begun=before,
    )
    return Replayed(job, found.ranges, given)


def _hand_on(spark: SparkSession, env: Mapping[str, str]) -> None:
    """Let the workers know what stands in the environment: the store's and Kafka's secrets."""
    enable(spark, env)
    handed_on = {name: env[name] for name in env if name.startswith(_HANDED_ON)}
    spark.sparkContext.environment.update(handed_on)


class Replayed:
    """A replay that can be written as a savepoint, or looked at."""

    def __init__(self, job: Job, ranges: Sequence[OffsetRange], env: Mapping[str, str]) -> None:
        self._job = job
        self._env = env
        self._plan = job.plan
        self.positions: dict[str, dict[int, int]] = {}
        """Where the sources stand: exactly ``until``."""
        for part in ranges:
            self.positions.setdefault(part.topic, {})[part.partition] = part.end

    def write(
        self, url: str, *, name: str | None = None, created_at_ms: int | None = None
    ) -> SavepointManifest:
        """Replay, write the state as a savepoint at ``url``, an empty folder, and publish it.

        Raises ConfigurationError when there is a savepoint already. Whatever is raised, nothing is
        published, and what was written is deleted.
        """
        store = _store(url, self._env)
        if store.list(MANIFEST_KEY):
            raise ConfigurationError(
                f"a savepoint stands at {store.url} already, and savepoints are never changed: "
                "give another location, or delete the savepoint: penstock savepoint dispose"
            )
        before = _files(store)
        named: set[str] = set()
        try:
            manifest = self._manifest(
                store,
                name or store.url.rstrip("/").rpartition("/")[2],
                time.time_ns() // 1_000_000 if created_at_ms is None else created_at_ms,
            )
            publish(store, manifest)
            named = {file.path for file in manifest.files}
        finally:
            store.delete(_files(store) - before - named)
        return manifest

    @contextmanager
    def state(self, operator: str, name: str) -> Iterator[DataFrame]:
        """The rows of one state, as a savepoint has them, sorted by key group and key in each task.

        Valid in the ``with`` block: what the stages before it gave is kept until its end.
        """
        stage = self._stage_of((operator, name))
        with self._job.frames(shown=(operator, name)) as frames:
            yield frames[stage.name]

    @contextmanager
    def output(self, sink: str) -> Iterator[DataFrame]:
        """What a sink would have written: key, value, timestamp (and ``place``, their order)."""
        if sink not in self._plan.sinks:
            raise ConfigurationError(
                f"the replay has no output {sink!r}; there are {sorted(self._plan.sinks)}: give "
                "outputs=True, and the uid of a sink"
            )
        number = len(self._plan.edges) + self._plan.sinks.index(sink)
        stage = next(s for s in self._plan.stages if any(step.uid == sink for step in s.sinks))
        with self._job.frames() as frames:
            yield (
                frames[stage.name]
                .where(f.col("to") == number)
                .select(
                    f.col("keys").alias("key"),  # a row of a sink is one record
                    f.col("values").alias("value"),
                    f.expr("timestamp_millis(time)").alias("timestamp"),
                    "clock",
                    "place",
                    "number",
                )
            )

    def _manifest(
        self, store: SavepointStore, savepoint_id: str, created_at_ms: int
    ) -> SavepointManifest:
        """Write the files; what is to be published."""
        written, keys = self._written(store.url)
        operators = tuple(self._operators(keys))
        sources = tuple(self._sources())
        for operator in operators:
            if operator.kind == "source":
                written += _positions_file(store, operator, sources, self._plan.max_parallelism)
        manifest = SavepointManifest(
            savepoint_id=savepoint_id,
            app=self._plan.app,
            checkpoint=0,
            created_at_ms=created_at_ms,
            created_by=f"penstock {metadata.version('penstock')}",
            parent=None if self._job.begun is None else self._job.begun.url,
            max_parallelism=self._plan.max_parallelism,
            sources=sources,
            watermarks=tuple(self._watermarks()),
            operators=operators,
            files=tuple(written),
        )
        return load(encode(manifest), store.url)

    def _written(self, url: str) -> tuple[list[FileEntry], dict[StateId, Schema]]:
        for key in (None, ANY):
            files: list[FileEntry] = []
            kinds: dict[StateId, set[Schema]] = {}
            differ = False
            with self._job.frames(target=url, key=key) as frames:
                for _, written in self._job.written(frames):
                    files += written.files
                    differ = differ or written.differ
                    for operator, state, schema in written.keys:
                        kinds.setdefault((operator, state), set()).add(schema)
            if not differ and all(len(found) == 1 for found in kinds.values()):
                return files, {state: found.pop() for state, found in kinds.items()}
        raise AssertionError("keys of one type do not differ")

    def _operators(self, keys: Mapping[StateId, Schema]) -> Iterator[OperatorEntry]:
        for live in self._live_stages():
            entry = live.live.spec().input
            partitions = self._partitions(live)
            if isinstance(entry, SourceSpec):
                yield OperatorEntry(
                    uid=entry.uid,
                    kind="source",
                    service=live.service,
                    stage=live.live.name,
                    parallelism=1,
                    ownership="none",
                    partitions=partitions,
                    states=(StateEntry(name=POSITIONS, kind="positions", value=Schema("int")),),
                )
            for spec in live.live.spec().operators:
                yield operator_entry(live, spec, partitions, dict(keys))

    def _sources(self) -> Iterator[SourceEntry]:
        for stage in self._plan.sources:
            yield SourceEntry(
                uid=stage.live.root.uid,
                stage=stage.live.name,
                topic=stage.live.topic,
                positions=self.positions[stage.live.topic],
            )

    def _watermarks(self) -> Iterator[WatermarkEntry]:
        for stage in self._live_stages():
            reached = self._job.watermarks[stage.name]
            if reached > MIN_WATERMARK:
                partitions = self._partitions(stage)
                yield WatermarkEntry(
                    stage=stage.live.name,
                    low=0,
                    high=partitions,
                    partitions=partitions,
                    watermark_ms=reached,
                )

    def _live_stages(self) -> list[ReplayStage]:
        """One for each live stage."""
        return list({stage.live.name: stage for stage in reversed(self._plan.stages)}.values())[
            ::-1
        ]

    def _partitions(self, stage: ReplayStage) -> int:
        topic = stage.live.topic
        return self._job.common.partitions[topic] if topic else stage.live.partitions

    def _stage_of(self, state: StateId) -> ReplayStage:
        for stage in self._plan.stages:
            if stage.is_keyed and state in stage.states:
                return stage
        there = sorted(".".join(s) for stage in self._plan.stages for s in stage.states)
        raise ConfigurationError(
            f"the replay has no state {'.'.join(state)!r}; there are {', '.join(there)}"
        )


def _store(url: str, env: Mapping[str, str]) -> SavepointStore:
    return store_from({**env, "PENSTOCK_STORE": url})


def _files(store: SavepointStore) -> set[str]:
    return {key for folder in ("data/", "sources/") for key in store.list(folder)}


def _positions_file(
    store: SavepointStore,
    operator: OperatorEntry,
    sources: Sequence[SourceEntry],
    max_parallelism: int,
) -> list[FileEntry]:
    """The positions of a source as rows: a copy for people, the manifest's are what counts."""
    (state,) = operator.states
    (source,) = (s for s in sources if s.uid == operator.uid)
    rows = [
        {
            "service": operator.service,
            "stage": operator.stage,
            "source_uid": operator.uid,
            "topic": source.topic,
            "partition": partition,
            "position": position,
        }
        for partition, position in source.positions.items()
    ]
    files = SavepointFiles(store, operator, state, max_parallelism)
    files.add(pa.Table.from_pylist(rows, StateLayout(operator, state).arrow_schema))
    return files.close()
