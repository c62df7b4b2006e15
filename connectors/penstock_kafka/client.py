"""What every confluent-kafka client here has in common: its errors, and a watch over its calls."""

import faulthandler
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from penstock.failure import ConfigurationError, PenstockError, TransportFailed

LOG: Final = logging.getLogger("penstock.kafka")

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The largest record of an edge or control topic, at the topic and at every client."""

_AUTHORIZATION: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes are spelt this way
    }
)

_PASSING: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""What the client mends by itself; how long that may take is for the coordinator to say."""


def kafka_error(error: BaseException) -> KafkaError | None:
    """The KafkaError inside an exception of confluent-kafka, if any."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return inner if isinstance(inner, KafkaError) else None


def passes(error: KafkaError) -> bool:
    """Whether the client goes on by itself after ``error``."""
    return not error.fatal() and error.code() in _PASSING


def failure(what: str, error: KafkaError | BaseException | str) -> PenstockError:
    """The error to raise for ``error`` of ``what``: who must act, a person or the next attempt."""
    inner = kafka_error(error) if isinstance(error, BaseException) else error
    if not isinstance(inner, KafkaError):
        return TransportFailed(f"{what}: {inner if inner is not None else error}")
    text = f"{what}: {inner.name()}: {inner.str()}"
    if inner.code() in _AUTHORIZATION:
        return ConfigurationError(f"{text}; give this client's principal the right, or check SASL")
    return TransportFailed(text)


_TIMES: Final = re.compile(r" \(after \d+ms in state .*\)")
_CLIENT: Final = re.compile(r"^_[A-Z_]+: (\S+/\S+: )?")


LOOK_MS: Final = 5_000
"""How often it is looked whether a client still knows a broker."""
LOST_AFTER: Final = 2
"""Looks without any broker, one after the other, after which the client is lost."""


class _Broker(msgspec.Struct):
    source: str = ""


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker]


_decode_statistics: Final = msgspec.json.Decoder(_Statistics).decode


class Errors:
    """What a client's error callback has seen, newest last and bounded."""

    def __init__(self) -> None:
        self._looks_without_broker = 0
        self.seen = 0
        self.texts: list[str] = []
        self.fatal: KafkaError | None = None
        self.refused: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        self.seen += 1
        del self.texts[:-9]
        self.texts.append(f"{error.name()}: {_TIMES.sub('', error.str())}")
        if error.fatal():
            self.fatal = error
        if error.code() in _AUTHORIZATION:
            self.refused = error

    def causes(self) -> str:
        """What was seen, each once, for a person: the broker's own words without the client's."""
        down, seen = "_ALL_BROKERS_DOWN", dict.fromkeys(self.texts)
        texts = [text for text in seen if not text.startswith(down)] or list(seen)
        return "; ".join(dict.fromkeys(_CLIENT.sub("", text) for text in texts[-3:]))

    def look(self, statistics: str) -> None:
        """Whether the client knows any broker, from its own statistics.

        A broker that comes back answers for a moment that there is none. A client that believes it
        forgets the address that it has, is connected to nothing, and never looks again (librdkafka
        5301; seen for 340 s, no setting helps). Brokers that are down it does not forget.
        """
        brokers = _decode_statistics(statistics).brokers.values()
        known = any(broker.source in ("learned", "configured") for broker in brokers)
        self._looks_without_broker = 0 if known else self._looks_without_broker + 1

    def check(self, what: str) -> None:
        """Raise for an error from which the client cannot go on."""
        if self._looks_without_broker >= LOST_AFTER:
            raise TransportFailed(
                f"{what}: the client has forgotten every broker, which came back from an outage; "
                "it is made anew"
            )
        if self.fatal is not None:
            raise failure(f"{what}: the client has stopped", self.fatal)
        if self.refused is not None:
            raise failure(what, self.refused)


def queue_all(
    producer: Producer,
    topic: str,
    *,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    times: Sequence[int] | None,
    wait_s: float,
) -> None:
    """Queue records without Python code per record; waits while the queue is full.

    Measured (1 record of 30 B, 2.16.1): 0.7 us each by map over produce, which takes timestamps,
    1.0 us by produce_batch, which does not. TransportFailed after ``wait_s`` of a full queue.
    """
    start, total, deadline = 0, len(values), 0.0
    stamps = repeat(0) if times is None else times  # 0: the client's clock
    while True:
        rest: Any = iter(values) if not start else iter(values[start:])
        try:
            for _ in filter(None, map(
                producer.produce, repeat(topic), rest, keys[start:] if start else keys,
                repeat(-1), repeat(None), repeat(None),
                stamps if not start or times is None else times[start:],
            )):  # fmt: skip
                pass  # produce returns None: the loop is in C
            return
        except BufferError:
            done = total - rest.__length_hint__() - 1
            now = time.monotonic()
            deadline = deadline if done == start and deadline else now + wait_s
            start = done
            if now > deadline:
                raise TransportFailed(
                    f"the queue of records for {topic} has been full for {wait_s:.0f} s: "
                    "the brokers take nothing; look at their health"
                ) from None
            producer.poll(0.01)


def take(consumer: Consumer, at_most: int, timeout_s: float) -> list[Message]:
    """Messages ready now, waiting for the first only: consume(n, timeout) would wait for n."""
    ready = consumer.consume(at_most, 0)
    if ready or timeout_s <= 0:
        return ready
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    if at_most == 1:
        return [first]
    rest = consumer.consume(at_most - 1, 0)
    rest.insert(0, first)
    return rest


class Backoff:
    """Growing pauses up to a deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._pause_s = 0.002

    def wait(self) -> bool:
        """Pause; False when the deadline has passed."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, self._pause_s * random.uniform(0.7, 1.3)))
        self._pause_s = min(self._pause_s * 1.7, 0.5)
        return True


class Watchdog:
    """Ends the process when a client call does not come back long after its own timeout.

    librdkafka calls have hung (librdkafka 4420), and a thread in C cannot be interrupted. A process
    that hangs in its sink is a dead worker: it says where, and dies, and the attempt is restored.
    """

    def __init__(self, grace_s: float = 30.0) -> None:
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[str, float]] = {}
        self._next = 0
        self._pid = 0

    @contextmanager
    def over(self, what: str, timeout_s: float) -> Iterator[None]:
        """Watch the calls of a ``with`` block, which end by themselves within ``timeout_s``."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self._calls.clear()
                threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True).start()
            self._next += 1
            call = self._next
            self._calls[call] = (what, time.monotonic() + timeout_s + self._grace_s)
        try:
            yield
        finally:
            self._calls.pop(call, None)

    def overdue(self, now: float) -> str | None:
        """A call that should have come back by ``now``."""
        return next((what for what, by in list(self._calls.values()) if now > by), None)

    def _watch(self) -> None:
        while True:
            time.sleep(1.0)
            what = self.overdue(time.monotonic())
            if what is not None:
                LOG.critical("%s does not come back: this process ends; the attempt is over", what)
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                os._exit(70)


WATCHDOG: Final = Watchdog()


def producer_config(base: dict[str, Any], errors: Errors) -> dict[str, Any]:
    """What every producer here has: idempotent, acks=all, reports of failures only."""
    return base | {
        "enable.idempotence": True,
        "acks": "all",
        "compression.type": "lz4",
        "delivery.report.only.error": True,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "partitioner": "murmur2_random",
        "error_cb": errors,
    }


def watched(errors: Errors) -> dict[str, Any]:
    """`Errors.look` every LOOK_MS; for clients that are polled all the time, where looks arrive."""
    return {"stats_cb": errors.look, "statistics.interval.ms": LOOK_MS}


def consumer_config(base: dict[str, Any], errors: Errors, group: str) -> dict[str, Any]:
    """What every consumer here has: its positions are ours, and never the group's (L5).

    The back-off of a full queue is 10 ms, not 1 s: measured 118 against 330-540 thousand records/s.
    """
    return base | {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 10,
        "fetch.error.backoff.ms": 50,
        "error_cb": errors,
        **watched(errors),
    }
