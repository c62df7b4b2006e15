"""A real Kafka for the contract of transactions: each owner is a process that can be killed."""

import multiprocessing
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic
from penstock.control import Committable
from penstock.ids import CheckpointId, transactional_id, transactional_prefix
from penstock.runtime.ports import Outcome
from penstock_kafka import KafkaCluster

TIMEOUT_MS = 60_000


def own(pipe: Any, cluster: KafkaCluster, arguments: tuple[str, str, str, int]) -> None:
    """The life of an owner's process: one call after another until it is killed."""
    producer = cluster.sink_producer(*arguments)
    while True:
        call, *args = pipe.recv()
        try:
            if call == "write":
                values = [value.encode() for value in args[0]]
                pipe.send((None, producer.write([None] * len(values), values, None)))
            else:
                pipe.send((None, getattr(producer, call)(*args)))
        except Exception as error:
            pipe.send((error, None))


class KafkaOwner:
    """A sink producer in a process of its own."""

    def __init__(
        self, cluster: KafkaCluster, app: str, topic: str, name: str, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=own, args=(theirs, cluster, (app, topic, name, timeout_ms)), daemon=True
        )
        self._process.start()
        theirs.close()
        self.call("open")

    def call(self, name: str, *args: Any) -> Any:
        self._pipe.send((name, *args))
        if not self._pipe.poll(60):
            raise AssertionError(f"{name} does not come back")
        error, result = self._pipe.recv()
        if error is not None:
            raise error
        return result

    def begin(self) -> None:
        self.call("begin")

    def write(self, values: list[str]) -> None:
        self.call("write", values)

    def precommit(self, checkpoint: int) -> Committable:
        found = self.call("precommit", checkpoint)
        assert isinstance(found, Committable)
        return found

    def commit(self) -> bool:
        return bool(self.call("commit"))

    def kill(self) -> None:
        self._process.kill()
        self._process.join(10)
        self._pipe.close()


class KafkaBroker:
    """One application on a real cluster, with a sink topic of one partition."""

    def __init__(self, cluster: KafkaCluster, app: str) -> None:
        self.cluster = cluster
        self.app = app
        self.topic = f"{app}-out"
        self._owners: list[KafkaOwner] = []
        self._recovery = cluster.recovery(app)
        cluster.ensure_control_topics(app)
        create_topic(cluster, self.topic, 1)

    def name(self, slot: int) -> str:
        return transactional_id(self.app, "sink", 0, slot)

    def open(self, slot: int, timeout_ms: int = TIMEOUT_MS) -> KafkaOwner:
        owner = KafkaOwner(self.cluster, self.app, self.topic, self.name(slot), timeout_ms)
        self._owners.append(owner)
        return owner

    def recover(self, transaction: Committable) -> Outcome:
        return self._recovery.commit(transaction)

    def fence(self, slots: Iterable[int]) -> None:
        self._recovery.fence(self.name(slot) for slot in slots)

    def witnesses(self) -> dict[int, int]:
        return {self._slot(name): int(n) for name, n in self._recovery.witnesses().items()}

    def open_transactions(self) -> set[int]:
        return {self._slot(name) for name in self._decided()}

    def _decided(self) -> dict[str, str]:
        """Transactions still open, once the markers of the ended ones are written.

        EndTxn answers when the decision is durable; readers see it some milliseconds later.
        """
        deadline = time.monotonic() + 30
        while True:
            found = self._recovery.open_transactions(transactional_prefix(self.app))
            if set(found.values()) <= {"Ongoing"}:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"markers are not written: {found}")
            time.sleep(0.01)

    def _slot(self, name: str) -> int:
        return int(name.rpartition("!")[2])

    def read_committed(self) -> list[str]:
        self._decided()
        return read_all(self.cluster, self.topic, "read_committed")

    def read_uncommitted(self) -> list[str]:
        return read_all(self.cluster, self.topic, "read_uncommitted")

    def forgotten(self) -> Committable:
        return Committable(
            transactional_id=transactional_id(self.app, "never", 0, 0),
            producer_id=1,
            producer_epoch=0,
            checkpoint=CheckpointId(1),
            topic=self.topic,
            partitions=(0,),
            records=1,
        )

    def close(self) -> None:
        for owner in self._owners:
            owner.kill()
        self._recovery.close()


def create_topic(
    cluster: KafkaCluster, topic: str, partitions: int, config: dict[str, str] | None = None
) -> None:
    """A topic made by the user, ready to use."""
    admin = cluster._admin()._client  # another one would go on alone when a test stops the broker
    admin.create_topics([NewTopic(topic, partitions, 1, config=config or {})])[topic].result()
    cluster.end_positions(topic)


def read_all(cluster: KafkaCluster, topic: str, isolation: str) -> list[str]:
    """The values of partition 0 up to what this isolation may see, by an independent reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    try:
        while (message := consumer.poll(20)) is not None:
            if message.error() is not None:
                return values
            values.append((message.value() or b"").decode())
    finally:
        consumer.close()
    raise AssertionError(f"{topic} cannot be read to its end")
