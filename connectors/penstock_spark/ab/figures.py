"""The figures of a comparison: what differs, by column, by key and by how much."""

from collections.abc import Callable, Iterator, Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from penstock_spark.ab.column import quoted
from penstock_spark.ab.comparison import DIFFERENT, EQUAL, ONLY_A, ONLY_B, Comparison
from penstock_spark.ab.deltas import Measured, measured, number
from penstock_spark.ab.model import (
    ColumnDifference,
    Compared,
    Deltas,
    Example,
    KeyDelta,
    KeyRows,
    Kind,
)

STATUSES = (EQUAL, DIFFERENT, ONLY_A, ONLY_B)
SHOWN_CHARACTERS = 200


def figures(
    comparison: Comparison,
    name: str,
    *,
    kind: Kind = "output",
    a: str = "A",
    b: str = "B",
    top: int = 10,
    examples: int = 5,
    say: Callable[[str], None] = lambda _: None,
) -> Compared:
    """Work the comparison out.

    Args:
        comparison: what `compare` gave.
        name: what was compared, for people.
        kind: whether it is an output or a state.
        a: what A's rows were read from, for people.
        b: the same of B.
        top: how many keys are listed, in all and for each number.
        examples: how many rows are listed of those that differ, only A has, and only B has.
        say: called with a line when a longer step begins.
    """
    say(f"{name}: joining A and B")
    counts = _counts(comparison)
    say(f"{name}: {sum(counts[each] for each in STATUSES):,} rows; keys and numbers")
    numbers = [n for n, column in enumerate(comparison.columns) if column.delta is not None]
    keys = _keys(comparison, numbers).persist()
    try:
        many, unequal = keys.agg(sf.count("*"), sf.count_if(sf.col("unequal") > 0)).first() or (
            0,
            0,
        )
        return Compared(
            kind=kind,
            name=name,
            a=a,
            b=b,
            on=comparison.on,
            by=comparison.by,
            ignored=comparison.ignored,
            rows_a=counts[EQUAL] + counts[DIFFERENT] + counts[ONLY_A],
            rows_b=counts[EQUAL] + counts[DIFFERENT] + counts[ONLY_B],
            equal=counts[EQUAL],
            different=counts[DIFFERENT],
            only_a=counts[ONLY_A],
            only_b=counts[ONLY_B],
            repeated_a=counts["repeated_a"],
            repeated_b=counts["repeated_b"],
            columns=_columns(comparison, counts, keys, numbers, top),
            columns_only_a=comparison.columns_only_a,
            columns_only_b=comparison.columns_only_b,
            keys=many,
            keys_unequal=unequal,
            top_keys=_top_keys(comparison, keys, top),
            examples=tuple(_examples(comparison, counts, examples)),
        )
    finally:
        keys.unpersist()


def _counts(comparison: Comparison) -> Row:
    """Rows of each status, repetitions of each side, and rows in which column n differs."""
    status, again = quoted(comparison.status), quoted(comparison.occurrence) > 1
    found = comparison.rows.agg(
        *(sf.count_if(status == each).alias(each) for each in STATUSES),
        sf.count_if(again & (status != ONLY_B)).alias("repeated_a"),
        sf.count_if(again & (status != ONLY_A)).alias("repeated_b"),
        *(
            sf.count_if(sf.array_contains(quoted(comparison.differs), column.name)).alias(f"c{n}")
            for n, column in enumerate(comparison.columns)
        ),
    ).first()
    if found is None:
        raise RuntimeError("an aggregation without groups gave no row")
    return found


def _keys(comparison: Comparison, numbers: Sequence[int]) -> DataFrame:
    """One row a key: k0…, rows of each status, unequal, and for number n its sum and rows."""
    status = quoted(comparison.status)
    deltas = {n: quoted(str(comparison.columns[n].delta)) for n in numbers}
    kinds = {n: comparison.rows.schema[str(comparison.columns[n].delta)].dataType for n in numbers}
    exact = {
        n: delta.cast("decimal(38,0)") if isinstance(kinds[n], st.LongType) else delta
        for n, delta in deltas.items()
    }
    return comparison.rows.groupBy(
        *(quoted(name).alias(f"k{n}") for n, name in enumerate(comparison.by))
    ).agg(
        *(sf.count_if(status == each).alias(each) for each in STATUSES),
        sf.count_if(status != EQUAL).alias("unequal"),
        *(sf.sum(delta).alias(f"sum{n}") for n, delta in exact.items()),
        *(sf.count_if(delta != 0).alias(f"rows{n}") for n, delta in deltas.items()),
    )


def _columns(
    comparison: Comparison, counts: Row, keys: DataFrame, numbers: Sequence[int], top: int
) -> tuple[ColumnDifference, ...]:
    differing = [n for n in numbers if counts[f"c{n}"]]
    sums = keys.agg(sf.lit(0), *(sf.sum(f"sum{n}").alias(f"sum{n}") for n in differing)).first()
    found: dict[int, Measured] = measured(comparison, differing)
    deltas = {
        n: Deltas(
            rows=each.rows,
            sum=number(sums[f"sum{n}"]),
            mean=float(sums[f"sum{n}"] / each.rows),
            min=each.min,
            quantiles=each.quantiles,
            max=each.max,
            bins=each.bins,
            below=each.below,
            above=each.above,
            top=_top_sums(comparison, keys, n, top),
        )
        for n, each in found.items()
        if sums is not None
    }
    return tuple(
        ColumnDifference(
            name=column.name,
            type_a=column.type_a.simpleString(),
            type_b=column.type_b.simpleString(),
            rows=counts[f"c{n}"],
            deltas=deltas.get(n),
        )
        for n, column in enumerate(comparison.columns)
    )


def _top_sums(comparison: Comparison, keys: DataFrame, n: int, top: int) -> tuple[KeyDelta, ...]:
    parts = [f"k{each}" for each in range(len(comparison.by))]
    found = (
        keys.filter(sf.col(f"rows{n}") > 0)
        .orderBy(sf.abs(f"sum{n}").desc(), *parts)
        .limit(top)
        .select(_key(comparison, comparison.by, parts), f"sum{n}", f"rows{n}")
    )
    return tuple(KeyDelta(tuple(key), number(total), rows) for key, total, rows in found.collect())


def _top_keys(comparison: Comparison, keys: DataFrame, top: int) -> tuple[KeyRows, ...]:
    parts = [f"k{each}" for each in range(len(comparison.by))]
    found = (
        keys.filter("unequal > 0")
        .orderBy(sf.col("unequal").desc(), *parts)
        .limit(top)
        .select(_key(comparison, comparison.by, parts), *STATUSES)
    )
    return tuple(
        KeyRows(key=tuple(key), equal=equal, different=different, only_a=only_a, only_b=only_b)
        for key, equal, different, only_a, only_b in found.collect()
    )


def _examples(comparison: Comparison, counts: Row, most: int) -> Iterator[Example]:
    for status in (DIFFERENT, ONLY_A, ONLY_B):
        if counts[status]:
            yield from _examples_of(comparison, status, most)


def _examples_of(comparison: Comparison, status: str, most: int) -> list[Example]:
    on = [quoted(name) for name in comparison.on]
    values = [
        sf.array(_text(quoted(side), kind)).alias(f"{letter}{n}")
        for n, column in enumerate(comparison.columns)
        for letter, side, kind in (("a", column.a, column.type_a), ("b", column.b, column.type_b))
    ]
    found = (
        comparison.rows.filter(quoted(comparison.status) == status)
        .orderBy(*on, quoted(comparison.occurrence))
        .limit(most)
        .select(
            _key(comparison, comparison.on, comparison.on),
            quoted(comparison.occurrence).alias("n"),
            quoted(comparison.differs).alias("differs"),
            *values,
        )
    )
    return [
        Example(
            key=tuple(row["key"]),
            occurrence=row["n"],
            status=status,
            values=tuple(
                (column.name, row[f"a{n}"][0], row[f"b{n}"][0])
                for n, column in enumerate(comparison.columns)
                if status != DIFFERENT or column.name in row["differs"]
            ),
        )
        for row in found.collect()
    ]


def _key(comparison: Comparison, names: Sequence[str], columns: Sequence[str]) -> Column:
    """The parts of a key as text."""
    kinds = [comparison.rows.schema[name].dataType for name in names]
    parts = [_text(quoted(column), kind) for column, kind in zip(columns, kinds)]
    return sf.array(*parts).alias("key")


def _text(value: Column, kind: st.DataType) -> Column:
    """A value as people read it, cut off when it is long."""
    text = sf.concat(sf.lit("0x"), sf.hex(value)) if isinstance(kind, st.BinaryType) else value
    shown = text.cast("string")
    cut = sf.concat(sf.substring(shown, 1, SHOWN_CHARACTERS), sf.lit("…"))
    return sf.when(sf.length(shown) > SHOWN_CHARACTERS, cut).otherwise(shown)
