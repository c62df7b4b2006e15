"""A published savepoint, read through its manifest: never by listing, every sum verified (L19)."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.edge.routing import UnusableKey, group_of_bytes, key_bytes
from penstock.failure import ConfigurationError
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.limits import BATCH_ROWS, checked
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    MANIFEST_KEY,
    FileEntry,
    OperatorEntry,
    SavepointManifest,
    StateEntry,
    corrupted,
    load,
)
from penstock.savepoint.store import SavepointStore


class Savepoint:
    """A savepoint that somebody published."""

    def __init__(self, store: SavepointStore, manifest: SavepointManifest) -> None:
        self._store = store
        self.manifest = manifest

    @classmethod
    def open(cls, store: SavepointStore) -> "Savepoint":
        """The savepoint in ``store``, which is opened at the savepoint's own folder.

        Raises CorruptedObject when there is none or its manifest is damaged, ConfigurationError
        when a later version wrote it.
        """
        return cls(store, load(store.get(MANIFEST_KEY), store.url))

    @property
    def url(self) -> str:
        """Where it stands."""
        return self._store.url

    def operator(self, uid: str) -> OperatorEntry:
        """The operator with this uid; ConfigurationError naming the nearest when there is none."""
        operators = {operator.uid: operator for operator in self.manifest.operators}
        if uid not in operators:
            raise ConfigurationError(self._has_no("operator", uid, operators))
        return operators[uid]

    def state(self, operator: str, name: str) -> StateEntry:
        """A state of an operator; ConfigurationError naming the nearest when there is none."""
        states = {state.name: state for state in self.operator(operator).states}
        if name not in states:
            raise ConfigurationError(self._has_no(f"state of {operator!r}", name, states))
        return states[name]

    def layout(self, operator: str, name: str) -> StateLayout:
        """How the rows of a state look."""
        state = self.state(operator, name)
        if state_entry(state.name, state.kind, state.key, state.value).columns != state.columns:
            raise corrupted(
                self.url, f"the columns of state {name!r} of operator {operator!r} are not its own"
            )
        return StateLayout(self.operator(operator), state)

    def files(
        self, operator: str, name: str, key_groups: range | None = None
    ) -> tuple[FileEntry, ...]:
        """The files of a state in the order of their rows; only those with ``key_groups``."""
        self.state(operator, name)
        found = [
            file
            for file in self.manifest.files
            if (file.operator, file.state) == (operator, name)
            and (key_groups is None or _overlap(file, key_groups))
        ]
        return tuple(sorted(found, key=_place))

    def read(self, file: FileEntry, columns: list[str] | None = None) -> pa.Table:
        """The rows of a file, of the types that the manifest says; ``columns`` are fewer of them.

        Raises CorruptedObject when the file is not what the manifest says.
        """
        return self._decoded(file, self.data(file), columns, None)

    def data(self, file: FileEntry) -> bytes:
        """The bytes of a file, proven to be those that the manifest names."""
        return self._store.get(file.path, size=file.bytes, sha256=file.sha256)

    def batches(self, file: FileEntry) -> Iterator[pa.Table]:
        """The rows of a file, some thousands at a time. Raises CorruptedObject."""
        schema = self.layout(file.operator, file.state).arrow_schema
        with checked(self.data(file), file, self.url) as source:
            parquet = pq.ParquetFile(source)
            for batch in parquet.iter_batches(BATCH_ROWS, columns=schema.names):
                yield typed(pa.Table.from_batches([batch]), schema)

    def table(self, operator: str, name: str) -> pa.Table:
        """All rows of a state. Positions and timers are states, too."""
        schema = self.layout(operator, name).arrow_schema
        tables = [self.read(file) for file in self.files(operator, name)]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def lookup(self, operator: str, name: str, key: Any) -> pa.Table:
        """The rows of one key; reads the one file that may have them.

        State that its source partition owns may have a key in several partitions: then each file
        with the key's key group is read. Raises ConfigurationError when ``key`` cannot be a key.
        """
        if self.state(operator, name).kind not in KEYED_KINDS:
            raise ConfigurationError(
                f"state {name!r} of operator {operator!r} has no keys to look up; read its table"
            )
        try:
            raw = key_bytes(key)
        except UnusableKey as error:
            raise ConfigurationError(f"there is no key {key!r:.200}: {error}") from None
        group = group_of_bytes(raw, self.manifest.max_parallelism)
        wanted = (pc.field("key_group") == group) & (pc.field("key") == pa.scalar(raw, pa.binary()))
        schema = self.layout(operator, name).arrow_schema
        tables = [
            self._decoded(file, self.data(file), None, wanted)
            for file in self.files(operator, name, range(group, group + 1))
            if _may_have(file, group, raw)
        ]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _decoded(
        self, file: FileEntry, data: bytes, columns: list[str] | None, wanted: pc.Expression | None
    ) -> pa.Table:
        schema = self.layout(file.operator, file.state).arrow_schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        with checked(data, file, self.url) as source:
            table = pq.read_table(source, columns=schema.names, filters=wanted)
            return typed(table, schema)

    def _has_no(self, what: str, name: str, known: Iterable[str]) -> str:
        near = difflib.get_close_matches(name, known, 1, 0.0)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"savepoint {self.url} has no {what} {name!r}{hint}"


def typed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the types of the format: other writers choose wider ones.

    Raises ValueError when a value does not fit.
    """
    if table.schema.equals(schema):
        return table.replace_schema_metadata(None)
    missing = set(schema.names) - set(table.schema.names)
    if missing:
        raise ValueError(f"it has no column {sorted(missing)}")
    return table.select(schema.names).cast(schema)


def _overlap(file: FileEntry, key_groups: range) -> bool:
    low, high = file.key_group_min, file.key_group_max
    if low is None or high is None:
        return True
    return low < key_groups.stop and key_groups.start <= high


def _place(file: FileEntry) -> tuple[Any, ...]:
    if file.key_group_min is None:
        return (-1,)
    lower = file.lower
    return (lower["key_group"], lower.get("partition", 0), bytes.fromhex(str(lower["key"])))


def _may_have(file: FileEntry, group: int, key: bytes) -> bool:
    """Whether the key may be in the file; where partitions own keys, only key groups decide."""
    if "partition" in file.lower:
        return True
    lower, upper = file.lower, file.upper
    first = (lower["key_group"], bytes.fromhex(str(lower["key"])))
    last = (upper["key_group"], bytes.fromhex(str(upper["key"])))
    return first <= (group, key) <= last
