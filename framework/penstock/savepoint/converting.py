"""A checkpoint becomes a savepoint (L22): offline, without a class of the user, bucket by bucket.

Memory holds the encoded chain of one subtask, one bucket of one state decoded, and the files that
are being written; state that source partitions own is collected before it is written, as columns.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import metadata

import pyarrow as pa
import pyarrow.compute as pc

from penstock.control import ChunkRef
from penstock.failure import ConfigurationError
from penstock.savepoint.describing import Description, described
from penstock.savepoint.layout import StateLayout
from penstock.savepoint.manifest import (
    POSITIONS,
    FileEntry,
    SavepointManifest,
    encode,
    load,
)
from penstock.savepoint.merging import Chain
from penstock.savepoint.store import SavepointStore
from penstock.savepoint.writing import GROUP_ROWS, SavepointFiles, publish
from penstock.snapshot.manifest import KEY_HASH, Manifest, places_alike

Read = Callable[[ChunkRef], bytes]


def convert(
    manifest: Manifest,
    read: Read,
    target: SavepointStore,
    *,
    savepoint_id: str,
    created_at_ms: int,
    parent: str | None = None,
) -> SavepointManifest:
    """Write the checkpoint ``manifest`` as a savepoint into ``target``, and publish it.

    Args:
        manifest: a complete checkpoint.
        read: the bytes of a chunk, verified (`penstock.snapshot.chain.ChunkReader`).
        target: a store opened at the savepoint's own, empty folder.
        savepoint_id: its name.
        created_at_ms: now.
        parent: what it was made from, for people.

    Raises ConfigurationError for state that an older penstock kept without its schema, for keys
    placed by another hash and for a value that no column holds; CorruptedObject for a damaged
    chunk; StoreFailed.
    """
    if not places_alike(manifest.key_hash, manifest.max_parallelism):
        raise ConfigurationError(
            f"checkpoint {manifest.checkpoint} places keys by {manifest.key_hash!r}, savepoints "
            f"by {KEY_HASH!r}: it cannot become one; run the version of penstock that wrote it"
        )
    description = described(manifest, read)
    files: list[FileEntry] = []
    for stage in description.stages:
        files += _Stage(manifest, description, stage, read, target).files()
    made = SavepointManifest(
        savepoint_id=savepoint_id,
        app=manifest.app,
        checkpoint=manifest.checkpoint,
        created_at_ms=created_at_ms,
        created_by=f"penstock {metadata.version('penstock')}",
        parent=parent,
        max_parallelism=manifest.max_parallelism,
        sources=description.sources,
        watermarks=description.watermarks,
        operators=description.operators,
        files=tuple(files),
    )
    made = load(encode(made), target.url)
    publish(target, made)
    return made


class _Stage:
    """The files of one stage."""

    def __init__(
        self,
        manifest: Manifest,
        description: Description,
        stage: str,
        read: Read,
        target: SavepointStore,
    ) -> None:
        self._parts = description.parts(stage)
        self._sources = [source for source in description.sources if source.stage == stage]
        self._groups = manifest.max_parallelism
        self._read = read
        self._target = target
        operators = [operator for operator in description.operators if operator.stage == stage]
        self._layouts = [StateLayout(op, state) for op in operators for state in op.states]
        self._keyed = [layout for layout in self._layouts if layout.keyed]

    def files(self) -> list[FileEntry]:
        """Write all of them; their entries."""
        found: list[FileEntry] = []
        for layout in self._layouts:
            if layout.state.kind == POSITIONS:
                found += self._written(layout, [self._positions(layout)])
            elif not layout.keyed:
                found += self._written(layout, [self._cells(layout)])
        return found + self._keyed_files()

    def _keyed_files(self) -> list[FileEntry]:
        """Those of keyed state: every subtask's chain is read once, for all states together."""
        writers = [self._writer(layout) for layout in self._keyed]
        collected: list[list[pa.Table]] = [[] for _ in self._keyed]
        for part in self._parts if self._keyed else ():
            chain = Chain(part, self._read)
            for layout, writer, tables in zip(self._keyed, writers, collected, strict=True):
                for bucket in chain.buckets:
                    entries = chain.entries(layout, bucket)
                    if not entries:
                        continue
                    owners = [bucket] * len(entries) if layout.partitioned else None
                    rows = layout.batch(entries, self._groups, owners)
                    # Buckets of an edge follow key groups; partitions of a source do not.
                    tables.append(rows) if layout.partitioned else writer.add(rows)
        found: list[FileEntry] = []
        for layout, writer, tables in zip(self._keyed, writers, collected, strict=True):
            for rows in _in_order(tables, layout.sort_columns):
                writer.add(rows)
            tables.clear()
            found += writer.close()
        return found

    def _cells(self, layout: StateLayout) -> pa.Table:
        """The elements of a state of subtasks, in the order of the subtasks."""
        uid, name = layout.operator.uid, layout.state.name
        pairs = []
        for part in self._parts:
            elements = part.operator_state.get(uid, {}).get(name)
            if elements is not None:
                where = f"the snapshot of {part.subtask}"
                pairs.append((part.subtask.index, layout.decoded_cells(elements, where)))
        return layout.batch(pairs)

    def _positions(self, layout: StateLayout) -> pa.Table:
        operator = layout.operator
        rows = [
            {
                "service": operator.service,
                "stage": operator.stage,
                "source_uid": source.uid,
                "topic": source.topic,
                "partition": partition,
                "position": position,
            }
            for source in self._sources
            if source.uid == operator.uid
            for partition, position in sorted(source.positions.items())
        ]
        return pa.Table.from_pylist(rows, layout.arrow_schema)

    def _writer(self, layout: StateLayout) -> SavepointFiles:
        return SavepointFiles(self._target, layout.operator, layout.state, self._groups)

    def _written(self, layout: StateLayout, tables: Iterable[pa.Table]) -> list[FileEntry]:
        writer = self._writer(layout)
        for table in tables:
            writer.add(table)
        return writer.close()


def _in_order(tables: list[pa.Table], columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """All rows by these columns, some at a time; equal ones stay in order."""
    if not tables:
        return
    whole = pa.concat_tables(tables)
    order = pc.sort_indices(whole, [(name, "ascending") for name in columns])
    for start in range(0, len(order), GROUP_ROWS):
        yield whole.take(order.slice(start, GROUP_ROWS))
