"""Makes the word count's topics, and fills the first one when it was not there before."""

import os
from itertools import islice

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its own documented place
    AdminClient,
    NewTopic,
)
from wordcount.lines import standard_library_lines

PARTITIONS = 4
BOOTSTRAP = os.environ["PENSTOCK_BOOTSTRAP"]
LINES = int(os.environ.get("PENSTOCK_INPUT_LINES") or 0) or None
"""How many lines to write; all of them when it is not set."""


def make_topics(*topics: str) -> set[str]:
    """Create the topics that are not there; the ones that were made."""
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
    made = set()
    wanted = [NewTopic(topic, PARTITIONS, 1) for topic in topics]
    for topic, answer in admin.create_topics(wanted).items():
        try:
            answer.result(30)
            made.add(topic)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    return made


def fill(topic: str) -> int:
    """Write the lines of Python's standard library to ``topic``; the number of lines."""
    producer = Producer(
        {"bootstrap.servers": BOOTSTRAP, "linger.ms": 20, "compression.type": "lz4"}
    )
    count = 0
    for line in islice(standard_library_lines(), LINES):
        producer.produce(topic, line, partition=count % PARTITIONS)
        count += 1
        if count % 10_000 == 0:
            producer.flush(60)
    if left := producer.flush(60):
        raise SystemExit(f"{left} lines could not be written to the topic {topic!r}")
    return count


if __name__ == "__main__":
    if "lines" in make_topics("lines", "counts"):
        print(f"wrote {fill('lines')} lines to the topic 'lines'")
