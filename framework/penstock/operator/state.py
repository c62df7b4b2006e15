"""State primitives: declared as class attributes, used through the instance, scoped to the key.

``balance = ValueState(Balance)`` in a class declares; in an instance that runs, ``self.balance``
is a
handle of the same class bound to the operator's table. Whatever is changed in place counts only
after
``set``: the next snapshot holds what was set.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args, overload

from penstock.failure import ConfigurationError
from penstock.operator.aggregate import Aggregate
from penstock.operator.context import Context
from penstock.operator.isolation import is_immutable
from penstock.serde import type_name
from penstock.snapshot.cells import Cells, ListCells, MapCells
from penstock.snapshot.table import HeapTable

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class _Unbound:
    """Stands where the context would be, in a state that no operator runs."""

    @property
    def key(self) -> Any:
        raise ConfigurationError(
            "state is used outside of a running operator; test a process through "
            "penstock.testing.Driver, and use state in process() and on_timer() only"
        )


class Keyed:
    """What all keyed state has in common: a name, a type, and a place in a table.

    Slots, and no class attribute of the same name, are what lets the interpreter read the fields
    of a
    handle without a lookup.
    """

    __slots__ = ("_context", "_mark", "_table", "_values", "name", "shown", "stored")

    kind = "keyed"

    def __init__(self, stored: Any, shown: str) -> None:
        self.name = "?"
        """The attribute's name: part of the state's identity."""
        self.stored = stored
        """Type of one key's entry in the table."""
        self.shown = shown
        """Type for people, and for comparing with an older checkpoint."""
        self._context = cast("Context", _Unbound())
        self._values: dict[Any, Any] = {}
        self._table: HeapTable

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def described(self) -> Any:
        """The type that a savepoint shows: of a list its element."""
        return self.stored

    def bound(self, context: Context, table: HeapTable) -> "Keyed":
        """A handle on ``table`` for the key that ``context`` is at."""
        handle = copy.copy(self)
        handle._context = context
        handle._table = table
        handle.enter(-1)
        return handle

    def enter(self, bucket: int) -> None:
        """The keys that come now are of ``bucket``."""
        table = self._table
        values = table.buckets.get(bucket)
        self._values = table.bucket(bucket) if values is None else values
        self._mark: Callable[[Any], None] = table.dirty_keys(bucket).add

    def clear(self) -> None:
        """Forget the current key's entry."""
        key = self._context.key
        if key in self._values:
            del self._values[key]
            self._mark(key)


class ValueState(Keyed, Generic[T, D]):
    """One value per key; ``get()`` is ``default`` (None) until ``set``."""

    __slots__ = ("_default",)

    kind = "value"

    @overload
    def __init__(self: "ValueState[T, None]", kind: type[T]) -> None: ...
    @overload
    def __init__(self: "ValueState[T, T]", kind: type[T], default: T) -> None: ...
    def __init__(self, kind: Any, default: Any = None) -> None:
        if not is_immutable(type(default)):
            raise ConfigurationError(
                f"ValueState default {default!r} can be changed, and all keys would share it; use "
                "get() or a new value in the handler instead"
            )
        super().__init__(kind, type_name(kind))
        self._default = default

    def get(self) -> T | D:
        """The current key's value."""
        # No cast() here: it is a call, and this is the most called line of a service.
        return self._values.get(self._context.key, self._default)  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        """Replace the current key's value."""
        key = self._context.key
        self._values[key] = value
        self._mark(key)


class ListState(Keyed, Generic[T]):
    """A list per key."""

    __slots__ = ()

    kind = "list"

    def __init__(self, kind: type[T]) -> None:
        stored = list[kind]  # type: ignore[valid-type]  # a type made at run time
        super().__init__(stored, type_name(kind))

    @property
    def described(self) -> Any:
        """The type of an element."""
        return get_args(self.stored)[0]

    def get(self) -> Sequence[T]:
        """The current key's elements; to look at, not to change."""
        return self._values.get(self._context.key, ())  # type: ignore[no-any-return]

    def add(self, value: T) -> None:
        """Append to the current key's list."""
        key = self._context.key
        elements = self._values.get(key)
        if elements is None:
            self._values[key] = [value]
        else:
            elements.append(value)
        self._mark(key)

    def set(self, values: Sequence[T]) -> None:
        """Replace the current key's list."""
        key = self._context.key
        self._values[key] = list(values)
        self._mark(key)


class MapState(Keyed, Generic[K, V]):
    """A map per key; a snapshot writes a key's whole map when any of its entries changed."""

    __slots__ = ()

    kind = "map"

    def __init__(self, key: type[K], value: type[V]) -> None:
        stored = dict[key, value]  # type: ignore[valid-type]  # a type made at run time
        super().__init__(stored, f"{type_name(key)} -> {type_name(value)}")

    def get(self, key: K) -> V | None:
        """The value under ``key`` in the current key's map."""
        entries = self._values.get(self._context.key)
        return None if entries is None else entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Set one entry of the current key's map."""
        current = self._context.key
        entries = self._values.get(current)
        if entries is None:
            self._values[current] = {key: value}
        else:
            entries[key] = value
        self._mark(current)

    def remove(self, key: K) -> None:
        """Drop one entry of the current key's map."""
        entries = self._values.get(self._context.key)
        if entries is not None and key in entries:
            del entries[key]
            if entries:
                self._mark(self._context.key)
            else:
                self.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._values.get(self._context.key, ())

    def __len__(self) -> int:
        return len(self._values.get(self._context.key, ()))

    def items(self) -> Mapping[K, V]:
        """The current key's map; to look at, not to change."""
        return self._values.get(self._context.key, {})  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[K]:
        return iter(self.items())


class ReducingState(Keyed, Generic[T]):
    """One value per key, into which ``add`` folds with ``f(old, new)``."""

    __slots__ = ("_f",)

    kind = "reducing"

    def __init__(self, kind: type[T], f: Callable[[T, T], T]) -> None:
        super().__init__(kind, type_name(kind))
        self._f = f

    def get(self) -> T | None:
        """The folded value; None before the first ``add``."""
        return self._values.get(self._context.key)

    def add(self, value: T) -> None:
        """Fold a value into the current key's."""
        key = self._context.key
        old = self._values.get(key)
        self._values[key] = value if old is None else self._f(old, value)
        self._mark(key)


class AggregatingState(Keyed, Generic[In, Acc, Out]):
    """An accumulator per key; ``get()`` is the aggregate's result."""

    __slots__ = ("_aggregate",)

    kind = "aggregating"

    def __init__(self, aggregate: Aggregate[In, Acc, Out]) -> None:
        super().__init__(aggregate.accumulator, type_name(aggregate.accumulator))
        self._aggregate = aggregate

    def get(self) -> Out:
        """The result for the current key; of a new accumulator before the first ``add``."""
        accumulator = self._values.get(self._context.key)
        if accumulator is None:
            accumulator = self._aggregate.init()
        return self._aggregate.result(accumulator)

    def add(self, value: In) -> None:
        """Add a value to the current key's accumulator."""
        key = self._context.key
        accumulator = self._values.get(key)
        if accumulator is None:
            accumulator = self._aggregate.init()
        self._values[key] = self._aggregate.add(accumulator, value)
        self._mark(key)


class OfSubtask:
    """What all state of a subtask has in common; it belongs to no key."""

    kind: ClassVar[str]

    def __init__(self, stored: Any, shown: str) -> None:
        self.name = "?"
        """The attribute's name: part of the state's identity."""
        self.stored = stored
        """Type of an element; of a broadcast state the map."""
        self.shown = shown
        """Type for people."""
        self._cells: Any

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def described(self) -> Any:
        """The type that a savepoint shows."""
        return self.stored

    def cells(self, operator: str) -> Cells:
        """Where one subtask of ``operator`` keeps it."""
        return self._empty(operator)

    def _empty(self, operator: str) -> Cells:
        return ListCells(operator, self.name, self.stored)

    def bound(self, cells: Cells) -> Any:
        """A handle on the subtask's cells."""
        handle = copy.copy(self)
        handle._cells = cells
        return handle


class OperatorListState(OfSubtask, Generic[T]):
    """A list of the subtask, not of a key; a restore splits it evenly, in order (L20)."""

    kind = "operator_list"

    def __init__(self, kind: type[T]) -> None:
        super().__init__(kind, type_name(kind))
        self._cells: ListCells = ListCells("?", "?", kind)

    def get(self) -> list[T]:
        """The elements, the list itself: it may be changed in place."""
        return self._cells.items

    def add(self, value: T) -> None:
        """Append an element."""
        self._cells.items.append(value)

    def set(self, values: Sequence[T]) -> None:
        """Replace all elements."""
        self._cells.items = list(values)


class UnionListState(OperatorListState[T]):
    """A list of the subtask of which a restore gives every subtask all elements (L20).

    Each then keeps what is its own, in ``open()``: elements that all of them keep come back once
    for each of them at the next restore.
    """

    kind = "operator_union"


class BroadcastState(OfSubtask, Generic[K, V]):
    """A map that is the same in every subtask; a checkpoint holds that of the first (L20).

    No input reaches all subtasks: it is set in ``open()``, bootstrapped in a savepoint, or changed
    by every subtask in the same way.
    """

    kind = "operator_broadcast"

    def __init__(self, key: type[K], value: type[V]) -> None:
        stored = dict[key, value]  # type: ignore[valid-type]  # a type made at run time
        super().__init__(stored, f"{type_name(key)} -> {type_name(value)}")
        self._types = (key, value)
        self._cells: MapCells = MapCells("?", "?", key, value)

    def _empty(self, operator: str) -> Cells:
        return MapCells(operator, self.name, *self._types)

    def get(self, key: K) -> V | None:
        """The value under ``key``."""
        return self._cells.entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Set one entry."""
        self._cells.entries[key] = value

    def remove(self, key: K) -> None:
        """Drop one entry."""
        self._cells.entries.pop(key, None)

    def clear(self) -> None:
        """Drop all entries."""
        self._cells.entries.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._cells.entries

    def __len__(self) -> int:
        return len(self._cells.entries)

    def items(self) -> Mapping[K, V]:
        """The map; to look at, not to change."""
        return self._cells.entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._cells.entries)


Declared = Keyed | OfSubtask


def take_declarations(cls: type) -> dict[str, Declared]:
    """Take the states out of a class body, with those of its bases.

    An attribute of the class with the name of an instance's attribute would slow every access to
    the
    latter: the declarations live beside the class instead.
    """
    found: dict[str, Declared] = {}
    for parent in reversed(cls.__mro__[1:]):
        found.update(vars(parent).get("__states__", {}))
    for name, attribute in list(vars(cls).items()):
        if isinstance(attribute, Keyed | OfSubtask):
            found[name] = attribute
            delattr(cls, name)
    return found


def declared(cls: type) -> tuple[dict[str, Keyed], dict[str, OfSubtask]]:
    """The states by key and those of the subtask that a process declares, its bases' first."""
    states: dict[str, Declared] = getattr(cls, "__states__", {})
    keyed = {name: state for name, state in states.items() if isinstance(state, Keyed)}
    of_subtask = {n: state for n, state in states.items() if isinstance(state, OfSubtask)}
    return keyed, of_subtask
