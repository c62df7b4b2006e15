"""The files of a savepoint as they are written: sorted rows in, Parquet objects and entries out.

A file is named for its own bytes, so that a task that is run again writes the same name and no name
ever stands for two contents (L19). Nothing counts until `publish` writes the manifest.
"""

import hashlib
import io
import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.failure import ConfigurationError
from penstock.savepoint.layout import StateLayout
from penstock.savepoint.manifest import (
    FORMAT_VERSION,
    KEYED_KINDS,
    MANIFEST_KEY,
    FileEntry,
    OperatorEntry,
    SavepointManifest,
    StateEntry,
    encode,
)
from penstock.savepoint.store import SavepointStore

FILE_ROWS = 1_000_000
FILE_BYTES = 64 * 1024 * 1024
GROUP_ROWS = 128 * 1024
"""Rows of a row group: what a reader that filters can skip."""
_REPEATING = ("key_group", "partition", "time_domain", "subtask_index")
"""Columns with few different values, for which a dictionary pays."""
_Bound = tuple[Any, ...]


class SavepointFiles:
    """The files of one state, cut where a file is full: between two key groups where it can.

    Args:
        store: the savepoint's store.
        operator: whose state it is.
        state: which; its kind decides whether rows have a key.
        max_parallelism: no key group may reach it.
        file_rows: a file has at most so many rows.
        file_bytes: a file is cut once it has so many bytes.
        mark: begins the names of the files: those of one try to write the savepoint can then be
            told from those of any other, and swept.
    """

    def __init__(
        self,
        store: SavepointStore,
        operator: OperatorEntry,
        state: StateEntry,
        max_parallelism: int,
        *,
        file_rows: int = FILE_ROWS,
        file_bytes: int = FILE_BYTES,
        mark: str = "",
    ) -> None:
        self._store = store
        self._mark = mark
        self._operator = operator
        self._state = state
        self._max_parallelism = max_parallelism
        self._file_rows = file_rows
        self._file_bytes = file_bytes
        self._keyed = state.kind in KEYED_KINDS
        self._order = StateLayout(operator, state).sort_columns
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._last: _Bound | None = None
        self._file: _OpenFile | None = None
        self._entries: list[FileEntry] = []

    def add(self, table: pa.Table) -> None:
        """Rows that come after all that were added before, in the order of the format.

        Raises ConfigurationError when they do not.
        """
        if not table.num_rows:
            return
        first, last = row_bound(table, 0, self._order), row_bound(table, -1, self._order)
        groups = [bound[0] for bound in (first, last)] if self._keyed else [0]
        if first > last or (self._last is not None and first < self._last):
            raise ConfigurationError(
                f"rows of state {self._state.name!r} of operator {self._operator.uid!r} are not "
                f"in order: {first} to {last} came after {self._last}; sort them by "
                f"{', '.join(self._order)}"
            )
        if not (groups[0] >= 0 and groups[-1] < self._max_parallelism):
            raise ConfigurationError(
                f"rows of state {self._state.name!r} of operator {self._operator.uid!r} have key "
                f"groups {groups[0]} to {groups[-1]}, expected 0 to {self._max_parallelism - 1}: "
                "key_group is pmod(xxh64(key, seed 42), max_parallelism)"
            )
        self._last = last
        self._pending.append(table)
        self._pending_rows += table.num_rows
        if self._pending_rows >= GROUP_ROWS:
            self._write()

    def close(self) -> list[FileEntry]:
        """Write what is left; the entries of all files, in order. Nothing may be added after."""
        self._write()
        self._finish()
        return self._entries

    def _write(self) -> None:
        """Turn the rows that wait into row groups, in as many files as it takes."""
        if not self._pending:
            return
        table = pa.concat_tables(self._pending)
        self._pending, self._pending_rows = [], 0
        while table.num_rows:
            file = self._file = self._file or _OpenFile(table.schema, self._metadata(), self._order)
            room = 0 if file.size >= self._file_bytes else self._file_rows - file.rows
            if table.num_rows <= room:
                file.write(table)
                return
            here = self._cut(table, room, is_new=not file.rows)
            if here:
                file.write(table.slice(0, here))
            self._finish()
            table = table.slice(here)

    def _cut(self, table: pa.Table, room: int, *, is_new: bool) -> int:
        """How many of the rows still go into the present file: at most ``room``.

        Between two key groups when there is such a place, else between two keys, else anywhere.
        """
        if not self._keyed or room <= 0:
            return max(room, 0)
        runs = pc.run_end_encode(table["key_group"].slice(0, room + 1).combine_chunks())
        ends = [end for end in runs.run_ends.to_pylist() if end <= room]
        if ends:
            return int(ends[-1])
        keys = table["key"]
        here = room
        while here and keys[here] == keys[here - 1]:
            here -= 1
        return here if here or not is_new else room

    def _finish(self) -> None:
        file, self._file = self._file, None
        if file is None or not file.rows:
            return
        data = file.close()
        sha256 = hashlib.sha256(data).hexdigest()
        path = file_path(self._operator, self._state, sha256, self._mark)
        self._store.put(path, data)
        lower: dict[str, int | str] = {}
        upper: dict[str, int | str] = {}
        if self._keyed:
            lower = shown_bound(self._order, file.first)
            upper = shown_bound(self._order, file.last)
        self._entries.append(
            FileEntry(
                path=path,
                operator=self._operator.uid,
                state=self._state.name,
                rows=file.rows,
                bytes=len(data),
                sha256=sha256,
                key_group_min=file.first[0] if self._keyed else None,
                key_group_max=file.last[0] if self._keyed else None,
                lower=lower,
                upper=upper,
            )
        )

    def _metadata(self) -> dict[str, str]:
        return {
            "penstock.format_version": str(FORMAT_VERSION),
            "penstock.operator": self._operator.uid,
            "penstock.state": self._state.name,
        }


def publish(store: SavepointStore, manifest: SavepointManifest) -> None:
    """Write the manifest: from now on the savepoint exists. Raises StoreFailed where one does."""
    store.put(MANIFEST_KEY, encode(manifest))


def file_path(operator: OperatorEntry, state: StateEntry, sha256: str, mark: str = "") -> str:
    """Where a file of this content stands in the savepoint; for ``mark`` see `SavepointFiles`."""
    name = f"{mark}-{sha256[:32]}" if mark else sha256[:32]
    if state.kind == "positions":
        return f"sources/{operator.uid}/positions-{name}.parquet"
    return f"data/{operator.uid}/{state_slug(state.name)}/{name}.parquet"


def state_slug(name: str) -> str:
    """The folder of a state: its name, or what is left of it with a part of its sum behind."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:60]
    if slug == name and slug[0].isalnum():
        return slug
    return f"{slug.strip('_-') or 'state'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class _OpenFile:
    """A file in the making, in memory."""

    def __init__(self, schema: pa.Schema, metadata: dict[str, str], order: tuple[str, ...]) -> None:
        self.rows = 0
        self.first: _Bound = ()
        self.last: _Bound = ()
        self._order = order
        self._sink = io.BytesIO()
        self._schema = schema.remove_metadata()
        self._metadata = metadata
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            use_dictionary=[name for name in _REPEATING if name in schema.names],
            write_statistics=True,
            write_page_index=True,
            store_schema=False,
        )

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._sink.tell()

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        if not self.rows:
            self.first = row_bound(table, 0, self._order)
        self.last = row_bound(table, -1, self._order)
        self.rows += table.num_rows
        plain = table.replace_schema_metadata(None)
        self._writer.write_table(plain, row_group_size=GROUP_ROWS)

    def close(self) -> bytes:
        """The bytes of the file."""
        self._writer.add_key_value_metadata(self._metadata)
        self._writer.close()
        return self._sink.getvalue()


def row_bound(table: pa.Table, at: int, order: tuple[str, ...]) -> _Bound:
    """The sort columns of one row; ``at`` may be -1."""
    place = at % table.num_rows
    return tuple(table[name][place].as_py() for name in order)


def shown_bound(order: tuple[str, ...], bound: _Bound) -> dict[str, int | str]:
    """A bound as the manifest has it: bytes in hex."""
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in zip(order, bound, strict=True)
    }
