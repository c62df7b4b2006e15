"""What an operator and its states are: as services, a process or a person say it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.annotation import returned_type
from penstock.api import EDGE_PARTITIONS
from penstock.failure import ConfigurationError
from penstock.graph import StateSpec
from penstock.operator.state import declared
from penstock.savepoint.layout import state_entry
from penstock.savepoint.manifest import KEYED_KINDS, POSITIONS, Ownership, StateEntry, StateKind
from penstock.schema import ANY, Schema, difference, key_difference, schema_of, wire_type
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so

from penstock_spark.writing.declared import Declared
from penstock_spark.writing.draft import unknown
from penstock_spark.writing.placing import key_schema_of
from penstock_spark.writing.values import Values


class Place(NamedTuple):
    """Where a step stands, for a writer that was given no services."""

    service: str | None = None
    """None: that of the application's name."""
    stage: str | None = None
    """None: ``<service>.<uid>``."""
    ownership: Ownership = "key_group"
    """``partition`` for a step behind a source with ``partitioned=True``."""
    partitions: int = EDGE_PARTITIONS
    """Of the stage's input: of its edge, or of its source's topic."""


def key_of(
    uid: str, rows: DataFrame, key: Any, key_type: Any, said: Declared | None
) -> tuple[Any, Schema]:
    """The class of the keys, and its description."""
    kind = key_type
    if kind is None and said is not None and said.key_type is not None:
        kind = said.key_type
    if kind is None and not isinstance(key, Column):
        kind = returned_type(key)
    schema = ANY if kind is None else schema_of(kind)
    if schema == ANY and isinstance(key, Column):
        found = key_schema_of(rows, key)
        if found is None:
            raise ConfigurationError(
                f"operator {uid!r}: the type of the keys does not follow from their column; say "
                "key_type=..."
            )
        return wire_type(found, hashable=True), found
    return (Any if kind is None else kind), schema


def values_of(uid: str, rows: DataFrame, value: Any) -> Values:
    """Which columns make a value."""
    if value is None:
        return Values(tuple(rows.columns), is_single=False)
    schema = schema_of(value)
    if schema.kind != "struct":
        if "value" not in rows.columns:
            raise ConfigurationError(
                f"operator {uid!r}: values of a type without fields stand in a column 'value'; "
                f"the DataFrame has {', '.join(rows.columns)}"
            )
        return Values(("value",), is_single=True)
    missing = [f.name for f in schema.fields if f.required and f.name not in rows.columns]
    if missing:
        raise ConfigurationError(
            f"operator {uid!r}: {schema.name} needs the columns {', '.join(missing)}, the "
            f"DataFrame has {', '.join(rows.columns)}"
        )
    known = {field.name for field in schema.fields}
    return Values(tuple(name for name in rows.columns if name in known), is_single=False)


def states_of(owner: type, key: Schema) -> Iterable[StateEntry]:
    """The states that a process declares, its timers last."""
    keyed, of_subtask = declared(owner)
    for name, state in keyed.items():
        yield state_entry(name, _kind(state.kind), key, schema_of(state.described))
    for name, cells in of_subtask.items():
        yield state_entry(name, _kind(cells.kind), None, schema_of(cells.described))
    yield state_entry("timers", "timers", key, Schema("int"))


def _kind(kind: str) -> StateKind:
    return kind  # type: ignore[return-value]  # the manifest's loader checks it


def state_of(
    uid: str,
    state: str,
    kind: StateKind | None,
    value_type: Any,
    key_type: Any,
    rows: DataFrame,
    key: str,
    spec: StateSpec | None,
) -> StateEntry:
    """A state whose rows a DataFrame has. Raises ConfigurationError when its type is not known."""
    found = kind or (None if spec is None else _kind(spec.kind))
    value = Schema("int") if found == "timers" else None if spec is None else spec.value
    if value_type is not None:
        value = schema_of(value_type)
    if found is None or value is None or found == POSITIONS:
        raise ConfigurationError(
            f"state {state!r} of operator {uid!r}: say kind= and value_type=, or give the writer "
            "the services that declare it"
        )
    if found not in KEYED_KINDS:
        return state_entry(state, found, None, value)
    keys = schema_of(key_type) if key_type is not None else ANY if spec is None else spec.key
    if keys == ANY and key in rows.columns:
        keys = key_schema_of(rows, F.col(key)) or ANY
    return state_entry(state, found, keys, value)


def agree(uid: str, state: StateEntry, said: Declared) -> None:
    """Raise ConfigurationError unless the service's state of this name can take it."""
    spec = said.states.get(state.name)
    if spec is None:
        unknown(f"the service's step {uid!r} has no state", state.name, list(said.states))
    reason = None
    if spec.kind != state.kind:
        reason = f"it is {spec.kind} state there, not {state.kind} state"
    elif spec.value is not None:
        reason = difference(state.value, spec.value)
        if reason is None and state.key is not None and spec.key is not None:
            reason = key_difference(state.key, spec.key)
    if reason is not None:
        raise ConfigurationError(
            f"state {state.name!r} of operator {uid!r} does not fit the service: {reason}; use "
            "the service's own type"
        )
