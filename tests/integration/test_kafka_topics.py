"""Sources, edges, logs and topics on a real Kafka."""

import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from contract.kafka_broker import create_topic
from penstock.failure import ConfigurationError
from penstock.ids import Position
from penstock_kafka import KafkaCluster
from penstock_kafka.client import MAX_MESSAGE_BYTES

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(stack: Any) -> KafkaCluster:
    return KafkaCluster(stack.bootstrap)


@pytest.fixture
def app() -> str:
    return f"topics-{secrets.token_hex(4)}"


def fill(cluster: KafkaCluster, topic: str, counts: dict[int, int]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
    for partition, count in counts.items():
        for i in range(count):
            producer.produce(topic, b"v%d" % i, b"k%d" % i, partition, timestamp=1000 + i)
    assert producer.flush(30) == 0


def test_a_source_hands_out_columns_in_order_from_its_positions(
    cluster: KafkaCluster, app: str
) -> None:
    """L5: positions are the next offset, ours alone."""
    create_topic(cluster, app, 3)
    fill(cluster, app, {0: 500, 1: 300, 2: 100})
    reader = cluster.source_reader(
        app, {0: Position(100), 1: None, 2: Position(100)}, "earliest", "monitoring"
    )
    rows: dict[int, list[tuple[int, bytes | None, bytes | None, int]]] = {0: [], 1: [], 2: []}
    nexts = {}
    while sum(map(len, rows.values())) < 700:
        for run in reader.poll(64, 10):
            assert sum(1 for _ in run.values) <= 64
            assert len(run.messages) == len(run.keys) == len(run.values) == len(run.times)
            offsets = [reader.offset_of(message) for message in run.messages]
            rows[run.partition] += zip(offsets, run.keys, run.values, run.times, strict=True)
            nexts[run.partition] = run.next_position
    assert rows[0] == [(i, b"k%d" % i, b"v%d" % i, 1000 + i) for i in range(100, 500)]
    assert rows[1] == [(i, b"k%d" % i, b"v%d" % i, 1000 + i) for i in range(300)]
    assert rows[2] == []
    nexts.pop(2, None)  # a run that only says that the partition is at its end
    assert nexts == {0: 500, 1: 300}
    assert not any(run.values for run in reader.poll(64, 0.05))
    reader.commit_for_monitoring({0: Position(500), 1: Position(300)})
    reader.close()


def test_latest_is_resolved_when_the_reader_is_made(cluster: KafkaCluster, app: str) -> None:
    create_topic(cluster, app, 1)
    fill(cluster, app, {0: 10})
    reader = cluster.source_reader(app, {0: None}, "latest", "g")
    assert reader.started == {0: 10}
    fill(cluster, app, {0: 1})
    assert [run.next_position for run in records(reader)] == [11]
    reader.close()


def test_poll_returns_with_the_first_record(cluster: KafkaCluster, app: str) -> None:
    create_topic(cluster, app, 1)
    fill(cluster, app, {0: 1})
    reader = cluster.source_reader(app, {0: None}, "earliest", "g")
    assert records(reader)
    fill(cluster, app, {0: 1})
    started = time.monotonic()
    assert records(reader)
    assert time.monotonic() - started < 5
    reader.close()


def test_a_partition_is_at_its_end_when_everything_was_read(
    cluster: KafkaCluster, app: str
) -> None:
    """L20: only a partition that is known to hold nothing more may be idle."""
    create_topic(cluster, app, 3)
    fill(cluster, app, {0: 500, 1: 3})
    start = {0: Position(0), 1: Position(0), 2: Position(0)}
    reader = cluster.source_reader(app, start, "earliest", "g")
    at_end: dict[int, bool] = {}
    nexts: dict[int, int] = {}
    read_until(reader, at_end, nexts, lambda: at_end == {0: True, 1: True, 2: True})
    assert nexts == {0: 500, 1: 3, 2: 0}
    fill(cluster, app, {2: 1})
    at_end.clear()
    read_until(reader, at_end, nexts, lambda: nexts[2] == 1 and at_end == {2: True})
    reader.close()


def read_until(
    reader: Any, at_end: dict[int, bool], nexts: dict[int, int], done: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline, (at_end, nexts)
        for run in reader.poll(64, 0.2):
            assert run.values or run.is_at_end
            at_end[run.partition] = run.is_at_end
            nexts[run.partition] = run.next_position


def records(reader: Any) -> list[Any]:
    """The next runs that hold records: a run may also only say that its partition is at its end."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := [run for run in reader.poll(5000, 20) if run.values]:
            return found
    return []


@pytest.mark.parametrize(("stored", "cause"), [(3, "retention"), (99, "made anew")])
def test_a_source_position_that_is_gone(
    cluster: KafkaCluster, app: str, stored: int, cause: str
) -> None:
    create_topic(cluster, app, 2)
    fill(cluster, app, {0: 20, 1: 20})
    cluster.delete_before(app, {1: Position(5)})
    reader = cluster.source_reader(app, {0: Position(0), 1: Position(stored)}, "earliest", "g")
    text = rf"position {stored} of {app}\[1\] is gone: the topic holds offsets 5 to 20 .*{cause}"
    with pytest.raises(ConfigurationError, match=text):
        until_raised(reader)
    reader.close()


def until_raised(reader: Any) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        reader.poll(100, 0.2)


def test_unknown_topic_names_the_nearest(cluster: KafkaCluster, app: str) -> None:
    create_topic(cluster, f"{app}.words", 1)
    with pytest.raises(ConfigurationError, match=rf"'{app}\.wrds'.*nearest names: {app}\.words"):
        cluster.partitions(f"{app}.wrds")
    assert cluster.partitions(f"{app}.words") == 1


def test_unreachable_broker_names_address_and_cause() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ConfigurationError, match=rf"{address} cannot be reached.*refused"):
            KafkaCluster(address).check()
    assert time.monotonic() - started < 12


def test_edge_topics_are_made_verified_and_their_count_guarded(
    cluster: KafkaCluster, app: str
) -> None:
    for _ in range(2):
        cluster.ensure_edge(app, "words", 4)
        cluster.ensure_control_topics(app)
    assert cluster.partitions(f"{app}.edge.words") == 4
    assert cluster.partitions(f"{app}.witness") == 1
    admin = cluster._admin()._client
    grown = NewPartitions(f"{app}.edge.words", 6)
    admin.create_partitions([grown])[grown.topic].result()
    deadline = time.monotonic() + 10
    while cluster.partitions(grown.topic) != 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ConfigurationError, match=r"has 6 partitions.*built for 4"):
        cluster.ensure_edge(app, "words", 4)


def test_a_witness_topic_that_is_not_compacted_is_refused(cluster: KafkaCluster, app: str) -> None:
    create_topic(cluster, f"{app}.witness", 1)
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is delete, must be compact"):
        cluster.ensure_control_topics(app)


def test_transaction_timeout_is_the_brokers(cluster: KafkaCluster) -> None:
    assert cluster.transaction_timeout_ms() >= 60_000


def test_transaction_timeout_that_is_too_small_names_the_setting(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_kafka.admin.LEAST_TRANSACTION_TIMEOUT_MS", 10**12)
    with pytest.raises(ConfigurationError, match=r"broker \d+.*transaction\.max\.timeout\.ms="):
        cluster.transaction_timeout_ms()


def test_an_edge_keeps_order_takes_large_frames_and_seeks(cluster: KafkaCluster, app: str) -> None:
    """L6, L7, L9: in order per partition, and again from Kafka when asked."""
    cluster.ensure_edge(app, "e", 4)
    sender = cluster.edge_sender(app)
    large = secrets.token_bytes(MAX_MESSAGE_BYTES // 2)
    for i in range(400):
        sender.send("e", i % 4, b"%d" % i)
    sender.send("e", 3, large)
    sender.flush(30)
    sender.poll()
    assert cluster.end_positions(f"{app}.edge.e") == [100, 100, 100, 101]
    reader = cluster.edge_reader(app, "e", {p: Position(0) for p in range(4)})
    frames: dict[int, list[bytes]] = {p: [] for p in range(4)}
    while sum(map(len, frames.values())) < 401:
        for frame in reader.poll(50, 10):
            assert frame.offset == len(frames[frame.partition])
            frames[frame.partition].append(frame.data)
    assert frames[3][-1] == large
    assert frames[2] == [b"%d" % i for i in range(2, 400, 4)]
    reader.seek(2, Position(98))
    again: list[tuple[int, int]] = []
    while len(again) < 2:
        again += [(f.partition, f.offset) for f in reader.poll(50, 10)]
    assert again == [(2, 98), (2, 99)]
    cluster.delete_before(f"{app}.edge.e", {2: Position(99)})
    reader.seek(2, Position(99))
    assert [(f.partition, f.offset) for f in reader.poll(50, 10)] == [(2, 99)]
    reader.close()
    sender.close()


def test_one_hop_over_an_edge_takes_about_a_millisecond(cluster: KafkaCluster, app: str) -> None:
    """A sanity check, not a benchmark: 0.8-1.2 ms were measured."""
    cluster.ensure_edge(app, "e", 16)
    sender = cluster.edge_sender(app)
    reader = cluster.edge_reader(app, "e", {p: Position(0) for p in range(16)})
    hops_ms = []
    for i in range(200):
        started = time.perf_counter()
        sender.send("e", i % 16, b"x" * 500)
        sender.poll()
        while not reader.poll(10, 5):
            pass
        hops_ms.append((time.perf_counter() - started) * 1000)
    assert sorted(hops_ms)[100] < 20
    reader.close()
    sender.close()


def test_a_log_is_in_order_from_any_offset(cluster: KafkaCluster, app: str) -> None:
    """L1: one partition, one order, offsets told to the writer."""
    cluster.ensure_control_topics(app)
    topic = f"{app}.decisions"
    latest = cluster.log_reader(topic, "latest")
    writer = cluster.log_writer(topic)
    written: list[tuple[int | None, str | None]] = []
    for i in range(100):
        writer.append(b"%d" % i, lambda offset, error: written.append((offset, error)))
    writer.append(secrets.token_bytes(MAX_MESSAGE_BYTES // 2))
    writer.flush(30)
    assert written == [(i, None) for i in range(100)]
    for reader, first in (
        (latest, 0),
        (cluster.log_reader(topic, "earliest"), 0),
        (cluster.log_reader(topic, 40), 40),
    ):
        records: list[Any] = []
        while len(records) < 101 - first:
            records += reader.poll(10)
        assert [r.offset for r in records] == list(range(first, 101))
        assert [r.data for r in records[:-1]] == [b"%d" % i for i in range(first, 100)]
        reader.close()
    writer.close()


def test_an_oversize_log_record_is_told_to_its_writer(cluster: KafkaCluster, app: str) -> None:
    create_topic(cluster, f"{app}.log", 1, {"max.message.bytes": "1000"})
    writer = cluster.log_writer(f"{app}.log")
    told: list[Any] = []
    writer.append(secrets.token_bytes(5000), lambda offset, error: told.append((offset, error)))
    writer.flush(30)
    assert told[0][0] is None
    assert "MSG_SIZE_TOO_LARGE" in told[0][1]
    writer.close()
