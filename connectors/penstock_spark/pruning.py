"""What a query can see of a keyed state: the key groups and keys that its filters leave, and so the
files. Spark filters the rows again, so that a filter which is not understood costs time and nothing
else; what an option asks for is filtered here alone.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from penstock.savepoint.manifest import FileEntry
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

KeyOf = Callable[[Any], bytes | None]
"""The canonical bytes of a literal key; None when the literal is no key of this state."""
GroupOf = Callable[[bytes], int]

_COMPARED: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


class Wanted(NamedTuple):
    """The rows that are wanted: those of these key groups, and of these keys."""

    groups: frozenset[int] | None = None
    """None: all."""
    keys: frozenset[bytes] | None = None
    """Canonical bytes; None: all."""

    def among(self, groups: Iterable[int]) -> "Wanted":
        """Only rows of these key groups, too."""
        asked = frozenset(groups)
        return self._replace(groups=asked if self.groups is None else self.groups & asked)

    def of(self, keys: Iterable[bytes], group_of: GroupOf) -> "Wanted":
        """Only rows of these keys, too."""
        asked = frozenset(keys)
        left = asked if self.keys is None else self.keys & asked
        return self._replace(keys=left).among(map(group_of, left))

    def may_be_in(self, file: FileEntry) -> bool:
        """Whether ``file`` can hold a wanted row."""
        low, high = file.key_group_min, file.key_group_max
        if low is None or high is None or self.groups is None:
            return True
        return any(low <= group <= high for group in self.groups)

    def files(self, files: Iterable[FileEntry], group_of: GroupOf) -> list[FileEntry]:
        """Those that can hold a wanted row; for one key of a state, one file."""
        found = [file for file in files if self.may_be_in(file)]
        if self.keys is None:
            return found
        places = [(group_of(key), key) for key in self.keys]
        return [file for file in found if any(_holds(file, place) for place in places)]


def narrowed(
    wanted: Wanted, filters: Iterable[Filter], *, all_groups: int, key_of: KeyOf, group_of: GroupOf
) -> Wanted:
    """``wanted`` as far as the filters of a query narrow it.

    Args:
        wanted: what was wanted before.
        filters: all of them hold for every row that the query sees.
        all_groups: max_parallelism.
        key_of: turns a literal of the column ``key_value`` into canonical bytes.
        group_of: the key group of canonical bytes.
    """
    for each in filters:
        column = getattr(each.child if isinstance(each, Not) else each, "attribute", ())
        if column == ("key_group",):
            wanted = wanted.among(g for g in range(all_groups) if _passes(each, g))
        elif column in (("key",), ("key_value",)):
            found = [_key(column, value, key_of) for value in _equals(each)]
            keys = [key for key in found if key is not None]
            if found and len(keys) == len(found):
                wanted = wanted.of(keys, group_of)
    return wanted


def _key(column: tuple[str, ...], value: Any, key_of: KeyOf) -> bytes | None:
    if column == ("key",):
        return bytes(value) if isinstance(value, bytes | bytearray) else None
    return None if value is None else key_of(value)


def _equals(each: Filter) -> tuple[Any, ...]:
    """The values of which the column must have one; () when the filter does not say so."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return (each.value,)
    return tuple(each.value) if isinstance(each, In) else ()


def _passes(each: Filter, group: int) -> bool:
    """Whether a row of key group ``group``, which is never null, can pass."""
    if isinstance(each, Not):
        # An inner filter that is not understood passes everything: its negation does, too.
        return not _is_understood(each.child) or not _passes(each.child, group)
    if isinstance(each, In):
        return group in each.value
    if isinstance(each, IsNull):
        return False
    compare = _COMPARED.get(type(each))
    if compare is None:
        return True
    value = each.value  # type: ignore[attr-defined]  # every compared filter has one
    return not isinstance(value, int | float) or bool(compare(group, value))


def _is_understood(each: Filter) -> bool:
    return isinstance(each, In | IsNull) or (
        type(each) in _COMPARED and isinstance(getattr(each, "value", None), int | float)
    )


def _holds(file: FileEntry, place: tuple[int, bytes]) -> bool:
    """Whether the rows of a key can be in a file, by its first and its last row."""
    if not file.lower.keys() == file.upper.keys() == {"key_group", "key"}:
        return True  # sorted by something before the key: only its range of key groups tells
    return _place(file.lower) <= place <= _place(file.upper)


def _place(bound: dict[str, int | str]) -> tuple[int, bytes]:
    return int(bound["key_group"]), bytes.fromhex(str(bound["key"]))
