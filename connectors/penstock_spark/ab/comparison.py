"""The comparison of two DataFrames, A and B: a full outer join that loses and doubles no row.

Rows are paired by the join columns and by their **occurrence**: the first row of A with some join
columns is compared with the first row of B that has the same, the second with the second.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.failure import ConfigurationError
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from penstock_spark.ab.column import (
    ComparedColumn,
    comparable,
    holds_map,
    is_number,
    quoted,
    same_shape,
)

EQUAL, DIFFERENT, ONLY_A, ONLY_B = "equal", "different", "only_a", "only_b"
"""The values of the column ``status``."""
PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Comparison:
    """What came out of `compare`: one row for each pair, and for each row without its other.

    ``rows`` has the join columns, those of ``by`` that are none of them, ``occurrence`` (from 1),
    ``status`` (equal, different, only_a, only_b), ``differs`` (the names of the columns that
    differ), then ``a_*`` and ``b_*`` of every compared column, ``delta_*`` (b - a) of every
    number, and ``a_*`` and ``b_*`` of the columns that order the occurrences. A name that is taken
    gets an underscore more; ``occurrence``, ``status`` and ``differs`` say what was given.
    """

    rows: DataFrame
    on: tuple[str, ...]
    by: tuple[str, ...]
    ignored: tuple[str, ...]
    columns: tuple[ComparedColumn, ...]
    columns_only_a: tuple[str, ...]
    columns_only_b: tuple[str, ...]
    occurrence: str
    status: str
    differs: str

    def differences(self) -> DataFrame:
        """The rows that are not equal."""
        return self.rows.filter(quoted(self.status) != EQUAL)

    def close(self) -> None:
        """Let go of the joined rows, which Spark keeps in memory and on disk."""
        self.rows.unpersist()


def compare(
    a: DataFrame,
    b: DataFrame,
    on: Sequence[str],
    *,
    ignore: Sequence[str] = (),
    by: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
) -> Comparison:
    """Compare ``a`` and ``b`` row by row.

    Args:
        a: the original's rows.
        b: the variant's rows.
        on: the join columns; null is a value like others.
        ignore: columns that are not compared.
        by: the columns that make a key of the report, ``on`` when None.
        order: what orders the rows that have the same join columns, and after it all compared
            columns. None: those of topic, partition and offset that both sides have.

    Raises ConfigurationError for a column that is not there, or that cannot be joined on.
    """
    types_a, types_b = _types(a, "A"), _types(b, "B")
    both = [name for name in types_a if name in types_b]
    on, by = list(on), list(on if by is None else by)
    if order is None:
        order = [name for name in PLACE if name in both]
    if not on:
        raise ConfigurationError("there is nothing to join A and B on; name at least one column")
    for name in {*on, *by, *order}:
        _check_shared(name, types_a, types_b)
    _check_known(ignore, {*types_a, *types_b})
    extra = [name for name in by if name not in on]
    placed = [name for name in order if name not in on]
    apart = {*on, *ignore, *placed}
    names = _Names([*on, *extra])
    occurrence, status, differs = (names.free(n) for n in ("occurrence", "status", "differs"))
    columns = [names.column(n, types_a[n], types_b[n]) for n in both if n not in apart]
    places = [names.column(n, types_a[n], types_b[n]) for n in placed]
    rows = _joined(a, b, on, extra, columns, places).toDF(
        *on, *extra, occurrence, status, differs, *(n for c in columns for n in _shown(c)),
        *(n for c in places for n in (c.a, c.b)),
    )  # fmt: skip
    return Comparison(
        rows=rows.persist(StorageLevel.MEMORY_AND_DISK),
        on=tuple(on),
        by=tuple(by),
        ignored=tuple(name for name in ignore if name not in on),
        columns=tuple(columns),
        columns_only_a=tuple(n for n in types_a if n not in types_b and n not in ignore),
        columns_only_b=tuple(n for n in types_b if n not in types_a and n not in ignore),
        occurrence=occurrence,
        status=status,
        differs=differs,
    )


def _joined(
    a: DataFrame,
    b: DataFrame,
    on: list[str],
    extra: list[str],
    columns: list[ComparedColumn],
    places: list[ComparedColumn],
) -> DataFrame:
    """The pairs: keys, occurrence, status, what differs, values; under any names."""
    placed, first = [c.name for c in places], len(on) + len(extra)
    wanted = [*on, *extra, *(c.name for c in columns), *placed]
    ordered = [*placed, *(c.name for c in columns)]
    left, right = _side("a", a, on, wanted, ordered), _side("b", b, on, wanted, ordered)
    keys = [sf.col(f"a{n}").eqNullSafe(sf.col(f"b{n}")) for n in range(len(on))]
    same_occurrence = sf.col("a_occurrence") == sf.col("b_occurrence")
    return left.join(right, [*keys, same_occurrence], "full_outer").select(
        *(sf.coalesce(f"a{n}", f"b{n}") for n in range(first)),
        sf.coalesce("a_occurrence", "b_occurrence"),
        *_judged(columns, first),
        *_values(columns, first, deltas=True),
        *_values(places, first + len(columns), deltas=False),
    )


def _shown(column: ComparedColumn) -> tuple[str, ...]:
    """The names that a compared column has in the rows."""
    return (column.a, column.b) if column.delta is None else (column.a, column.b, column.delta)


def _side(
    side: str, frame: DataFrame, on: list[str], wanted: list[str], ordered: list[str]
) -> DataFrame:
    """The wanted columns under numbered names, and the occurrence; never null in a row of ours."""
    places = {name: f"p{number}" for number, name in enumerate(frame.columns)}
    kinds = {name: field.dataType for name, field in zip(frame.columns, frame.schema.fields)}
    plain = frame.toDF(*places.values())
    places_in_order = [comparable(sf.col(places[name]), kinds[name]) for name in ordered]
    same = Window.partitionBy(*(places[name] for name in on))
    window = same.orderBy(*places_in_order or [sf.lit(0)])
    return plain.select(
        *(sf.col(places[name]).alias(f"{side}{n}") for n, name in enumerate(wanted)),
        sf.row_number().over(window).alias(f"{side}_occurrence"),
    )


def _judged(columns: list[ComparedColumn], first: int) -> tuple[Column, Column]:
    """The status of a pair, and the names of the columns that make it different."""
    only_a, only_b = sf.col("b_occurrence").isNull(), sf.col("a_occurrence").isNull()
    differing = [
        sf.when(column.differs(sf.col(f"a{n}"), sf.col(f"b{n}")), sf.lit(column.name))
        for n, column in enumerate(columns, first)
    ]
    found = (
        sf.array_compact(sf.array(*differing)) if differing else sf.array().cast("array<string>")
    )
    said = (
        sf.when(only_a, ONLY_A)
        .when(only_b, ONLY_B)
        .when(sf.size(found) > 0, DIFFERENT)
        .otherwise(EQUAL)
    )
    none = sf.array().cast("array<string>")
    return said, sf.when(only_a | only_b, none).otherwise(found)


def _values(columns: list[ComparedColumn], first: int, *, deltas: bool) -> list[Column]:
    found = []
    for n, column in enumerate(columns, first):
        a, b = sf.col(f"a{n}"), sf.col(f"b{n}")
        found += [a, b]
        if deltas and column.delta is not None:
            found.append(column.between(a, b))
    return found


class _Names:
    """Gives names that no other column of the result has, whatever the case of its letters."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {name.lower() for name in taken}

    def free(self, name: str) -> str:
        while name.lower() in self._taken:
            name += "_"
        self._taken.add(name.lower())
        return name

    def column(self, name: str, type_a: st.DataType, type_b: st.DataType) -> ComparedColumn:
        numbers = is_number(type_a) and is_number(type_b)
        a, b = self.free(f"a_{name}"), self.free(f"b_{name}")
        delta = self.free(f"delta_{name}") if numbers else None
        return ComparedColumn(name, type_a, type_b, a, b, delta)


def _types(frame: DataFrame, side: str) -> dict[str, st.DataType]:
    """Column -> its type."""
    found: dict[str, st.DataType] = {}
    for name, field in zip(frame.columns, frame.schema.fields):
        if name in found:
            raise ConfigurationError(
                f"{side} has two columns named {name!r}; rename one before comparing"
            )
        found[name] = field.dataType
    return found


def _check_shared(
    name: str, types_a: Mapping[str, st.DataType], types_b: Mapping[str, st.DataType]
) -> None:
    for side, types in (("A", types_a), ("B", types_b)):
        if name not in types:
            raise ConfigurationError(
                f"{side} has no column {name!r} to join, group or order by; its columns: "
                f"{', '.join(types)}"
            )
    a, b = types_a[name], types_b[name]
    if holds_map(a) or holds_map(b):
        raise ConfigurationError(
            f"column {name!r} is {a.simpleString()}: rows cannot be joined, grouped or ordered by "
            "a map; name another column"
        )
    if not same_shape(a, b) and not (is_number(a) and is_number(b)):
        raise ConfigurationError(
            f"column {name!r} is {a.simpleString()} in A and {b.simpleString()} in B; rows can be "
            "joined, grouped and ordered by columns of one type: cast one of them"
        )


def _check_known(ignore: Sequence[str], known: set[str]) -> None:
    for name in ignore:
        if name not in known:
            raise ConfigurationError(
                f"column {name!r} is to be ignored, but neither A nor B has it; their columns: "
                f"{', '.join(sorted(known))}"
            )
