"""The report of an A/B run as plain values, which stand as JSON, as a table and as a page."""

from decimal import Decimal
from typing import Literal

import msgspec
from penstock.runtime.ab_run import AbRun

Kind = Literal["output", "state"]
Number = int | float | Decimal
"""Whole numbers and decimals are exact; a decimal stands in JSON as a string."""
QUANTILES = (1, 5, 25, 50, 75, 95, 99)
"""Per cent, by the nearest rank: the smallest delta that so many per cent do not exceed."""


class Bin(msgspec.Struct, frozen=True):
    """One bar of a histogram: how many deltas lie in [low, high), in the last one [low, high]."""

    low: Number
    high: Number
    rows: int


class KeyDelta(msgspec.Struct, frozen=True):
    """What came to one key: the sum of b - a over the rows of it that both sides have."""

    key: tuple[str | None, ...]
    sum: Number
    rows: int
    """Rows in which the column differs."""


class Deltas(msgspec.Struct, frozen=True, kw_only=True):
    """b - a of one column, over the rows in which it differs."""

    rows: int
    """Fewer than the rows that differ, where a value is null or not finite."""
    sum: Number
    mean: float
    min: Number
    quantiles: dict[str, Number]
    """p1, p5, p25, p50, p75, p95, p99."""
    max: Number
    bins: tuple[Bin, ...]
    below: int
    """Deltas below the first bin, which begins at p1 when the extremes are far out."""
    above: int
    top: tuple[KeyDelta, ...]
    """The keys whose sums are furthest from zero."""


class ColumnDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One compared column."""

    name: str
    type_a: str
    type_b: str
    rows: int
    """Rows that both sides have and in which the two values differ."""
    deltas: Deltas | None = None
    """None when no row has a delta."""


class KeyRows(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one key."""

    key: tuple[str | None, ...]
    equal: int
    different: int
    only_a: int
    only_b: int


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One row that is not equal, as it is shown."""

    key: tuple[str | None, ...]
    """The join columns."""
    occurrence: int
    status: str
    values: tuple[tuple[str, str | None, str | None], ...]
    """Column, value of A, value of B: those that differ, or all when only one side has the row."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of one output, or of one state of an operator."""

    kind: Kind
    name: str
    a: str
    """What A's rows were read from."""
    b: str
    on: tuple[str, ...]
    by: tuple[str, ...]
    ignored: tuple[str, ...]
    rows_a: int
    rows_b: int
    equal: int
    different: int
    only_a: int
    only_b: int
    repeated_a: int
    """Rows of A whose join columns an earlier row of A has, too."""
    repeated_b: int
    columns: tuple[ColumnDifference, ...]
    columns_only_a: tuple[str, ...]
    columns_only_b: tuple[str, ...]
    keys: int
    keys_unequal: int
    """Keys with a row that is not equal."""
    top_keys: tuple[KeyRows, ...]
    """The keys with most rows that are not equal."""
    examples: tuple[Example, ...]
    differences: str | None = None
    """The folder of Parquet files with every row that is not equal."""

    @property
    def unequal(self) -> int:
        """Rows and pairs of rows that are not equal."""
        return self.different + self.only_a + self.only_b

    @property
    def pairs(self) -> int:
        """Pairs of rows, and rows without their other."""
        return self.equal + self.unequal


class PositionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A source partition at which the two ended at different positions."""

    topic: str
    partition: int
    a: int | None
    b: int | None


class AbReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``penstock ab report`` found."""

    app: str
    variant: str
    created_at_ms: int
    run: AbRun | None = None
    """What was compared; None for a report that was made from DataFrames alone."""
    comparisons: tuple[Compared, ...] = ()
    states_only_a: tuple[str, ...] = ()
    """``operator/state`` names."""
    states_only_b: tuple[str, ...] = ()
    positions: tuple[PositionDifference, ...] = ()
    """None: both ended at the same positions, or are not compared by their end."""
    not_compared: tuple[str, ...] = ()
    """What could not be compared, and why."""

    @property
    def is_equal(self) -> bool:
        """Whether no difference was found at all."""
        return not (
            any(each.unequal or each.columns_only_a or each.columns_only_b
                for each in self.comparisons)
            or self.states_only_a or self.states_only_b or self.positions
        )  # fmt: skip

    def to_json(self) -> bytes:
        """The report as a JSON document."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read(data: bytes) -> AbReport:
    """The report that `AbReport.to_json` wrote. Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=AbReport)
