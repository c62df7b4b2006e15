"""How the rows of a state look in a savepoint: entries of the state in, sorted Arrow tables out.

An *entry* is what a table or the cells of a running operator hold: ``(key, value)`` with the whole
list or map of the key, ``((domain, ms, key), registration)`` for a timer, ``(subtask, elements)``
for state of a subtask. Keys and values are wire values (`penstock.schema.wire_type`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.edge.routing import UnusableKey, group_of_bytes, groups_of_bytes, key_bytes
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint.arrow import Column, StructColumn, column, key_of_any
from penstock.savepoint.manifest import KEYED_KINDS, OperatorEntry, StateEntry, StateKind
from penstock.schema import ANY, Schema, wire_type

Entry: TypeAlias = tuple[int | None, int | None, Any, Any]
"""Partition (where partitions own keys), key group (of keyed state), key, value."""

RESERVED = frozenset(
    {
        "key_group",
        "partition",
        "key",
        "key_value",
        "namespace",
        "list_index",
        "map_key",
        "time_domain",
        "timestamp_ms",
        "registration",
        "subtask_index",
        "element_index",
    }
)
"""Columns of the format, which a field of a flattened struct may not take."""
DOMAINS = ("event", "processing")
"""Names of the two clocks, by the number that a timer's entry has."""
MAPS = frozenset({"map", "operator_broadcast"})
_LISTS = frozenset({"list", "operator_list", "operator_union"})
_INT = Schema("int")
_encode = msgspec.msgpack.Encoder().encode
_POSITIONS = pa.schema(
    [
        pa.field("service", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("source_uid", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
    ]
)


def state_entry(name: str, kind: StateKind, key: Schema | None, value: Schema) -> StateEntry:
    """The description of a state, with the columns that its fields get."""
    columns: dict[str, str] = {}
    element = value.items[1] if kind in MAPS else value
    if element.kind == "struct" and not element.nullable:
        taken = {name.casefold() for name in RESERVED}
        for field in element.fields:
            found = field.name
            while found.casefold() in taken:
                found = f"value_{found}"
            taken.add(found.casefold())
            if found != field.name:
                columns[field.name] = found
    return StateEntry(name=name, kind=kind, key=key, value=value, columns=columns)


def narrowed(key: Schema, keys: Collection[Any]) -> Schema:
    """The schema of keys of an undeclared type: str or int when all keys are; else ``key``."""
    if key != ANY:
        return key
    kinds: set[type] = set()
    for kind in map(type, keys):
        kinds.add(kind)
        if len(kinds) > 1:
            return key
    if kinds == {str}:
        return Schema("str")
    if kinds == {int} and all(-(1 << 63) <= number < 1 << 63 for number in keys):
        return Schema("int")
    return key


class StateLayout:
    """The rows of one state of one operator.

    Args:
        operator: who owns the state; decides whether rows have a ``partition``.
        state: kind and types.
    """

    def __init__(self, operator: OperatorEntry, state: StateEntry) -> None:
        self.operator = operator
        self.state = state
        self.keyed = state.kind in KEYED_KINDS
        self.partitioned = self.keyed and operator.ownership == "partition"
        """Whether keys belong to source partitions, so that rows say which."""
        self._element = state.value
        self._map_key: Column | None = None
        if state.kind in MAPS:
            self._map_key = column(state.value.items[0], hashable=True)
            self._element = state.value.items[1]
        self._value = column(self._element)
        self._flat = (
            self._value
            if isinstance(self._value, StructColumn) and not self._element.nullable
            else None
        )
        key = ANY if state.key is None else state.key
        self._key = column(key, hashable=True)
        self.arrow_schema: pa.Schema = (
            _POSITIONS if state.kind == "positions" else pa.schema(self._fields())
        )
        self._wire_key = wire_type(key, hashable=True)
        self._decoders = _Decoders(self._wire_key, self._element, state)

    @property
    def sort_columns(self) -> tuple[str, ...]:
        """The columns by which rows are sorted; rows of one key keep the order of their list."""
        if not self.keyed:
            return ()
        return ("key_group", "partition", "key") if self.partitioned else ("key_group", "key")

    def batch(
        self,
        entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        key_groups: int = 0,
        partitions: Iterable[int] | None = None,
    ) -> pa.Table:
        """The sorted rows of these entries.

        Args:
            entries: of the state, each key once.
            key_groups: the application's max_parallelism; needed for keyed state.
            partitions: of each entry; needed where partitions own keys.

        Raises ConfigurationError naming the key whose value does not fit its column.
        """
        pairs = list(entries.items() if isinstance(entries, Mapping) else entries)
        places = None if partitions is None else list(partitions)
        try:
            return self._batch(pairs, key_groups, places)
        except (OverflowError, pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise self._unfit(pairs, key_groups, error) from error

    def entries(self, table: pa.Table) -> Iterator[Entry]:
        """The entries whose rows these are; rows of a key stand together, a list's in order.

        Raises CorruptedObject when rows cannot be values of the state, or a key is there twice.
        """
        try:
            if not self.keyed:
                return self._of_subtasks(table)
            return self._by_key(table)
        except (msgspec.MsgspecError, pa.ArrowException, ValueError, TypeError) as error:
            raise self._damaged(str(error)) from error

    def verify(self, table: pa.Table, key_groups: int) -> None:
        """Raise CorruptedObject unless every row stands under the bytes and group of its key.

        For rows that somebody else wrote: a key in a wrong group would be restored where no record
        of it ever comes.
        """
        if not self.keyed:
            return
        raw = table["key"].to_pylist()
        groups = table["key_group"].to_pylist()
        for place, key in enumerate(self._keys(table)):
            expected = self._key_bytes((key,))[0]
            if raw[place] != expected:
                raise self._damaged(
                    f"column key has {raw[place].hex()} for the key {key!r:.200}, expected "
                    f"{expected.hex()}"
                )
            group = group_of_bytes(expected, key_groups)
            if groups[place] != group:
                raise self._damaged(
                    f"key {key!r:.200} is in key group {groups[place]}, expected {group} of "
                    f"{key_groups}"
                )

    def decoded(self, entries: bytes, where: str) -> dict[Any, Any]:
        """The entries in a section of a chunk; ``where`` is named in errors.

        Raises ConfigurationError when they are not of the type, CorruptedObject for damaged bytes.
        """
        found: dict[Any, Any] = self._checked(self._decoders.entries, entries, where)
        return found

    def decoded_keys(self, keys: bytes, where: str) -> list[Any]:
        """The keys in a section of a chunk that were removed."""
        found: list[Any] = self._checked(self._decoders.keys, keys, where) if keys else []
        return found

    def decoded_cells(self, elements: Iterable[bytes], where: str) -> Any:
        """The elements of a list of a subtask, or the map of a broadcast state."""
        found = [self._checked(self._decoders.element, data, where) for data in elements]
        if self.state.kind not in MAPS:
            return found
        return dict(chain.from_iterable(entry.items() for entry in found))

    def encoded_cells(self, value: Any) -> list[bytes]:
        """What a checkpoint holds of a list of a subtask, or of a broadcast state's map."""
        if self.state.kind in MAPS:
            return [_encode({key: item}) for key, item in value.items()]
        return list(map(_encode, value))

    def _fields(self) -> Iterator[pa.Field]:
        def field(name: str, kind: pa.DataType) -> pa.Field:
            return pa.field(name, kind, nullable=False)

        kind = self.state.kind
        if self.keyed:
            yield field("key_group", pa.int32())
            if self.partitioned:
                yield field("partition", pa.int32())
            yield field("key", pa.binary())
            yield pa.field("key_value", self._key.type)
            yield pa.field("namespace", pa.string())
        else:
            yield field("subtask_index", pa.int32())
            if self._map_key is None:
                yield field("element_index", pa.int64())
        if kind == "timers":
            yield field("time_domain", pa.string())
            yield field("timestamp_ms", pa.int64())
            yield field("registration", pa.int64())
            return
        if kind == "list":
            yield field("list_index", pa.int64())
        if self._map_key is not None:
            yield pa.field("map_key", self._map_key.type)
        if self._flat is None:
            yield pa.field("value", self._value.type)
            return
        for part in self._flat.arrow_fields:
            yield part.with_name(self.state.columns.get(part.name, part.name))

    def _batch(
        self, pairs: list[tuple[Any, Any]], key_groups: int, partitions: list[int] | None
    ) -> pa.Table:
        if not self.keyed:
            return self._subtask_rows(pairs)
        keys = [key for key, _ in pairs]
        values = [value for _, value in pairs]
        timers: list[pa.Array] = []
        if self.state.kind == "timers":
            timers = [
                pa.array([DOMAINS[domain] for domain, _, _ in keys], pa.string()),
                pa.array([ms for _, ms, _ in keys], pa.int64()),
                pa.array(values, pa.int64()),
            ]
            keys = [key for _, _, key in keys]
        raw = self._key_bytes(keys)
        head = [pa.array(groups_of_bytes(raw, key_groups), pa.int32())]
        if self.partitioned:
            head.append(pa.array(partitions, pa.int32()))
        head.append(pa.array(raw, pa.binary()))
        names = [*self.sort_columns, *(("timestamp_ms", "registration") if timers else ())]
        order = pc.sort_indices(
            pa.Table.from_arrays(head + timers[1:], names),
            [(name, "ascending") for name in names],
        )
        is_any = self.state.key == ANY
        head.append(head[-1] if is_any else self._key.array(keys))
        head.append(pa.nulls(len(keys), pa.string()))
        if timers or self.state.kind not in ("list", "map"):
            columns = head + (timers or self._value_arrays(values))
            return pa.Table.from_arrays(columns, schema=self.arrow_schema).take(order)
        return self._rows_of_containers(head, values, order)

    def _rows_of_containers(
        self, head: list[pa.Array], values: list[Any], order: pa.Array
    ) -> pa.Table:
        """A row per element of lists, or per entry of maps; those of a key keep their order."""
        places = order.to_pylist()
        found = [values[place] for place in places]
        sizes = list(map(len, found))
        rows = pa.array(list(chain.from_iterable(map(repeat, places, sizes))), pa.int64())
        columns = [array.take(rows) for array in head]
        columns += self._element_arrays(found, sizes)
        return pa.Table.from_arrays(columns, schema=self.arrow_schema)

    def _subtask_rows(self, pairs: list[tuple[Any, Any]]) -> pa.Table:
        found = [value for _, value in pairs]
        sizes = list(map(len, found))
        owners = chain.from_iterable(repeat(owner, size) for (owner, _), size in zip(pairs, sizes))
        columns = [pa.array(list(owners), pa.int32()), *self._element_arrays(found, sizes)]
        return pa.Table.from_arrays(columns, schema=self.arrow_schema)

    def _element_arrays(self, found: list[Any], sizes: list[int]) -> list[pa.Array]:
        """The index or map key of each element, and its value columns."""
        if self._map_key is None:
            indexes = pa.array(list(chain.from_iterable(map(range, sizes))), pa.int64())
            return [indexes, *self._value_arrays(list(chain.from_iterable(found)))]
        keys = self._map_key.array(list(chain.from_iterable(found)))
        items = [item for entries in found for item in entries.values()]
        return [keys, *self._value_arrays(items)]

    def _value_arrays(self, values: Sequence[Any]) -> list[pa.Array]:
        return [self._value.array(values)] if self._flat is None else self._flat.split(values)

    def _key_bytes(self, keys: Sequence[Any]) -> list[bytes]:
        if self.state.key is not None and self.state.key.kind in ("str", "bytes"):
            return list(map(_encode, keys))  # what key_bytes does, without looking at each
        try:
            return list(map(key_bytes, keys))
        except UnusableKey as error:
            raise ConfigurationError(f"{self._named()}: {error}") from error

    def _by_key(self, table: pa.Table) -> Iterator[Entry]:
        kind = self.state.kind
        keys = self._keys(table)
        groups = table["key_group"].to_pylist()
        partitions: Iterable[int | None] = repeat(None)
        if self.partitioned:
            partitions = table["partition"].to_pylist()
        if kind == "timers":
            domains = list(map(_domain, table["time_domain"].to_pylist()))
            timers = zip(domains, table["timestamp_ms"].to_pylist(), keys)
            return zip(partitions, groups, timers, table["registration"].to_pylist())
        starts = self._runs(table)
        if kind not in ("list", "map"):
            if len(starts) != len(keys):
                twice = next(a for a, b in pairwise([*starts, len(keys)]) if b - a > 1)
                raise self._damaged(f"the key {keys[twice]!r:.200} is in it twice")
            return zip(partitions, groups, keys, self._elements(table))
        found = self._containers(table, starts)
        if self.partitioned:
            rows = list(partitions)
            partitions = [rows[at] for at in starts]
        return zip(partitions, [groups[at] for at in starts], [keys[at] for at in starts], found)

    def _of_subtasks(self, table: pa.Table) -> Iterator[Entry]:
        owners = table["subtask_index"].to_pylist()
        starts = [at for at, owner in enumerate(owners) if at == 0 or owner != owners[at - 1]]
        found = self._containers(table, starts)
        return zip(repeat(None), repeat(None), [owners[at] for at in starts], found)

    def _containers(self, table: pa.Table, starts: list[int]) -> list[Any]:
        """The list or map of each run of rows."""
        values = self._elements(table)
        runs = list(pairwise([*starts, len(values)]))
        if self._map_key is not None:
            keys = _listed(self._map_key, table["map_key"])
            maps = [dict(zip(keys[a:b], values[a:b], strict=True)) for a, b in runs]
            if sum(map(len, maps)) != len(values):
                raise self._damaged("a map has the same key twice")
            return maps
        index = table["list_index" if self.keyed else "element_index"].to_pylist()
        return [_in_order(index[a:b], values[a:b]) for a, b in runs]

    def _elements(self, table: pa.Table) -> list[Any]:
        """The values, one per row."""
        if self._flat is None:
            return _listed(self._value, table["value"])
        names = [part.name for part in self._flat.fields]
        places = [self.state.columns.get(name, name) for name in names]
        found: list[Any] = []
        if not places:
            return self._flat.objects([], table.num_rows)
        for batch in table.select(places).to_batches():
            found += self._flat.objects(batch.columns, batch.num_rows)
        return found

    def _keys(self, table: pa.Table) -> list[Any]:
        if self.state.key == ANY:
            return list(map(key_of_any, table["key"].to_pylist()))
        return _listed(self._key, table["key_value"])

    def _runs(self, table: pa.Table) -> list[int]:
        """Where each key begins; a key of another partition is another one."""
        if not table.num_rows:
            return []
        changes = None
        for name in self.sort_columns[1:]:
            rows = table[name].combine_chunks()
            change = pc.not_equal(rows.slice(1), rows.slice(0, len(rows) - 1))
            changes = change if changes is None else pc.or_(changes, change)
        return [0, *(at + 1 for at in pc.indices_nonzero(changes).to_pylist())]

    def _checked(self, decode: Any, data: bytes, where: str) -> Any:
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"{self._named()} in {where} is not of the type that its manifest says: {error}; "
                "restore it once with the types that it was taken with"
            ) from error
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError, TypeError) as error:
            raise CorruptedObject(
                f"{where} is damaged at {self._named()}: {error}; use an older checkpoint"
            ) from error

    def _unfit(
        self, pairs: list[tuple[Any, Any]], key_groups: int, error: Exception
    ) -> ConfigurationError:
        """The error for the first entry that no row can hold."""
        for key, value in pairs:
            try:
                self._batch([(key, value)], key_groups, [0])
            except (OverflowError, pa.ArrowInvalid, UnicodeEncodeError) as found:
                return ConfigurationError(
                    f"{self._named()}, key {key!r:.200}: {value!r:.200} does not fit its columns "
                    f"({found}); a savepoint has integers of 64 bits: declare a larger one as "
                    "float, Decimal or str"
                )
        return ConfigurationError(f"{self._named()} does not fit its columns: {error}")

    def _damaged(self, reason: str) -> CorruptedObject:
        return CorruptedObject(
            f"rows of {self._named()} are damaged: {reason}; take the savepoint again, or correct "
            "what wrote them"
        )

    def _named(self) -> str:
        return f"state {self.state.name!r} of operator {self.operator.uid!r}"


class _Decoders:
    """The decoders of what chunks hold of a state."""

    def __init__(self, key: Any, element: Schema, state: StateEntry) -> None:
        value = wire_type(element)
        entry: Any = value
        if state.kind == "timers":
            key, entry = tuple[int, int, key], int
        elif state.kind == "list":
            entry = list[value]  # type: ignore[valid-type]
        elif state.kind in MAPS:
            entry = wire_type(state.value)
        self.entries = msgspec.msgpack.Decoder(dict[key, entry]).decode
        self.keys = msgspec.msgpack.Decoder(list[key]).decode
        self.element = msgspec.msgpack.Decoder(entry).decode


def _domain(name: Any) -> int:
    if name not in DOMAINS:
        raise ValueError(f"time_domain is {name!r}, expected {' or '.join(DOMAINS)}")
    return DOMAINS.index(name)


def _listed(part: Column, found: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = []
    for chunk in found.chunks:
        values += part.values(chunk)
    return values


def _in_order(indexes: list[int], values: list[Any]) -> list[Any]:
    """The elements of a list by their index, in which there may be gaps."""
    if all(a < b for a, b in pairwise(indexes)):
        return values
    return [value for _, value in sorted(zip(indexes, values), key=lambda pair: pair[0])]
