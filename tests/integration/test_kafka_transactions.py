"""Transactions on a real Kafka: the contract, and E1-E14 of docs/concepts/sinks.md.

Laws L13 to L17: pre-commit, commit and recovery from another process, witness, fencing.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from contract.broker import CONTRACT, Check, prepared
from contract.kafka_broker import KafkaBroker, create_topic, read_all
from penstock.failure import ConfigurationError, TransportFailed
from penstock.ids import CheckpointId, transactional_id, transactional_prefix
from penstock.runtime.ports import Outcome
from penstock_kafka import KafkaCluster
from penstock_kafka.wire import Wire

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster(stack: Any) -> KafkaCluster:
    return KafkaCluster(stack.bootstrap)


@pytest.fixture
def broker(cluster: KafkaCluster) -> Iterator[KafkaBroker]:
    opened = KafkaBroker(cluster, f"tx-{secrets.token_hex(4)}")
    yield opened
    opened.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(broker: KafkaBroker, check: Check) -> None:
    check(broker)


def ended(broker: KafkaBroker, transaction: Any, *, commit: bool) -> int:
    with Wire(broker.cluster.bootstrap, {}, 30) as wire:
        return wire.end(
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            commit=commit,
        )


def test_e1_double_commit_and_abort_matrix(broker: KafkaBroker) -> None:
    """After commit: commit NONE, abort INVALID_TXN_STATE. After abort: the other way round."""
    owner, kept = prepared(broker, 0, ["a"])
    owner.kill()
    assert [ended(broker, kept, commit=c) for c in (True, True, False)] == [0, 0, 48]
    owner, dropped = prepared(broker, 1, ["b"])
    owner.kill()
    assert [ended(broker, dropped, commit=c) for c in (False, False, True)] == [0, 0, 48]
    assert broker.recover(dropped) is Outcome.AMBIGUOUS
    assert broker.read_committed() == ["a"]
    assert broker.witnesses() == {0: 7}


def test_the_stored_identity_is_the_brokers(broker: KafkaBroker) -> None:
    """L13: producer id and epoch in the snapshot are the ones this very producer uses."""
    for epoch in range(3):
        owner, transaction = prepared(broker, 0, ["a"])
        with Wire(broker.cluster.bootstrap, {}, 30) as wire:
            code, state = wire.describe(transaction.transactional_id)
        assert (code, state.transaction_state) == (0, "Ongoing")
        assert transaction.producer_id == state.producer_id
        assert transaction.producer_epoch == state.producer_epoch >= epoch
        owner.kill()


def test_e4_a_transaction_that_timed_out_is_ambiguous_and_unwitnessed(broker: KafkaBroker) -> None:
    owner = broker.open(0, timeout_ms=1500)
    owner.begin()
    owner.write(["late"])
    transaction = owner.precommit(7)
    owner.kill()
    deadline = time.monotonic() + 40
    while broker.open_transactions() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert broker.recover(transaction) is Outcome.AMBIGUOUS
    assert broker.witnesses() == {}
    assert broker.read_committed() == []


def test_a_transaction_timeout_over_the_brokers_names_the_setting(broker: KafkaBroker) -> None:
    producer = broker.cluster.sink_producer(broker.app, broker.topic, broker.name(0), 900_001)
    with pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms"):
        producer.open()
    producer.close()


def test_e14_an_oversize_record_fails_the_precommit(broker: KafkaBroker) -> None:
    """L13: an empty queue is not proof; the broker itself would accept the commit."""
    small = f"{broker.app}-small"
    create_topic(broker.cluster, small, 1, {"max.message.bytes": "1000"})
    producer = broker.cluster.sink_producer(broker.app, small, broker.name(0), 60_000)
    producer.open()
    producer.begin()
    producer.write([None, None], [b"fits", secrets.token_bytes(5000)], None)
    with pytest.raises(TransportFailed, match=rf"{small}\[0\].*MSG_SIZE_TOO_LARGE"):
        producer.precommit(CheckpointId(7))
    producer.close()
    broker.fence([0])
    assert read_all(broker.cluster, small, "read_committed") == []


def test_a_sink_topic_that_does_not_exist(broker: KafkaBroker) -> None:
    producer = broker.cluster.sink_producer(broker.app, "nowhere", broker.name(0), 60_000)
    with pytest.raises(ConfigurationError, match="sink topic 'nowhere' does not exist"):
        producer.open()
    producer.close()


def test_keys_partition_as_javas_and_timestamps_are_kept(broker: KafkaBroker) -> None:
    """murmur2 of the default Java partitioner; with and without timestamps alike."""
    topic = f"{broker.app}-keyed"
    create_topic(broker.cluster, topic, 4)
    producer = broker.cluster.sink_producer(broker.app, topic, broker.name(0), 60_000)
    producer.open()
    producer.begin()
    keys: list[bytes | None] = [b"21", b"foobar", b"a-little-bit-long-string", b"abc"]
    producer.write(keys, [b"v"] * 4, [1_000_000, 1_000_001, 1_000_002, 1_000_003])
    producer.write(keys, [None] * 4, None)
    transaction = producer.precommit(CheckpointId(7))
    assert transaction.partitions == (0, 1, 2, 3)
    assert transaction.records == 8
    assert producer.commit() is True
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
              b"abc": 479470107}  # fmt: skip  # of Kafka's own UtilsTest
    reader = broker.cluster.source_reader(
        topic, dict.fromkeys(range(4)), "earliest", "test", want_keys=True
    )
    seen: dict[bytes | None, list[tuple[int, int, bytes | None]]] = {}
    while sum(map(len, seen.values())) < 8:
        for run in reader.poll(100, 10):
            for key, value, at in zip(run.keys, run.values, run.times, strict=True):
                seen.setdefault(key, []).append((run.partition, at, value))
    reader.close()
    producer.close()
    now = time.time() * 1000
    for i, key in enumerate(keys):
        (first, at, value), (second, later, tombstone) = seen[key]
        assert first == second == (hashes[key or b""] & 0x7FFFFFFF) % 4
        assert (at, value, tombstone) == (1_000_000 + i, b"v", None)
        assert abs(now - later) < 60_000


def test_many_ids_are_fenced_quickly(broker: KafkaBroker) -> None:
    owner, _ = prepared(broker, 3, ["gone"])
    owner.kill()
    started = time.monotonic()
    broker.fence(range(200))
    assert time.monotonic() - started < 10
    prefix = transactional_prefix(broker.app)
    with_prefix = broker.cluster.recovery(broker.app)
    assert with_prefix.transactional_ids(prefix) == {broker.name(i) for i in range(200)}
    assert with_prefix.transactional_ids(transactional_prefix(broker.app[:-1])) == set()
    with_prefix.close()


def test_witnesses_are_read_to_an_end_of_aborted_and_control_records(broker: KafkaBroker) -> None:
    """L15: the end of the log is markers and aborted records; all before it is seen."""
    owner = broker.open(0)
    for n in range(1, 4):
        owner.begin()
        owner.precommit(n)
        owner.commit()
    for slot in (1, 2):
        prepared(broker, slot, ["x"])[0].kill()
    broker.fence([1, 2])
    assert broker.witnesses() == {0: 3}


def test_a_closed_producer_leaves_its_transaction_to_recovery(broker: KafkaBroker) -> None:
    """L14: closing must not abort what is pre-committed."""
    producer = broker.cluster.sink_producer(broker.app, broker.topic, broker.name(0), 60_000)
    producer.open()
    producer.begin()
    producer.write([None], [b"kept"], None)
    transaction = producer.precommit(CheckpointId(7))
    producer.close()
    time.sleep(1)
    assert broker.open_transactions() == {0}
    assert broker.recover(transaction) is Outcome.COMMITTED
    assert broker.read_committed() == ["kept"]


@pytest.mark.timeout(300)
def test_a_producer_that_lost_a_connection_is_not_used_again(
    stack: Any, broker: KafkaBroker
) -> None:
    """L17: committed for certain, but something may still be on its way."""
    producer = broker.cluster.sink_producer(broker.app, broker.topic, broker.name(0), 60_000)
    producer.open()
    producer.begin()
    producer.write([None], [b"a"], None)
    producer.precommit(CheckpointId(7))
    stack.kafka_kill()
    stack.kafka_start()
    assert producer.commit() is False
    assert broker.read_committed() == ["a"]
    producer.close()


@pytest.mark.timeout(300)
def test_e13_broker_killed_around_the_recoverys_commit(stack: Any, broker: KafkaBroker) -> None:
    """The same EndTxn again after the restart: exactly once, whether the first arrived or not."""
    owners = [prepared(broker, slot, [f"{slot}-{i}" for i in range(10)]) for slot in range(6)]
    for owner, _ in owners:
        owner.kill()
    answers: list[Outcome] = []
    recovery = broker.cluster.recovery(broker.app, timeout_s=200)
    worker = threading.Thread(
        target=lambda: answers.extend(recovery.commit(t) for _, t in owners), daemon=True
    )
    worker.start()
    stack.kafka_kill()
    stack.kafka_start()
    worker.join(200)
    recovery.close()
    assert answers == [Outcome.COMMITTED] * 6
    assert sorted(broker.read_committed()) == sorted(
        f"{s}-{i}" for s in range(6) for i in range(10)
    )
    assert broker.open_transactions() == set()


def test_names_of_other_applications_are_not_touched(broker: KafkaBroker) -> None:
    """L16: `x` and `x-1` share letters, and nothing else."""
    longer = transactional_id(f"{broker.app}-1", "sink", 0, 0)
    assert not longer.startswith(transactional_prefix(broker.app))
