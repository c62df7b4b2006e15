"""Random Python types that state may have, each with a strategy for its values."""

import dataclasses
import enum
import string
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
from hypothesis import strategies as st


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float = 0.5


class Line(msgspec.Struct, frozen=True, array_like=True, tag=True):
    a: Point
    b: Point | None = None


class Opened(msgspec.Struct, tag="opened"):
    by: str
    at: datetime | None = None


class Closed(msgspec.Struct, tag="closed"):
    pass


class Moved(msgspec.Struct, tag="moved", rename="camel"):
    to_place: str
    how_far: list[float] = []


class Tree(msgspec.Struct):
    value: int
    children: "list[Tree]" = []
    parent: "Tree | None" = None


class Sparse(msgspec.Struct, omit_defaults=True):
    key: str = ""
    key_group: int = 0
    value_key: int | None = None
    numbers: dict[int, str] = msgspec.field(default_factory=lambda: {1: "one"})
    unset: int | msgspec.UnsetType | None = msgspec.UNSET
    plain: float | msgspec.UnsetType = msgspec.UNSET


@dataclasses.dataclass
class Box:
    content: dict[str, int]
    label: str | None = None


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Loose(TypedDict, total=False):
    name: str
    size: int | None


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False)
MOMENTS = st.datetimes() | st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
POINTS = st.builds(Point, INT64, FLOATS)
ANYTHING = st.recursive(
    st.none() | st.booleans() | INT64 | FLOATS | TEXTS | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
TREES = st.recursive(
    st.builds(Tree, INT64),
    lambda inner: st.builds(Tree, INT64, st.lists(inner, max_size=2), st.none() | inner),
    max_leaves=4,
)
SPARSE = st.builds(
    Sparse,
    TEXTS,
    INT64,
    st.none() | INT64,
    st.dictionaries(INT64, TEXTS, max_size=2) | st.just({1: "one"}),
    st.just(msgspec.UNSET) | st.none() | INT64,
    st.just(msgspec.UNSET) | FLOATS,
)
LOOSE = st.fixed_dictionaries({}, optional={"name": TEXTS, "size": st.none() | INT64})

Typed = tuple[Any, st.SearchStrategy[Any]]

KEYS: list[Typed] = [
    (str, TEXTS),
    (int, INT64),
    (bytes, st.binary(max_size=6)),
    (bool, st.booleans()),
    (float, FLOATS),
    (date, st.dates()),
    (UUID, st.uuids()),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Point, POINTS),
    (Line, st.builds(Line, POINTS, st.none() | POINTS)),
    (str | None, st.none() | TEXTS),
    (int | str, INT64 | TEXTS),
    (tuple[str, int], st.tuples(TEXTS, INT64)),
    (tuple[Point, Color | None], st.tuples(POINTS, st.none() | st.sampled_from(Color))),
    (tuple[int, ...], st.lists(INT64, max_size=3).map(tuple)),
    (Any, TEXTS),
    (Any, INT64 | TEXTS | st.none() | FLOATS | st.tuples(INT64, st.tuples(TEXTS))),
]
"""Types of keys: hashable, and equal keys have equal bytes."""

LEAVES: list[Typed] = [
    *KEYS,
    (None, st.none()),
    (datetime, MOMENTS),
    (time, st.times() | st.times(timezones=st.just(UTC))),
    (timedelta, st.timedeltas(timedelta(days=-99999), timedelta(days=99999))),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Any, ANYTHING),
    (list, st.lists(ANYTHING, max_size=2)),
    (dict[str, Any], st.dictionaries(TEXTS, ANYTHING, max_size=2)),
    (Tree, TREES),
    (Sparse, SPARSE),
    (Box, st.builds(Box, st.dictionaries(TEXTS, INT64, max_size=2), st.none() | TEXTS)),
    (Pair, st.builds(Pair, INT64, TEXTS)),
    (Loose, LOOSE),
    (
        Opened | Closed | Moved | None,
        st.none()
        | st.builds(Opened, TEXTS, st.none() | MOMENTS)
        | st.builds(Closed)
        | st.builds(Moved, TEXTS, st.lists(FLOATS, max_size=2)),
    ),
    (Closed, st.builds(Closed)),
    (int | float, INT64 | FLOATS),
    (int | str | None, st.none() | INT64 | TEXTS),
    (bool | list[int] | dict[str, int], st.booleans() | st.lists(INT64, max_size=2)),
]


def _containers(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def container(pair: tuple[Typed, Typed, Typed]) -> st.SearchStrategy[Typed]:
        (kind, values), (other, others), (key, keys) = pair
        return st.sampled_from(
            [
                (list[kind], st.lists(values, max_size=3)),
                (tuple[kind, ...], st.lists(values, max_size=3).map(tuple)),
                (tuple[kind, other], st.tuples(values, others)),
                (dict[key, kind], st.dictionaries(keys, values, max_size=3)),
                (set[key], st.sets(keys, max_size=3)),
                (frozenset[key], st.frozensets(keys, max_size=3)),
                (kind | None if kind is not None else None, st.none() | values),
            ]
        )

    return st.tuples(inner, inner, st.sampled_from(KEYS)).flatmap(container)


_names = count()
NAMES = [*string.ascii_lowercase[:4], "key", "key_group", "value", "map_key", "Key", "namespace"]


@st.composite
def structs(draw: st.DrawFn, inner: st.SearchStrategy[Typed]) -> Typed:
    """A Struct with random fields and a random form on the wire."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    fields: list[Any] = []
    values = []
    for name in names:
        kind, strategy = draw(inner)
        values.append(strategy)
        fields.append((name, kind))
    kind = msgspec.defstruct(
        f"Random{next(_names)}",
        fields,
        array_like=draw(st.booleans()),
        tag=draw(st.sampled_from([None, "tag", 3])),
        rename=None if "Key" in names else draw(st.sampled_from([None, "upper", "camel"])),
        forbid_unknown_fields=draw(st.booleans()),
    )
    return kind, st.builds(kind, *values)


TYPES: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: _containers(inner) | structs(inner),
    max_leaves=5,
)
KEY_TYPES: st.SearchStrategy[Typed] = st.sampled_from(KEYS)
