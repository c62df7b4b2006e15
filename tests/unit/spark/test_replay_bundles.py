"""Bundles of records come out in their order, however they overlap and batches are cut."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.edge.routing import group_of_bytes, key_bytes
from penstock.failure import ConfigurationError
from penstock_spark.replay.bundles import ListOf, Merging, piece_of, pieces
from penstock_spark.replay.rows import AT, bundled, key_groups, ordered

Row = tuple[int, int, int]
"""Clock, place, number."""
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 3)), max_size=30)
KEYS = ListOf("stage", "keys", str)
VALUES = ListOf("stage", "values", list[int])


def at_of(rows: list[Row]) -> Any:
    at = np.zeros(len(rows), AT)
    for name, column in zip(("clock", "place", "number"), zip(*rows, strict=True), strict=False):
        at[name] = column
    return at


def batch_of(rows: list[Row], groups: list[int] | None = None) -> pa.RecordBatch:
    raws = [msgspec.msgpack.encode(row) for row in rows]
    keys = [msgspec.msgpack.encode(f"k{place}") for _, place, _ in rows]
    given_groups = np.array(groups or [0] * len(rows))
    return bundled(0, given_groups, 0, at_of(rows), keys, raws, bundles=True)


@settings(deadline=None)
@given(st.lists(ROWS.filter(bool), max_size=8), st.randoms(use_true_random=False))
def test_what_is_taken_is_in_order_and_complete(found: list[list[Row]], chance: Any) -> None:
    bundles = sorted((sorted(rows) for rows in found), key=lambda rows: rows[0])
    merging = Merging()
    taken: list[Row] = []
    for number, rows in enumerate(bundles):
        merging.add(piece_of(batch_of(rows), KEYS, VALUES))
        if chance.random() < 0.3:
            continue
        # the next one is known, or, at the end of a batch, only that it is not before this one
        known = number + 1 < len(bundles) and chance.random() < 0.7
        piece = merging.take(bundles[number + 1][0] if known else rows[0])
        if piece is not None:
            taken += map(tuple, piece.values)
            assert piece.keys == [f"k{place}" for _, place, _ in piece.values]
    last = merging.take(None)
    taken += [] if last is None else map(tuple, last.values)
    assert taken == sorted(row for rows in bundles for row in rows)
    assert merging.take(None) is None


@settings(deadline=None)
@given(ROWS.filter(bool), st.data())
def test_records_of_a_key_group_share_a_row_when_they_come_in_order(
    rows: list[Row], data: Any
) -> None:
    groups = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    batch = batch_of(rows, groups)
    of_group = {g: [r for r, at in zip(rows, groups, strict=True) if at == g] for g in groups}
    in_order = all(mine == sorted(mine) for mine in of_group.values())
    assert batch.num_rows == (len(of_group) if in_order else len(rows))
    assert sum(batch["count"].to_pylist()) == len(rows)
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        piece = piece_of(row, KEYS, VALUES)
        first = tuple(row[name][0].as_py() for name in ("clock", "place", "number"))
        mine = of_group[row["key_group"][0].as_py()]
        assert first == tuple(piece.values[0])
        assert [tuple(value) for value in piece.values] == (mine if in_order else [first])


@settings(deadline=None)
@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=40), st.data())
def test_pieces_cover_the_rows_and_are_small_where_bundles_are(
    counts: list[int], data: Any
) -> None:
    start = data.draw(st.integers(0, len(counts) - 1))
    end = data.draw(st.integers(start + 1, len(counts)))
    found = pieces(np.array(counts), start, end)
    assert [row for a, b in found for row in range(a, b)] == list(range(start, end))
    for a, b in found:
        assert b - a == 1 or sum(counts[a:b]) <= 20_000 + max(counts[a:b])


def test_key_groups_are_those_of_an_edge() -> None:
    keys: list[Any] = ["a", "ключ", 5, -1, 2**40, b"\x00", None, ("a", 1)]
    raws = [key_bytes(key) for key in keys] * 50
    for groups in (1, 7, 128, 32768):
        assert key_groups(raws, groups).tolist() == [group_of_bytes(raw, groups) for raw in raws]


def test_order_counts_clock_then_place_then_number() -> None:
    rows = [(1, 5, 0), (1, 5, 1), (1, 6, 0), (2, 1, 0), (1, 9, 9), (1, 9, 8)]
    assert ordered(at_of(rows)).tolist() == [True, True, True, False, False]


def test_values_of_another_type_are_an_error() -> None:
    wrong = ListOf("stage", "values", int)
    with pytest.raises(ConfigurationError, match="its values are declared as int, but what"):
        piece_of(batch_of([(0, 1, 0)]), KEYS, wrong)
