"""Timers of event time over an edge and of processing time on an idle topic, killed and restored.

Laws: L4 and L12 (timers are state: each fires exactly once in the committed output), L20.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from penstock_stack import Stack

from tests.integration.running import Application, Reader, make_topics, running

WINDOW_MS = 1000
KEYS = [f"k{k}" for k in range(12)]
ACTIVE = 3
"""Partitions with records; the fourth is idle and must hold back nothing."""
ARGUMENTS = ("--parallelism", "2", "--checkpoint-interval-ms", "100")


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_event_timers_over_an_edge(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L4, L12: windows close once and whole, through a worker's and the coordinator's kill -9 and a
    restore; records 300 ms out of order are in time, an idle partition holds nothing back.
    """
    make_topics(stack, f"{app_id}.ticks", f"{app_id}.closed")
    reader = Reader(stack, f"{app_id}.closed")
    application = Application(stack, app_id, tmp_path, *ARGUMENTS, services=("windows.py",))
    windows = 12
    with running(application):
        _tick(stack, app_id, range(4))
        reader.until(len(KEYS) * 3, 60, application)
        os.kill(application.pids("worker")["windows/0"], signal.SIGKILL)
        _tick(stack, app_id, range(4, 6))
        reader.until(len(KEYS) * 5, 60, application)
        os.kill(next(iter(application.pids("coordinator").values())), signal.SIGKILL)
        _tick(stack, app_id, range(6, 8))
        reader.until(len(KEYS) * 7, 60, application)
        application.kill()
    # Another parallelism: timers move with their keys.
    again = Application(
        stack, app_id, tmp_path, "--parallelism", "3", *ARGUMENTS[2:], services=("windows.py",)
    )
    with running(again):
        # Nothing new yet: what was restored must not hold event time back, nor fire twice.
        _tick(stack, app_id, range(8, windows))
        reader.until(len(KEYS) * (windows - 1), 60, again)
        again.until(lambda: _deployed(again) >= 3, what="a third attempt")
        assert again.stop() == 0, again.log()
    reader.settle()
    reader.close()
    closed = [json.loads(value) for value in reader.values]
    assert not [c for c in closed if c["late"]]
    seen = Counter((c["key"], c["end"], c["count"]) for c in closed)
    expected = {
        (key, (window + 1) * WINDOW_MS, 10): 1 for key in KEYS for window in range(windows - 1)
    }
    assert seen == expected
    assert again.open_transactions() == {}


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_processing_timers_on_an_idle_topic(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L4, L12: reminders come although nothing else does; through kill -9, a stop and a restore in
    which some became due, each exactly once and none early.
    """
    make_topics(stack, f"{app_id}.asked", f"{app_id}.reminders")
    reader = Reader(stack, f"{app_id}.reminders")
    application = Application(stack, app_id, tmp_path, *ARGUMENTS, services=("reminders.py",))
    soon, later = [f"soon-{n}" for n in range(20)], [f"later-{n}" for n in range(20)]
    with running(application):
        _ask(stack, app_id, soon, 1500)
        reader.until(len(soon), 60, application)  # the topic is idle, the clock is enough
        _ask(stack, app_id, later, 6000)
        _kept(application)
        os.kill(application.pids("worker")["reminders/1"], signal.SIGKILL)
        application.until(lambda: _deployed(application) >= 2, what="a second attempt")
        _kept(application)
        assert application.stop() == 0, application.log()
    reader.settle()
    assert Counter(_keys(reader)) == Counter(soon), "none came before it was due"
    time.sleep(3)  # the rest becomes due while nobody runs
    again = Application(stack, app_id, tmp_path, *ARGUMENTS, services=("reminders.py",))
    with running(again):
        reader.until(len(soon) + len(later), 60, again)
        assert again.stop() == 0, again.log()
    reader.settle()
    reader.close()
    assert Counter(_keys(reader)) == Counter(soon + later)
    assert all(r["at"] >= r["due"] for r in map(json.loads, reader.values))
    assert again.open_transactions() == {}


def _kept(application: Application) -> None:
    """Wait until two more checkpoints are complete: what was asked before is in a snapshot."""
    before = len(application.checkpoints())
    application.until(
        lambda: len(application.checkpoints()) >= before + 2, what="two more checkpoints"
    )


def _deployed(application: Application) -> int:
    return sum(
        event["event"] == "attempt" and event["state"] == "deployed"
        for event in application.events()
    )


def _keys(reader: Reader) -> list[str]:
    return [json.loads(value)["key"] for value in reader.values]


def _tick(stack: Stack, app_id: str, windows: range) -> None:
    """Ten ticks of every key in each window, up to 300 ms out of order, in three partitions."""
    rows: list[tuple[int, dict[str, object]]] = []
    for window in windows:
        for place in range(10):
            # Pairs are swapped: 150 ms, 50 ms, 350 ms, 250 ms, …
            at = window * WINDOW_MS + (place ^ 1) * 100 + 50
            rows += [(k % ACTIVE, {"key": key, "at": at}) for k, key in enumerate(KEYS)]
    _produce(stack, f"{app_id}.ticks", rows)


def _ask(stack: Stack, app_id: str, keys: list[str], after_ms: int) -> None:
    rows = [(0, {"key": key, "after_ms": after_ms}) for key in keys]
    _produce(stack, f"{app_id}.asked", rows)


def _produce(stack: Stack, topic: str, rows: Iterable[tuple[int, dict[str, object]]]) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    for partition, row in rows:
        producer.produce(topic, json.dumps(row), None, partition)
    assert producer.flush(30) == 0
