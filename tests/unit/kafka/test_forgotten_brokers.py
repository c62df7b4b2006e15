"""Clients that forget every broker, because one that came back named none: they are made anew.

Nothing else ends that: such a client is connected to nothing and asks nobody (librdkafka 5301).
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from penstock.failure import TransportFailed
from penstock_kafka import client as module
from penstock_kafka.admin import Admin
from penstock_kafka.client import LOST_AFTER, Errors
from penstock_kafka.log import KafkaLogReader, KafkaLogWriter
from penstock_kafka.settings import librdkafka

from tests.unit.kafka.forgetful_broker import ForgetfulBroker

CLIENTS = 24
OUTAGES = [0.1, 0.8, 0.4, 0.8]


@pytest.fixture
def broker() -> Iterator[ForgetfulBroker]:
    running = ForgetfulBroker()
    yield running
    running.close()


def statistics(*sources: str) -> str:
    return json.dumps(
        {"name": "c", "brokers": {str(n): {"source": s} for n, s in enumerate(sources)}}
    )


@pytest.mark.parametrize(
    "sources", [["learned"], ["configured"], ["internal", "logical", "learned"]]
)
def test_a_client_that_knows_a_broker_is_waited_for(sources: list[str]) -> None:
    """Down or up: it will try that broker again."""
    errors = Errors()
    for _ in range(LOST_AFTER + 1):
        errors.look(statistics(*sources))
    errors.check("reader of t")


def test_a_client_that_knows_none_is_lost() -> None:
    errors = Errors()
    for _ in range(LOST_AFTER - 1):
        errors.look(statistics("internal", "logical"))
    errors.check("reader of t")
    errors.look(statistics("configured"))
    for _ in range(LOST_AFTER - 1):
        errors.look(statistics())
    errors.check("reader of t")
    errors.look(statistics())
    with pytest.raises(TransportFailed, match="reader of t: the client has forgotten every broker"):
        errors.check("reader of t")


def test_readers_read_again_or_say_that_they_never_will(
    broker: ForgetfulBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_MS", 500)
    clients = {f"c{n}": KafkaLogReader(_base(broker, n), "t", 0) for n in range(CLIENTS)}
    _come_back(broker, broker.fetched, clients, lambda reader: reader.poll(0))


def test_writers_write_again_or_say_that_they_never_will(
    broker: ForgetfulBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that is not written within a minute says so, too, but late."""
    monkeypatch.setattr(module, "LOOK_MS", 500)
    clients = {f"c{n}": KafkaLogWriter(_base(broker, n), "t") for n in range(CLIENTS)}

    def write(writer: KafkaLogWriter) -> None:
        writer.append(b"beat")
        writer.poll(0)

    _come_back(broker, broker.written, clients, write)


def _base(broker: ForgetfulBroker, number: int) -> dict[str, Any]:
    return librdkafka(broker.address, {}) | {"client.id": f"c{number}"}


def _come_back(
    broker: ForgetfulBroker,
    heard: dict[str, float],
    clients: dict[str, Any],
    use: Callable[[Any], object],
) -> None:
    """After each outage every client is heard of again, or has said that it is lost."""
    lost: set[str] = set()

    def turn() -> None:
        for name in clients.keys() - lost:
            try:
                use(clients[name])
            except TransportFailed:
                lost.add(name)
        time.sleep(0.01)

    def until(back: float) -> None:
        deadline = time.monotonic() + 15
        while any(heard.get(name, 0.0) <= back for name in clients.keys() - lost):
            assert time.monotonic() < deadline, "a client neither goes on nor says so"
            turn()

    until(0.0)
    assert not lost
    for outage in OUTAGES:
        forgetting = threading.Thread(target=broker.forget, args=(outage,))
        forgetting.start()
        while forgetting.is_alive():
            turn()
        until(broker.back_at)
    for client in clients.values():
        client.close()


def test_the_admin_client_of_a_process_comes_back(broker: ForgetfulBroker) -> None:
    """It lives as long as the process: a dead one would fail every attempt from now on."""
    admins = [Admin(librdkafka(broker.address, {}), "cluster") for _ in range(8)]
    for admin in admins:
        assert list(admin.metadata().brokers) == [1]
    for outage in OUTAGES:
        asking = [threading.Thread(target=_asked, args=(admin,)) for admin in admins]
        broker.knows = False
        for thread in asking:
            thread.start()
        broker.forget(outage)
        for thread in asking:
            thread.join(20)
        for admin in admins:
            assert list(admin.metadata().brokers) == [1]


def _asked(admin: Admin) -> None:
    try:
        assert admin.metadata().brokers, "nobody is told that there is no broker"
    except TransportFailed:
        return
