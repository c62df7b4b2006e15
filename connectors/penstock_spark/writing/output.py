"""What a task leaves behind: files of sorted rows, and their entries for the manifest.

Runs in Spark's tasks. A file counts when its entry comes back with the result of a successful
attempt of its task, and only then; all files of one write bear its mark.
"""

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import eq
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from penstock.failure import ConfigurationError
from penstock.runtime.ports import SnapshotStore
from penstock.savepoint.layout import MAPS, StateLayout
from penstock.savepoint.manifest import FileEntry, OperatorEntry, StateEntry
from penstock.savepoint.reading import typed
from penstock.savepoint.writing import SavepointFiles

from penstock_spark.scan import opened
from penstock_spark.writing.keying import RAW
from penstock_spark.writing.rows import KEY, StateRows, named

ENTRY = "entry string"
"""Schema of what a task gives back: a `FileEntry` as JSON in each row."""


class Target(NamedTuple):
    """Where a write goes; picklable."""

    url: str
    mark: str
    max_parallelism: int

    def store(self) -> SnapshotStore:
        """The store, with the settings of this process."""
        return opened(self.url)


class StateOutput:
    """The files of one state that a task writes; rows come in the order of the format."""

    def __init__(self, store: SnapshotStore, target: Target, layout: StateLayout) -> None:
        self._layout = layout
        self._files = SavepointFiles(
            store, layout.operator, layout.state, target.max_parallelism, mark=target.mark
        )
        self._last: pa.Table | None = None
        self._identity = identity(layout)

    def add(self, table: pa.Table) -> None:
        """Rows behind those before. Raises ConfigurationError for a row that is there twice."""
        if not table.num_rows:
            return
        self._must_differ(table if self._last is None else pa.concat_tables([self._last, table]))
        self._last = table.slice(table.num_rows - 1)
        self._files.add(table)

    def close(self) -> list[FileEntry]:
        """The entries of all files."""
        return self._files.close()

    def _must_differ(self, table: pa.Table) -> None:
        rows = table.combine_chunks()
        same = reduce(pc.and_, (_equal_to_next(rows[name]) for name in self._identity))
        row = pc.index(same, pa.scalar(value=True)).as_py()
        if row < 0:
            return
        layout = self._layout
        names = self._identity
        if layout.keyed:
            names = (KEY, *self._identity[len(layout.sort_columns) :])
        shown = ", ".join(f"{name} {rows[name][row].as_py()!r:.200}" for name in names)
        raise ConfigurationError(
            f"{named(layout.operator, layout.state)} has two rows for {shown}; a savepoint has one "
            "for each: drop all but one, or aggregate them, before"
        )


class SortedRows(NamedTuple):
    """Writes rows of the format that come sorted: what ``DataFrame.mapInArrow`` runs last."""

    target: Target
    operator: OperatorEntry
    state: StateEntry

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entries of the files."""
        layout = StateLayout(self.operator, self.state)
        output = StateOutput(self.target.store(), self.target, layout)
        for batch in batches:
            output.add(typed(pa.Table.from_batches([batch]), layout.arrow_schema))
        yield entry_rows(output.close())


class FramedRows(NamedTuple):
    """Makes a user's rows, which come by key, those of the format, and writes them."""

    target: Target
    operator: OperatorEntry
    state: StateEntry
    key: str
    has_keys: bool

    def rows(self) -> StateRows:
        """What checks them."""
        return StateRows(
            self.operator,
            self.state,
            self.target.max_parallelism,
            key=self.key,
            has_keys=self.has_keys,
        )

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The entries of the files."""
        rows = self.rows()
        output = StateOutput(self.target.store(), self.target, rows.layout)
        for batch in batches:
            if not batch.num_rows:
                continue
            made = rows.rows(batch)
            if rows.layout.keyed and not made.column("key").equals(batch.column(RAW)):
                raise ConfigurationError(
                    f"{named(self.operator, self.state)}: Spark has sorted its rows by other bytes "
                    "than those of their keys; use the versions of Spark that penstock[spark] names"
                )
            output.add(pa.Table.from_batches([made]))
        yield entry_rows(output.close())


def identity(layout: StateLayout) -> tuple[str, ...]:
    """The columns of which no two rows have the same: by these, in this order, rows are sorted."""
    kind = layout.state.kind
    if not layout.keyed:
        return ("subtask_index", "map_key" if kind in MAPS else "element_index")
    own = {
        "list": ("list_index",),
        "map": ("map_key",),
        "timers": ("timestamp_ms", "time_domain"),
    }
    return (*layout.sort_columns, *own.get(kind, ()))


def entry_rows(entries: Iterable[FileEntry]) -> pa.RecordBatch:
    """The entries as rows of ENTRY."""
    texts = [msgspec.json.encode(entry).decode() for entry in entries]
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["entry"])


def _equal_to_next(column: pa.ChunkedArray) -> pa.Array:
    """Whether each value is equal to the next; null is equal to null."""
    (rows,) = column.chunks
    before, after = rows.slice(0, len(rows) - 1), rows.slice(1)
    if pa.types.is_nested(rows.type):
        return pa.array(map(eq, before.to_pylist(), after.to_pylist()), pa.bool_())
    same = pc.fill_null(pc.equal(before, after), fill_value=False)
    return pc.or_(same, pc.and_(before.is_null(), after.is_null())) if rows.null_count else same
