"""Filters of a query and the files that they leave: never one too few."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from penstock.edge.routing import group_of_bytes, key_bytes
from penstock.savepoint.manifest import FileEntry
from penstock.schema import schema_of
from penstock_spark import keys
from penstock_spark.pruning import Wanted, narrowed
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

MAX = 16
GROUP, KEY, SHOWN = ("key_group",), ("key",), ("key_value",)
STR = schema_of(str)


def group_of(key: bytes) -> int:
    return group_of_bytes(key, MAX)


def key_of(value: Any) -> bytes | None:
    return keys.of_literal(STR, value)


def after(*filters: Filter, wanted: Wanted | None = None) -> Wanted:
    return narrowed(wanted or Wanted(), filters, all_groups=MAX, key_of=key_of, group_of=group_of)


def entry(name: str, rows: list[tuple[int, bytes]], **more: int) -> FileEntry:
    rows = sorted(rows)
    bounds = [{"key_group": group, "key": key.hex(), **more} for group, key in (rows[0], rows[-1])]
    return FileEntry(
        path=f"data/o/s/{name}.parquet", operator="o", state="s", rows=len(rows), bytes=1,
        sha256="0" * 64, key_group_min=rows[0][0], key_group_max=rows[-1][0],
        lower=bounds[0], upper=bounds[1],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("filters", "groups"),
    [
        ([EqualTo(GROUP, 3)], {3}),
        ([EqualNullSafe(GROUP, 3)], {3}),
        ([In(GROUP, (1, 5, 99))], {1, 5}),
        ([GreaterThanOrEqual(GROUP, 4), LessThan(GROUP, 6)], {4, 5}),
        ([GreaterThan(GROUP, 13), LessThanOrEqual(GROUP, 14)], {14}),
        ([GreaterThan(GROUP, 12), Not(EqualTo(GROUP, 14))], {13, 15}),
        ([Not(In(GROUP, tuple(range(15))))], {15}),
        ([IsNull(GROUP)], set()),
        ([EqualTo(GROUP, 99)], set()),
    ],
)
def test_filters_on_the_key_group(filters: list[Filter], groups: set[int]) -> None:
    assert after(*filters).groups == groups


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("total",), 3),
        EqualTo(("key_group", "x"), 3),
        EqualTo(KEY, "text"),
        EqualTo(SHOWN, 3),
        In(SHOWN, ("a", 3)),
        Not(EqualTo(SHOWN, "a")),
        GreaterThan(SHOWN, "a"),
        StringStartsWith(SHOWN, "a"),
        IsNotNull(KEY),
    ],
)
def test_what_is_not_understood_leaves_everything(each: Filter) -> None:
    assert after(each) == Wanted()


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(GROUP),
        Not(IsNull(GROUP)),
        EqualTo(GROUP, "3"),
        Not(EqualTo(GROUP, "3")),
        Not(StringStartsWith(GROUP, "3")),
    ],
)
def test_a_strange_filter_on_the_key_group_leaves_all_of_them(each: Filter) -> None:
    assert after(each).groups == set(range(MAX))


def test_a_key_leaves_its_group_alone() -> None:
    for found in (after(EqualTo(SHOWN, "ann")), after(EqualTo(KEY, key_bytes("ann")))):
        assert found.keys == {key_bytes("ann")}
        assert found.groups == {group_of(key_bytes("ann"))}
    two = after(In(SHOWN, ("ann", "bob")))
    assert two.keys == {key_bytes("ann"), key_bytes("bob")}


def test_two_different_keys_at_once_are_no_row() -> None:
    assert after(EqualTo(SHOWN, "ann"), EqualTo(SHOWN, "bob")).keys == set()


def test_an_option_and_a_filter_hold_together() -> None:
    found = after(LessThan(GROUP, 4), wanted=Wanted().among(range(2, 9)))
    assert found.groups == {2, 3}


def test_a_key_is_in_one_of_the_files_of_its_group() -> None:
    named = sorted((group_of(key_bytes(str(n))), key_bytes(str(n))) for n in range(2000))
    files = [entry(str(at), named[at : at + 100]) for at in range(0, len(named), 100)]
    for group, key in named[::37]:
        (file,) = Wanted().of([key], group_of).files(files, group_of)
        assert (group, key) in named[int(file.path.split("/")[-1][:-8]) :][:100]


def test_where_partitions_own_keys_every_file_of_the_group_counts() -> None:
    key = key_bytes("ann")
    group = group_of(key)
    files = [entry(str(p), [(group, b"a"), (group, b"b")], partition=p) for p in range(3)]
    assert Wanted().of([key], group_of).files(files, group_of) == files


def test_state_without_keys_is_read_whole() -> None:
    file = FileEntry(
        path="data/o/l/x.parquet", operator="o", state="l", rows=1, bytes=1, sha256="0" * 64
    )
    assert Wanted().files([file], group_of) == [file]


NUMBERS = st.integers(-2, MAX + 2)
COMPARED = st.one_of(
    *(
        st.builds(kind, st.just(GROUP), NUMBERS)
        for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ),
    st.builds(In, st.just(GROUP), st.lists(NUMBERS, max_size=4).map(tuple)),
)


def holds(each: Filter, group: int) -> bool:
    """SQL's meaning, written apart."""
    match each:
        case Not(child):
            return not holds(child, group)
        case In(_, values):
            return any(group == value for value in values)
        case EqualTo(_, value):
            return group == value
        case GreaterThan(_, value):
            return group > value
        case GreaterThanOrEqual(_, value):
            return group >= value
        case LessThan(_, value):
            return group < value
        case LessThanOrEqual(_, value):
            return group <= value
    raise AssertionError(each)


@given(st.lists(COMPARED | st.builds(Not, COMPARED), max_size=4))
def test_exactly_the_groups_that_pass(filters: list[Filter]) -> None:
    expected = {group for group in range(MAX) if all(holds(each, group) for each in filters)}
    found = after(*filters).groups
    assert expected == (set(range(MAX)) if found is None else found)
