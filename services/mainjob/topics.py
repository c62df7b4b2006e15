"""The job's topics: made, and filled as fast as the client can."""

from collections.abc import Iterable
from itertools import islice

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its own documented place
    AdminClient,
    NewTopic,
)

from mainjob.failure import JobFailed

PARTITIONS = 4
QUEUE = 400_000
PRODUCER = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "enable.idempotence": True,
    "queue.buffering.max.messages": 2 * QUEUE,
    "delivery.report.only.error": True,
}


def create_topics(bootstrap: str, *, sources: list[str], sinks: list[str]) -> None:
    """Create the source and sink topics.

    Sinks take the broker's append time: the reader then knows what was written after a kill.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    by_broker = {"message.timestamp.type": "LogAppendTime"}
    wanted = [NewTopic(name, PARTITIONS, 1) for name in sources]
    wanted += [NewTopic(name, PARTITIONS, 1, config=by_broker) for name in sinks]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def fill(bootstrap: str, topic: str, values: Iterable[bytes]) -> None:
    """Write all ``values`` to ``topic``, spread over its partitions."""
    producer = Producer({**PRODUCER, "bootstrap.servers": bootstrap})
    rest = iter(values)
    written = 0
    while batch := [{"value": value} for value in islice(rest, 2000)]:
        while len(producer) > QUEUE:
            producer.poll(0.05)
        partition = written // 2000 % PARTITIONS
        if producer.produce_batch(topic, batch, partition=partition) != len(batch):
            raise JobFailed(f"Kafka's client refused records of topic {topic!r}")
        written += len(batch)
    if left := producer.flush(60):
        raise JobFailed(f"{left} records of topic {topic!r} could not be written within 60 s")
