"""What is measured: a keyed running sum over JSON orders, its input, and the check of it all."""

import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

INPUT_PARTITIONS = 4
OUTPUT_PARTITIONS = 4
EDGE_PARTITIONS = 16
KEYS = 10_000
STALL_S = 60.0
READER = {
    "enable.auto.commit": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 262_144,
    "fetch.max.bytes": 50_000_000,
    "max.partition.fetch.bytes": 8_000_000,
    "fetch.queue.backoff.ms": 10,
}


class Order(msgspec.Struct):
    """One input record."""

    id: int
    account: str
    amount: int


class Total(msgspec.Struct):
    """One output record: the account's running sum after one order."""

    account: str
    total: int


class OutputWrong(Exception):
    """The output is not exactly the running sums of the input."""


def account_name(number: int) -> str:
    return f"account-{number:06d}"


@dataclass
class Input:
    """The orders of one topic, made from a seed."""

    records: int
    keys: int = KEYS
    each_key_first: bool = False
    """Begin with one order of each key: then all of the state is there."""
    seed: int = 20261120
    values: list[tuple[int, bytes]] = field(default_factory=list, repr=False)
    expected: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        amounts: dict[str, list[int]] = {}
        for identity in range(self.records):
            first = self.each_key_first and identity < self.keys
            number = identity if first else chance.randrange(self.keys)
            amount = chance.randrange(-500, 1000)
            name = account_name(number)
            amounts.setdefault(name, []).append(amount)
            order = json.dumps({"id": identity, "account": name, "amount": amount}).encode()
            self.values.append((number % INPUT_PARTITIONS, order))
        self.expected = {name: list(accumulate(each)) for name, each in amounts.items()}


def create_topics(bootstrap: str, topics: dict[str, int], settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    made = admin.create_topics(
        [NewTopic(name, partitions, 1, config=settings) for name, partitions in topics.items()]
    )
    for future in made.values():
        future.result(30)


def create_output(bootstrap: str, topic: str, timestamps: str = "LogAppendTime") -> None:
    # Append time: the broker's clock says when a record came, whatever the client writes into it.
    create_topics(bootstrap, {topic: OUTPUT_PARTITIONS}, {"message.timestamp.type": timestamps})


def delete_topics(bootstrap: str, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    for future in admin.delete_topics(topics).values():
        with contextlib.suppress(KafkaException):  # it is only room on the disk
            future.result(30)


class Loader:
    """Writes orders into a topic, each key into its partition."""

    def __init__(self, bootstrap: str, topic: str, linger_ms: int = 20) -> None:
        self.topic = topic
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": linger_ms,
                "batch.size": 1_000_000,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                "enable.idempotence": True,
                "delivery.report.only.error": True,
            }
        )

    def write(self, orders: list[tuple[int, bytes]]) -> None:
        batches: list[list[dict[str, bytes]]] = [[] for _ in range(INPUT_PARTITIONS)]
        for partition, value in orders:
            batches[partition].append({"value": value})
        while len(self.producer) > 500_000:  # never full: a part refused would lose its order
            self.producer.poll(0.05)
        # One call a partition: confluent-kafka 2.16 ignores a partition given with a message.
        for partition, batch in enumerate(batches):
            if self.producer.produce_batch(self.topic, batch, partition=partition) != len(batch):
                raise OutputWrong(f"the client refused records of {self.topic}")
        self.producer.poll(0)

    def finish(self) -> None:
        if self.producer.flush(60):
            raise OutputWrong(f"the input of {self.topic} could not be written")


def load(bootstrap: str, topic: str, given: Input) -> None:
    create_topics(bootstrap, {topic: INPUT_PARTITIONS}, {})
    loader = Loader(bootstrap, topic)
    for start in range(0, len(given.values), 10_000):
        loader.write(given.values[start : start + 10_000])
    loader.finish()


def committed_end(admin: AdminClient, topic: str, partitions: int) -> int:
    """Sum of the last stable offsets: committed records, and a marker for each transaction."""
    asked = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
    ends = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
    try:
        return sum(end.result(10).offset for end in ends.values())
    except KafkaException:
        return 0  # a new topic has no leader yet; a broker that stays away ends in the stall


@dataclass
class Output:
    """Committed output of one run: how many records the broker appended in each millisecond."""

    records: int
    appended: Counter[int]
    wrong: str | None = None
    """What is wrong with it: not exactly the running sums, in order."""

    def steady(self, warm: float = 0.05) -> tuple[float, float, int]:
        """(begin s, end s, records): from the append of the first ``warm`` part to the last one.

        Start-up (imports, connections, first fetch) is left out, for everyone alike. Records
        counted are those appended after the begin, so a burst at the begin wins nothing.
        """
        before = 0
        begin = 0
        for instant in sorted(self.appended):
            before += self.appended[instant]
            begin = instant
            if before >= self.records * warm:
                break
        return begin / 1000, max(self.appended) / 1000, self.records - before


def read_and_check(bootstrap: str, topic: str, given: Input, stall_s: float = STALL_S) -> Output:
    """Read the committed output to its end and compare each account's totals, in order."""
    consumer = Consumer({**READER, "bootstrap.servers": bootstrap, "group.id": "bench-check"})
    consumer.assign([TopicPartition(topic, p, 0) for p in range(OUTPUT_PARTITIONS)])
    decoder = msgspec.json.Decoder(list[Total])
    totals: dict[str, list[int]] = {name: [] for name in given.expected}
    appended: Counter[int] = Counter()
    seen = 0
    last = time.monotonic()
    quiet_s = 0.3  # after the expected number, look whether more comes
    while True:
        messages = consumer.consume(10_000, quiet_s if seen >= given.records else 1.0)
        if not messages:
            if seen >= given.records:
                break
            if time.monotonic() - last > stall_s:
                raise OutputWrong(
                    f"{topic}: {seen:,} of {given.records:,} records came, then nothing "
                    f"for {stall_s:.0f} s"
                )
            continue
        last = time.monotonic()
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        appended.update(message.timestamp()[1] for message in messages)
        whole = b"[" + b",".join([message.value() for message in messages]) + b"]"
        for total in decoder.decode(whole):
            totals[total.account].append(total.total)
        seen += len(messages)
    consumer.close()
    return Output(seen, appended, compare(topic, given.expected, totals))


def compare(topic: str, expected: dict[str, list[int]], totals: dict[str, list[int]]) -> str | None:
    """What is wrong with the totals of the accounts; None when nothing is."""
    wrong = [name for name in expected if totals[name] != expected[name]]
    if not wrong:
        return None
    unordered = sum(Counter(totals[name]) == Counter(expected[name]) for name in wrong)
    first = wrong[0]
    return (
        f"{topic}: running sums of {len(wrong):,} accounts are wrong, {unordered:,} only in their "
        f"order; {first}: {len(totals[first]):,} records, expected {len(expected[first]):,}"
    )
