"""What lies between two savepoints: operators, states, types, positions, and the rows by key.

Rows are compared in Arrow, a range of key groups at a time. Both sides may be of different
applications, and may have another number of key groups: then a state is compared as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.savepoint.arrow import column
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    POSITIONS,
    FileEntry,
    OperatorEntry,
    StateEntry,
)
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.rows import (
    element_of,
    identity_of,
    keys_of,
    shown_key,
    shown_value,
    value_columns,
)
from penstock.schema import Schema, shown

WINDOW_ROWS = 1_000_000
"""About so many rows of each side are in memory at once."""
_UNORDERED = frozenset({"operator_list", "operator_union"})
_A, _B = "place_in_a", "place_in_b"


class Change(msgspec.Struct, frozen=True):
    """Something that both have, and have differently."""

    name: str
    what: str
    a: str
    b: str


class Moved(msgspec.Struct, frozen=True):
    """A partition of a source whose position differs; None where it has none."""

    source: str
    topic: str
    partition: int
    a: int | None
    b: int | None


class Example(msgspec.Struct, frozen=True):
    """A row that is not the same; ``columns`` of a row that both have: [in A, in B]."""

    key: str
    side: str
    """``a``, ``b`` or ``both``."""
    columns: dict[str, tuple[str, str]] = {}


class Rows(msgspec.Struct, kw_only=True):
    """The rows of one state, counted."""

    operator: str
    state: str
    only_a: int = 0
    only_b: int = 0
    different: int = 0
    equal: int = 0
    examples: list[Example] = []

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return not (self.only_a or self.only_b or self.different)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that lies between two savepoints."""

    max_parallelism: tuple[int, int]
    only_a: tuple[str, ...]
    """Operators and states (``uid.state``) that B lacks."""
    only_b: tuple[str, ...]
    changes: tuple[Change, ...]
    positions: tuple[Moved, ...]
    rows: tuple[Rows, ...]
    """Of the states that both have and that are of one kind."""

    @property
    def same(self) -> bool:
        """Whether nothing lies between them."""
        return (
            self.max_parallelism[0] == self.max_parallelism[1]
            and not (self.only_a or self.only_b or self.changes or self.positions)
            and all(rows.same for rows in self.rows)
        )


def compare(a: Savepoint, b: Savepoint, *, examples: int = 3) -> Comparison:
    """Compare two savepoints; at most ``examples`` rows a state and kind of difference are kept.

    Raises CorruptedObject for a damaged file, StoreFailed.
    """
    left, right = _operators(a), _operators(b)
    only_a = [uid for uid in left if uid not in right]
    only_b = [uid for uid in right if uid not in left]
    changes: list[Change] = []
    rows: list[Rows] = []
    for uid in [uid for uid in left if uid in right]:
        changes += _operator_changes(left[uid], right[uid])
        mine, theirs = _states(left[uid]), _states(right[uid])
        only_a += [f"{uid}.{name}" for name in mine if name not in theirs]
        only_b += [f"{uid}.{name}" for name in theirs if name not in mine]
        for name in [name for name in mine if name in theirs]:
            changes += _type_changes(uid, mine[name], theirs[name])
            if mine[name].kind == theirs[name].kind:
                rows.append(_Rows(a, b, uid, name, examples).compared())
    return Comparison(
        max_parallelism=(a.manifest.max_parallelism, b.manifest.max_parallelism),
        only_a=tuple(only_a),
        only_b=tuple(only_b),
        changes=tuple(changes),
        positions=tuple(_moved(a, b)),
        rows=tuple(rows),
    )


def _operators(savepoint: Savepoint) -> dict[str, OperatorEntry]:
    return {operator.uid: operator for operator in savepoint.manifest.operators}


def _states(operator: OperatorEntry) -> dict[str, StateEntry]:
    """Without positions, which `_moved` compares."""
    return {state.name: state for state in operator.states if state.kind != POSITIONS}


def _operator_changes(a: OperatorEntry, b: OperatorEntry) -> Iterator[Change]:
    for what in ("kind", "service", "stage", "ownership"):
        before, after = getattr(a, what), getattr(b, what)
        if before != after:
            yield Change(a.uid, what, str(before), str(after))


def _type_changes(uid: str, a: StateEntry, b: StateEntry) -> Iterator[Change]:
    name = f"{uid}.{a.name}"
    if a.kind != b.kind:
        yield Change(name, "kind", a.kind, b.kind)
    for what, before, after in (("key", a.key, b.key), ("value", a.value, b.value)):
        if before != after:
            yield Change(name, what, _shown(before), _shown(after))


def _shown(schema: Schema | None) -> str:
    return "-" if schema is None else shown(schema)


def _moved(a: Savepoint, b: Savepoint) -> Iterator[Moved]:
    left = {source.uid: source for source in a.manifest.sources}
    right = {source.uid: source for source in b.manifest.sources}
    for uid in [*left, *(uid for uid in right if uid not in left)]:
        mine, theirs = left.get(uid), right.get(uid)
        before = {} if mine is None else mine.positions
        after = {} if theirs is None else theirs.positions
        topics = [source.topic for source in (mine, theirs) if source is not None]
        topic = " -> ".join(dict.fromkeys(topics))
        for partition in sorted(before.keys() | after.keys()):
            was, now = before.get(partition), after.get(partition)
            if was != now or len(set(topics)) > 1:
                yield Moved(uid, topic, partition, was, now)


class _Rows:
    """The rows of one state on both sides."""

    def __init__(self, a: Savepoint, b: Savepoint, uid: str, name: str, examples: int) -> None:
        self._sides = (a, b)
        self._uid = uid
        self._name = name
        self._states = (a.state(uid, name), b.state(uid, name))
        self._most = examples
        self._found = Rows(operator=uid, state=name, examples=[])
        self._kept: Counter[str] = Counter()
        partitioned = all(side.layout(uid, name).partitioned for side in self._sides)
        self._identity = keys_of(self._states[0].kind, partitioned=partitioned)

    def compared(self) -> Rows:
        """Compare all of them."""
        if self._states[0].kind in _UNORDERED:
            self._compare_elements()
            return self._found
        for tables in self._windows():
            self._compare_rows(tables)
        return self._found

    def _compare_elements(self) -> None:
        """Elements of subtasks are dealt out anew by a restore: only how many there are counts."""
        counts: list[Counter[bytes]] = []
        texts: dict[bytes, str] = {}
        for side, state in zip(self._sides, self._states, strict=True):
            values = element_of(state, side.table(self._uid, self._name))
            texts |= {identity_of(value): shown_value(value) for value in values}
            counts.append(Counter(map(identity_of, values)))
        first, second = counts
        self._found.equal = (first & second).total()
        for name, gone in (("a", first - second), ("b", second - first)):
            setattr(self._found, f"only_{name}", gone.total())
            for element in gone:
                self._keep(Example(texts[element], name))

    def _windows(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The same keys of both sides, some at a time."""
        a, b = self._sides
        is_keyed = self._states[0].kind in KEYED_KINDS
        if not is_keyed or a.manifest.max_parallelism != b.manifest.max_parallelism:
            yield a.table(self._uid, self._name), b.table(self._uid, self._name)
            return
        readers = [_Reader(side, self._uid, self._name) for side in self._sides]
        for groups in windows([reader.files for reader in readers], a.manifest.max_parallelism):
            yield readers[0].table(groups), readers[1].table(groups)

    def _compare_rows(self, tables: tuple[pa.Table, pa.Table]) -> None:
        left, right = self._joinable(tables)
        left = left.append_column(_A, pa.array(range(left.num_rows), pa.int64()))
        right = right.append_column(_B, pa.array(range(right.num_rows), pa.int64()))
        keys = [name for name in left.column_names if name != _A]
        both = left.join(right, keys, join_type="full outer")
        in_a, in_b = pc.is_valid(both[_A]), pc.is_valid(both[_B])
        only_a = both.filter(pc.invert(in_b))[_A].combine_chunks().sort()
        only_b = both.filter(pc.invert(in_a))[_B].combine_chunks().sort()
        matched = both.filter(pc.and_(in_a, in_b)).select([_A, _B]).sort_by(_A)
        places = (matched[_A], matched[_B])
        self._found.only_a += len(only_a)
        self._found.only_b += len(only_b)
        self._keep_rows(tables[0], only_a, "a")
        self._keep_rows(tables[1], only_b, "b")
        if matched.num_rows:
            self._compare_values(tables, places)

    def _joinable(self, tables: tuple[pa.Table, pa.Table]) -> list[pa.Table]:
        """What identifies a row, as columns that Arrow can join."""
        columns: list[list[pa.ChunkedArray]] = [[], []]
        for name in self._identity:
            found = [table[name] for table in tables]
            if found[0].type != found[1].type or not all(map(_is_simple, found)):
                found = [
                    pa.chunked_array([_encoded(_wire(state.value.items[0], array, is_key=True))])
                    for state, array in zip(self._states, found, strict=True)
                ]
            for side, array in zip(columns, found, strict=True):
                side.append(array)
        return [pa.Table.from_arrays(side, list(self._identity)) for side in columns]

    def _compare_values(
        self, tables: tuple[pa.Table, pa.Table], places: tuple[pa.ChunkedArray, pa.ChunkedArray]
    ) -> None:
        schemas = [value_columns(state) for state in self._states]
        shared = [name for name in schemas[0] if name in schemas[1]]
        unequal: dict[str, pa.Array] = {}
        for name in shared:
            arrays = [table[name].take(at) for table, at in zip(tables, places, strict=True)]
            same = _same(arrays, [schema[name] for schema in schemas])
            unequal[name] = pc.invert(same).combine_chunks()
        different = pa.array([bool(schemas[0]) and not shared] * len(places[0]), pa.bool_())
        for mask in unequal.values():
            different = pc.or_(different, mask)
        count = pc.sum(different.cast(pa.int64())).as_py()
        self._found.different += count
        self._found.equal += len(different) - count
        if not count or self._kept["both"] >= self._most:
            return
        for at in pc.indices_nonzero(different)[: self._most].to_pylist():
            rows = [table.slice(at_[at].as_py(), 1) for table, at_ in zip(tables, places)]
            texts = {
                name: tuple(
                    shown_value(_wire(schema[name], row[name])[0])
                    for schema, row in zip(schemas, rows, strict=True)
                )
                for name in shared
                if unequal[name][at].as_py()
            }
            key = shown_key(self._states[0], rows[0], self._identity)[0]
            self._keep(Example(key, "both", texts))  # type: ignore[arg-type]  # two texts each

    def _keep_rows(self, table: pa.Table, places: pa.Array, side: str) -> None:
        room = self._most - self._kept[side]
        if room > 0 and len(places):
            state = self._states["ab".index(side)]
            for key in shown_key(state, table.take(places[:room]), self._identity):
                self._keep(Example(key, side))

    def _keep(self, example: Example) -> None:
        if self._kept[example.side] < self._most:
            self._kept[example.side] += 1
            self._found.examples.append(example)


class _Reader:
    """The rows of a state by key group, a few files in memory at a time."""

    def __init__(self, savepoint: Savepoint, uid: str, name: str) -> None:
        self._savepoint = savepoint
        self._schema = savepoint.layout(uid, name).arrow_schema
        self._open: dict[str, pa.Table] = {}
        self.files = savepoint.files(uid, name)

    def table(self, groups: range) -> pa.Table:
        """The rows of these key groups; ranges only go up."""
        mine = [file for file in self.files if _has(file, groups)]
        self._open = {
            file.path: self._open[file.path]
            if file.path in self._open
            else self._savepoint.read(file)
            for file in mine
        }
        if not mine:
            return self._schema.empty_table()
        whole = pa.concat_tables(self._open[file.path] for file in mine)
        group = whole["key_group"]
        inside = pc.and_(pc.greater_equal(group, groups.start), pc.less(group, groups.stop))
        return whole.filter(inside)


class _Span(NamedTuple):
    start: int
    rows: int


def windows(sides: Iterable[Iterable[FileEntry]], max_parallelism: int) -> Iterator[range]:
    """Ranges of key groups that tile all of them: a new one where a file begins, once the files
    that began so far have enough rows.
    """
    spans = sorted(
        _Span(file.key_group_min, file.rows)
        for files in sides
        for file in files
        if file.key_group_min is not None
    )
    start = rows = 0
    for span in spans:
        if rows >= WINDOW_ROWS and span.start > start:
            yield range(start, span.start)
            start, rows = span.start, 0
        rows += span.rows
    yield range(start, max_parallelism)


def _has(file: FileEntry, groups: range) -> bool:
    low, high = file.key_group_min, file.key_group_max
    return low is not None and high is not None and low < groups.stop and groups.start <= high


def _is_simple(array: pa.ChunkedArray) -> bool:
    return not pa.types.is_nested(array.type) and not array.null_count


def _wire(schema: Schema, array: pa.ChunkedArray, *, is_key: bool = False) -> list[Any]:
    """The wire values of a column."""
    as_values = column(schema, hashable=is_key).values
    return [value for chunk in array.chunks for value in as_values(chunk)]


def _encoded(values: list[Any]) -> pa.Array:
    return pa.array(list(map(identity_of, values)), pa.binary())


def _same(arrays: list[pa.ChunkedArray], schemas: list[Schema]) -> pa.ChunkedArray:
    """Where two columns have the same value."""
    a, b = arrays
    if a.type == b.type and not pa.types.is_nested(a.type):
        same = pc.fill_null(pc.equal(a, b), fill_value=False)
        same = pc.or_(same, pc.and_(pc.is_null(a), pc.is_null(b)))
        if pa.types.is_floating(a.type):
            both_nan = pc.and_(pc.is_nan(a), pc.is_nan(b))
            same = pc.or_(same, pc.fill_null(both_nan, fill_value=False))
        return _chunked(same)
    if schemas[0] == schemas[1]:
        values = [_wire(schema, array) for schema, array in zip(schemas, arrays, strict=True)]
    else:
        values = [array.to_pylist() for array in arrays]
    pairs = zip(*values, strict=True)
    return _chunked(pa.array([x == y or repr(x) == repr(y) for x, y in pairs], pa.bool_()))


def _chunked(array: Any) -> pa.ChunkedArray:
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
