"""Topics as Spark DataFrames: ``spark.read.format("penstock_kafka")``, without a JVM connector.

The columns are those of Spark's own Kafka source, so that one stands where the other does:
``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType`` and, when
asked for, ``headers``. A schema of some of them reads only these.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # the package does not export its names
from penstock.failure import ConfigurationError
from penstock_kafka.client import Errors, failure
from penstock_kafka.settings import librdkafka
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock_spark.kafka_offsets import Held, OffsetRange, planned, sliced
from penstock_spark.kafka_options import NAME, Wanted, wanted_from
from penstock_spark.kafka_slice import batches

_CALL_S = 30.0
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]
_HEADERS = StructField("headers", ArrayType(_HEADER))


class KafkaTopics(DataSource):
    """The data source ``penstock_kafka``; see `penstock_spark.kafka_options` for its options."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._wanted = wanted_from(options, os.environ)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType:
        """Spark's Kafka columns."""
        return StructType([*_COLUMNS, _HEADERS] if self._wanted.with_headers else _COLUMNS)

    def reader(self, schema: StructType) -> "KafkaTopicsReader":
        """A reader of the columns of ``schema``."""
        there = {field.name: field for field in (*_COLUMNS, _HEADERS)}
        for field in schema.fields:
            has = there.get(field.name)
            if has is None or has.dataType != field.dataType:
                raise ConfigurationError(
                    f"{NAME} has no column {field.name} {field.dataType.simpleString()}; it has "
                    + ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in there.values())
                )
        return KafkaTopicsReader(self._wanted, schema)


class TopicSlice(InputPartition):
    """A slice of a topic's partition, read by one task."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__(tuple(part))
        self.part = part


class KafkaTopicsReader(DataSourceReader):
    """Plans the slices once, then reads each in its task."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._wanted = wanted
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """One slice for each task."""
        parts = sliced(planned(self._wanted, held(self._wanted)), self._wanted.rows_per_slice)
        return [TopicSlice(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a slice; none for the empty plan, which Spark shows as a plain one."""
        if not isinstance(partition, TopicSlice):
            return iter(())
        return batches(self._wanted, partition.part, arrow_schema(self._schema))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a data source."""
    return to_arrow_schema(schema, timezone="UTC")


def held(wanted: Wanted) -> dict[str, dict[int, Held]]:
    """What the topics hold now: topic -> partition -> offsets.

    Raises ConfigurationError for a topic that does not exist, TransportFailed without an answer.
    """
    cluster = wanted.cluster
    counts = {topic: cluster.partitions(topic) for topic in wanted.topics}
    settings = librdkafka(cluster.bootstrap, dict(cluster.settings)) | {"error_cb": Errors()}
    client = AdminClient(settings)
    committed, all_records = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
    spec: Any = OffsetSpec
    low = _offsets(client, counts, spec.earliest(), all_records)
    high = _offsets(client, counts, spec.latest(), all_records)
    stable = _offsets(client, counts, spec.latest(), committed) if wanted.is_committed else high
    since: dict[tuple[str, int], int] = {}
    if wanted.starting_ms is not None:
        since = _offsets(client, counts, spec.for_timestamp(wanted.starting_ms), all_records)
    return {
        topic: {
            p: Held(low[topic, p], stable[topic, p], high[topic, p], _since(since, topic, p, high))
            for p in range(count)
        }
        for topic, count in counts.items()
    }


def _since(
    since: dict[tuple[str, int], int], topic: str, partition: int, high: dict[tuple[str, int], int]
) -> int | None:
    found = since.get((topic, partition))
    return high[topic, partition] if found is not None and found < 0 else found


def _offsets(
    client: AdminClient, counts: dict[str, int], spec: Any, isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    wanted: dict[Any, Any] = {
        TopicPartition(topic, partition): spec
        for topic, count in counts.items()
        for partition in range(count)
    }
    futures: dict[TopicPartition, Future[Any]] = client.list_offsets(
        wanted, isolation_level=isolation, request_timeout=_CALL_S
    )
    try:
        return {
            (at.topic, at.partition): int(future.result(2 * _CALL_S).offset)
            for at, future in futures.items()
        }
    except KafkaException as error:
        raise failure(f"the offsets of {', '.join(counts)} cannot be read", error) from None
