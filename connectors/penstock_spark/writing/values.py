"""Values of a user's type made of the rows of a DataFrame, whole columns at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from penstock.failure import ConfigurationError
from penstock.savepoint.arrow import Column, StructColumn, column
from penstock.schema import ANY, Schema, schema_of
from penstock.serde import type_name

_encode = msgspec.msgpack.Encoder().encode


class Values(NamedTuple):
    """Which columns make a value."""

    columns: tuple[str, ...]
    is_single: bool
    """The value is what stands in the only column; else a struct of them."""


class ValueReader:
    """Reads the values of batches.

    Args:
        values: which columns make one.
        kind: the type; None: a value is a dict of the columns.
    """

    def __init__(self, values: Values, kind: Any) -> None:
        self._columns = list(values.columns)
        self._is_single = values.is_single
        self._kind = kind
        self._parts: list[Column] | None = None
        if kind is None:
            return
        schema = _narrowed(schema_of(kind), values)
        self._whole: Column = column(schema)
        if values.is_single:
            self._parts = [self._whole]
        elif isinstance(self._whole, StructColumn) and len(self._whole.fields) == len(
            self._columns
        ):
            self._columns = [field.name for field in self._whole.fields]
            self._parts = [field.column for field in self._whole.fields]
        of_kind: Any = list.__class_getitem__(kind)
        self._decode = msgspec.msgpack.Decoder(of_kind).decode

    def read(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[Any]:
        """The values of a batch.

        Raises ConfigurationError for the first row that is none, named by ``where(row)``.
        """
        if self._kind is None:
            found: list[Any] = batch.select(self._columns).to_pylist()
            return found
        if self._parts is not None:
            try:
                fast: list[Any] = self._decode(_encode(self._wire(batch)))
            except (pa.ArrowException, msgspec.MsgspecError, TypeError, ValueError, OverflowError):
                pass  # the slow way says which row it is
            else:
                return fast
        return self._one_by_one(batch, where)

    def _wire(self, batch: pa.RecordBatch) -> list[Any]:
        assert self._parts is not None, "only asked where columns are parts"
        arrays = [
            fitted(batch.column(name), part) for name, part in zip(self._columns, self._parts)
        ]
        if isinstance(self._whole, StructColumn) and not self._is_single:
            return self._whole.objects(arrays, batch.num_rows)
        return self._whole.values(arrays[0])

    def _one_by_one(self, batch: pa.RecordBatch, where: Callable[[int], str]) -> list[Any]:
        rows: list[Any] = batch.select(self._columns).to_pylist()
        if self._is_single:
            rows = batch.column(self._columns[0]).to_pylist()
        found = []
        for number, row in enumerate(rows):
            try:
                found.append(msgspec.convert(row, self._kind))
            except msgspec.ValidationError as error:
                raise ConfigurationError(
                    f"{where(number)}: a row of the DataFrame is no {type_name(self._kind)}: "
                    f"{error}; the row is {row!r:.200}"
                ) from error
        return found


def fitted(given: pa.Array, part: Column) -> pa.Array:
    """An array of Spark's as the column that the format has for its type.

    Raises pyarrow's errors, OverflowError or TypeError.
    """
    wanted = part.type
    if given.type == wanted:
        return given
    if pa.types.is_string(wanted) and _is_typed(given.type):
        return part.array(given.to_pylist())  # a date is written as msgspec writes it
    return given.cast(wanted)


def _is_typed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _narrowed(schema: Schema, values: Values) -> Schema:
    """The schema of what the columns have: fields with defaults may be missing."""
    if values.is_single or schema.kind != "struct":
        return schema
    if schema.array_like:
        return schema
    fields = tuple(field for field in schema.fields if field.name in values.columns)
    return msgspec.structs.replace(schema, fields=fields, nullable=False) if fields else ANY
