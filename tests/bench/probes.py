"""Checkpoint duration, synchronous pause, latency and memory, under an even load."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from processes import Contender, cpu_and_rss
from throughput import HERE, Servers, penstock_command, wait_for_output
from workload import (
    INPUT_PARTITIONS,
    OUTPUT_PARTITIONS,
    Input,
    OutputWrong,
    create_output,
    create_topics,
    delete_topics,
    read_and_check,
)

WARM_S = 5.0
"""The first seconds of the even load are not counted."""
EDGE = ["split.py", "total.py"]
DIRECT = ["direct.py"]


@dataclass(frozen=True)
class Probe:
    """A run under an even load."""

    files: list[str]
    interval_ms: int
    rate: int = 5000
    seconds: int = 30
    keys: int = 1000
    at_once: int = 0

    @property
    def records(self) -> int:
        return self.at_once + self.rate * self.seconds


CHECKPOINTS = Probe(EDGE, interval_ms=200)
LATENCY = Probe(EDGE, interval_ms=50)
LATENCY_DIRECT = Probe(DIRECT, interval_ms=50)
PAUSE = Probe(DIRECT, interval_ms=200, rate=20_000, keys=1_000_000, at_once=1_000_000)


@dataclass
class Seen:
    """What a probe saw after its warm part."""

    events: list[dict[str, Any]]
    wrong: str | None = None
    """What is wrong with the output."""
    latencies_ms: list[float] = field(default_factory=list)
    worker_mb: dict[str, float] = field(default_factory=dict)
    """Resident memory of the worker ``totals/0``: empty, loaded, peak."""

    def of_checkpoints(self, name: str) -> list[float]:
        """One figure of every completed checkpoint of the even part."""
        return [event[name] for event in self.events if event.get(name) is not None]


def events_of(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def wait_for(what: str, found: Callable[[], Any], contender: Contender, timeout_s: float) -> Any:
    give_up = time.monotonic() + timeout_s
    while not (value := found()):
        contender.check()
        if time.monotonic() > give_up:
            raise OutputWrong(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(0.05)
    return value


def probe(what: Probe, servers: Servers, run: str) -> Seen:
    """Run it; the output is checked like that of the throughput."""
    source = f"{run}-in"
    create_topics(servers.bootstrap, {source: INPUT_PARTITIONS}, {})
    create_output(servers.bootstrap, run, "CreateTime")
    events = servers.folder / f"{run}.events.jsonl"
    command = penstock_command(servers, what.files, what.interval_ms, events)
    env = {**servers.store_env, "BENCH_APP": run, "BENCH_SOURCE": source, "BENCH_SINK": run}
    latency = LatencyReader(servers.bootstrap, run)
    with Contender([command], servers.folder / f"{run}.log", env) as contender:
        wait_for("the first checkpoint", lambda: _completed(events), contender, 60)
        seen = Seen([])
        worker = _worker(events)
        seen.worker_mb["empty"] = cpu_and_rss(worker)[1]
        load = _start_load(what, servers.bootstrap, source)
        try:
            load.stdout.readline()
            if what.at_once:  # the state is there before anything is counted
                wait_for_output(contender, servers.bootstrap, run, what.at_once)
            load.stdin.write("go\n")
            load.stdin.flush()
            begin = time.time() + WARM_S
            while load.poll() is None:
                contender.check()
                rss = cpu_and_rss(worker)[1]
                seen.worker_mb["loaded"] = rss
                seen.worker_mb["peak"] = max(rss, seen.worker_mb.get("peak", 0.0))
                time.sleep(0.2)
        finally:
            load.kill()
            code = load.wait()
        if code:
            raise OutputWrong(f"the load of {run} ended with {code}")
        end = time.time()
        wait_for_output(contender, servers.bootstrap, run, what.records)
        seen.latencies_ms = latency.stop(begin)
        seen.events = [e for e in _completed(events) if begin <= e["at"] <= end]
        given = Input(what.records, what.keys, each_key_first=what.at_once > 0)
        given.values.clear()
        seen.wrong = read_and_check(servers.bootstrap, run, given).wrong
        contender.stop()
    delete_topics(servers.bootstrap, [run, source])
    return seen


def _completed(events: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(events) if event.get("status") == "completed"]


def _worker(events: Path) -> int:
    started = [
        int(event["pid"])
        for event in events_of(events)
        if event["event"] == "process" and event["name"] == "totals/0"
    ]
    return started[-1]


def _start_load(what: Probe, bootstrap: str, topic: str) -> Any:
    return subprocess.Popen(
        [
            *(sys.executable, str(HERE / "paced.py"), "--bootstrap", bootstrap, "--topic", topic),
            *("--records", str(what.records), "--keys", str(what.keys)),
            *("--at-once", str(what.at_once), "--rate", str(what.rate)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class LatencyReader:
    """Reads the committed output as it comes: from the producer's timestamp to the consumer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._seen: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-latency",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 10,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(OUTPUT_PARTITIONS)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self._seen.append((message.timestamp()[1] / 1000, time.time()))

    def stop(self, begin: float) -> list[float]:
        """Latencies of records made after ``begin``, in ms."""
        time.sleep(0.5)
        self._ended.set()
        self._thread.join()
        self._consumer.close()
        return [(seen - made) * 1000 for made, seen in self._seen if made >= begin]
