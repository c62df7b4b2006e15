"""Two DataFrames against what a few lines of plain Python say about the same rows."""

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from penstock.failure import ConfigurationError
from penstock_spark.ab import compare
from penstock_spark.ab.figures import figures
from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

STATUSES = ("equal", "different", "only_a", "only_b")


def counts(a: DataFrame, b: DataFrame, on: list[str], **how: Any) -> tuple[int, ...]:
    comparison = compare(a, b, on, **how)
    try:
        found = Counter(row[comparison.status] for row in comparison.rows.collect())
    finally:
        comparison.close()
    assert found.keys() <= set(STATUSES)
    return tuple(found[each] for each in STATUSES)


def test_rows_are_equal_different_or_on_one_side(spark: SparkSession) -> None:
    a = spark.createDataFrame(
        [("x", 1, "p"), ("y", 2, "q"), ("z", 3, "r")], "k string, n int, s string"
    )
    b = spark.createDataFrame(
        [("x", 1, "p"), ("y", 5, "q"), ("w", 4, "r")], "k string, n int, s string"
    )
    comparison = compare(a, b, ["k"])
    rows = {row["k"]: row.asDict() for row in comparison.rows.collect()}
    comparison.close()
    assert rows == {
        "x": {"k": "x", "occurrence": 1, "status": "equal", "differs": [], "a_n": 1, "b_n": 1,
              "delta_n": 0, "a_s": "p", "b_s": "p"},
        "y": {"k": "y", "occurrence": 1, "status": "different", "differs": ["n"], "a_n": 2,
              "b_n": 5, "delta_n": 3, "a_s": "q", "b_s": "q"},
        "z": {"k": "z", "occurrence": 1, "status": "only_a", "differs": [], "a_n": 3, "b_n": None,
              "delta_n": None, "a_s": "r", "b_s": None},
        "w": {"k": "w", "occurrence": 1, "status": "only_b", "differs": [], "a_n": None, "b_n": 4,
              "delta_n": None, "a_s": None, "b_s": "r"},
    }  # fmt: skip


def test_rows_with_the_same_join_columns_are_paired_in_the_order_of_the_topic(
    spark: SparkSession,
) -> None:
    kind = "k string, n int, partition int, offset bigint"
    a = spark.createDataFrame([("x", 1, 0, 7), ("x", 2, 0, 9), ("x", 3, 1, 2)], kind)
    b = spark.createDataFrame([("x", 3, 1, 2), ("x", 1, 0, 100), ("x", 2, 0, 200)], kind)
    assert counts(a, b, ["k"]) == (3, 0, 0, 0)
    swapped = b.replace({100: 300}, subset=["offset"])
    assert counts(a, swapped, ["k"]) == (1, 2, 0, 0)


def test_a_row_more_on_one_side_is_not_paired_twice(spark: SparkSession) -> None:
    a = spark.createDataFrame([("x", 1), ("x", 1), ("x", 1)], "k string, n int")
    b = spark.createDataFrame([("x", 1), ("x", 1)], "k string, n int")
    assert counts(a, b, ["k"]) == (2, 0, 1, 0)
    assert counts(b, a, ["k"]) == (2, 0, 0, 1)


def test_null_is_a_key_and_a_value(spark: SparkSession) -> None:
    kind = "k string, n int"
    a = spark.createDataFrame([(None, 1), ("x", None), ("y", None), ("z", 1)], kind)
    b = spark.createDataFrame([(None, 1), ("x", None), ("y", 1), ("z", None)], kind)
    assert counts(a, b, ["k"]) == (2, 2, 0, 0)


def test_nested_values_are_compared_whole_and_maps_without_their_order(spark: SparkSession) -> None:
    def side(*values: str) -> DataFrame:
        rows = ", ".join(f"({n}, {value})" for n, value in enumerate(values))
        return spark.sql(f"SELECT * FROM VALUES {rows} AS t(k, v)")

    def value(tags: str, at: str) -> str:
        return f"named_struct('tags', array({tags}), 'at', named_struct('x', {at}))"

    one, turned = "map('p', 1, 'q', 2)", "map('q', 2, 'p', 1)"
    a = side(value(one, "1.0D"), value(one, "double('NaN')"), "NULL", value(one, "0D"), "NULL")
    b = side(
        *(value(turned, "1.0D"), value(turned, "double('NaN')"), "NULL"),
        *(value("map('p', 1)", "0D"), value(one, "0D")),
    )
    assert counts(a, b, ["k"]) == (3, 2, 0, 0)


def test_numbers_of_two_types_are_compared_as_numbers(spark: SparkSession) -> None:
    a = spark.createDataFrame([(1, 5), (2, 6)], "k int, n int")
    b = spark.createDataFrame([(1, 5), (2, 7)], "k bigint, n bigint")
    assert counts(a, b, ["k"]) == (1, 1, 0, 0)
    text = spark.createDataFrame([(1, "5"), (2, "6")], "k int, n string")
    assert counts(a, text, ["k"]) == (0, 2, 0, 0)


def test_the_furthest_numbers_have_no_delta_and_still_differ(spark: SparkSession) -> None:
    a = spark.createDataFrame([(1, -(2**63), 1.0), (2, 0, 1.0)], "k int, n bigint, d double")
    b = spark.createDataFrame(
        [(1, 2**63 - 1, 2.5), (2, 3, float("inf"))], "k int, n bigint, d double"
    )
    comparison = compare(a, b, ["k"])
    found = figures(comparison, "x")
    comparison.close()
    n, d = found.columns
    assert (n.rows, d.rows) == (2, 2)
    assert n.deltas is not None
    assert d.deltas is not None
    assert (n.deltas.rows, n.deltas.sum) == (1, 3)
    assert (d.deltas.rows, d.deltas.sum) == (1, 1.5)


def test_hostile_column_names_are_names(spark: SparkSession) -> None:
    names = ["k`.x", "a b.c", "status", "occurrence", "a_status"]
    a = spark.createDataFrame([(1, 2, 3, 4, 5)], "a int, b int, c int, d int, e int").toDF(*names)
    comparison = compare(a, a, ["k`.x", "status"])
    found = figures(comparison, "x")
    comparison.close()
    assert (found.equal, found.unequal) == (1, 0)
    assert [column.name for column in found.columns] == ["a b.c", "occurrence", "a_status"]
    assert comparison.status == "status_"


def test_columns_of_one_side_are_told_and_not_compared(spark: SparkSession) -> None:
    a = spark.createDataFrame([(1, 2, 3)], "k int, n int, old int")
    b = spark.createDataFrame([(1, 2, 3)], "k int, n int, fee int")
    comparison = compare(a, b, ["k"])
    assert (comparison.columns_only_a, comparison.columns_only_b) == (("old",), ("fee",))
    assert [row["status"] for row in comparison.rows.collect()] == ["equal"]
    comparison.close()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"on": []}, "at least one column"),
        ({"on": ["m"]}, "cannot be joined, grouped or ordered by a map"),
        ({"on": ["z"]}, "A has no column 'z'.*k, n, m"),
        ({"on": ["k"], "by": ["z"]}, "A has no column 'z'"),
        ({"on": ["n"]}, "'n' is int in A and string in B.*cast one"),
        ({"on": ["k"], "ignore": ["q"]}, "'q' is to be ignored"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    spark: SparkSession, how: dict[str, Any], said: str
) -> None:
    a = spark.createDataFrame([], "k int, n int, m map<string, int>")
    b = spark.createDataFrame([], "k int, n string, m map<string, int>")
    with pytest.raises(ConfigurationError, match=said):
        compare(a, b, **how)


def test_two_columns_of_one_name_are_refused(spark: SparkSession) -> None:
    a = spark.createDataFrame([(1, 2)], "k int, n int")
    with pytest.raises(ConfigurationError, match="B has two columns named 'k'"):
        compare(a, a.toDF("k", "k"), ["k"])


# -- against plain Python

ROWS = some.lists(
    some.tuples(
        some.sampled_from(["x", "y", None]),
        some.integers(-3, 3) | some.none(),
        some.sampled_from(["p", "q"]),
    ),
    max_size=12,
)


def plain(a: list[Any], b: list[Any]) -> Counter[tuple[Any, int, str, Any]]:
    """(key, occurrence, status, delta) of rows that stand in the order of their topic."""
    sides = []
    for rows in (a, b):
        by_key: dict[Any, list[Any]] = defaultdict(list)
        for row in rows:
            by_key[row[0]].append(row[1:])
        sides.append(by_key)
    found: Counter[tuple[Any, int, str, Any]] = Counter()
    for key in {*sides[0], *sides[1]}:
        left, right = sides[0][key], sides[1][key]
        for n in range(max(len(left), len(right))):
            if n >= len(right):
                found[key, n + 1, "only_a", None] += 1
            elif n >= len(left):
                found[key, n + 1, "only_b", None] += 1
            else:
                one, other = left[n][0], right[n][0]
                delta = None if one is None or other is None else other - one
                found[key, n + 1, "equal" if left[n] == right[n] else "different", delta] += 1
    return found


@given(a=ROWS, b=ROWS)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_it_is_what_plain_python_says(spark: SparkSession, a: list[Any], b: list[Any]) -> None:
    kind = "k string, n int, s string, partition int, offset bigint"
    frames = [
        spark.createDataFrame([(*row, 0, offset) for offset, row in enumerate(rows)], kind)
        for rows in (a, b)
    ]
    comparison = compare(*frames, ["k"])
    rows = comparison.rows.select("k", "occurrence", "status", "delta_n").collect()
    comparison.close()
    assert Counter(tuple(row) for row in rows) == plain(a, b)


def nearest_rank(values: list[int], percent: int) -> int:
    return sorted(values)[max(-(-len(values) * percent // 100), 1) - 1]


def test_figures_are_exact(spark: SparkSession) -> None:
    size = 997
    a = [(n, n % 7, 0, n * 10, 1.5) for n in range(size)]
    b = [(n, n % 7, n % 3, n * 10 + (n * n % 101 if n % 2 else 0), 1.5) for n in range(3, size + 5)]
    kind = "k int, account int, s int, cents bigint, same double"
    comparison = compare(
        spark.createDataFrame(a, kind), spark.createDataFrame(b, kind), ["k"], by=["account"]
    )
    found = figures(comparison, "postings", top=3, examples=2)
    comparison.close()
    deltas = {n: n * n % 101 for n in range(3, size) if n % 2 and n * n % 101}
    steps = {n: n % 3 for n in range(3, size) if n % 3}
    both = {*deltas, *steps}
    assert (found.rows_a, found.rows_b) == (size, size + 2)
    assert (found.only_a, found.only_b, found.different) == (3, 5, len(both))
    assert found.equal == size - 3 - len(both)
    rows = {column.name: column.rows for column in found.columns}
    assert rows == {"account": 0, "s": len(steps), "cents": len(deltas), "same": 0}
    cents = found.columns[2].deltas
    assert cents is not None
    values = list(deltas.values())
    assert (cents.rows, cents.sum, cents.mean) == (
        len(values),
        sum(values),
        sum(values) / len(values),
    )
    assert (cents.min, cents.max) == (min(values), max(values))
    assert cents.quantiles == {f"p{p}": nearest_rank(values, p) for p in (1, 5, 25, 50, 75, 95, 99)}
    assert cents.bins[0].low == min(values)
    for each in cents.bins[:-1]:
        assert each.rows == sum(each.low <= value < each.high for value in values)
    last = cents.bins[-1]
    assert last.rows == sum(last.low <= value <= last.high for value in values)
    assert (cents.below, cents.above) == (0, 0)
    sums: Counter[str] = Counter()
    for n, delta in deltas.items():
        sums[str(n % 7)] += delta
    expected = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    assert [(key.key[0], key.sum) for key in cents.top] == expected
    unequal = Counter(str(n % 7) for n in both | {0, 1, 2} | set(range(size, size + 5)))
    most = sorted(unequal.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    assert [(k.key[0], k.different + k.only_a + k.only_b) for k in found.top_keys] == most
    assert (found.keys, found.keys_unequal) == (7, 7)
    assert [each.status for each in found.examples] == ["different"] * 2 + ["only_a"] * 2 + [
        "only_b"
    ] * 2
    assert found.examples[0].values == (("cents", "30", "39"),)


def test_a_quantile_is_the_nearest_rank_and_repetitions_are_those_of_their_side(
    spark: SparkSession,
) -> None:
    a = spark.createDataFrame([("x", n, 0) for n in range(7)], "k string, offset int, n int")
    b = spark.createDataFrame([("x", n, n + 1) for n in range(9)], "k string, offset int, n int")
    comparison = compare(a, b, ["k"])
    found = figures(comparison, "x")
    comparison.close()
    assert (found.repeated_a, found.repeated_b) == (6, 8)
    assert found.columns[0].deltas is not None
    quantiles = found.columns[0].deltas.quantiles
    assert quantiles == {"p1": 1, "p5": 1, "p25": 2, "p50": 4, "p75": 6, "p95": 7, "p99": 7}


def test_extremes_are_out_of_the_histogram(spark: SparkSession) -> None:
    values = [n % 11 + 1 for n in range(1000)] + [10**12, -(10**12)]
    a = spark.createDataFrame([(n, 0) for n in range(len(values))], "k int, n bigint")
    b = spark.createDataFrame(list(enumerate(values)), "k int, n bigint")
    comparison = compare(a, b, ["k"])
    (column,) = figures(comparison, "x").columns
    comparison.close()
    assert column.deltas is not None
    assert (column.deltas.below, column.deltas.above) == (1, 1)
    assert (column.deltas.bins[0].low, column.deltas.bins[-1].high) == (1, 11)
    assert sum(each.rows for each in column.deltas.bins) == 1000
