"""The states of two savepoints as rows, and which of their columns make a row's key."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from penstock.savepoint.manifest import KEYED_KINDS, StateEntry
from penstock.savepoint.reading import Savepoint
from pyspark.sql import DataFrame, SparkSession

from penstock_spark.ab.column import comparable, holds_map, quoted
from penstock_spark.ab.model import Compared, PositionDifference

_INSIDE = {"list": ("list_index",), "map": ("map_key",), "timers": ("time_domain", "timestamp_ms")}
_PLACES = ("key_group", "subtask_index", "element_index", "registration")
"""Columns that follow from the parallelism or from the order of records, not from what happened."""


@dataclass(frozen=True)
class StatePair:
    """One state that both savepoints have."""

    name: str
    """``operator/state``."""
    a: DataFrame
    b: DataFrame
    on: tuple[str, ...]
    by: tuple[str, ...]
    ignore: tuple[str, ...]


def state_names(savepoint: Savepoint) -> dict[str, StateEntry]:
    """``operator/state`` of every state but the sources' positions."""
    return {
        f"{operator.uid}/{state.name}": state
        for operator in savepoint.manifest.operators
        for state in operator.states
        if state.kind != "positions"
    }


def state_pairs(spark: SparkSession, a: Savepoint, b: Savepoint) -> Iterator[StatePair]:
    """The states that both have and that are not empty in both, in the order of A's manifest."""
    names_a, names_b = state_names(a), state_names(b)
    filled = {
        f"{file.operator}/{file.state}"
        for savepoint in (a, b)
        for file in savepoint.manifest.files
        if file.rows
    }
    for name, state in names_a.items():
        if name in names_b and name in filled:
            yield _pair(
                name, state, _frame(spark, a, name, state), _frame(spark, b, name, names_b[name])
            )


def position_differences(a: Savepoint, b: Savepoint) -> tuple[PositionDifference, ...]:
    """The source partitions at which the two savepoints stand at different positions."""
    ends = [
        {
            (source.topic, partition): position
            for source in savepoint.manifest.sources
            for partition, position in source.positions.items()
        }
        for savepoint in (a, b)
    ]
    return tuple(
        PositionDifference(topic=topic, partition=partition, a=one, b=other)
        for topic, partition in sorted({*ends[0], *ends[1]})
        if (one := ends[0].get((topic, partition))) != (other := ends[1].get((topic, partition)))
    )


def readable(found: Compared, ignored: tuple[str, ...]) -> Compared:
    """The comparison without what a savepoint has for machines: ``ignored`` are the user's.

    The namespace is null wherever no operator has namespaces, and then says nothing.
    """
    found = msgspec.structs.replace(found, ignored=ignored)
    if found.on[-1] != "namespace" or any(each.key[-1] is not None for each in found.examples):
        return found
    return msgspec.structs.replace(
        found,
        on=found.on[:-1],
        examples=tuple(msgspec.structs.replace(e, key=e.key[:-1]) for e in found.examples),
    )


def _frame(spark: SparkSession, savepoint: Savepoint, name: str, state: StateEntry) -> DataFrame:
    operator = name.rpartition("/")[0]
    reader = spark.read.format("penstock").option("operatorUid", operator)
    timers = state.kind == "timers"
    reader = (
        reader.option("readTimers", "true") if timers else reader.option("stateName", state.name)
    )
    return _decimals(reader.load(savepoint.url), state)


def _decimals(frame: DataFrame, state: StateEntry) -> DataFrame:
    """Decimals stand in a savepoint as text; as numbers they have differences."""
    schema = state.value.items[1] if state.kind in ("map", "operator_broadcast") else state.value
    names = ["value"] if schema.kind == "decimal" else []
    if schema.kind == "struct":
        names = [
            state.columns.get(f.name, f.name) for f in schema.fields if f.type.kind == "decimal"
        ]
    there = [name for name in names if name in frame.columns]
    return frame.withColumns({name: quoted(name).try_cast("decimal(38,18)") for name in there})


def _pair(name: str, state: StateEntry, a: DataFrame, b: DataFrame) -> StatePair:
    both = [column for column in a.columns if column in b.columns]
    ignore = [column for column in _PLACES if column in both]
    if state.kind in KEYED_KINDS:
        kinds = [frame.schema["key_value"].dataType for frame in (a, b)]
        readable = kinds[0] == kinds[1] and not holds_map(kinds[0])
        key = "key_value" if readable else "key"
        owner = [column for column in ("partition",) if column in both]
        on = [*owner, key, *_INSIDE.get(state.kind, ()), "namespace"]
        ignore.append("key" if readable else "key_value")
        return StatePair(name, a, b, tuple(on), (key,), tuple(ignore))
    if state.kind == "operator_broadcast":
        return StatePair(name, a, b, ("map_key",), ("map_key",), tuple(ignore))
    values = tuple(column for column in both if column not in ignore)
    return StatePair(name, _plain(a), _plain(b), values, values, tuple(ignore))


def _plain(frame: DataFrame) -> DataFrame:
    """Elements are their own keys: maps become lists of entries, which can be."""
    return frame.withColumns(
        {
            field.name: comparable(quoted(field.name), field.dataType)
            for field in frame.schema.fields
            if holds_map(field.dataType)
        }
    )
