"""The distribution of b - a: extremes, quantiles by the nearest rank, and a histogram.

Works on the distinct deltas of each column and how often they occur, so that figures are exact
and no value has to fit into one process.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as sf

from penstock_spark.ab.column import quoted
from penstock_spark.ab.comparison import Comparison
from penstock_spark.ab.model import QUANTILES, Bin, Number

BINS = 30
FAR_OUT = 4
"""A histogram begins at p1 and ends at p99 when the extremes are so many times further apart."""
_JSON_INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Measured:
    """The distribution of one column's deltas."""

    rows: int
    min: Number
    quantiles: dict[str, Number]
    max: Number
    bins: tuple[Bin, ...]
    below: int
    above: int


def measured(comparison: Comparison, numbers: Sequence[int]) -> dict[int, Measured]:
    """The distributions of the compared columns with these indices; those without deltas lack."""
    by_type: dict[str, list[int]] = {}
    for n in numbers:
        kind = comparison.rows.schema[str(comparison.columns[n].delta)].dataType
        by_type.setdefault(kind.simpleString(), []).append(n)
    found: dict[int, Measured] = {}
    for together in by_type.values():
        distinct = _distinct(comparison, together).persist()
        try:
            found.update(_measured(distinct))
        finally:
            distinct.unpersist()
    return found


def number(value: float | Decimal) -> Number:
    """A value that Spark gave, such that JSON can say it."""
    if (
        isinstance(value, Decimal)
        and value.as_tuple().exponent == 0
        and int(value) in _JSON_INTEGERS
    ):
        return int(value)
    if isinstance(value, float) and not math.isfinite(value):  # a sum that left the doubles
        return math.copysign(sys.float_info.max, value)
    return value


def _distinct(comparison: Comparison, numbers: Sequence[int]) -> DataFrame:
    """Column index, delta, and the rows that have it; the deltas are of one type."""
    each = [
        sf.struct(
            sf.lit(n).alias("column"), quoted(str(comparison.columns[n].delta)).alias("delta")
        )
        for n in numbers
    ]
    pairs = comparison.differences().select(sf.inline(sf.array(*each)))
    return pairs.filter("delta != 0").groupBy("column", "delta").agg(sf.count("*").alias("rows"))


def _measured(distinct: DataFrame) -> Iterator[tuple[int, Measured]]:
    up_to = Window.partitionBy("column").orderBy("delta")
    ranked = distinct.select(
        "column",
        "delta",
        sf.sum("rows").over(up_to).alias("rank"),
        sf.sum("rows").over(Window.partitionBy("column")).alias("all"),
    )
    stats = ranked.groupBy("column").agg(
        sf.max("all").alias("all"),
        sf.min("delta").alias("p0"),
        *(
            sf.min(sf.when(sf.col("rank") >= sf.ceil(sf.col("all") * p / 100), sf.col("delta")))
            .alias(f"p{p}")
            for p in QUANTILES
        ),
        sf.max("delta").alias("p100"),
    )  # fmt: skip
    rows = stats.collect()
    scales = {row["column"]: _Scale.of(row) for row in rows}
    bars = _bars(distinct, scales)
    for row in rows:
        counts, scale = bars.get(row["column"], {}), scales[row["column"]]
        yield (
            row["column"],
            Measured(
                rows=row["all"],
                min=number(row["p0"]),
                quantiles={f"p{p}": number(row[f"p{p}"]) for p in QUANTILES},
                max=number(row["p100"]),
                bins=tuple(Bin(*scale.edges(n), counts.get(n, 0)) for n in range(scale.bins)),
                below=counts.get(-1, 0),
                above=counts.get(scale.bins, 0),
            ),
        )


def _bars(distinct: DataFrame, scales: dict[int, "_Scale"]) -> dict[int, dict[int, int]]:
    """Column index -> bin -> rows; bin -1 is below the histogram, the one after the last above."""
    bar: Column = sf.lit(None).cast("int")
    for column, scale in scales.items():
        bar = sf.when(sf.col("column") == column, scale.bar(sf.col("delta"))).otherwise(bar)
    found: dict[int, dict[int, int]] = {}
    counted = distinct.groupBy("column", bar.alias("bar")).agg(sf.sum("rows").alias("rows"))
    for row in counted.collect():
        found.setdefault(row["column"], {})[row["bar"]] = row["rows"]
    return found


@dataclass(frozen=True)
class _Scale:
    """The horizontal axis of a histogram; whole numbers have whole bins."""

    low: int | float
    high: int | float
    width: int | float
    bins: int

    @classmethod
    def of(cls, row: Row) -> "_Scale":
        low, high = row["p0"], row["p100"]
        if row["p99"] > row["p1"] and high - low > FAR_OUT * (row["p99"] - row["p1"]):
            low, high = row["p1"], row["p99"]
        if isinstance(low, int):
            width = -((low - high - 1) // BINS)
            return cls(low, high, width, -((low - high - 1) // width))
        low, high = float(low), float(high)
        width = high / BINS - low / BINS  # the doubles' extremes are further apart than a double
        return cls(low, high, width, BINS if width > 0 else 1)

    def bar(self, delta: Column) -> Column:
        """The bin of a delta."""
        if isinstance(self.low, int):
            whole = delta.cast("decimal(38,0)")
            inside = sf.floor((whole - self.low) / self.width)
        else:
            delta = delta.cast("double")
            far = delta / self.width - self.low / self.width if self.width > 0 else sf.lit(0)
            inside = sf.floor(far)
        last = sf.least(inside, sf.lit(self.bins - 1)).cast("int")
        return sf.when(delta < self.low, -1).when(delta > self.high, self.bins).otherwise(last)

    def edges(self, n: int) -> tuple[Number, Number]:
        """Where bin ``n`` begins and ends."""
        if n == self.bins - 1:
            return self.low + n * self.width, self.high
        return self.low + n * self.width, self.low + (n + 1) * self.width
