"""The limit through an edge: the same sum by hand in two processes joined by a topic of frames.

``shuffle`` packs orders by key into frames (one msgpack list a message); ``sum`` reads frames and
is the transactional loop of ``limit``. Only the second hop is transactional: by hand, exactly-once
in the first would make it slower (the second would wait for each commit of the first).
"""

import argparse
import gc
import signal
import time

import msgspec
import xxhash
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from limit import CONSUMER, PRODUCER, Committer, produce
from workload import EDGE_PARTITIONS, INPUT_PARTITIONS, Total

FRAME_RECORDS = 400


class Packed(msgspec.Struct, array_like=True):
    """An order in a frame."""

    id: int
    account: str
    amount: int


class Order(msgspec.Struct):
    """An order in the source topic."""

    id: int
    account: str
    amount: int


def shuffle(args: argparse.Namespace, running: list[bool]) -> None:
    name = f"limit-shuffle-{args.sink}"
    consumer = Consumer({**CONSUMER, "bootstrap.servers": args.bootstrap, "group.id": name})
    settings = {**PRODUCER, "bootstrap.servers": args.bootstrap, "enable.idempotence": True}
    producer = Producer(settings)
    consumer.assign([TopicPartition(args.source, p, 0) for p in range(INPUT_PARTITIONS)])
    decode = msgspec.json.Decoder(list[Order]).decode
    encode = msgspec.msgpack.Encoder().encode
    value_of, error_of = Message.value, Message.error
    partition_of: dict[str, int] = {}
    frames: list[list[tuple[int, str, int]]] = [[] for _ in range(EDGE_PARTITIONS)]
    due = time.monotonic() + args.interval_ms / 1000
    while running:
        messages = consumer.consume(FRAME_RECORDS * EDGE_PARTITIONS, 0.02)
        if messages:
            if any(map(error_of, messages)):
                raise KafkaException(next(filter(None, map(error_of, messages))))
            for order in decode(b"[" + b",".join(map(value_of, messages)) + b"]"):
                account = order.account
                try:
                    partition = partition_of[account]
                except KeyError:
                    partition = xxhash.xxh64_intdigest(account.encode()) % EDGE_PARTITIONS
                    partition_of[account] = partition
                frames[partition].append((order.id, account, order.amount))
            for partition, frame in enumerate(frames):
                if frame:
                    producer.produce(args.edge, encode(frame), partition=partition)
                    frames[partition] = []
            producer.poll(0)
        if (now := time.monotonic()) >= due:
            due = now + args.interval_ms / 1000
            if messages:
                producer.flush(30)
                consumer.commit(asynchronous=True)


def total(args: argparse.Namespace, running: list[bool]) -> None:
    name = f"limit-sum-{args.sink}"
    consumer = Consumer({**CONSUMER, "bootstrap.servers": args.bootstrap, "group.id": name})
    producer = Producer({**PRODUCER, "bootstrap.servers": args.bootstrap, "transactional.id": name})
    consumer.assign([TopicPartition(args.edge, p, 0) for p in range(EDGE_PARTITIONS)])
    decode = msgspec.msgpack.Decoder(list[Packed]).decode
    encode = msgspec.json.Encoder().encode
    totals: dict[str, int] = {}
    committer = Committer(consumer, producer, args.interval_ms)
    while running:
        messages = consumer.consume(16, 0.01)
        if messages:
            keys: list[str] = []
            values: list[bytes] = []
            add_key, add_value = keys.append, values.append
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
                for order in decode(message.value()):
                    account = order.account
                    amount = totals.get(account, 0) + order.amount
                    totals[account] = amount
                    add_key(account)
                    add_value(encode(Total(account, amount)))
            produce(producer, args.sink, keys, values)
            producer.poll(0)
            committer.dirty = True
        committer.commit_when_due()
    committer.due = 0.0
    committer.commit_when_due()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("shuffle", "sum"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--edge", required=True)
    parser.add_argument("--sink", required=True)
    parser.add_argument("--interval-ms", type=int, required=True)
    args = parser.parse_args()
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    gc.disable()  # the loops make no cycles
    (shuffle if args.part == "shuffle" else total)(args, running)


if __name__ == "__main__":
    main()
