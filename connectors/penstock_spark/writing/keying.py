"""Rows get the canonical bytes of their key and its key group, by which Spark brings them together.

Runs in Spark's tasks, for keys that Spark cannot encode by itself (see `placing`).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from penstock.edge.routing import UnusableKey, canonical, group_of_bytes
from penstock.failure import ConfigurationError
from penstock.operator.process import KeyedProcess
from penstock.record import OperatorFailed, described
from penstock.savepoint.manifest import OperatorEntry, StateEntry
from penstock.schema import ANY

from penstock_spark.shipping import landed
from penstock_spark.writing.rows import StateRows
from penstock_spark.writing.values import ValueReader, Values

GROUP, RAW, TIME, PARTITION = "__key_group", "__key", "__timestamp_ms", "partition"
"""Columns that a row may have beside its own; the last one is the user's."""
_encode = msgspec.msgpack.Encoder().encode


class Code(NamedTuple):
    """What travels to the tasks as code of the user."""

    process: Callable[[], KeyedProcess]
    key: Callable[[Any], Any] | None
    """The key of a value; None: it stands in a column."""
    key_type: Any
    value_type: Any
    """None: a row is a dict."""


class ColumnKeying(NamedTuple):
    """Keys that stand in a column."""

    operator: OperatorEntry
    state: StateEntry
    """Has the type of the keys; named in errors."""
    column: str
    max_parallelism: int

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What ``DataFrame.mapInArrow`` runs first."""
        rows = StateRows(self.operator, self.state, self.max_parallelism, key=self.column)
        for batch in batches:
            if batch.num_rows:
                yield _keyed(batch, rows.key_bytes(batch)[1], self.max_parallelism)


class ValueKeying(NamedTuple):
    """Keys that a function of the user takes from a value."""

    uid: str
    max_parallelism: int
    values: Values
    code: bytes

    def batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What ``DataFrame.mapInArrow`` runs first."""
        code: Code = landed(self.code)
        assert code.key is not None, "keys in a column need no function"
        reader = ValueReader(self.values, code.value_type)
        for batch in batches:
            if batch.num_rows:
                values = reader.read(batch, lambda _: f"operator {self.uid!r}")
                raw = [self._of(code.key, value) for value in values]
                yield _keyed(batch, raw, self.max_parallelism)

    def _of(self, key_of: Callable[[Any], Any], value: Any) -> bytes:
        try:
            return _encode(canonical(key_of(value)))
        except UnusableKey as error:
            raise ConfigurationError(
                f"operator {self.uid!r}: the key of {value!r:.200}: {error}"
            ) from error
        except Exception as error:
            raise OperatorFailed(
                self.uid, None, f"the key of {value!r:.200}: {described(error)}"
            ) from error


def key_state(key: Any) -> StateEntry:
    """Stands for the states of an operator that has several: its keys are the same in all."""
    return StateEntry(name="*", kind="value", key=key, value=ANY)


def _keyed(batch: pa.RecordBatch, raw: list[bytes], groups: int) -> pa.RecordBatch:
    found = [group_of_bytes(key, groups) for key in raw]
    batch = batch.append_column(GROUP, pa.array(found, pa.int32()))
    return batch.append_column(RAW, pa.array(raw, pa.binary()))
