"""Rows of a state as a DataFrame has them, made rows of the format: keyed, typed and checked.

Runs in Spark's tasks. Every error names the operator, the state and the key.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from penstock.edge.routing import UnusableKey, canonical, group_of_bytes
from penstock.failure import ConfigurationError
from penstock.savepoint.arrow import Column, column
from penstock.savepoint.layout import DOMAINS, MAPS, StateLayout
from penstock.savepoint.manifest import OperatorEntry, StateEntry
from penstock.schema import ANY, Field, Schema, shown

from penstock_spark.writing.checking import Flaw, field_flaw, flaw
from penstock_spark.writing.values import fitted

KEY = "key_value"
DEFAULTS: dict[str, Any] = {"namespace": None, "registration": 0, "subtask_index": 0}
"""What a DataFrame may leave out."""
_encode = msgspec.msgpack.Encoder().encode
_AS_THEY_ARE = frozenset({"str", "int", "bytes"})


class ValueColumn(NamedTuple):
    """A column of the value, and the type of what stands in it."""

    name: str
    field: Field


class StateRows:
    """Makes rows of one state of what a DataFrame has.

    Args:
        operator: whose state it is.
        state: its kind and types.
        max_parallelism: the number of key groups.
        key: the column with the key.
        has_keys: columns ``key`` and ``key_group`` are compared with what they must be; else they
            are made anew, for the key may have changed.
    """

    def __init__(
        self,
        operator: OperatorEntry,
        state: StateEntry,
        max_parallelism: int,
        *,
        key: str = KEY,
        has_keys: bool = True,
    ) -> None:
        self.operator = operator
        self.state = state
        self.layout = StateLayout(operator, state)
        self._groups = max_parallelism
        self._key = key
        self._has_keys = has_keys
        self._values = {value.name: value.field for value in value_columns(state)}

    def missing(self, columns: Sequence[str]) -> list[str]:
        """The columns that a DataFrame with ``columns`` should have, and has not."""
        wanted = set(self.layout.arrow_schema.names) - {"key", "key_group", KEY, *DEFAULTS}
        wanted -= {name for name, field in self._values.items() if field.may_be_absent}
        if self.layout.keyed:
            wanted.add(self._key)
        return sorted(wanted - set(columns))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the format. Raises ConfigurationError for the first that is none."""
        keys = _Keys(self, batch) if self.layout.keyed else None
        columns = []
        for field in self.layout.arrow_schema:
            if keys is not None and field.name in keys.columns:
                columns.append(keys.columns[field.name])
                continue
            found = self._column(batch, field)
            reason = self._flaw(field.name, found)
            if reason is not None:
                self.refuse(batch, *reason)
            columns.append(found)
        return pa.RecordBatch.from_arrays(columns, schema=self.layout.arrow_schema)

    def key_bytes(self, batch: pa.RecordBatch) -> tuple[pa.Array, list[bytes]]:
        """The column ``key_value``, and the canonical bytes of each key."""
        schema = ANY if self.state.key is None else self.state.key
        part = column(schema, hashable=True)
        found = self._cast(batch, self._key, part)
        reason = flaw(found, schema, f"the key (column {self._key!r})")
        if reason is not None:
            self.refuse(batch, *reason)
        keys = part.values(found)
        if schema.kind in _AS_THEY_ARE and not schema.nullable:
            raw = list(map(_encode, keys))
        else:
            raw = [self._canonical(batch, row, key) for row, key in enumerate(keys)]
        return pa.array(raw, pa.binary()) if schema == ANY else found, raw

    def refuse(self, batch: pa.RecordBatch, row: int, reason: str) -> NoReturn:
        """Raise the error for a row."""
        where = ""
        if self.layout.keyed and self._key in batch.schema.names:
            where = f", key {batch.column(self._key)[row].as_py()!r:.200}"
        raise ConfigurationError(f"{named(self.operator, self.state)}{where}: {reason}")

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        name = field.name
        if name in batch.schema.names:
            part = self._values[name].type if name in self._values else None
            if name == "map_key":
                part = self.state.value.items[0]
            kind = column(part, hashable=name == "map_key") if part else None
            return self._cast(batch, name, kind, field.type)
        if DEFAULTS.get(name) is not None:
            return pa.repeat(pa.scalar(DEFAULTS[name], field.type), batch.num_rows)
        return pa.nulls(batch.num_rows, field.type)

    def _flaw(self, name: str, found: pa.Array) -> Flaw | None:
        path = f"column {name!r}"
        if name in self._values:
            return field_flaw(found, self._values[name], path)
        if name == "map_key":
            return flaw(found, self.state.value.items[0], path)
        if name == "namespace":
            there = pc.index(found.is_valid(), pa.scalar(value=True)).as_py()
            return None if there < 0 else (there, "column 'namespace' must be null")
        if name == "time_domain":
            return flaw(found, Schema("enum", values=DOMAINS), path)
        limit = self.operator.partitions if name == "partition" else 1 << 62
        return flaw(found, Schema("int"), path) or _out_of_range(found, limit, path)

    def _cast(
        self,
        batch: pa.RecordBatch,
        name: str,
        part: Column | None,
        kind: pa.DataType | None = None,
    ) -> pa.Array:
        given = batch.column(name)
        wanted = part.type if part is not None else kind
        try:
            if part is not None:
                return fitted(given, part)
            if name == "timestamp_ms" and pa.types.is_timestamp(given.type):
                return given.cast(pa.timestamp("ms", given.type.tz)).cast(pa.int64())
            return given.cast(wanted)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            self.refuse(
                batch,
                0,
                f"column {name!r} is {given.type}, expected {wanted} for "
                f"{shown(part.schema) if part is not None else name}: {error}; cast it in the "
                "DataFrame (this is the first key of its batch)",
            )

    def _canonical(self, batch: pa.RecordBatch, row: int, key: Any) -> bytes:
        try:
            return _encode(canonical(key))
        except UnusableKey as error:
            self.refuse(batch, row, str(error))


class _Keys:
    """The columns of a batch that follow from the keys."""

    def __init__(self, rows: StateRows, batch: pa.RecordBatch) -> None:
        found, raw = rows.key_bytes(batch)
        groups = rows._groups  # noqa: SLF001  (its friend)
        self.columns = {
            "key_group": pa.array([group_of_bytes(key, groups) for key in raw], pa.int32()),
            "key": pa.array(raw, pa.binary()),
            KEY: found,
        }
        if rows._has_keys:  # noqa: SLF001  (its friend)
            for name in {"key_group", "key"} & set(batch.schema.names):
                self._compare(rows, batch, name)

    def _compare(self, rows: StateRows, batch: pa.RecordBatch, name: str) -> None:
        expected = self.columns[name]
        given = batch.column(name).cast(expected.type)
        same = pc.fill_null(pc.equal(given, expected), fill_value=False)
        row = pc.index(same, pa.scalar(value=False)).as_py()
        if row >= 0:
            values = [_hex(array[row].as_py()) for array in (given, expected)]
            rows.refuse(
                batch,
                row,
                f"column {name!r} is {values[0]}, expected {values[1]} for this key; drop the "
                "columns 'key' and 'key_group': they are made of the key",
            )


def value_columns(state: StateEntry) -> list[ValueColumn]:
    """The columns that hold the value: one for each field of a struct, else ``value``."""
    if state.kind == "timers":
        return []
    element = state.value.items[1] if state.kind in MAPS else state.value
    if element.kind == "struct" and not element.nullable and element.fields:
        return [ValueColumn(state.columns.get(f.name, f.name), f) for f in element.fields]
    if element.kind == "struct" and not element.nullable:
        return []
    return [ValueColumn("value", Field("value", element))]


def named(operator: OperatorEntry, state: StateEntry) -> str:
    """A state for people."""
    return f"state {state.name!r} of operator {operator.uid!r}"


def _out_of_range(found: pa.Array, limit: int, path: str) -> Flaw | None:
    wrong = pc.or_(pc.less(found, 0), pc.greater_equal(found, limit))
    if path == "column 'timestamp_ms'":
        return None
    row = pc.index(wrong, pa.scalar(value=True)).as_py()
    return None if row < 0 else (row, f"{path} is {found[row].as_py()}, expected 0 to {limit - 1}")


def _hex(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)
