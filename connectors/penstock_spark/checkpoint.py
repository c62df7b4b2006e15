"""A retained checkpoint as a data source: the rows that a savepoint made of it would have.

Nothing is written. Each task reads the chains of some buckets and decodes one bucket at a time.
"""

import math
import re
from collections.abc import Iterator, Sequence
from importlib import metadata as distribution
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pyarrow as pa
from penstock.control import SubtaskSnapshot
from penstock.edge.routing import partition_of_group
from penstock.failure import ConfigurationError
from penstock.runtime.ports import SnapshotStore
from penstock.savepoint.describing import described
from penstock.savepoint.layout import MAPS, StateLayout
from penstock.savepoint.manifest import OperatorEntry, SavepointManifest, StateEntry
from penstock.savepoint.merging import Chain
from penstock.snapshot import manifest as manifests
from penstock.snapshot.chain import ChunkReader
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock_spark.columns import conforming
from penstock_spark.pruning import Wanted
from penstock_spark.scan import BATCH_ROWS, PART_BYTES, only, opened

_NAME = re.compile(r".*/(\d+)-(\d+)\.json")


class Checkpoint(NamedTuple):
    """What is known of a checkpoint before its state is read; picklable."""

    about: SavepointManifest
    """What the manifest of a savepoint would say, without files."""
    subtasks: tuple[SubtaskSnapshot, ...]

    def parts(self, operator: OperatorEntry) -> list[SubtaskSnapshot]:
        """The snapshots of the operator's stage, by the buckets that they own."""
        mine = [part for part in self.subtasks if part.subtask.stage == operator.stage]
        return sorted(mine, key=lambda part: part.subtask.index)


def found(store: SnapshotStore, app: str, checkpoint: int | None) -> Checkpoint:
    """The checkpoint of this number, or the newest one whose manifest is in the store.

    Raises ConfigurationError naming those that are there when it is not; CorruptedObject.
    """
    key = _manifest_key(store, app, checkpoint)
    manifest = manifests.load(store.get(key), key)
    if not manifests.places_alike(manifest.key_hash, manifest.max_parallelism):
        raise ConfigurationError(
            f"checkpoint {manifest.checkpoint} of {app!r} places keys by {manifest.key_hash!r}, "
            f"this penstock by {manifests.KEY_HASH!r}; use the version of penstock that wrote it"
        )
    description = described(manifest, ChunkReader(store))
    about = SavepointManifest(
        savepoint_id=f"checkpoint-{manifest.checkpoint}",
        app=manifest.app,
        checkpoint=manifest.checkpoint,
        created_at_ms=0,
        created_by=f"penstock {distribution.version('penstock')}",
        max_parallelism=manifest.max_parallelism,
        sources=description.sources,
        watermarks=description.watermarks,
        operators=description.operators,
    )
    return Checkpoint(about, description.subtasks)


def _manifest_key(store: SnapshotStore, app: str, checkpoint: int | None) -> str:
    keys = {}
    for key in store.list(f"{app}/manifests/"):
        name = _NAME.fullmatch(key)
        if name is not None:
            keys[int(name[1]), int(name[2])] = key
    wanted = [place for place in keys if checkpoint in (None, place[0])]
    if not wanted:
        there = ", ".join(str(number) for number in sorted({place[0] for place in keys}))
        which = "checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
        raise ConfigurationError(
            f"there is no {which} of application {app!r} in {store.url}; there are: "
            f"{there or 'none'}. Give the store's URL as the path, and the application's id as "
            "the option app"
        )
    return keys[max(wanted)]


class ChainPart(InputPartition):
    """Some buckets of one subtask's part of a state: what one task reads."""

    def __init__(
        self, operator: OperatorEntry, state: StateEntry, snapshot: SubtaskSnapshot
    ) -> None:
        super().__init__(None)
        self.operator = operator
        self.state = state
        self.snapshot = snapshot

    def __repr__(self) -> str:
        return f"ChainPart({self.snapshot.subtask}, {self.snapshot.buckets})"


class ChainReader(DataSourceReader):
    """Reads keyed state of a checkpoint; ``states`` has one, or the timers of all operators."""

    def __init__(
        self,
        url: str,
        checkpoint: Checkpoint,
        states: Sequence[tuple[OperatorEntry, StateEntry]],
        wanted: Wanted,
        schema: StructType,
    ) -> None:
        self._url = url
        self._groups = checkpoint.about.max_parallelism
        self._wanted = wanted
        self._schema = schema
        self._parts = [
            ChainPart(operator, state, piece)
            for operator, state in states
            for snapshot in checkpoint.parts(operator)
            for piece in _pieces(snapshot)
            if self._buckets(operator, range(*piece.buckets))
        ]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_parts": []}  # a task is given its own part

    def partitions(self) -> Sequence[InputPartition]:
        return self._parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a part. Raises CorruptedObject, StoreFailed, ConfigurationError."""
        if not isinstance(partition, ChainPart):  # Spark makes up another when there are none
            return
        layout = StateLayout(partition.operator, partition.state)
        conform = conforming(self._schema)
        chain = Chain(partition.snapshot, ChunkReader(opened(self._url)))
        for bucket in self._buckets(partition.operator, chain.buckets):
            entries = chain.entries(layout, bucket)
            owners = [bucket] * len(entries) if layout.partitioned else None
            rows = layout.batch(entries, self._groups, owners)
            if partition.state.kind == "timers" and "operator_uid" in self._schema.names:
                uid = pa.repeat(partition.operator.uid, rows.num_rows)
                rows = rows.append_column("operator_uid", uid)
            for batch in rows.to_batches(BATCH_ROWS):
                left = only(batch, self._wanted)
                if left.num_rows:
                    yield conform(left)

    def _buckets(self, operator: OperatorEntry, buckets: range) -> list[int]:
        """Those that can hold a wanted row; partitions of a source hold any key group."""
        groups = self._wanted.groups
        if groups is None or operator.ownership != "key_group":
            return list(buckets)
        asked = {
            partition_of_group(group, operator.partitions, self._groups)
            for group in groups
            if group < self._groups
        }
        return [bucket for bucket in buckets if bucket in asked]


def cells(checkpoint: Checkpoint, operator: OperatorEntry, state: StateEntry) -> pa.Table:
    """The rows of state without keys: elements of subtasks, or positions of a source."""
    layout = StateLayout(operator, state)
    if state.kind == "positions":
        rows = [
            {
                "service": operator.service,
                "stage": operator.stage,
                "source_uid": source.uid,
                "topic": source.topic,
                "partition": partition,
                "position": position,
            }
            for source in checkpoint.about.sources
            if source.uid == operator.uid
            for partition, position in sorted(source.positions.items())
        ]
        return pa.Table.from_pylist(rows, layout.arrow_schema)
    pairs = []
    for part in checkpoint.parts(operator):
        elements = part.operator_state.get(operator.uid, {}).get(state.name)
        if elements is not None:
            where = f"the snapshot of {part.subtask}"
            pairs.append((part.subtask.index, layout.decoded_cells(elements, where)))
    return layout.batch(pairs[:1] if state.kind in MAPS else pairs)


def _pieces(snapshot: SubtaskSnapshot) -> list[SubtaskSnapshot]:
    """The snapshot, cut between buckets when its chain is long; each piece reads all of it."""
    low, high = snapshot.buckets
    size = sum(ref.size for ref in snapshot.chain)
    count = min(max(math.ceil(size / PART_BYTES), 1), max(high - low, 1))
    cuts = [low + (high - low) * number // count for number in range(count + 1)]
    return [
        msgspec.structs.replace(snapshot, buckets=(start, stop)) for start, stop in pairwise(cuts)
    ]
