"""State to rows and back, for random types: what the user's own type decodes is what was there."""

import dataclasses
import io
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from penstock.edge.routing import key_bytes, key_group
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.manifest import OperatorEntry, StateEntry
from penstock.schema import Schema, flaw, schema_of

from tests.unit.savepoint.random_types import INT64, KEY_TYPES, TYPES

GROUPS = 100  # not a power of two: the sign of the digest matters
EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def operator(ownership: str = "key_group") -> OperatorEntry:
    return OperatorEntry(
        uid="op", kind="keyed_process", service="s", stage="s.e", parallelism=2,
        ownership=ownership, partitions=4, states=(),
    )  # fmt: skip


def layout(kind: str, key: Any, value: Any, ownership: str = "key_group") -> StateLayout:
    entry = state_entry("st", kind, key, value)
    again = msgspec.json.decode(msgspec.json.encode(entry), type=StateEntry)
    assert again == entry
    return StateLayout(operator(ownership), again)


def through_parquet(table: pa.Table) -> pa.Table:
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False, compression="zstd")
    found = pq.read_table(io.BytesIO(sink.getvalue()))
    return found.cast(table.schema)


def alike(found: Any, wanted: Any) -> bool:
    """Equal, and of the same types all the way down: 1, 1.0 and True are not alike."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        pairs = sorted(wanted.items(), key=lambda pair: repr(pair[0]))
        others = sorted(found.items(), key=lambda pair: repr(pair[0]))
        return len(pairs) == len(others) and all(map(alike, others, pairs))
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(alike, found, wanted))
    if isinstance(wanted, set | frozenset):
        return sorted(map(repr, found)) == sorted(map(repr, wanted))
    if isinstance(wanted, msgspec.Struct):
        return alike(msgspec.structs.astuple(found), msgspec.structs.astuple(wanted))
    if dataclasses.is_dataclass(wanted):
        return alike(vars(found), vars(wanted))
    return bool(found == wanted)


def check(kind: str, key: Any, value: Any, stored: Any, live: dict[Any, Any]) -> None:
    """``live`` is as a table holds it: to rows, through Parquet, back, decoded as declared."""
    types: Any = dict[key, stored]
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(live), type=types)
    schemas = (schema_of(key), schema_of(value))
    assert [flaw(schema) for schema in schemas] == [None, None]
    rows = layout(kind, *schemas)
    wire = rows.decoded(msgspec.msgpack.encode(live), "x")
    table = through_parquet(rows.batch(wire, GROUPS))
    rows.verify(table, GROUPS)
    assert table.schema.equals(rows.arrow_schema)
    found = list(rows.entries(table))
    for _, group, wire_key, _ in found:
        assert group == key_group(wire_key, GROUPS)
    data = msgspec.msgpack.encode({wire_key: v for _, _, wire_key, v in found})
    after = msgspec.msgpack.decode(data, type=types)
    if key is Any:  # rebuilt from the canonical bytes: 1 for 1.0, which is the same key
        before = {known: before[known] for known in after}
    assert alike(after, before)
    assert len(after) == len(live)
    keys = [key_bytes(k) for k in before]
    assert sorted(set(table["key"].to_pylist())) == sorted(keys)


@EXAMPLES
@given(KEY_TYPES, TYPES, st.data())
def test_values_of_any_type_come_back(keys, values, data):
    live = data.draw(st.dictionaries(keys[1], values[1], max_size=4))
    check("value", keys[0], values[0], values[0], live)


@EXAMPLES
@given(KEY_TYPES, TYPES, st.data())
def test_lists_of_any_type_come_back(keys, values, data):
    lists = st.lists(values[1], min_size=1, max_size=4)
    live = data.draw(st.dictionaries(keys[1], lists, max_size=4))
    check("list", keys[0], values[0], list[values[0]], live)


@EXAMPLES
@given(KEY_TYPES, KEY_TYPES, TYPES, st.data())
def test_maps_of_any_type_come_back(keys, map_keys, values, data):
    maps = st.dictionaries(map_keys[1], values[1], min_size=1, max_size=4)
    live = data.draw(st.dictionaries(keys[1], maps, max_size=4))
    kind = dict[map_keys[0], values[0]]
    check("map", keys[0], kind, kind, live)


@EXAMPLES
@given(KEY_TYPES, st.data())
def test_timers_come_back_with_clock_time_and_order(keys, data):
    timers = st.tuples(st.sampled_from([0, 1]), INT64, keys[1])
    live = data.draw(st.dictionaries(timers, st.integers(0, 1 << 40), max_size=5))
    rows = layout("timers", schema_of(keys[0]), Schema("int"))
    wire = rows.decoded(msgspec.msgpack.encode(live), "x")
    table = through_parquet(rows.batch(wire, GROUPS))
    assert {row["time_domain"] for row in table.to_pylist()} <= {"event", "processing"}
    found = {key: registration for _, _, key, registration in rows.entries(table)}
    data_ = msgspec.msgpack.encode(found)
    assert msgspec.msgpack.decode(data_, type=dict[tuple[int, int, keys[0]], int]) == live
    rows.verify(table, GROUPS)


@EXAMPLES
@given(TYPES, st.data())
def test_lists_of_subtasks_come_back(values, data):
    lists = data.draw(st.lists(st.lists(values[1], min_size=1, max_size=3), max_size=3))
    cells = [[msgspec.msgpack.encode(value) for value in found] for found in lists]
    rows = layout("operator_union", None, schema_of(values[0]), "none")
    wire = [(n, rows.decoded_cells(found, "x")) for n, found in enumerate(cells)]
    table = through_parquet(rows.batch(wire))
    decode = msgspec.msgpack.Decoder(values[0]).decode
    found = [
        (owner, list(map(decode, rows.encoded_cells(elements))))
        for _, _, owner, elements in rows.entries(table)
    ]
    assert alike(found, [(n, list(map(decode, elements))) for n, elements in enumerate(cells)])


@EXAMPLES
@given(KEY_TYPES, TYPES, st.data())
def test_the_map_of_all_subtasks_comes_back(keys, values, data):
    live = data.draw(st.dictionaries(keys[1], values[1], min_size=1, max_size=4))
    cells = [msgspec.msgpack.encode({key: value}) for key, value in live.items()]
    rows = layout("operator_broadcast", None, schema_of(dict[keys[0], values[0]]), "none")
    table = through_parquet(rows.batch([(0, rows.decoded_cells(cells, "x"))]))
    ((_, _, owner, found),) = rows.entries(table)
    decode = msgspec.msgpack.Decoder(dict[keys[0], values[0]]).decode
    assert owner == 0
    assert alike(list(map(decode, rows.encoded_cells(found))), list(map(decode, cells)))
