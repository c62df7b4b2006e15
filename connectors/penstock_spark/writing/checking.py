"""Whether Arrow columns hold values of a schema: whole columns at a time, the first flaw by row.

What Spark brings is not what the format wrote: null where there must be something, text that is no
date, a member that the enum does not have. In a savepoint it would be found when somebody restores.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from penstock.savepoint.arrow import member_names
from penstock.schema import Field, Schema, shown, wire_type

Flaw: TypeAlias = tuple[int, str]
"""A row, and what is wrong with it."""
_TEXTS = frozenset({"datetime", "time", "timedelta", "decimal", "uuid"})


def flaw(array: pa.Array, schema: Schema, path: str) -> Flaw | None:
    """The first value of ``array`` that is not of ``schema``; ``path`` is how people call it."""
    if schema.kind == "none":
        return _first(array.is_valid(), f"{path} must be null: its type is None")
    if not array.null_count:
        return _flaw(array, schema, path)
    if not schema.nullable:
        return _first(array.is_null(), f"{path} is null, expected {shown(schema)}")
    found = _flaw(array.drop_null(), schema, path)
    return found and (pc.indices_nonzero(array.is_valid())[found[0]].as_py(), found[1])


def field_flaw(array: pa.Array, field: Field, path: str, *, in_array: bool = False) -> Flaw | None:
    """The same for a field of a struct, where null may mean that it is absent."""
    schema = field.type
    if field.may_be_absent and not in_array and schema.kind != "none":
        schema = msgspec.structs.replace(schema, nullable=True)
    return flaw(array, schema, path)


def _flaw(array: pa.Array, schema: Schema, path: str) -> Flaw | None:
    """The same for an array without nulls."""
    match schema.kind:
        case "enum":
            known = pc.is_in(array, pa.array(schema.values, array.type))
            return _first(pc.invert(known), f"{path} is not one of {shown(schema)}")
        case "list" | "set":
            return _inside(array.offsets, array.flatten(), schema.items[0], f"an element of {path}")
        case "map":
            return _map_flaw(array, schema, path)
        case "struct":
            return _struct_flaw(array, schema, path)
        case "tuple":
            for number, part in enumerate(schema.items):
                if found := flaw(array.field(number), part, f"{path}._{number + 1}"):
                    return found
            return None
        case "union":
            return _union_flaw(array, schema, path)
        case "any":
            return _each(array, msgspec.msgpack.decode, f"{path} is no msgpack")
        case kind if kind in _TEXTS:
            return _text_flaw(array, schema, path)
        case _:
            return None


def _struct_flaw(array: pa.Array, schema: Schema, path: str) -> Flaw | None:
    for number, field in enumerate(schema.fields):
        found = field_flaw(
            array.field(number), field, f"{path}.{field.name}", in_array=schema.array_like
        )
        if found:
            return found
    return None


def _map_flaw(array: pa.Array, schema: Schema, path: str) -> Flaw | None:
    key, item = schema.items
    if pa.types.is_list(array.type):  # with None for a key, it is a list of pairs
        pair = Schema("struct", fields=(Field("key", key), Field("value", item)))
        return _inside(array.offsets, array.flatten(), pair, path)
    offsets = array.offsets
    first, size = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    keys, items = array.keys.slice(first, size), array.items.slice(first, size)
    found = _inside(offsets, keys, key, f"a key of {path}")
    return found or _inside(offsets, items, item, f"a value of {path}")


def _union_flaw(array: pa.Array, schema: Schema, path: str) -> Flaw | None:
    names = member_names(schema)
    counts = None
    for number in range(len(names)):
        there = array.field(number).is_valid().cast(pa.int8())
        counts = there if counts is None else pc.add(counts, there)
    must = f"{path} must have one of {', '.join(names)}, the others null"
    if found := _first(pc.not_equal(counts, 1), must):
        return found
    for number, (name, member) in enumerate(zip(names, schema.items, strict=True)):
        nullable = msgspec.structs.replace(member, nullable=True)
        if found := flaw(array.field(number), nullable, f"{path}.{name}"):
            return found
    return None


def _text_flaw(array: pa.Array, schema: Schema, path: str) -> Flaw | None:
    kind: Any = wire_type(msgspec.structs.replace(schema, nullable=False))
    try:
        msgspec.convert(array.to_pylist(), list[kind])
    except msgspec.ValidationError:
        return _each(array, lambda text: msgspec.convert(text, kind), f"{path} is no {schema.kind}")
    return None


def _inside(offsets: pa.Array, elements: pa.Array, schema: Schema, path: str) -> Flaw | None:
    """A flaw of an element, by the row that has it."""
    found = flaw(elements, schema, path)
    if found is None:
        return None
    starts = offsets.to_pylist()
    return bisect_right(starts, found[0] + starts[0]) - 1, found[1]


def _each(array: pa.Array, decode: Callable[[Any], Any], reason: str) -> Flaw | None:
    for row, value in enumerate(array.to_pylist()):
        try:
            decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return row, f"{reason}: {value!r:.100} ({error})"
    return None


def _first(wrong: pa.Array, reason: str) -> Flaw | None:
    row = pc.index(wrong, pa.scalar(value=True)).as_py()
    return None if row < 0 else (row, reason)
