"""State by key from rows: a process that sees the rows of each key and leaves its state behind.

Rows come by key group and key, so that one key is live at a time: when the next one comes, what the
process has set for the keys before is written and forgotten. Nothing else of a running application
is there: no watermark moves, no timer fires, nothing is emitted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, NoReturn

import msgspec
import pyarrow as pa
from penstock.failure import ConfigurationError, PenstockError
from penstock.operator.keyed import ProcessNode
from penstock.operator.process import KeyedProcess
from penstock.record import OperatorFailed, described
from penstock.savepoint.layout import MAPS, StateLayout
from penstock.savepoint.manifest import OperatorEntry
from penstock.snapshot.state import SubtaskState
from penstock.snapshot.table import HeapTable
from pyspark import TaskContext

from penstock_spark.shipping import landed
from penstock_spark.writing.keying import PARTITION, RAW, TIME, Code
from penstock_spark.writing.output import StateOutput, Target, entry_rows
from penstock_spark.writing.values import ValueReader, Values

FLUSH_ROWS = 64 * 1024
_encode = msgspec.msgpack.Encoder().encode


class KeyedStateBootstrap(KeyedProcess):
    """A process that makes the state of a savepoint, for `SavepointWriter.with_operator`.

    ``process(value, ctx)`` is called for each row of ``ctx.key``; it may set state and timers. A
    timer never fires meanwhile, and one that is overdue fires when the service has started.
    ``ctx.timestamp`` is the row's, ``ctx.now_ms`` the moment of the write, alike in all tasks.
    """


class Bootstrapping(NamedTuple):
    """Runs the process over rows that come by key and writes what it leaves."""

    target: Target
    operator: OperatorEntry
    """With the states that the process declares."""
    values: Values
    now_ms: int
    code: bytes

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What ``DataFrame.mapInArrow`` runs last."""
        run = _Run(self, landed(self.code))
        for batch in batches:
            if batch.num_rows:
                run.take(batch)
        yield entry_rows(run.close())


class _Node(ProcessNode):
    """A process whose timers never fire, and that may not emit."""

    def enter(self, bucket: int) -> None:
        """The keys that come now are of this partition (0 where key groups own keys)."""
        self._enter(bucket)


class _Run:
    """One task's part of a bootstrap."""

    def __init__(self, job: Bootstrapping, code: Code) -> None:
        self._job = job
        self._reader = ValueReader(job.values, code.value_type)
        self._uid = job.operator.uid
        self._state = SubtaskState("bootstrap", range(1))
        try:
            process = code.process()
        except Exception as error:
            raise OperatorFailed(
                self._uid, None, f"its process could not be made: {described(error)}"
            ) from error
        self._node = _Node(self._uid, process, self._state, code.key_type, _nowhere, {})
        self._node.context.now_ms = job.now_ms
        self._node.open()
        self._node.context.emit = self._refuse_emit
        store = job.target.store()
        self._outputs = {
            state.name: StateOutput(store, job.target, StateLayout(job.operator, state))
            for state in job.operator.states
        }
        self._layouts = {
            state.name: StateLayout(job.operator, state) for state in job.operator.states
        }
        one_key: Any = dict.__class_getitem__((code.key_type, None))
        self._key_of = msgspec.msgpack.Decoder(one_key).decode
        self._at: tuple[bytes | None, int] | None = None
        """Key and partition of the row before."""
        self._rows = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Run the process over rows that come behind those before."""
        raws = batch.column(RAW).to_pylist()
        values = self._reader.read(
            batch, lambda row: f"operator {self._uid!r}, key {_shown(raws[row])}"
        )
        places: Iterable[int] = repeat(0)
        if self._job.operator.ownership == "partition":
            places = self._partitions(batch.column(PARTITION))
        times: Iterable[int] = repeat(0)
        if TIME in batch.schema.names:
            times = batch.column(TIME).fill_null(0).to_pylist()
        context = self._node.context
        process = self._node.instance.process
        for raw, place, value, context.timestamp in zip(raws, places, values, times, strict=False):
            if (raw, place) != self._at:
                self._enter(raw, place)
            try:
                process(value, context)
            except PenstockError:
                raise
            except Exception as error:
                raise OperatorFailed(
                    self._uid,
                    None,
                    f"key {context.key!r:.200}, {value!r:.200}: {described(error)}",
                ) from error
        self._rows += batch.num_rows

    def close(self) -> list[Any]:
        """Write what is left; the entries of all files."""
        self._flush()
        task = TaskContext.get()
        number = 0 if task is None else task.partitionId()
        for (_, name), cells in self._state.cells().items():
            layout = self._layouts[name]
            elements = cells.encode()
            if elements and (layout.state.kind not in MAPS or number == 0):
                found = layout.decoded_cells(elements, f"what its process set in task {number}")
                self._outputs[name].add(layout.batch([(number, found)]))
        return [entry for output in self._outputs.values() for entry in output.close()]

    def _enter(self, raw: bytes | None, place: int) -> None:
        """A new key: what those before have left can be written."""
        if self._rows >= FLUSH_ROWS:
            self._flush()
        if self._at is None or place != self._at[1]:
            self._node.enter(place)
        self._at = raw, place
        if raw is None:
            raise ConfigurationError(f"operator {self._uid!r}: the key of a row is null")
        (self._node.context.key,) = self._key_of(b"\x81" + raw + b"\xc0")

    def _flush(self) -> None:
        self._rows = 0
        for table in self._state.tables():
            self._write(table)
        self._node.restored()  # the timers that were written are forgotten

    def _write(self, table: HeapTable) -> None:
        layout = self._layouts[table.name]
        found: list[tuple[Any, Any]] = []
        owners: list[int] = []
        for bucket, entries in table.buckets.items():
            found += self._wire(layout, table, entries).items()
            owners += repeat(bucket, len(entries))
            entries.clear()  # in place: the process has a handle on it
            table.dirty_keys(bucket).clear()
        groups = self._job.target.max_parallelism
        self._outputs[table.name].add(layout.batch(found, groups, owners))

    def _wire(
        self, layout: StateLayout, table: HeapTable, entries: dict[Any, Any]
    ) -> dict[Any, Any]:
        """The entries as the format has them, of the declared type for sure."""
        try:
            return layout.decoded(_encode(entries), "memory")
        except (PenstockError, TypeError, ValueError, OverflowError):
            for key, value in entries.items():
                try:
                    layout.decoded(_encode({key: value}), "memory")
                except (PenstockError, TypeError, ValueError, OverflowError) as error:
                    reason = error.__cause__ or error
                    raise ConfigurationError(
                        f"state {table.name!r} of operator {self._uid!r}, key {key!r:.200}: "
                        f"{value!r:.200} is not of the declared type: {described(reason)}; set "
                        "values of the declared type, or declare the type that is set"
                    ) from error
            raise

    def _partitions(self, column: pa.Array) -> Sequence[int]:
        limit = self._job.operator.partitions
        found: list[int | None] = column.to_pylist()
        for place in found:
            if place is None or not 0 <= place < limit:
                raise ConfigurationError(
                    f"operator {self._uid!r}: column {PARTITION!r} is {place!r}, expected the "
                    f"source partition that the key comes from, 0 to {limit - 1}"
                )
        return found  # type: ignore[return-value]  # none of them is None

    def _refuse_emit(self, value: Any) -> NoReturn:
        raise ConfigurationError(
            f"operator {self._uid!r}, key {self._node.context.key!r:.200}: its process emits "
            f"{value!r:.100}, and a bootstrap has nowhere to send it; set state and timers only"
        )


def _nowhere(*_: Any) -> None:
    """Where a process that may not emit sends its results."""


def _shown(raw: bytes | None) -> str:
    return "null" if raw is None else f"{msgspec.msgpack.decode(raw)!r:.200}"
