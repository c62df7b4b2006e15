"""Whether a broker that answers can also work: its transaction and group coordinators are up.

They load their topics for up to a second after a start (and make them at the first), during which
every client would see retriable errors; a benchmark or a short test would measure that.
"""

import socket
import struct
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from penstock_stack.failure import StackError

PROBE = "penstock-stack-probe"
QUIET = {"log_level": 0, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}
API_VERSIONS = 18
FIND_COORDINATOR = 10
GROUP, TRANSACTION = 0, 1


def speaks(host: str, port: int) -> bool:
    """Whether a broker answers a Kafka request on ``port`` now.

    A connection alone proves nothing: the proxy of a container's port takes one before the broker
    is there, and a client that meets it falls into its long back-offs.
    """
    return bool(_asked(host, port, API_VERSIONS, 0, b""))


def _coordinates(host: str, port: int, key_type: int) -> bool:
    """Whether a coordinator is known for the probe; the first question makes its topic."""
    key = PROBE.encode()
    body = struct.pack(f">h{len(key)}sb", len(key), key, key_type)
    answer = _asked(host, port, FIND_COORDINATOR, 2, body)
    return len(answer) >= 6 and struct.unpack_from(">ih", answer)[1] == 0  # throttle_ms, error


def _asked(host: str, port: int, api: int, version: int, body: bytes) -> bytes:
    """The body of the broker's answer to one request; empty when it does not answer."""
    header = struct.pack(">hhih", api, version, 1, -1)  # correlation id 1, no client id
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            return connection.recv(65_536)[8:]  # after its length and the correlation id
    except OSError:
        return b""


def warm_up(bootstrap: str, timeout_s: float = 120.0) -> None:
    """Return when the broker at ``bootstrap`` serves transactions and groups.

    Raises:
        StackError: it did not within ``timeout_s``.
    """
    give_up = time.monotonic() + timeout_s
    host, _, port = bootstrap.rpartition(":")
    # Asked here every few milliseconds; a client library would wait a second between its tries.
    for key_type in (TRANSACTION, GROUP):
        while not _coordinates(host, int(port), key_type):
            if time.monotonic() > give_up:
                raise StackError(f"no Kafka is ready at {bootstrap} after {timeout_s:.0f} s")
            time.sleep(0.02)
    settings = {"bootstrap.servers": bootstrap, **QUIET}
    shortest = {"transaction.timeout.ms": 1_000}  # under any maximum that a broker may have
    producer = Producer({**settings, **shortest, "transactional.id": PROBE})
    _until(give_up, bootstrap, producer.init_transactions)
    consumer = Consumer({**settings, "group.id": PROBE})
    asked = [TopicPartition(PROBE, 0)]
    _until(give_up, bootstrap, lambda left_s: consumer.committed(asked, timeout=left_s))
    consumer.close()


def _until(give_up: float, bootstrap: str, ask: Callable[[float], object]) -> None:
    """Ask again until it works or the time is over; ``ask`` takes the seconds that are left."""
    while True:
        left_s = give_up - time.monotonic()
        try:
            ask(max(left_s, 0.1))
        except KafkaException as failure:
            if left_s <= 0 or failure.args[0].fatal():
                raise StackError(
                    f"Kafka at {bootstrap} answers and did not become able to work in time: "
                    f"{failure}. Its log says why."
                ) from failure
            time.sleep(0.05)
        else:
            return
