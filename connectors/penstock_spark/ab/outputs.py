"""The records of a sink topic as typed rows: one column for each field of the value.

Beside the fields stand ``record_key`` (text, or hex where the bytes are no text), the place
(``record_partition``, ``record_offset``) and ``unparsed``: the value as it is, where it is not of
the sink's type.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
from penstock.failure import ConfigurationError
from penstock.schema import Schema
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from penstock_spark.ab.model import Compared
from penstock_spark.kafka_options import options_of, wanted_from

KEY, PLACE, UNPARSED = "record_key", ("record_partition", "record_offset"), "unparsed"
PARSED = ("json", "msgpack")
"""Serdes whose values have fields."""
_RESERVED = (KEY, *PLACE, UNPARSED)
_RECORDS = "key binary, value binary, partition int, offset bigint"
_DECIMAL = st.DecimalType(38, 18)
_PLAIN: dict[str, st.DataType] = {
    "bool": st.BooleanType(),
    "int": st.LongType(),
    "float": st.DoubleType(),
    "decimal": _DECIMAL,
}


def records(
    spark: SparkSession, topic: str, start: Mapping[int, int], env: Mapping[str, str]
) -> DataFrame:
    """The committed records of ``topic`` from ``start`` on; the cluster is that of ``env``."""
    positions = msgspec.json.encode({topic: dict(start)}).decode()
    wanted = wanted_from({"subscribe": topic, "startingOffsets": positions}, env)
    reader = spark.read.format("penstock_kafka").options(**options_of(wanted))
    return reader.schema(_RECORDS).load()


def rows(found: DataFrame, serde: str, kind: st.DataType | None) -> DataFrame:
    """The typed rows of ``records``; ``kind`` is the values' type; string and bytes need none."""
    if serde not in PARSED:
        value = sf.col("value").cast("string") if serde == "string" else sf.col("value")
        return found.select(*_places(), value.alias("value"))
    if kind is None:
        raise ConfigurationError(f"values of serde {serde!r} need a type; infer one")
    text = _texts(found, serde)
    shape = (
        kind if isinstance(kind, st.StructType) else st.StructType([st.StructField("value", kind)])
    )
    corrupt = _free("_corrupt_record", shape.names)
    with_corrupt = st.StructType([*shape.fields, st.StructField(corrupt, st.StringType())])
    source = sf.col("text")
    if shape is not kind:
        source = sf.concat(sf.lit('{"value":'), source, sf.lit("}"))
    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    parsed = text.select(
        *_places(),
        sf.col("text"),
        sf.from_json(source, with_corrupt, how).alias("parsed"),
    )
    wrong = sf.col("parsed").getField(corrupt).isNotNull()
    return parsed.select(
        *(KEY, *PLACE),
        *(
            sf.col("parsed").getField(name).alias(f"value_{name}" if name in _RESERVED else name)
            for name in shape.names
        ),
        sf.when(wrong, sf.col("text")).alias(UNPARSED),
    )


def with_parsed(found: Compared) -> Compared:
    """The comparison without the column ``unparsed``, unless some value is."""
    if any(c.name == UNPARSED and c.rows for c in found.columns) or any(
        name == UNPARSED and (a or b) for e in found.examples for name, a, b in e.values
    ):
        return found
    return msgspec.structs.replace(
        found,
        columns=tuple(c for c in found.columns if c.name != UNPARSED),
        examples=tuple(
            msgspec.structs.replace(e, values=tuple(v for v in e.values if v[0] != UNPARSED))
            for e in found.examples
        ),
    )


def inferred(found: Iterable[tuple[DataFrame, str]]) -> st.DataType:
    """A type that fits all values of these (records, serde), found by reading them once."""
    wrapped = [
        _texts(records, serde)
        .filter("text is not null")
        .select(sf.concat(sf.lit('{"value":'), "text", sf.lit("}")).alias("text"))
        for records, serde in found
    ]
    texts = wrapped[0]
    for more in wrapped[1:]:
        texts = texts.union(more)
    shape = texts.sparkSession.read.json(texts).schema
    return shape["value"].dataType if "value" in shape.names else st.StructType()


def json_type(schema: Schema) -> st.DataType | None:
    """The Spark type of the JSON of ``schema``; None when only the data can tell.

    What has no type of its own in Spark, such as a union, is compared as its JSON text.
    """
    match schema.kind:
        case "any" | "none":
            return None
        case "enum":
            whole = all(isinstance(value, int) for value in schema.values)
            return st.LongType() if whole else st.StringType()
        case "list" | "set":
            return st.ArrayType(json_type(schema.items[0]) or st.StringType())
        case "map":
            return st.MapType(st.StringType(), json_type(schema.items[1]) or st.StringType())
        case "struct" if not schema.array_like:
            fields = [] if schema.tag_field is None else [(schema.tag_field, None)]
            found = st.StructType()
            for name, kind in [*fields, *((each.name, each.type) for each in schema.fields)]:
                found.add(name, (kind and json_type(kind)) or st.StringType())
            return found
    return _PLAIN.get(schema.kind, st.StringType())


def _places() -> list[Column]:
    """Key and place of a record."""
    text = sf.try_validate_utf8(sf.col("key").cast("string"))
    key = sf.coalesce(text, sf.concat(sf.lit("0x"), sf.hex("key")))
    return [key.alias(KEY), sf.col("partition").alias(PLACE[0]), sf.col("offset").alias(PLACE[1])]


def _texts(found: DataFrame, serde: str) -> DataFrame:
    """The records with the JSON text of their value as the column ``text``."""
    if serde == "json":
        return found.withColumn("text", sf.col("value").cast("string"))
    kinds = f"{_RECORDS}, text string"
    return found.mapInArrow(_with_json, kinds)


def _with_json(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Msgpack values as JSON text; what is no msgpack as a text that is no JSON."""
    for batch in batches:
        texts = [_as_json(value) for value in batch.column("value").to_pylist()]
        yield batch.append_column("text", pa.array(texts, pa.string()))


def _as_json(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(value)).decode()
    except (msgspec.MsgspecError, TypeError, ValueError):
        return f"0x{value.hex()}"


def _free(name: str, taken: Iterable[str]) -> str:
    while name in taken:
        name += "_"
    return name
