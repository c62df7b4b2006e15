"""An aggregate: what `KeyedStream.aggregate` and `AggregatingState` do to the values of a key."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.failure import ConfigurationError

In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")


class Aggregate(Generic[In, Acc, Out]):
    """``init() -> acc``, ``add(acc, value) -> acc``, ``result(acc) -> output``.

    ``accumulator`` is its type in snapshots; found out from ``init()`` for numbers, strings,
    Structs
    and tuples of them.
    """

    def __init__(
        self,
        init: Callable[[], Acc],
        add: Callable[[Acc, In], Acc],
        result: Callable[[Acc], Out],
        *,
        accumulator: Any = None,
    ) -> None:
        self.init = init
        self.add = add
        self.result = result
        self.accumulator = accumulator if accumulator is not None else _type_of(init())


def _type_of(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, msgspec.Struct) or kind in (str, bytes):
        return kind
    if kind in (int, float):
        return int | float if kind is int else float
    if kind is tuple:
        return tuple[tuple(_type_of(part) for part in value)]  # type: ignore[misc]
    if kind in (list, dict, bool):
        return kind
    raise ConfigurationError(
        f"the accumulator {value!r} is a {kind.__name__}, whose type in a snapshot is not known; "
        "pass accumulator=... to Aggregate"
    )
