"""Rows of a state as people read them: which columns say whose row it is, which are its value."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from penstock.savepoint.arrow import column
from penstock.savepoint.layout import MAPS
from penstock.savepoint.manifest import KEYED_KINDS, StateEntry
from penstock.schema import ANY, Schema

_HIDDEN = frozenset({"key", "namespace"})
"""Columns that say nothing which another does not say better."""


def keys_of(kind: str, *, partitioned: bool) -> tuple[str, ...]:
    """The columns that tell a row from all others of its state; not those of list elements of
    subtasks, whose place means nothing.
    """
    if kind not in KEYED_KINDS:
        return ("map_key",) if kind in MAPS else ("subtask_index", "element_index")
    names = ("partition", "key") if partitioned else ("key",)
    if kind == "timers":
        return (*names, "time_domain", "timestamp_ms")
    if kind == "list":
        return (*names, "list_index")
    return (*names, "map_key") if kind in MAPS else names


def value_columns(state: StateEntry) -> dict[str, Schema]:
    """The columns of a row's value and their types; a timer has none."""
    if state.kind == "timers":
        return {}
    element = state.value.items[1] if state.kind in MAPS else state.value
    if element.kind != "struct" or element.nullable:
        return {"value": element}
    return {state.columns.get(field.name, field.name): field.type for field in element.fields}


def element_of(state: StateEntry, table: pa.Table) -> list[Any]:
    """The value of each row: itself, or the columns of its struct by name."""
    columns = value_columns(state)
    values = {name: _values(schema, table[name]) for name, schema in columns.items()}
    if set(columns) == {"value"} and state.value.kind != "struct":
        return values["value"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values.values(), strict=True)]


def shown_key(state: StateEntry, table: pa.Table, identity: Sequence[str]) -> list[str]:
    """Whose row each is: ``alice``, ``alice [2]`` of a list, ``alice / eur`` of a map."""
    parts = []
    for name in identity:
        values = _column(state, "key_value" if name == "key" else name, table)
        parts.append([f"[{value}]" if name == "list_index" else shown_value(value)
                      for value in values])  # fmt: skip
    joined = " " if state.kind in ("list", "timers") else " / "
    return [joined.join(row) for row in zip(*parts, strict=True)]


def rows_of(state: StateEntry, table: pa.Table) -> tuple[list[str], list[list[Any]]]:
    """Names and values of the columns that say something to people, row by row."""
    names = [name for name in table.column_names if name not in _HIDDEN]
    if "key_value" in names:
        names.remove("key_value")
        names.insert(0, "key_value")
        if table["namespace"].null_count < table.num_rows:
            names.insert(1, "namespace")
    columns = [_column(state, name, table) for name in names]
    heads = ["key" if name == "key_value" else name for name in names]
    return heads, [list(row) for row in zip(*columns, strict=True)]


def as_json(value: Any) -> Any:
    """A value such that JSON has it: its text where JSON has nothing like it."""
    try:
        return msgspec.json.decode(_json(value))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return repr(value)


def shown_value(value: Any) -> str:
    """A value as short text: plain for text and numbers, JSON for what has parts."""
    if isinstance(value, str):
        return value if value.strip() else f'"{value}"'
    if value is msgspec.UNSET:
        return "absent"
    try:
        text = _json(value).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return repr(value)
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def identity_of(value: Any) -> bytes:
    """Bytes that only equal values have."""
    return msgspec.msgpack.encode(value, order="deterministic", enc_hook=repr)


def _json(value: Any) -> bytes:
    return msgspec.json.encode(_spelled_out(value), enc_hook=repr)


def _spelled_out(value: Any) -> Any:
    """The value with everything of no declared type decoded: `msgspec.Raw` is msgpack here."""
    match value:
        case msgspec.Raw():
            return _decoded(value)
        case list() | tuple():
            return [_spelled_out(part) for part in value]
        case set() | frozenset():
            return sorted((_spelled_out(part) for part in value), key=repr)
        case dict():
            return {key: _spelled_out(part) for key, part in value.items()}
        case msgspec.Struct():
            pairs = zip(value.__struct_encode_fields__, msgspec.structs.astuple(value), strict=True)
            return {name: _spelled_out(part) for name, part in pairs if part is not msgspec.UNSET}
    return value


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
        return bytes(raw).hex()


def _column(state: StateEntry, name: str, table: pa.Table) -> list[Any]:
    """The values of a column of a state's rows."""
    array = table[name]
    if name == "key_value":
        return _values(ANY if state.key is None else state.key, array, is_key=True)
    if name == "map_key":
        return _values(state.value.items[0], array, is_key=True)
    schema = value_columns(state).get(name)
    found: list[Any] = array.to_pylist() if schema is None else _values(schema, array)
    return found


def _values(schema: Schema, array: pa.ChunkedArray, *, is_key: bool = False) -> list[Any]:
    as_values = column(schema, hashable=is_key).values
    return [value for chunk in array.chunks for value in as_values(chunk)]
