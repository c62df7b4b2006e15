"""Which task of Spark a row goes to: that of its key group, which follows from its key's bytes.

Where keys are text or integers Spark makes their canonical bytes by itself, as msgpack has them,
and no row has to pass through Python for it; whoever reads the rows then proves the bytes.
"""

from penstock.savepoint.manifest import OperatorEntry, StateEntry
from penstock.schema import Schema
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so
from pyspark.sql import types as T  # noqa: N812  # the same

from penstock_spark.writing.keying import GROUP, RAW, ColumnKeying

WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_KNOWN: dict[type, Schema] = {
    T.StringType: Schema("str"),
    **dict.fromkeys(WHOLE, Schema("int")),
    T.BinaryType: Schema("bytes"),
    T.BooleanType: Schema("bool"),
    T.DateType: Schema("date"),
}


def type_of(frame: DataFrame, column: Column) -> T.DataType:
    """The type that Spark gives a column."""
    return frame.select(column).schema.fields[0].dataType


def key_schema_of(frame: DataFrame, key: Column) -> Schema | None:
    """The type of the keys in a column; None when it could be several."""
    return _KNOWN.get(type(type_of(frame, key)))


def with_keys(
    frame: DataFrame,
    column: str,
    operator: OperatorEntry,
    state: StateEntry,
    max_parallelism: int,
) -> DataFrame:
    """The rows with canonical bytes (RAW) and key group (GROUP) of the key in ``column``."""
    key = F.col(f"`{column}`")
    if state.key is not None and key_schema_of(frame, key) == state.key:
        made = {"str": _text, "int": _whole}.get(state.key.kind)
        if made is not None:
            frame = frame.withColumn(RAW, made(key))
            return frame.withColumn(GROUP, group_of(RAW, max_parallelism))
    keying = ColumnKeying(operator, state, column, max_parallelism)
    return frame.mapInArrow(keying.batches, keyed_schema(frame))


def keyed_schema(frame: DataFrame) -> T.StructType:
    """The columns of ``frame``, then GROUP and RAW."""
    fields = [T.StructField(GROUP, T.IntegerType()), T.StructField(RAW, T.BinaryType())]
    return T.StructType([*frame.schema.fields, *fields])


def group_of(raw: str, max_parallelism: int) -> Column:
    """The key group of the canonical bytes in a column."""
    return F.expr(f"cast(pmod(xxhash64(`{raw}`), {max_parallelism}) as int)")


def by_key(frame: DataFrame, group: str, tasks: int, max_parallelism: int) -> DataFrame:
    """The rows brought together: each task has a range of key groups."""
    task = F.expr(f"cast(`{group}` * {tasks} div {max_parallelism} as int)")
    return frame.repartitionById(tasks, task)


def _text(key: Column) -> Column:
    """Msgpack of text: its length, then its bytes."""
    size = F.octet_length(key)
    head = (
        F.when(size < 32, _digits(size + 0xA0, 2))
        .when(size < 1 << 8, F.concat(F.lit("D9"), _digits(size, 2)))
        .when(size < 1 << 16, F.concat(F.lit("DA"), _digits(size, 4)))
        .otherwise(F.concat(F.lit("DB"), _digits(size, 8)))
    )
    return F.concat(F.unhex(head), key.cast("binary"))


def _whole(key: Column) -> Column:
    """Msgpack of an integer: the shortest form that holds it."""
    key = key.cast("long")
    found = F.when(key.between(0, 127), _digits(key, 2)).when(key.between(-32, -1), _digits(key, 2))
    for mark, digits in (("CC", 2), ("CD", 4), ("CE", 8)):
        bound = 1 << 4 * digits
        found = found.when(key.between(128, bound - 1), F.concat(F.lit(mark), _digits(key, digits)))
    found = found.when(key > 127, F.concat(F.lit("CF"), _digits(key, 16)))
    for mark, digits in (("D0", 2), ("D1", 4), ("D2", 8)):
        bound = 1 << 4 * digits - 1
        found = found.when(key >= -bound, F.concat(F.lit(mark), _digits(key, digits)))
    return F.unhex(found.when(key.isNotNull(), F.concat(F.lit("D3"), _digits(key, 16))))


def _digits(number: Column, digits: int) -> Column:
    """The last hexadecimal digits of a number."""
    return F.right(F.lpad(F.hex(number), 16, "0"), F.lit(digits))
