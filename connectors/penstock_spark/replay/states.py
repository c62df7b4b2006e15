"""The state of one task of a replay, on its way into a savepoint: tables out, sorted rows in."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec
import pyarrow as pa
from penstock.graph import OperatorSpec
from penstock.savepoint.layout import StateLayout, narrowed, state_entry
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    OperatorEntry,
    Ownership,
    StateEntry,
    StateKind,
)
from penstock.schema import ANY, Schema
from penstock.snapshot.state import SubtaskState
from penstock.snapshot.table import HeapTable

from penstock_spark.replay.plan import ReplayStage

StateId = tuple[str, str]
"""(operator uid, state name)."""
_encode = msgspec.msgpack.Encoder().encode


class KeysDiffer(Exception):
    """Keys of no declared type are not all of the one type that the first ones had."""


class Rows(NamedTuple):
    """Sorted rows of one state."""

    state: StateId
    layout: StateLayout
    table: pa.Table


def operator_entry(
    stage: ReplayStage, operator: OperatorSpec, partitions: int, keys: dict[StateId, Schema]
) -> OperatorEntry:
    """An operator as the savepoint's manifest has it; ``keys`` are types that were found out."""
    states = tuple(
        state_entry(
            state.name,
            cast("StateKind", state.kind),
            keys.get((operator.uid, state.name), state.key),
            ANY if state.value is None else state.value,
        )
        for state in operator.states
    )
    keyed = any(state.kind in KEYED_KINDS for state in states)
    owner: Ownership = "partition" if stage.is_partitioned else "key_group"
    return OperatorEntry(
        uid=operator.uid,
        kind=operator.kind,
        service=stage.service,
        stage=stage.live.name,
        parallelism=1,
        ownership=owner if keyed else "none",
        partitions=partitions,
        states=states,
    )


class StateTables:
    """The tables of a stage that runs, emptied from time to time.

    Args:
        stage: whose they are.
        state: what holds them.
        partitions: of the stage's input.
        max_parallelism: number of key groups.
        key: type of keys without a declared one; None: that of the first ones, see `KeysDiffer`.
    """

    def __init__(
        self,
        stage: ReplayStage,
        state: SubtaskState,
        *,
        partitions: int,
        max_parallelism: int,
        key: Schema | None,
    ) -> None:
        self.keys: dict[StateId, Schema] = {}
        """Types of keys that were found out."""
        self._stage = stage
        self._partitions = partitions
        self._max_parallelism = max_parallelism
        self._key = key
        self._tables = {(t.operator, t.name): t for t in state.tables()}
        self._operators = {spec.uid: spec for spec in stage.live.spec().operators}
        self._layouts: dict[StateId, StateLayout] = {}

    @property
    def entries(self) -> int:
        """How many there are now."""
        return sum(len(b) for table in self._tables.values() for b in table.buckets.values())

    def take(self) -> Iterator[Rows]:
        """All rows of all states, after which the tables are empty."""
        for state, table in self._tables.items():
            pairs: list[tuple[Any, Any]] = []
            owners: list[int] = []
            layout: StateLayout | None = None
            for bucket, entries in table.buckets.items():
                if not entries:
                    continue
                layout = self._layout(state, entries)
                # the bytes of a checkpoint: what is not of the declared type shows here
                found = layout.decoded(_encode(entries), f"the replay of {self._stage.name}")
                pairs.extend(found.items())
                owners.extend([bucket] * len(found))
            if layout is not None:
                places = owners if layout.partitioned else None
                yield Rows(state, layout, layout.batch(pairs, self._max_parallelism, places))
            _clear(table)

    def _layout(self, state: StateId, entries: dict[Any, Any]) -> StateLayout:
        layout = self._layouts.get(state)
        if layout is None:
            self._find_out(state, entries)
            layout = self._layouts[state] = StateLayout(*self.described(state))
        elif (
            self._key is None
            and state in self.keys
            and self._kind(state, entries) != self.keys[state]
        ):
            raise KeysDiffer(f"{state[0]}.{state[1]}")
        return layout

    def described(self, state: StateId) -> tuple[OperatorEntry, StateEntry]:
        """Operator and state as the manifest has them."""
        spec = self._operators[state[0]]
        entry = operator_entry(self._stage, spec, self._partitions, self.keys)
        return entry, next(s for s in entry.states if s.name == state[1])

    def _find_out(self, state: StateId, entries: dict[Any, Any]) -> None:
        spec = next(s for s in self._operators[state[0]].states if s.name == state[1])
        if spec.key == ANY:
            self.keys[state] = self._kind(state, entries) if self._key is None else self._key

    def _kind(self, state: StateId, entries: dict[Any, Any]) -> Schema:
        timers = self._tables[state].kind == "timers"
        return narrowed(ANY, [key for _, _, key in entries] if timers else entries.keys())


def _clear(table: HeapTable) -> None:
    for entries in table.buckets.values():
        entries.clear()
    for keys in table.dirty.values():
        keys.clear()


def layout_of(
    stage: ReplayStage, state: StateId, partitions: int, key: Schema = ANY
) -> StateLayout:
    """How the rows of a state look; ``key`` is the type of keys without a declared one."""
    spec = next(s for s in stage.live.spec().operators if s.uid == state[0])
    of_state = next(s for s in spec.states if s.name == state[1])
    keys = {state: key} if of_state.key == ANY else {}
    entry = operator_entry(stage, spec, partitions, keys)
    return StateLayout(entry, next(s for s in entry.states if s.name == state[1]))
