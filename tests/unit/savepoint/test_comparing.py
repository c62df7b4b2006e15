"""Savepoints against each other: what is counted as different, in windows of key groups."""

import math
from typing import Any

import msgspec
import pytest
from penstock.savepoint import comparing
from penstock.savepoint.comparing import Example, Moved, compare, windows
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.manifest import OperatorEntry, SavepointManifest, StateEntry
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.writing import SavepointFiles, publish
from penstock.schema import schema_of
from penstock.testing.store import SimulatedStore

from tests.unit.savepoint.every_state import Command, savepoint_of
from tests.unit.savepoint.test_round_trip import COMMANDS, driven


class Point(msgspec.Struct, frozen=True):
    x: float
    tags: set[str] = set()
    by: dict[str, list[float]] = {}
    note: str | None = None


def one(
    kind: str,
    value: Any,
    entries: Any,
    *,
    key: Any = str,
    groups: int = 128,
    partitions: list[int] | None = None,
    file_rows: int = 1_000_000,
) -> Savepoint:
    """A savepoint with one state."""
    keyed = not kind.startswith("operator")
    state: StateEntry = state_entry(
        "s", kind, schema_of(key) if keyed else None, schema_of(value)  # type: ignore[arg-type]
    )  # fmt: skip
    owner = OperatorEntry(
        uid="u", kind="k", service="a", stage="a", parallelism=1, partitions=4, states=(state,),
        ownership=("partition" if partitions else "key_group") if keyed else "none",
    )  # fmt: skip
    store = SimulatedStore(f"simulated://{kind}")
    out = SavepointFiles(store, owner, state, groups, file_rows=file_rows)
    out.add(StateLayout(owner, state).batch(entries, groups, partitions))
    publish(store, SavepointManifest(
        savepoint_id="x", app="a", checkpoint=1, created_at_ms=1, created_by="p",
        max_parallelism=groups, operators=(owner,), files=tuple(out.close()),
    ))  # fmt: skip
    return Savepoint.open(store)


def counts(a: Savepoint, b: Savepoint) -> tuple[int, int, int, int]:
    (rows,) = compare(a, b).rows
    return rows.only_a, rows.only_b, rows.different, rows.equal


def test_values_of_every_type() -> None:
    had = {
        "nan": Point(math.nan, by={"a": [math.nan]}),
        "set": Point(1, {"a", "b", "c"}),
        "map": Point(1, by={"x": [1.0], "y": []}),
        "null": Point(1, note=None),
        "text": Point(1, note="a"),
        "float": Point(1),
        "list": Point(1, by={"x": [1.0, 2.0]}),
    }
    has = {
        **had,
        "nan": Point(math.nan, by={"a": [math.nan]}),
        "set": Point(1, {"c", "b", "a"}),
        "map": Point(1, by={"y": [], "x": [1.0]}),
        "null": Point(1, note="now"),
        "text": Point(1, note=None),
        "float": Point(1.5),
        "list": Point(1, by={"x": [2.0, 1.0]}),
    }
    a, b = one("value", Point, had), one("value", Point, has)
    assert counts(a, b) == (0, 0, 4, 3)
    (rows,) = compare(a, b, examples=9).rows
    changes = {example.key: example.columns for example in rows.examples}
    assert changes == {
        "null": {"note": ("null", "now")},
        "text": {"note": ("a", "null")},
        "float": {"x": ("1.0", "1.5")},
        "list": {"by": ('{"x":[1.0,2.0]}', '{"x":[2.0,1.0]}')},
    }


def test_a_field_that_was_added_is_a_change_of_type_not_of_every_row() -> None:
    class Old(msgspec.Struct, frozen=True):
        n: int

    class New(msgspec.Struct, frozen=True):
        n: int
        more: str = ""

    old = one("value", Old, {"a": Old(1), "b": Old(2)})
    new = one("value", New, {"a": New(1), "b": New(3)})
    found = compare(old, new)
    assert counts(old, new) == (0, 0, 1, 1)
    (change,) = found.changes
    assert (change.name, change.what, change.a) == ("u.s", "value", "Old(n: int)")
    assert change.b == 'New(n: int, more: str = "")'
    assert not found.same


def test_values_without_a_common_column_are_different() -> None:
    a = one("value", int, {"a": 1, "b": 2})
    assert counts(a, one("value", Point, {"a": Point(1)})) == (1, 0, 1, 0)


def test_state_of_another_kind_is_not_compared() -> None:
    found = compare(one("value", int, {"a": 1}), one("list", int, {"a": [1]}))
    assert found.rows == ()
    assert [(change.what, change.a, change.b) for change in found.changes] == [
        ("kind", "value", "list")
    ]


def test_elements_of_lists_and_entries_of_maps() -> None:
    a, b = one("list", int, {"k": [1, 2, 3]}), one("list", int, {"k": [1, 9], "l": [1]})
    assert counts(a, b) == (1, 1, 1, 1)
    kind = dict[tuple[int, str], int]
    a = one("map", kind, {"k": {(1, "x"): 1, (2, "x"): 2}})
    b = one("map", kind, {"k": {(2, "x"): 3, (3, "x"): 4}})
    assert counts(a, b) == (1, 1, 1, 0)
    (rows,) = compare(a, b).rows
    assert Example('k / [1,"x"]', "a") in rows.examples
    optional = dict[str | None, int]
    a, b = (one("map", optional, {"k": {None: 1, "x": n}}) for n in (1, 2))
    assert counts(a, b) == (0, 0, 1, 1)


def test_timers_are_the_same_whenever_they_were_registered() -> None:
    a = one("timers", int, {(0, 5, "k"): 1, (1, 5, "k"): 2})
    b = one("timers", int, {(0, 5, "k"): 9, (0, 6, "k"): 3})
    assert counts(a, b) == (1, 1, 0, 1)


def test_elements_of_subtasks_are_counted_wherever_they_are() -> None:
    a = one("operator_list", str, [(0, ["a", "b", "a"]), (1, ["c"])])
    b = one("operator_list", str, [(0, ["c"]), (1, ["a", "d"])])
    assert counts(a, b) == (2, 1, 0, 2)
    kind = dict[str, float]
    a = one("operator_broadcast", kind, [(0, {"eur": 1.5, "usd": 2})])
    b = one("operator_broadcast", kind, [(0, {"eur": 1.6, "usd": 2})])
    assert counts(a, b) == (0, 0, 1, 1)


def test_a_key_of_another_partition_is_another_one() -> None:
    a = one("value", int, [("k", 1), ("l", 1)], partitions=[0, 0])
    b = one("value", int, [("k", 1), ("l", 1)], partitions=[0, 1])
    assert counts(a, b) == (1, 1, 0, 1)


def test_keys_are_found_in_other_key_groups() -> None:
    """Only the column ``key`` says which it is."""
    had = {f"k{n}": n for n in range(300)}
    found = compare(one("value", int, had), one("value", int, had, groups=97))
    assert counts(one("value", int, had), one("value", int, had, groups=97)) == (0, 0, 0, 300)
    assert found.max_parallelism == (128, 97)
    assert not found.same


@pytest.mark.parametrize("file_rows", [7, 50, 1000])
def test_windows_change_nothing(file_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "WINDOW_ROWS", 20)
    had = {f"k{n}": n for n in range(400)}
    has = {f"k{n}": n + (n % 10 == 0) for n in range(5, 405)}
    a = one("value", int, had, file_rows=file_rows)
    b = one("value", int, has, file_rows=31)
    assert counts(a, b) == (5, 5, 39, 356)


def test_windows_tile_the_key_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "WINDOW_ROWS", 20)
    sides = [
        one("value", int, {f"k{n}": n for n in range(400)}, file_rows=rows).files("u", "s")
        for rows in (9, 40)
    ]
    found = list(windows(sides, 128))
    assert len(found) > 5
    assert [group for each in found for group in each] == list(range(128))
    assert list(windows([(), ()], 128)) == [range(128)]
    few = one("value", int, {f"k{n}": n for n in range(400)}, groups=2, file_rows=9)
    assert list(windows([few.files("u", "s")], 2)) == [range(1), range(1, 2)]


def test_positions() -> None:
    a = savepoint_of(driven(COMMANDS).checkpoint())
    b = savepoint_of(driven([*COMMANDS, Command("a"), Command("b")]).checkpoint())
    moved = compare(a, b).positions
    assert sum((each.b or 0) - (each.a or 0) for each in moved) == 2
    assert {each.topic for each in moved} == {"commands"}
    assert compare(a, a).positions == ()


def test_a_source_that_is_not_there_has_no_positions() -> None:
    a = savepoint_of(driven(COMMANDS).checkpoint())
    manifest = msgspec.structs.replace(a.manifest, sources=())
    b = Savepoint(a._store, manifest)
    assert compare(a, b).positions[0] == Moved("commands", "commands", 0, 10, None)
    assert not compare(a, b).same
