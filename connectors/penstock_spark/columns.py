"""Columns as Spark wants them: its schema of an Arrow schema, and batches that equal it exactly."""

from collections.abc import Callable, Sequence

import pyarrow as pa
from penstock.failure import ConfigurationError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema, columns: Sequence[str] = ()) -> StructType:
    """The DataFrame's schema of ``columns`` (all when empty). Raises ConfigurationError."""
    must_have(schema, columns)
    return from_arrow_schema(pa.schema([schema.field(name) for name in columns or schema.names]))


def must_have(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise ConfigurationError when one of ``columns`` is not there, naming those that are."""
    for name in columns:
        if name not in schema.names:
            raise ConfigurationError(
                f"there is no column {name!r}; the columns are {', '.join(schema.names)}"
            )


def conforming(schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that makes of a batch one that Spark takes for ``schema``.

    Spark compares types, names and nullability exactly, those of elements inside included. The
    function raises ConfigurationError when a value does not fit the type that a user asked for.
    """
    wanted = to_arrow_schema(schema, timezone="UTC")

    def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            _cast(batch.column(field.name), field)
            if batch.schema.field(field.name).type != field.type
            else batch.column(field.name)
            for field in wanted
        ]
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    return conform


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ConfigurationError(
            f"column {field.name!r} is {column.type} and was asked for as {field.type}: {error}; "
            "leave its type out of .schema(…), or cast it in the DataFrame"
        ) from None
