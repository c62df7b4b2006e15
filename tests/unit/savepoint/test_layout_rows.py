"""What the rows of each kind of state look like, and what is refused."""

import math
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from penstock.edge.routing import key_bytes, key_group
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint.layout import StateLayout, narrowed, state_entry
from penstock.savepoint.manifest import OperatorEntry
from penstock.schema import ANY, Schema, schema_of

from tests.unit.savepoint.random_types import Closed, Moved, Opened, Point, Tree


class Balance(msgspec.Struct):
    account: str
    total: int = 0
    orders: int = 0


class Named(msgspec.Struct):
    key: str
    value_key: int
    Namespace: float
    value: bytes


def layout(kind: str, key: Any, value: Any, ownership: str = "key_group") -> StateLayout:
    owner = OperatorEntry(
        uid="op", kind="keyed_process", service="s", stage="s.e", parallelism=2,
        ownership=ownership, partitions=4, states=(),
    )  # fmt: skip
    schema = None if ownership == "none" else schema_of(key)
    return StateLayout(owner, state_entry("st", kind, schema, schema_of(value)))


def wire(rows: StateLayout, live: Any) -> Any:
    return rows.decoded(msgspec.msgpack.encode(live), "x")


def test_the_fields_of_a_struct_are_columns():
    rows = layout("value", str, Balance)
    table = rows.batch(wire(rows, {f"k{n}": Balance(f"k{n}", n) for n in range(50)}), 128)
    assert table.schema.names == [
        "key_group", "key", "key_value", "namespace", "account", "total", "orders",
    ]  # fmt: skip
    order = list(zip(table["key_group"].to_pylist(), table["key"].to_pylist(), strict=True))
    assert order == sorted(order)
    row = next(row for row in table.to_pylist() if row["key_value"] == "k7")
    assert row == {
        "key_group": key_group("k7", 128), "key": key_bytes("k7"), "key_value": "k7",
        "namespace": None, "account": "k7", "total": 7, "orders": 0,
    }  # fmt: skip
    assert table.schema.field("key").nullable is False


def test_a_struct_that_may_be_missing_is_one_column():
    rows = layout("value", str, Balance | None)
    table = rows.batch(wire(rows, {"a": None, "b": Balance("b")}), 1)
    assert table["value"].to_pylist() == [None, {"account": "b", "total": 0, "orders": 0}]
    assert next(value for *_, value in rows.entries(table)) is None


def test_a_field_with_the_name_of_a_column_gets_another_one():
    rows = layout("value", str, Named)
    assert rows.state.columns == {
        "key": "value_key", "value_key": "value_value_key", "Namespace": "value_Namespace",
    }  # fmt: skip
    table = rows.batch(wire(rows, {"a": Named("k", 1, 0.5, b"v")}), 1)
    (row,) = table.to_pylist()
    assert row["key_value"] == "a"
    assert (row["value_key"], row["value_value_key"]) == ("k", 1)
    assert (row["value_Namespace"], row["value"]) == (0.5, b"v")
    ((_, _, _, value),) = rows.entries(table)
    assert msgspec.convert(value, Named, from_attributes=True) == Named("k", 1, 0.5, b"v")


def test_a_list_has_a_row_per_element_and_a_map_one_per_entry():
    rows = layout("list", str, Point)
    table = rows.batch(wire(rows, {"a": [Point(1), Point(2)], "none": []}), 4)
    shown = table.select(["key_value", "list_index", "x", "y"]).to_pylist()
    assert shown == [
        {"key_value": "a", "list_index": 0, "x": 1, "y": 0.5},
        {"key_value": "a", "list_index": 1, "x": 2, "y": 0.5},
    ]
    rows = layout("map", str, dict[int, str])
    table = rows.batch(wire(rows, {"a": {2: "two", 1: "one"}}), 4)
    shown = table.select(["key_value", "map_key", "value"]).to_pylist()
    assert shown == [
        {"key_value": "a", "map_key": 2, "value": "two"},
        {"key_value": "a", "map_key": 1, "value": "one"},
    ]
    ((_, _, _, found),) = rows.entries(table)
    assert list(found.items()) == [(2, "two"), (1, "one")], "the order of the map stays"


def test_rows_of_a_list_come_back_by_their_index_even_with_gaps():
    rows = layout("list", str, int)
    table = rows.batch(wire(rows, {"a": [10, 11, 12], "b": [20]}), 1)
    without = table.filter(pc.field("value") != 11).take([1, 0, 2])
    assert [(key, value) for _, _, key, value in rows.entries(without)] == [
        ("a", [10, 12]),
        ("b", [20]),
    ]


def test_timers_say_which_clock_and_when():
    rows = layout("timers", str, int)
    table = rows.batch(wire(rows, {(1, 500, "a"): 3, (0, 900, "a"): 7, (0, 500, "a"): 8}), 1)
    shown = table.select(["time_domain", "timestamp_ms", "registration"]).to_pylist()
    assert [tuple(row.values()) for row in shown] == [
        ("processing", 500, 3),
        ("event", 500, 8),
        ("event", 900, 7),
    ]


def test_where_partitions_own_keys_rows_say_which():
    rows = layout("value", str, int, "partition")
    entries = [("a", 1), ("b", 2), ("a", 3)]
    table = rows.batch(entries, 1, [3, 0, 1])
    assert table["partition"].to_pylist() == [0, 1, 3]
    assert list(rows.entries(table)) == [(0, 0, "b", 2), (1, 0, "a", 3), (3, 0, "a", 1)]
    rows = layout("list", str, int, "partition")
    table = rows.batch([("a", [1, 2]), ("a", [3])], 1, [2, 1])
    assert list(rows.entries(table)) == [(1, 0, "a", [3]), (2, 0, "a", [1, 2])]


def test_a_union_has_a_field_per_member():
    rows = layout("value", str, Opened | Closed | Moved | None)
    live = {"a": Opened("x"), "b": Closed(), "c": Moved("z", [0.5]), "d": None}
    table = rows.batch(wire(rows, live), 1)
    members = ["opened", "closed", "moved"]
    assert [field.name for field in table.schema.field("value").type] == members
    there = [
        None if row is None else [name for name in members if row[name] is not None]
        for row in table["value"].to_pylist()
    ]
    assert there == [["opened"], ["closed"], ["moved"], None]


def test_a_type_inside_itself_is_shown_once_and_comes_back():
    rows = layout("value", str, Tree)
    live = {"a": Tree(1, [Tree(2, [Tree(3)])], Tree(4))}
    table = rows.batch(wire(rows, live), 1)
    assert table.schema.field("value").type == pa.int64()
    assert table.schema.field("children").type == pa.list_(pa.field("element", pa.binary()))
    ((_, _, _, value),) = rows.entries(table)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Tree) == live["a"]


@pytest.mark.parametrize("number", [-(1 << 63), (1 << 63) - 1])
def test_integers_of_64_bits_fit(number):
    rows = layout("value", int, Balance)
    table = rows.batch(wire(rows, {number: Balance("a", number)}), 128)
    ((_, _, key, value),) = rows.entries(table)
    assert (key, value.total) == (number, number)


def test_a_larger_integer_is_refused_with_the_state_and_the_key():
    rows = layout("value", str, Balance)
    live = {f"k{n}": Balance("a", n) for n in range(10)} | {"big": Balance("a", 1 << 63)}
    with pytest.raises(ConfigurationError, match=r"'st' of operator 'op', key 'big'.*64 bits"):
        rows.batch(wire(rows, live), 128)
    rows = layout("list", int, list[int])
    with pytest.raises(ConfigurationError, match=r"'st' of operator 'op', key 2: .*64 bits"):
        rows.batch(wire(rows, {1: [[3]], 2: [[1 << 63]]}), 128)
    rows = layout("value", int, int)
    with pytest.raises(ConfigurationError, match="key 9223372036854775808"):
        rows.batch(wire(rows, {1 << 63: 1}), 128)


def test_not_a_number_and_infinity_come_back():
    rows = layout("value", str, float)
    table = rows.batch(wire(rows, {"a": math.nan, "b": -math.inf, "c": -0.0}), 1)
    found = [value for *_, value in rows.entries(table)]
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf, 0.0]
    assert math.copysign(1, found[2]) == -1


def test_keys_without_a_type_are_strings_or_integers_when_all_are():
    assert narrowed(ANY, ["a", "b"]) == Schema("str")
    assert narrowed(ANY, [1, -5]) == Schema("int")
    for keys in ([], [1, "a"], [True, False], [1, None], [1 << 63], [1.5], [("a",)]):
        assert narrowed(ANY, keys) == ANY
    assert narrowed(Schema("str"), [1]) == Schema("str")


def test_keys_without_a_type_come_from_their_bytes():
    rows = layout("value", Any, int)
    live = {("a", (1, None)): 1, "b": 2, None: 3, 2.5: 4}
    table = rows.batch(wire(rows, live), 1)
    assert table["key_value"].to_pylist() == table["key"].to_pylist()
    assert {key: value for _, _, key, value in rows.entries(table)} == live


def test_a_key_that_cannot_be_one_is_refused():
    rows = layout("value", list[set[int]], int)
    with pytest.raises(ConfigurationError, match=r"'st' of operator 'op'.*frozenset cannot be"):
        rows.batch([((frozenset({1}),), 1)], 1)


def test_no_rows_are_no_entries():
    for kind in ("value", "list", "map", "timers"):
        rows = layout(kind, str, dict[str, Balance] if kind == "map" else Balance)
        table = rows.batch({}, 128)
        assert (table.num_rows, table.schema) == (0, rows.arrow_schema)
        assert list(rows.entries(table)) == []


def test_a_key_that_is_there_twice_is_damage():
    rows = layout("value", str, int)
    table = rows.batch({"a": 1, "b": 2}, 1)
    with pytest.raises(CorruptedObject, match="the key 'b' is in it twice"):
        rows.entries(pa.concat_tables([table, table.slice(1)]))
    rows = layout("map", str, dict[int, int])
    table = rows.batch({"a": {1: 1}}, 1)
    with pytest.raises(CorruptedObject, match="same key twice"):
        rows.entries(pa.concat_tables([table, table]))


def replaced(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = table.schema.field(name)
    return table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))


def test_rows_under_a_wrong_key_or_group_are_damage():
    rows = layout("value", str, int)
    table = rows.batch({"a": 1}, 128)
    rows.verify(table, 128)
    with pytest.raises(CorruptedObject, match=r"column key has a162 for the key 'a'.*a161"):
        rows.verify(replaced(table, "key", [b"\xa1b"]), 128)
    group = (key_group("a", 128) + 1) % 128
    with pytest.raises(CorruptedObject, match=f"in key group {group}, expected"):
        rows.verify(replaced(table, "key_group", [group]), 128)


def test_a_text_that_is_no_value_is_damage():
    rows = layout("value", str, UUID)
    table = rows.batch({"a": UUID(int=1)}, 1)
    with pytest.raises(CorruptedObject, match=r"'st' of operator 'op'.*UUID"):
        rows.entries(replaced(table, "value", ["not one"]))
    rows = layout("timers", str, int)
    table = rows.batch({(0, 5, "a"): 1}, 1)
    with pytest.raises(CorruptedObject, match="lunar"):
        list(rows.entries(replaced(table, "time_domain", ["lunar"])))


def test_bytes_of_another_type_are_told_with_the_place():
    rows = layout("value", str, Balance)
    with pytest.raises(ConfigurationError, match=r"'st' of operator 'op' in chunk 7 .*`int`"):
        rows.decoded(msgspec.msgpack.encode({"a": {"account": "a", "total": "x"}}), "chunk 7")
    with pytest.raises(CorruptedObject, match=r"chunk 7 is damaged at state 'st'"):
        rows.decoded(b"\x81\xa1", "chunk 7")
    assert rows.decoded_keys(msgspec.msgpack.encode(["a"]), "chunk 7") == ["a"]
    assert rows.decoded_keys(b"", "chunk 7") == []


def test_rows_are_sorted_whatever_comes_in():
    rows = layout("list", int, int)
    table = rows.batch({n: [n] * (n % 3) for n in range(300)}, 7)
    order = list(
        zip(*(table[name].to_pylist() for name in ("key_group", "key", "list_index")), strict=True)
    )
    assert len(order) == 300
    assert all(a < b for a, b in pairwise(order))
