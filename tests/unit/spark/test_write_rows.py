"""Rows that a DataFrame brings: keyed and typed as the format has them, or refused by name."""

import datetime as dt
import decimal
import uuid
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from penstock.edge.routing import key_bytes, key_group
from penstock.failure import ConfigurationError
from penstock.savepoint.arrow import StructColumn, column
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.manifest import OperatorEntry
from penstock.schema import Schema, schema_of, wire_type
from penstock_spark.writing.checking import flaw
from penstock_spark.writing.rows import StateRows, value_columns
from penstock_spark.writing.values import ValueReader, Values

from tests.unit.savepoint.random_types import KEY_TYPES, TYPES, Closed, Color, Opened
from tests.unit.savepoint.test_layout import alike

GROUPS = 200
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def operator(ownership: Any = "key_group") -> OperatorEntry:
    return OperatorEntry(
        uid="ledger", kind="keyed_process", service="s", stage="s.a", parallelism=1,
        ownership=ownership, partitions=4, states=(),
    )  # fmt: skip


def rows_of(
    kind: Any, key: Any, value: Any, ownership: Any = "key_group", /, **how: Any
) -> StateRows:
    entry = state_entry("state", kind, schema_of(key), schema_of(value))
    return StateRows(operator(ownership), entry, GROUPS, **how)


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [c if isinstance(c, pa.Array) else pa.array(c) for c in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


@EXAMPLES
@given(KEY_TYPES, TYPES, st.data())
def test_rows_of_any_type_are_taken_as_they_are(keys, values, data):
    """The same rows as the format's own writer makes; keys and key groups follow from the key."""
    live = data.draw(st.dictionaries(keys[1], values[1], min_size=1, max_size=4))
    rows = rows_of("value", keys[0], values[0])
    layout = StateLayout(rows.operator, rows.state)
    wire = layout.decoded(msgspec.msgpack.encode(live), "x")
    table = layout.batch(wire, GROUPS)
    plain = table.drop_columns(["key", "key_group"])
    for given_rows in (plain, table):
        (found,) = given_rows.combine_chunks().to_batches()
        assert pa.Table.from_batches([rows.rows(found)]).equals(table)


@EXAMPLES
@given(TYPES, st.data())
def test_values_of_any_type_are_what_the_user_declared(values, data):
    kind, strategy = values
    assume(kind is not None)  # which stands for a dict of the columns
    live = data.draw(st.lists(strategy, min_size=1, max_size=4))
    encoded = msgspec.msgpack.encode(live)
    many: Any = list.__class_getitem__(kind)
    part = column(schema_of(kind))
    wires: Any = list.__class_getitem__(wire_type(schema_of(kind)))
    wire = msgspec.msgpack.decode(encoded, type=wires)
    array = part.array(wire)
    expected = msgspec.msgpack.decode(encoded, type=many)
    where = str
    made = pa.RecordBatch.from_arrays([array, array], ["other", "value"])
    reader = ValueReader(Values(("value",), is_single=True), kind)
    assert alike(reader.read(made, where), expected)
    if isinstance(part, StructColumn) and array.null_count == 0 and part.fields:
        fields = pa.RecordBatch.from_arrays(part.split(wire), [f.name for f in part.fields])
        reader = ValueReader(Values(tuple(reversed(fields.schema.names)), is_single=False), kind)
        assert alike(reader.read(fields, where), expected)


def test_what_is_no_value_names_its_row():
    reader = ValueReader(Values(("amount", "at", "key"), is_single=False), Bill)
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = batch(
        amount=pa.array([decimal.Decimal(1), None], pa.decimal128(5, 2)),
        at=pa.array([at, at], pa.timestamp("us", "UTC")),
        key=["x", "y"],
    )
    assert reader.read(made.slice(0, 1), str) == [Bill(decimal.Decimal("1.00"), at, "x")]
    with pytest.raises(ConfigurationError, match=r"^row 1: a row .* is no Bill.*\$.am"):
        reader.read(made, lambda row: f"row {row}")
    plain = ValueReader(Values(("key", "at"), is_single=False), None)
    assert plain.read(made, str)[0] == {"key": "x", "at": at}


def test_keys_are_placed():
    rows = rows_of("value", str, int)
    found = rows.rows(batch(key_value=["a", "b"], value=pa.array([1, 2], pa.int32())))
    assert found.schema.equals(rows.layout.arrow_schema)
    assert found["key"].to_pylist() == [key_bytes("a"), key_bytes("b")]
    assert found["key_group"].to_pylist() == [key_group("a", GROUPS), key_group("b", GROUPS)]
    assert found["value"].to_pylist() == [1, 2]


class Bill(msgspec.Struct, frozen=True):
    amount: decimal.Decimal
    at: dt.datetime
    key: str
    id: uuid.UUID | None = None
    wait: dt.timedelta = dt.timedelta(0)
    note: str | msgspec.UnsetType = msgspec.UNSET


def test_what_spark_has_types_for_is_written_as_the_format_has_it():
    at = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
    made = batch(
        account=["a"],
        amount=pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)),
        at=pa.array([at], pa.timestamp("us", "Europe/Paris")),
        value_key=["x"],
        id=pa.array([None], pa.string()),
        wait=pa.array([dt.timedelta(hours=3)]),
    )
    rows = rows_of("value", str, Bill, key="account")
    assert rows.missing(made.schema.names) == []
    table = pa.Table.from_batches([rows.rows(made)])
    ((_, _, key, value),) = rows.layout.entries(table)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Bill)
    wait = dt.timedelta(hours=3)
    assert (key, again) == ("a", Bill(decimal.Decimal("1.50"), at, "x", wait=wait))
    assert table["at"].to_pylist() == ["2026-11-20T13:00:00+01:00"]


def test_missing_columns_are_named():
    rows = rows_of("value", str, Bill, "partition", key="account")
    assert rows.missing(["amount", "value_key"]) == ["account", "at", "id", "partition", "wait"]
    assert rows_of("list", str, int).missing(["key_value"]) == ["list_index", "value"]
    assert rows_of("map", str, dict[str, int]).missing(["value"]) == ["key_value", "map_key"]
    timers = rows_of("timers", str, int)
    assert timers.missing(["key_value"]) == ["time_domain", "timestamp_ms"]
    assert rows_of("operator_list", str, int).missing(["element_index"]) == ["value"]


def test_timers_have_an_order_and_a_time():
    rows = rows_of("timers", str, int)
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    made = batch(key_value=["a"], time_domain=["event"], timestamp_ms=pa.array([moment]))
    (found,) = rows.rows(made).to_pylist()
    assert found["timestamp_ms"] == moment.timestamp() * 1000
    assert found["registration"] == 0


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (("value", str, int), {"key_value": ["a", None], "value": [1, 2]},
     r"key None: the key \(column 'key_value'\) is null, expected str"),
    (("value", str, int), {"key_value": ["a", "b"], "value": [1, None]},
     r"key 'b': column 'value' is null, expected int"),
    (("value", str, int), {"key_value": ["a"], "value": ["x"]},
     r"column 'value' is string, expected int64 for int"),
    (("value", str, int), {"key_value": ["a"], "value": pa.array([1 << 63], pa.uint64())},
     r"column 'value' is uint64, expected int64"),
    (("value", str, int), {"key_value": ["a"], "value": [1], "namespace": ["w"]},
     r"key 'a': column 'namespace' must be null"),
    (("value", str, int), {"key_value": ["a"], "value": [1], "key": [b"\xa1b"]},
     r"key 'a': column 'key' is a162, expected a161 for this key"),
    (("value", str, int), {"key_value": ["a"], "value": [1], "key_group": [7]},
     rf"column 'key_group' is 7, expected {key_group('a', GROUPS)} for this key"),
    (("value", Color, int), {"key_value": ["red", "green"], "value": [1, 2]},
     r"key 'green': the key .* is not one of Color\('red', 'blue'\)"),
    (("value", float, int), {"key_value": [1.5, float("nan")], "value": [1, 2]},
     r"key nan: nan is not equal to itself"),
    (("value", str, Color), {"key_value": ["a", "b"], "value": ["red", "pink"]},
     r"key 'b': column 'value' is not one of Color"),
    (("value", str, dt.datetime), {"key_value": ["a", "b"], "value": ["2026-01-01T00:00:00Z", "-"]},
     r"key 'b': column 'value' is no datetime: '-'"),
    (("value", str, uuid.UUID), {"key_value": ["a"], "value": ["zz"]}, r"is no uuid: 'zz'"),
    (("value", str, Any), {"key_value": ["a", "b"], "value": [b"\x01", b"\xc1"]},
     r"key 'b': column 'value' is no msgpack"),
    (("value", str, list[int]), {"key_value": ["a", "b"], "value": [[1], [2, None]]},
     r"key 'b': an element of column 'value' is null"),
    (("value", str, dict[str, Color]),
     {"key_value": ["a", "b"],
      "value": pa.array([[("x", "red")], [("y", "green")]], pa.map_(pa.string(), pa.string()))},
     r"key 'b': a value of column 'value' is not one of"),
    (("value", str, tuple[int, str] | None),
     {"key_value": ["a", "b"], "value": [None, {"_1": 1, "_2": None}]},
     r"key 'b': column 'value'._2 is null"),
    (("value", str, int | str), {"key_value": ["a"], "value": [{"int": 1, "str": "x"}]},
     r"column 'value' must have one of int, str"),
    (("value", str, Opened | Closed),
     {"key_value": ["a"], "value": [{"opened": {"by": None, "at": None}, "closed": None}]},
     r"'value'.opened.by is null"),
    (("list", str, int), {"key_value": ["a"], "list_index": [-1], "value": [1]},
     r"column 'list_index' is -1"),
    (("map", str, dict[str, int]),
     {"key_value": ["a"], "map_key": pa.array([None], pa.string()), "value": [1]},
     r"key 'a': column 'map_key' is null"),
    (("timers", str, int),
     {"key_value": ["a"], "time_domain": ["wall"], "timestamp_ms": [1]},
     r"column 'time_domain' is not one of"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "columns", "message"), WRONG)
def test_what_is_no_row_is_named(state, columns, message):
    rows = rows_of(*state)
    with pytest.raises(
        ConfigurationError, match=rf"^state 'state' of operator 'ledger'.*{message}"
    ):
        rows.rows(batch(**columns))


@pytest.mark.parametrize("place", [None, -1, 4])
def test_a_partition_that_does_not_exist_owns_nothing(place):
    rows = rows_of("value", str, int, "partition")
    given_rows = batch(key_value=["a"], value=[1], partition=pa.array([place], pa.int32()))
    with pytest.raises(ConfigurationError, match=r"key 'a': column 'partition' is"):
        rows.rows(given_rows)


def test_stale_keys_are_made_anew_when_they_may_have_changed():
    rows = rows_of("value", str, int, has_keys=False)
    (found,) = rows.rows(batch(key_value=["a"], value=[1], key=[b"old"], key_group=[3])).to_pylist()
    assert (found["key"], found["key_group"]) == (key_bytes("a"), key_group("a", GROUPS))


def test_a_flaw_behind_nulls_is_found_in_its_row():
    schema = Schema("list", nullable=True, items=(Schema("enum", values=("x",)),))
    array = pa.array([None, ["x"], None, [], ["x", "y"], None])
    assert flaw(array, schema, "it") == (4, "an element of it is not one of enum('x')")
    assert flaw(array.slice(4), schema, "it") == (0, "an element of it is not one of enum('x')")
    assert flaw(array.slice(0, 4), schema, "it") is None
    full = pa.array([["x"], ["x", "x"], ["x"], ["x", "y"]])
    assert flaw(full.slice(2), schema, "it") == (1, "an element of it is not one of enum('x')")


def test_the_columns_of_a_value():
    def names(kind: Any, value: Any) -> list[str]:
        return [
            column.name
            for column in value_columns(state_entry("s", kind, schema_of(str), schema_of(value)))
        ]

    assert names("value", Bill) == ["amount", "at", "value_key", "id", "wait", "note"]
    assert names("value", Bill | None) == ["value"]
    assert names("map", dict[str, Bill]) == ["amount", "at", "value_key", "id", "wait", "note"]
    assert names("value", Closed) == []
    assert names("timers", int) == []
