"""The entries of a state of a savepoint, proven row by row: somebody else may have written them.

A key in a wrong key group would be restored where no record of it ever comes, a key that is there
twice would lose one of its values without a word.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint.layout import MAPS, Entry, StateLayout
from penstock.savepoint.limits import damaged
from penstock.savepoint.manifest import FileEntry
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.writing import row_bound, shown_bound

_UNREADABLE = (
    *(CorruptedObject, pa.ArrowException, msgspec.MsgspecError),
    *(ValueError, TypeError, OverflowError, RecursionError, MemoryError),
)
"""What comes of text that is no UTF-8, of nulls, of bytes that are no msgpack."""
_encode = msgspec.msgpack.Encoder().encode
_Row = tuple[Any, ...]


class VerifiedState:
    """One state of a savepoint, read once from its first row to its last."""

    def __init__(self, savepoint: Savepoint, operator: str, name: str) -> None:
        self.layout: StateLayout = savepoint.layout(operator, name)
        self._savepoint = savepoint
        self._files = savepoint.files(operator, name)
        self._last: _Row | None = None
        self._domains: set[str] = set()
        """Of the timers with the key and time of the last row."""

    def entries(self) -> Iterator[Entry]:
        """(partition, key group, key, value) of every key, its whole list or map together.

        Of state of subtasks, (None, None, subtask, elements). Raises CorruptedObject naming the
        file, and ConfigurationError for rows that this version cannot take.
        """
        held: Entry | None = None
        for file in self._files:
            for entry in self._of_file(file):
                if held is not None and held[:3] == entry[:3]:
                    self._join(held, entry, file)
                    continue
                if held is not None:
                    yield held
                held = entry
        if held is not None:
            yield held

    def _of_file(self, file: FileEntry) -> Iterator[Entry]:
        columns = self.layout.sort_columns
        first: _Row = ()
        last: _Row = ()
        for table in self._savepoint.batches(file):
            if not table.num_rows:
                continue
            first = first or row_bound(table, 0, columns)
            last = row_bound(table, -1, columns)
            try:
                self._check_order(table, file)
                self.layout.verify(table, self._savepoint.manifest.max_parallelism)
                found = list(self.layout.entries(table))
                self._check_values(found, file)
            except _UNREADABLE as error:
                raise self._damaged(file, str(error)) from error
            yield from found
        bounds = (shown_bound(columns, first), shown_bound(columns, last)) if first else ({}, {})
        if bounds != (file.lower, file.upper):
            raise self._damaged(
                file, f"its rows go from {bounds[0]} to {bounds[1]}, the manifest says otherwise"
            )

    def _check_order(self, table: pa.Table, file: FileEntry) -> None:
        layout = self.layout
        if layout.keyed and table["namespace"].null_count != table.num_rows:
            raise ConfigurationError(
                f"file {file.path!r} of savepoint {self._savepoint.url} has rows of state "
                f"{file.state!r} of operator {file.operator!r} with a namespace: this penstock "
                "keeps no state by namespace; remove these rows, or use a version that does"
            )
        names = list(layout.sort_columns)
        kind = layout.state.kind
        if not layout.keyed:
            names = ["subtask_index", *(() if kind in MAPS else ("element_index",))]
        elif kind == "list":
            names.append("list_index")
        elif kind == "timers":
            names.append("timestamp_ms")
        rows = zip(*(table[name].to_pylist() for name in names), strict=True)
        if kind == "timers":
            self._check_timers(rows, table["time_domain"].to_pylist(), file)
            return
        repeats = kind in MAPS  # the keys of a map are compared when it is put together
        last = self._last
        for row in rows:
            if last is not None and not (last < row or (repeats and last == row)):
                raise self._unordered(last, row, file)
            last = row
        self._last = last

    def _check_timers(self, rows: Iterator[_Row], domains: list[str], file: FileEntry) -> None:
        last = self._last
        for row, domain in zip(rows, domains, strict=True):
            if row != last:
                if last is not None and row < last:
                    raise self._unordered(last, row, file)
                self._domains = set()
            if domain in self._domains:
                raise self._unordered(row, row, file)
            self._domains.add(domain)
            last = row
        self._last = last

    def _check_values(self, entries: list[Entry], file: FileEntry) -> None:
        """Columns may hold null where the type has none: what is encoded must be decoded again."""
        layout = self.layout
        where = f"file {file.path!r}"
        try:
            if not layout.keyed:
                for _, _, _, elements in entries:
                    layout.decoded_cells(layout.encoded_cells(elements), where)
                return
            owned: dict[int | None, dict[Any, Any]] = {}
            for partition, _, key, value in entries:
                owned.setdefault(partition, {})[key] = value
            for pairs in owned.values():
                layout.decoded(_encode(pairs), where)
        except ConfigurationError as error:
            raise self._damaged(file, str(error)) from error

    def _join(self, held: Entry, entry: Entry, file: FileEntry) -> None:
        """The rows of a list or map that was cut by the end of a batch or file."""
        if isinstance(held[3], list):
            held[3].extend(entry[3])
            return
        before = len(held[3])
        held[3].update(entry[3])
        if len(held[3]) != before + len(entry[3]):
            raise self._damaged(file, f"the map of key {entry[2]!r:.200} has the same key twice")

    def _unordered(self, last: _Row, row: _Row, file: FileEntry) -> CorruptedObject:
        how = "is there twice" if row == last else f"came after {_shown(last)}"
        return self._damaged(file, f"the row {_shown(row)} {how}, expected rows sorted, each once")

    def _damaged(self, file: FileEntry, reason: str) -> CorruptedObject:
        return damaged(file, self._savepoint.url, reason)


def _shown(row: _Row) -> str:
    return repr(tuple(value.hex() if isinstance(value, bytes) else value for value in row))[:200]
