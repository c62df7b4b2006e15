"""Arrow columns of wire values: one column per type, whole lists at a time, without loss.

The wire values of a schema are those of `penstock.schema.wire_type`. Structs, lists, maps and
unions are taken apart into lists of their parts, so that no value is looked at on its own: an array
of a million structs is made of one array per field.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from penstock.schema import Field, Schema, wire_type

_PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
}
_EMPTY = pa.field("_empty", pa.bool_())
"""Stands in a struct without fields, which Parquet does not have."""


@lru_cache(maxsize=4096)
def column(schema: Schema, *, hashable: bool = False) -> "Column":
    """How values of ``schema`` become an Arrow array; ``hashable`` as in `wire_type`."""
    match schema.kind:
        case "enum":
            is_int = all(isinstance(value, int) for value in schema.values)
            return Column(schema, pa.int64() if is_int else pa.string())
        case "any":
            return _Keys(schema, pa.binary()) if hashable else _Raws(schema, pa.binary())
        case "none":
            return _Nothing(schema, pa.bool_())
        case "list" | "set":
            return _Lists(schema, hashable=hashable)
        case "map":
            if schema.items[0].nullable or schema.items[0].kind == "none":
                return _Pairs(schema, hashable=hashable)
            return _Maps(schema, hashable=hashable)
        case "tuple":
            return _Tuples(schema, hashable=hashable)
        case "struct":
            return StructColumn(schema, hashable=hashable)
        case "union":
            return _Unions(schema, hashable=hashable)
        case plain if plain in _PLAIN:
            return Column(schema, _PLAIN[plain])
        case _:
            return _Texts(schema, pa.string())


def arrow_type(schema: Schema) -> pa.DataType:
    """The Arrow type of a schema."""
    return column(schema).type


class Column:
    """A column of plain values, which Arrow knows as they are; the other kinds derive from it."""

    is_plain = True
    """Arrow takes the values as they are, None for null."""

    def __init__(self, schema: Schema, kind: pa.DataType) -> None:
        self.schema = schema
        self.type = kind

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The array of wire values.

        Raises OverflowError or pyarrow.ArrowInvalid for what Arrow does not hold: an integer
        outside of 64 bits.
        """
        if self.is_plain:
            return pa.array(values, self.type)
        if not self.schema.nullable or None not in values:
            return self._array(values)
        there = [value is not None for value in values]
        return _spread(self._array([value for value in values if value is not None]), there)

    def values(self, array: pa.Array) -> list[Any]:
        """The wire values of an array."""
        if self.is_plain:
            found: list[Any] = array.to_pylist()
            return found
        if not array.null_count:
            return self._values(array)
        there = array.is_valid().to_pylist()
        left = iter(self._values(array.drop_null()))
        return [next(left) if is_there else None for is_there in there]

    def _array(self, values: Sequence[Any]) -> pa.Array:
        """The array of values none of which is None."""
        raise NotImplementedError

    def _values(self, array: pa.Array) -> list[Any]:
        """The values of an array without nulls."""
        raise NotImplementedError


def _spread(array: pa.Array, there: list[bool]) -> pa.Array:
    """The elements of ``array`` where something is there, null elsewhere."""
    count = accumulate(there, initial=0)
    places = [n if is_there else None for is_there, n in zip(there, count)]
    return array.take(pa.array(places, pa.int64()))


class _Derived(Column):
    is_plain = False


class _Texts(_Derived):
    """Dates with time, durations, decimals and UUIDs as the text that msgspec writes."""

    def __init__(self, schema: Schema, kind: pa.DataType) -> None:
        super().__init__(schema, kind)
        self._kind = list[wire_type(_bare(schema))]  # type: ignore[misc]

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(msgspec.to_builtins(values), self.type)

    def _values(self, array: pa.Array) -> list[Any]:
        found: list[Any] = msgspec.convert(array.to_pylist(), self._kind)
        return found


class _Raws(_Derived):
    """Values of no known type: their msgpack bytes."""

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(list(map(bytes, values)), self.type)

    def _values(self, array: pa.Array) -> list[Any]:
        # Exactly one value each: two in one place would shift all that follow them in a chunk.
        return list(map(_one_value, array.to_pylist()))


_one_value = msgspec.msgpack.Decoder(msgspec.Raw).decode


class _Keys(_Derived):
    """Keys of no known type: their msgpack bytes; decoded, for `msgspec.Raw` has no hash."""

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(list(map(msgspec.msgpack.encode, values)), self.type)

    def _values(self, array: pa.Array) -> list[Any]:
        return list(map(key_of_any, array.to_pylist()))


_one_key = msgspec.msgpack.Decoder(dict[Any, None]).decode


def key_of_any(data: bytes) -> Any:
    """The key of no declared type that has these msgpack bytes; arrays are tuples."""
    (key,) = _one_key(b"\x81" + data + b"\xc0")
    return key


class _Nothing(_Derived):
    """A column in which there is only null."""

    def array(self, values: Sequence[Any]) -> pa.Array:
        return pa.nulls(len(values), self.type)

    def values(self, array: pa.Array) -> list[Any]:
        return [None] * len(array)


class _Lists(_Derived):
    """Lists and sets."""

    def __init__(self, schema: Schema, *, hashable: bool) -> None:
        is_set = schema.kind == "set"
        self._element = column(schema.items[0], hashable=hashable or is_set)
        super().__init__(schema, pa.list_(pa.field("element", self._element.type)))
        self._make: Any = frozenset if hashable and is_set else set if is_set else None
        if hashable and not is_set:
            self._make = tuple

    def _array(self, values: Sequence[Any]) -> pa.Array:
        elements = self._element.array(list(chain.from_iterable(values)))
        return pa.ListArray.from_arrays(_offsets(values), elements, type=self.type)

    def _values(self, array: pa.Array) -> list[Any]:
        elements = self._element.values(array.flatten())
        ends = accumulate(array.value_lengths().to_pylist(), initial=0)
        found = [elements[start:end] for start, end in pairwise(ends)]
        return found if self._make is None else list(map(self._make, found))


class _Maps(_Derived):
    """Maps, in the order of their entries."""

    def __init__(self, schema: Schema, *, hashable: bool) -> None:
        self._key = column(schema.items[0], hashable=True)
        self._item = column(schema.items[1], hashable=hashable)
        super().__init__(schema, pa.map_(self._key.type, self._item.type))

    def _array(self, values: Sequence[Any]) -> pa.Array:
        keys = self._key.array(list(chain.from_iterable(values)))
        items = self._item.array([item for entries in values for item in entries.values()])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)

    def _values(self, array: pa.Array) -> list[Any]:
        offsets = array.offsets.to_pylist()
        first, size = offsets[0], offsets[-1] - offsets[0]
        keys = self._key.values(array.keys.slice(first, size))
        items = self._item.values(array.items.slice(first, size))
        cuts = pairwise(offset - first for offset in offsets)
        return [dict(zip(keys[a:b], items[a:b], strict=True)) for a, b in cuts]


class _Pairs(_Derived):
    """Maps that have None for a key, which no map of Arrow has: lists of pairs."""

    def __init__(self, schema: Schema, *, hashable: bool) -> None:
        key, item = (Field(n, s) for n, s in zip(("key", "value"), schema.items, strict=True))
        pairs = Schema("list", items=(Schema("struct", fields=(key, item)),))
        self._entry = StructColumn(pairs.items[0], hashable=hashable, hashable_fields=("key",))
        super().__init__(schema, pa.list_(pa.field("element", self._entry.type)))

    def _array(self, values: Sequence[Any]) -> pa.Array:
        keys = list(chain.from_iterable(values))
        items = [item for entries in values for item in entries.values()]
        elements = self._entry.joined(self._entry.arrays((keys, items)), len(keys))
        return pa.ListArray.from_arrays(_offsets(values), elements, type=self.type)

    def _values(self, array: pa.Array) -> list[Any]:
        pairs = list(zip(*self._entry.parts(array.flatten()), strict=True))
        ends = accumulate(array.value_lengths().to_pylist(), initial=0)
        return [dict(pairs[start:end]) for start, end in pairwise(ends)]


def _offsets(values: Sequence[Any]) -> pa.Array:
    return pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())


class _Part(NamedTuple):
    """A field of a struct as a column of its own."""

    name: str
    column: Column
    may_be_absent: bool

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The array of a field's values; null where it is absent."""
        if not self.may_be_absent or msgspec.UNSET not in values:
            return self.column.array(values)
        there = [value is not msgspec.UNSET for value in values]
        left = [value for value in values if value is not msgspec.UNSET]
        return _spread(self.column.array(left), there)

    def values(self, array: pa.Array) -> list[Any]:
        """The field's values in an array."""
        found = self.column.values(array)
        if not self.may_be_absent or not array.null_count:
            return found
        return [msgspec.UNSET if value is None else value for value in found]


class StructColumn(_Derived):
    """Structs; their fields may also be columns of their own, see `arrays` and `objects`."""

    def __init__(
        self, schema: Schema, *, hashable: bool, hashable_fields: tuple[str, ...] = ()
    ) -> None:
        self.fields = [
            _Part(
                field.name,
                column(field.type, hashable=hashable or field.name in hashable_fields),
                field.may_be_absent and not schema.array_like,
            )
            for field in schema.fields
        ]
        self.arrow_fields = [pa.field(part.name, part.column.type) for part in self.fields]
        super().__init__(schema, pa.struct(self.arrow_fields or [_EMPTY]))
        self._make = wire_type(_bare(schema), hashable=hashable)
        self._gets = [attrgetter(name) for name in self._make.__struct_fields__]

    def arrays(self, columns: Iterable[Sequence[Any]]) -> list[pa.Array]:
        """One array per field, of the values of each."""
        return [part.array(values) for part, values in zip(self.fields, columns, strict=True)]

    def split(self, values: Sequence[Any]) -> list[pa.Array]:
        """One array per field of these structs."""
        return self.arrays(list(map(get, values)) for get in self._gets)

    def objects(self, arrays: Sequence[pa.Array], rows: int) -> list[Any]:
        """The structs whose fields stand in these arrays."""
        if not arrays:
            return [self._make() for _ in range(rows)]
        parts = [part.values(array) for part, array in zip(self.fields, arrays, strict=True)]
        return list(map(self._make, *parts))

    def parts(self, array: pa.Array) -> list[list[Any]]:
        """The values of each field of a struct array."""
        return [part.values(array.field(number)) for number, part in enumerate(self.fields)]

    def joined(self, arrays: list[pa.Array], rows: int) -> pa.Array:
        """One struct array of an array per field."""
        return _structs(arrays, self.type, rows)

    def _array(self, values: Sequence[Any]) -> pa.Array:
        return self.joined(self.split(values), len(values))

    def _values(self, array: pa.Array) -> list[Any]:
        arrays = [array.field(number) for number in range(len(self.fields))]
        return self.objects(arrays, len(array))


class _Tuples(_Derived):
    """Tuples of a fixed length: structs with the fields _1, _2, ..."""

    def __init__(self, schema: Schema, *, hashable: bool) -> None:
        self._parts = [column(part, hashable=hashable) for part in schema.items]
        fields = [pa.field(f"_{number}", part.type) for number, part in enumerate(self._parts, 1)]
        super().__init__(schema, pa.struct(fields or [_EMPTY]))

    def _array(self, values: Sequence[Any]) -> pa.Array:
        arrays = [
            part.array(list(map(itemgetter(place), values)))
            for place, part in enumerate(self._parts)
        ]
        return _structs(arrays, self.type, len(values))

    def _values(self, array: pa.Array) -> list[Any]:
        if not self._parts:
            return [()] * len(array)
        parts = [part.values(array.field(number)) for number, part in enumerate(self._parts)]
        return list(zip(*parts, strict=True))


class _Unions(_Derived):
    """Unions: structs with a field per member, of which one is there."""

    def __init__(self, schema: Schema, *, hashable: bool) -> None:
        self._members = [column(member, hashable=hashable) for member in schema.items]
        names = member_names(schema)
        fields = [pa.field(n, m.type) for n, m in zip(names, self._members, strict=True)]
        super().__init__(schema, pa.struct(fields))
        self._place = {
            _class(wire_type(_bare(member), hashable=hashable)): number
            for number, member in enumerate(schema.items)
        }

    def _array(self, values: Sequence[Any]) -> pa.Array:
        places = [self._place[kind] for kind in map(type, values)]
        arrays = []
        for number, member in enumerate(self._members):
            there = [place == number for place in places]
            mine = [value for value, is_mine in zip(values, there, strict=True) if is_mine]
            arrays.append(_spread(member.array(mine), there))
        return _structs(arrays, self.type, len(values))

    def _values(self, array: pa.Array) -> list[Any]:
        found: list[Any] = [None] * len(array)
        for number, member in enumerate(self._members):
            for place, value in enumerate(member.values(array.field(number))):
                if value is not None:
                    found[place] = value
        return found


def member_names(schema: Schema) -> list[str]:
    """What the fields of a union's members are called: their types, in lower case."""
    names: list[str] = []
    for member in schema.items:
        plain = re.sub(r"\W+", "_", (member.name or member.kind).lower()).strip("_")
        name, number = plain, 1
        while name in names:
            number += 1
            name = f"{plain}_{number}"
        names.append(name)
    return names


def _structs(arrays: list[pa.Array], kind: pa.StructType, rows: int) -> pa.Array:
    fields = list(kind)
    return pa.StructArray.from_arrays(arrays or [pa.nulls(rows, pa.bool_())], fields=fields)


def _bare(schema: Schema) -> Schema:
    return msgspec.structs.replace(schema, nullable=False) if schema.nullable else schema


def _class(kind: Any) -> Any:
    """The class that values of a wire type have."""
    return getattr(kind, "__origin__", kind)
