"""Opening a sink's producer: what passes by itself ends no run."""

from types import SimpleNamespace
from typing import Any, Self

import pytest
from penstock.failure import ConfigurationError, TransportFailed
from penstock_kafka import sink as module
from penstock_kafka.client import LOST_AFTER, Backoff
from penstock_kafka.sink import KafkaSinkProducer

ABSENT: dict[str, Any] = {}
EMPTY = {"out": SimpleNamespace(error=None, partitions={})}
THERE = {"out": SimpleNamespace(error=None, partitions={1: None, 0: None})}


class FakeProducer:
    """A client whose metadata changes from look to look; the last stays."""

    def __init__(self, *looks: dict[str, Any]) -> None:
        self._looks = list(looks)
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}

    def poll(self, timeout_s: float) -> None:
        """Looks of a client that knows no broker arrive in it."""
        assert timeout_s == 0
        self.config["stats_cb"]('{"brokers": {}}')

    def list_topics(self, timeout: float) -> Any:
        del timeout
        self.calls.append("list_topics")
        return SimpleNamespace(topics=self._looks.pop(0) if self._looks[1:] else self._looks[0])

    def init_transactions(self, timeout_s: float) -> None:
        del timeout_s
        self.calls.append("init_transactions")


class FakeWire:
    """Says who the producer is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self, transactional_id: str) -> tuple[int, Any]:
        del transactional_id
        return 0, SimpleNamespace(producer_id=7, producer_epoch=3)


def opened(monkeypatch: pytest.MonkeyPatch, client: FakeProducer) -> KafkaSinkProducer:
    def made(config: dict[str, Any]) -> FakeProducer:
        client.config = config
        return client

    monkeypatch.setattr(module, "Producer", made)
    monkeypatch.setattr(module, "Backoff", lambda seconds: Backoff(min(seconds, 0.1)))
    producer = KafkaSinkProducer(
        {}, lambda _: FakeWire(),  # type: ignore[arg-type, return-value]
        topic="out", witness_topic="app.witness",
        transactional_id="penstock.app!1!out!0!0", timeout_ms=60_000,
    )  # fmt: skip
    producer.open()
    return producer


@pytest.mark.parametrize("before", [(), (ABSENT,), (EMPTY,), (ABSENT, EMPTY)])
def test_a_broker_that_does_not_know_the_topic_yet(
    before: tuple[dict[str, Any], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that comes back answers before it has read what topics there are."""
    client = FakeProducer(*before, THERE)
    producer = opened(monkeypatch, client)
    assert producer._partitions == (0, 1)
    assert client.calls == [*["list_topics"] * (len(before) + 1), "init_transactions"]


@pytest.mark.parametrize("found", [ABSENT, EMPTY])
def test_a_topic_that_is_not_there(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="sink topic 'out' does not exist; create it"):
        opened(monkeypatch, FakeProducer(found))


def test_a_client_that_can_never_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """L17: its transaction is for the recovery to decide."""
    producer = opened(monkeypatch, FakeProducer(THERE))
    for _ in range(LOST_AFTER - 1):
        producer.look()
    with pytest.raises(TransportFailed, match="0!0: the client has forgotten every broker"):
        producer.look()
    producer.close()
    producer.look()
