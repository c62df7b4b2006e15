"""A stage behind an edge in a task: rows in, savepoint files and rows of further edges out.

Where the stage keeps state, its rows come by key group, and within one in the order of the topics.
A key group is worked off like a bucket live: all its keys at once, batch by batch. Memory holds the
state of one key group, and of those that wait to be written together.
"""

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from penstock.failure import UserCodeFailed
from penstock.record import OperatorFailed
from penstock.savepoint.layout import narrowed
from penstock.savepoint.manifest import FileEntry
from penstock.savepoint.writing import SavepointFiles
from penstock.schema import ANY, Schema

from penstock_spark.replay.bundles import Bound, ListOf, Merging, Piece, piece_of, pieces
from penstock_spark.replay.places import STATE
from penstock_spark.replay.resuming import entries_of
from penstock_spark.replay.rows import report
from penstock_spark.replay.running import Batches, Common, RunningStage
from penstock_spark.replay.states import KeysDiffer, Rows, StateId, StateTables
from penstock_spark.scan import opened

KEPT_ENTRIES = 20_000
"""Entries of complete key groups that wait to be written together."""
_ORDER_BITS = 40
"""Registrations of timers in a task; above them its first key group makes the numbers unique."""


class Written(msgspec.Struct, frozen=True, array_like=True):
    """What a task tells of the files that it has written."""

    files: list[FileEntry]
    keys: list[tuple[str, str, Schema]]
    """(operator, state, type) of keys without a declared type."""
    differ: bool
    """Keys without a declared type are of several: nothing of this counts."""


class KeyedTask:
    """The function that Spark calls with the rows of one task.

    Args:
        common: the replay.
        stage: the stage's name.
        begin_ms: the watermark at its beginning.
        final_ms: the watermark at its end.
        target: location of the savepoint whose files are written; None: none are.
        shown: the one state whose rows are given, and nothing else.
        key: type of keys without a declared one; None: that of the first ones, if all have it.
    """

    def __init__(
        self,
        common: Common,
        stage: str,
        begin_ms: int,
        final_ms: int,
        *,
        target: str | None = None,
        shown: StateId | None = None,
        key: Schema | None = None,
    ) -> None:
        self._common = common
        self._name = stage
        self._begin_ms = begin_ms
        self._final_ms = final_ms
        self._target = target
        self._shown = shown
        self._key = key

    def __call__(self, batches: Batches) -> Batches:
        """The rows of edges and sinks, and at the end a report of the files."""
        keyed = _Keyed(self._common, self._name, self._begin_ms, self._final_ms, self._key)
        files = None
        if self._target is not None:
            files = _Files(self._target, keyed.plan.max_parallelism)
        for batch in batches:
            keyed.take(batch)
            yield from self._given(keyed, files)
        keyed.end()
        yield from self._given(keyed, files)
        if files is not None:
            keys = [(*state, schema) for state, schema in keyed.tables.keys.items()]
            yield report(Written(files.close(), keys, keyed.differ))

    def _given(self, keyed: "_Keyed", files: "_Files | None") -> Batches:
        ready, keyed.ready = keyed.ready, []
        for rows in ready:
            if files is not None:
                files.add(rows)
            if rows.state == self._shown:
                yield from rows.table.combine_chunks().to_batches()
        written = keyed.written()
        if self._shown is None:
            yield from written


class _Files:
    """The files of one task, by state."""

    def __init__(self, target: str, max_parallelism: int) -> None:
        self._store = opened(target)
        self._max_parallelism = max_parallelism
        self._files: dict[StateId, SavepointFiles] = {}

    def add(self, rows: Rows) -> None:
        """Rows behind those that were added before."""
        files = self._files.get(rows.state)
        if files is None:
            layout = rows.layout
            files = SavepointFiles(
                self._store, layout.operator, layout.state, self._max_parallelism
            )
            self._files[rows.state] = files
        files.add(rows.table)

    def close(self) -> list[FileEntry]:
        """The entries of all files."""
        return [entry for files in self._files.values() for entry in files.close()]


class _Keyed(RunningStage):
    def __init__(
        self, common: Common, name: str, begin_ms: int, final_ms: int, key: Schema | None
    ) -> None:
        super().__init__(common, name, final_ms)
        self.ready: list[Rows] = []
        """Rows of complete key groups."""
        self.differ = False
        self.tables = StateTables(
            self.stage,
            self.state,
            partitions=self.partitions,
            max_parallelism=self.plan.max_parallelism,
            key=key,
        )
        root = self.stage.root
        self._keys = None if root.key is None else ListOf(self.stage.name, "keys", root.key)
        self._values = ListOf(self.stage.name, "values", root.value)
        self._merging = Merging()
        self._begin_ms = begin_ms
        self._final_ms = final_ms
        self._states = sorted(self.stage.states)
        self._unit: tuple[int, int] | None = None
        """Key group and owner of the records that come now."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Work off the rows of a batch. Raises UserCodeFailed naming the record."""
        if self.differ or not batch.num_rows:
            return
        if not self.stage.is_keyed:
            self._push_all(batch)
            return
        rows = _RowsOf(batch)
        for start, end in rows.segments():
            if rows.unit(start) != self._unit:
                self._enter(rows.unit(start))
            if rows.is_state[start]:
                self._load(batch.slice(start, end - start))
                continue
            for first, behind in pieces(rows.counts, start, end):
                piece = batch.slice(first, behind - first)
                self._merging.add(piece_of(piece, self._keys, self._values))
                self._push(self._merging.take(rows.bound(behind)))

    def end(self) -> None:
        """No rows come any more."""
        if self._unit is not None:
            self._finish()
        self._collect()

    def _enter(self, unit: tuple[int, int]) -> None:
        """Rows of another key group, or of another owner in it, come now."""
        if self._unit is None:
            self.chain.emptied(unit[0] << _ORDER_BITS)
        else:
            self._finish()
            if self.tables.entries >= KEPT_ENTRIES:
                self._collect()
        self._unit = unit
        self.chain.begin(self._begin_ms)

    def _finish(self) -> None:
        """The rows of a key group are through: timers that are due by the end fire."""
        self._push(self._merging.take(None))
        if self.stage.has_event_time:
            self.chain.on_watermark(self._final_ms)

    def _collect(self) -> None:
        """All key groups that are in the tables are complete."""
        try:
            self.ready += self.tables.take()
        except KeysDiffer:
            self.differ = True
        self.chain.emptied(0)

    def _load(self, rows: pa.RecordBatch) -> None:
        """State that was there before comes first."""
        assert self._unit is not None, "a unit was entered"
        numbers = _numbers(rows, "number")
        values = rows["values"].to_numpy(zero_copy_only=False)
        for number in np.unique(numbers).tolist():
            found = values[numbers == number].tolist()
            state = self._states[number]
            self.chain.load(state, self._unit[1], entries_of(found), len(found))

    def _push_all(self, batch: pa.RecordBatch) -> None:
        """Without keys there is no order to wait for."""
        for start, end in pieces(_numbers(batch, "count"), 0, batch.num_rows):
            self._push(piece_of(batch.slice(start, end - start), self._keys, self._values))

    def _push(self, piece: Piece | None) -> None:
        if piece is None:
            return
        owner = 0 if self._unit is None else self._unit[1]
        at = piece.at
        self.clocks, self.places = at["clock"], at["place"]
        if self.outbox is not None:
            self.outbox.owner = owner
        try:
            self.chain.push(owner, piece.keys, piece.values, at["time"].tolist())
        except OperatorFailed as error:
            raise self._located(error, at) from error

    def _located(self, error: OperatorFailed, at: Any) -> UserCodeFailed:
        place = 0 if error.index is None else int(at["place"][error.index])
        if place <= STATE:
            return UserCodeFailed(str(error))
        topic, partition, offset = self.common.places.origin(place)
        return UserCodeFailed(
            f"{error}; it comes of the record: topic {topic!r}, partition {partition}, offset "
            f"{offset}"
        )


def kinds_of(batches: Batches) -> Batches:
    """The types that the keys of some rows have, where they are not declared."""
    keys = ListOf("", "keys", Any)
    kinds = set()
    for batch in batches:
        there = batch.filter(batch["keys"].is_valid())
        counts = _numbers(there, "count")
        for start, end in pieces(counts, 0, len(counts)) if len(counts) else ():
            column = there["keys"].slice(start, end - start)
            kinds.add(narrowed(ANY, keys.decoded(column, int(counts[start:end].sum()))).kind)
    yield pa.RecordBatch.from_pydict({"kind": pa.array(sorted(kinds), pa.string())})


class _RowsOf:
    """The rows of a batch: bundles of records by key group and owner, and state before them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.counts = _numbers(batch, "count")
        self._groups = _numbers(batch, "key_group")
        self._owners = _numbers(batch, "owner")
        self._firsts = [_numbers(batch, name) for name in ("clock", "place", "number")]
        self.is_state = self._firsts[1] == STATE

    def unit(self, row: int) -> tuple[int, int]:
        """Key group and owner."""
        return int(self._groups[row]), int(self._owners[row])

    def segments(self) -> list[tuple[int, int]]:
        """The rows that belong together."""
        groups, owners, is_state = self._groups, self._owners, self.is_state
        changes = (np.diff(groups) != 0) | (np.diff(owners) != 0) | np.diff(is_state)
        return list(pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(groups)]))

    def bound(self, behind: int) -> Bound | None:
        """Before what records may be taken once the rows before ``behind`` are there.

        The first of the next bundle. At the end of the batch that is not known, but it is not
        before the first of the last one. None: no more records of the unit come.
        """
        row = behind
        if behind == len(self._groups):
            row = behind - 1
        elif self.unit(behind) != self.unit(behind - 1):
            return None
        clock, place, number = (int(column[row]) for column in self._firsts)
        return clock, place, number


def _numbers(batch: pa.RecordBatch, name: str) -> Any:
    return batch[name].to_numpy(zero_copy_only=False)
