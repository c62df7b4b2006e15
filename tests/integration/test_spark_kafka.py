"""format("penstock_kafka") on a real Kafka: what is committed, each record once, ends exactly."""

import datetime as dt
import secrets
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from contract.kafka_broker import create_topic
from penstock.failure import ConfigurationError, TransportFailed
from penstock.ids import Position
from penstock_kafka import KafkaCluster
from penstock_spark.kafka_offsets import OffsetRange, planned, sliced
from penstock_spark.kafka_options import Wanted, wanted_from
from penstock_spark.kafka_slice import batches
from penstock_spark.kafka_source import held

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

COLUMNS = pa.schema([("value", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64())])


@pytest.fixture
def cluster(stack: Any) -> KafkaCluster:
    return KafkaCluster(stack.bootstrap)


@pytest.fixture
def topic(cluster: KafkaCluster) -> str:
    name = f"spark-{secrets.token_hex(4)}"
    create_topic(cluster, name, 2)
    return name


class Transactions:
    """A transactional producer to partition 0, whose records are numbered."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"tx-{topic}"}
        )
        self._producer.init_transactions(30)
        self._number = 0

    def begin(self, count: int) -> list[bytes]:
        """Open a transaction and write ``count`` records into it."""
        self._producer.begin_transaction()
        values = [b"%d" % (self._number + i) for i in range(count)]
        self._number += count
        for value in values:
            self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(30) == 0
        return values

    def commit(self, count: int) -> list[bytes]:
        values = self.begin(count)
        self.end()
        return values

    def end(self) -> None:
        self._producer.commit_transaction(30)

    def abort(self, count: int) -> list[bytes]:
        values = self.begin(count)
        self._producer.abort_transaction(30)
        return values


@pytest.fixture
def transactions(cluster: KafkaCluster, topic: str) -> Transactions:
    return Transactions(cluster, topic)


def asked(cluster: KafkaCluster, *topics: str, **options: Any) -> Wanted:
    given = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": ",".join(topics)}
    return wanted_from({**given, **{name: str(value) for name, value in options.items()}}, {})


def settled(wanted: Wanted, stable: int) -> None:
    """Wait until the end for readers of partition 0 is ``stable``: markers come a moment later."""
    deadline = time.monotonic() + 20
    while held(wanted)[wanted.topics[0]][0].stable != stable:
        if time.monotonic() > deadline:
            raise AssertionError(held(wanted))
        time.sleep(0.05)


def rows(wanted: Wanted) -> Iterator[tuple[bytes, int, int]]:
    for part in sliced(planned(wanted, held(wanted)), wanted.rows_per_slice):
        for batch in batches(wanted, part, COLUMNS):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def values(wanted: Wanted) -> list[bytes]:
    return [value for value, _, _ in rows(wanted)]


def plain(cluster: KafkaCluster, topic: str, *found: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for value in found:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def test_only_what_is_committed_and_before_the_first_open_transaction(
    cluster: KafkaCluster, topic: str, transactions: Transactions
) -> None:
    first = transactions.commit(10)  # 0-9, marker 10
    aborted = transactions.abort(7)  # 11-17, marker 18
    second = transactions.commit(5)  # 19-23, marker 24
    undecided = transactions.begin(3)  # 25-27
    plain(cluster, topic, b"behind")  # 28
    committed = asked(cluster, topic)
    settled(committed, 25)
    assert values(committed) == first + second
    dirty = asked(cluster, topic, isolationLevel="read_uncommitted")
    assert values(dirty) == [*first, *aborted, *second, *undecided, b"behind"]
    beyond = asked(cluster, topic, endingOffsets=f'{{"{topic}":{{"0":28,"1":-1}}}}')
    with pytest.raises(ConfigurationError, match="open transaction, which begins at 25"):
        values(beyond)
    transactions.end()
    settled(committed, 30)
    assert values(committed) == [*first, *second, *undecided, b"behind"]
    assert values(beyond) == [*first, *second, *undecided]


def test_every_cut_gives_every_record_once_whatever_lies_at_the_cut(
    cluster: KafkaCluster, topic: str, transactions: Transactions
) -> None:
    """Cuts fall among aborted records, on markers and behind the last record."""
    expected = transactions.commit(4)
    transactions.abort(6)
    expected += transactions.commit(1)
    transactions.abort(3)
    plain(cluster, topic, b"x", b"y")
    expected += [b"x", b"y"]
    transactions.abort(5)  # the last record is none
    settled(asked(cluster, topic), 26)
    for size in (1, 2, 3, 5, 7, 12, 13, 25):
        assert values(asked(cluster, topic, rowsPerPartition=size)) == expected, size
    everything = list(rows(asked(cluster, topic)))
    for end in range(27):
        until = asked(cluster, topic, endingOffsets=f'{{"{topic}":{{"0":{end},"1":0}}}}')
        assert list(rows(until)) == [row for row in everything if row[2] < end], end


def test_a_range_ends_though_nothing_of_it_is_ever_delivered(
    cluster: KafkaCluster, topic: str, transactions: Transactions
) -> None:
    transactions.abort(500)
    settled(asked(cluster, topic), 501)
    before = time.monotonic()
    assert values(asked(cluster, topic)) == []
    assert time.monotonic() - before < 10


def test_records_that_are_gone_are_an_error_and_never_left_out(
    cluster: KafkaCluster, topic: str
) -> None:
    plain(cluster, topic, *(b"%d" % i for i in range(100)))
    wanted = asked(cluster, topic)
    (part,) = planned(wanted, held(wanted))
    assert part == OffsetRange(topic, 0, 0, 100)
    cluster.delete_before(topic, {0: Position(40)})
    with pytest.raises(ConfigurationError, match=r"offset 0 of .* is gone; it begins at 40"):
        list(batches(wanted, part, COLUMNS))  # planned before, read after they went
    offsets = f'{{"{topic}":{{"0":10,"1":0}}}}'
    with pytest.raises(ConfigurationError, match=r"offset 10 of .* is gone; it begins at 40"):
        values(asked(cluster, topic, startingOffsets=offsets))
    rest = [b"%d" % i for i in range(40, 100)]
    accepting = asked(cluster, topic, startingOffsets=offsets, failOnDataLoss="false")
    assert values(accepting) == rest
    late = [b for batch in batches(accepting, part, COLUMNS) for b in batch["value"].to_pylist()]
    assert late == rest
    assert values(asked(cluster, topic)) == rest


def test_a_silent_broker_is_an_error_after_a_while(cluster: KafkaCluster, topic: str) -> None:
    plain(cluster, topic, b"a")
    wanted = asked(cluster, topic, pollTimeoutMs=2000)
    with pytest.raises(TransportFailed, match="nothing came for 2 s at offset 1 of the range 0"):
        list(batches(wanted, OffsetRange(topic, 0, 0, 5), COLUMNS))  # an end that never comes


def test_a_topic_that_does_not_exist_is_named(cluster: KafkaCluster, topic: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{topic}s' does not exist.*{topic}"):
        held(asked(cluster, f"{topic}s"))


def test_spark_reads_topics_with_the_columns_of_its_own_source(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    other = f"{topic}-other"
    create_topic(cluster, other, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for i in range(300):
        producer.produce(topic, b"v%d" % i, b"k%d" % i, i % 2, timestamp=1_000_000 + i)
    producer.produce(other, None, b"gone", 0, timestamp=5, headers=[("h", b"1"), ("h", None)])
    assert producer.flush(30) == 0
    source = spark.read.format("penstock_kafka").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": f"{topic},{other}"}
    )
    frame = source.option("includeHeaders", "true").option("rowsPerPartition", "60").load()
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert frame.rdd.getNumPartitions() == 7
    found = frame.orderBy("topic", "partition", "offset").toArrow().to_pylist()
    assert len(found) == 301
    assert [row["value"] for row in found[:150]] == [b"v%d" % i for i in range(0, 300, 2)]
    assert found[1] == {
        "key": b"k2",
        "value": b"v2",
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "timestamp": dt.datetime.fromtimestamp(1000.002, dt.UTC),
        "timestampType": 0,
        "headers": None,
    }
    gone = found[-1]
    assert (gone["key"], gone["value"], gone["topic"]) == (b"gone", None, other)
    assert gone["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    young = source.option("startingTimestamp", "1000290").load()
    assert sorted(row.value for row in young.collect()) == sorted(
        b"v%d" % i for i in range(290, 300)
    )


def test_spark_reads_only_the_columns_of_a_schema(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    plain(cluster, topic, b"a", b"b", partition=1)
    source = spark.read.format("penstock_kafka").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    )
    found = source.schema("offset bigint, value binary").load().collect()
    assert [tuple(row) for row in found] == [(0, b"a"), (1, b"b")]
    with pytest.raises(Exception, match=r"has no column value string; it has key binary"):
        source.schema("value string").load().collect()


def test_spark_shows_an_empty_topic_and_the_errors(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    def source(name: str = "startingOffsets", value: str = "earliest") -> Any:
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
        return spark.read.format("penstock_kafka").options(**options).option(name, value)

    assert source().load().count() == 0
    with pytest.raises(Exception, match=r"unknown option 'startoffsets'"):
        source("startOffsets").load()
    with pytest.raises(Exception, match=r"offset 7 of .* is gone; it ends at 0"):
        source(value=f'{{"{topic}":{{"0":7,"1":0}}}}').load().count()
