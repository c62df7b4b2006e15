"""Running an application as a user does: command line, real topics, an independent reader."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from penstock.ids import transactional_prefix
from penstock_kafka import KafkaCluster
from penstock_stack import Stack

SERVICES = Path(__file__).parent / "services"
PARTITIONS = 4
FORGETFUL_S = 15.0
"""A client that is silent for so long may have forgotten every broker in an outage: a new one."""


def environment(stack: Stack, app: str, **more: str) -> dict[str, str]:
    """What the processes of ``app`` need to know."""
    return {
        **os.environ,
        **stack.store_env,
        "PENSTOCK_BOOTSTRAP": stack.bootstrap,
        "PENSTOCK_STORE": stack.store_url,
        "TEST_APP": app,
        **more,
    }


def make_topics(stack: Stack, *names: str, partitions: int = PARTITIONS) -> None:
    """Create topics and wait until they are there."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    topics = [NewTopic(name, partitions, 1) for name in names]
    for future in admin.create_topics(topics, operation_timeout=20).values():
        future.result()


def forget_topics(stack: Stack, *names: str) -> None:
    """Delete topics that an earlier test may have left, and wait until they are gone."""
    KafkaCluster(stack.bootstrap).delete_topics(names)
    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    deadline = time.monotonic() + 30
    while set(names) & set(admin.list_topics(timeout=20).topics):
        assert time.monotonic() < deadline, f"{names} are still there"
        time.sleep(0.1)


class Application:
    """One `penstock run` and what it tells in its events file."""

    def __init__(
        self,
        stack: Stack,
        app: str,
        folder: Path,
        *arguments: str,
        services: Sequence[str] = ("sums.py",),
        **env: str,
    ) -> None:
        self.app = app
        self.stack = stack
        self.events_path = folder / f"{app}.events"
        self.log_path = folder / f"{app}.log"
        self._env = environment(stack, app, **env)
        self._command = [
            *(sys.executable, "-m", "penstock.runtime.cli", "run"),
            *(str(SERVICES / name) for name in services),
            *("--events", str(self.events_path)),
            *arguments,
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Application":
        """Start `penstock run`; its output goes to ``log_path``."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM: a final checkpoint, commits, exit; the exit code."""
        return self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL the supervisor: the kernel kills the rest."""
        self._end(signal.SIGKILL, 30)

    def wait(self, timeout_s: float) -> int:
        """Wait for it to end by itself."""
        if self.process is None:
            raise RuntimeError("not started")
        return self.process.wait(timeout_s)

    def _end(self, how: signal.Signals, timeout_s: float) -> int:
        if self.process is None:
            raise RuntimeError("not started")
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout_s)

    def events(self) -> list[dict[str, Any]]:
        """Everything told so far."""
        if not self.events_path.exists():
            return []
        return [json.loads(line) for line in self.events_path.read_text().splitlines()]

    def pids(self, role: str) -> dict[str, int]:
        """Name -> pid of the processes of a role that are running."""
        alive: dict[str, int] = {}
        for event in self.events():
            if event["event"] == "process" and event["role"] == role:
                if event["state"] == "started":
                    alive[event["name"]] = event["pid"]
                else:
                    alive.pop(event["name"], None)
        return alive

    def checkpoints(self, status: str = "completed") -> list[int]:
        """Ids of the checkpoints that completed or failed."""
        return [
            event["checkpoint"]
            for event in self.events()
            if event["event"] == "checkpoint" and event["status"] == status
        ]

    def until(self, condition: Any, timeout_s: float = 60, what: str = "condition") -> None:
        """Wait until ``condition()`` holds; fails with the end of the log."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} not reached in {timeout_s} s\n{self.log()}")
            time.sleep(0.05)

    def log(self) -> str:
        """What its processes wrote, the end of it."""
        return self.log_path.read_text(errors="replace")[-8000:] if self.log_path.exists() else ""

    def diagnosis(self) -> str:
        """Everything that may explain why nothing comes."""
        stacks = []
        for name, pid in {**self.pids("worker"), **self.pids("coordinator")}.items():
            status = Path(f"/proc/{pid}/wchan")
            stacks.append(f"{name} pid {pid} {status.read_text() if status.exists() else 'gone'}")
        return (
            f"{self.log()}\nlast events: {self.events()[-6:]}\nprocesses: {stacks}\n"
            f"open transactions: {self.open_transactions()}"
        )

    def open_transactions(self) -> dict[str, str]:
        """Transactions under the application's prefix that are not finished."""
        recovery = KafkaCluster.from_env(self._env).recovery(self.app)
        try:
            return recovery.open_transactions(transactional_prefix(self.app))
        finally:
            recovery.close()


@contextlib.contextmanager
def running(application: Application) -> Iterator[Application]:
    """The application while it runs; killed at the end if it still does."""
    application.start()
    try:
        yield application
    finally:
        if application.process is not None and application.process.poll() is None:
            application.kill()


def feed(stack: Stack, topic: str, keys: int, first: int, last: int) -> None:
    """For every key the records n = first..last (inclusive), key k always in one partition."""
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    for n in range(first, last + 1):
        for k in range(keys):
            value = msgspec.json.encode({"key": f"k{k}", "n": n})
            producer.produce(topic, value, f"k{k}", k % PARTITIONS)
        producer.poll(0)
    if producer.flush(30):
        raise AssertionError("the input was not written")


class Reader:
    """An independent read_committed reader of a topic, from its beginning."""

    def __init__(self, stack: Stack, topic: str) -> None:
        self._stack = stack
        self._topic = topic
        self._next: dict[int, int] = {}
        self.values: list[bytes] = []
        self._open()

    def _open(self) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self._stack.bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign(
            [TopicPartition(self._topic, p, self._next.get(p, 0)) for p in self._partitions()]
        )

    def _partitions(self) -> list[int]:
        """None at first, while the broker comes back from an outage of the test before."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self._consumer.list_topics(self._topic, timeout=20).topics[self._topic]
            if found.partitions:
                return list(found.partitions)
            time.sleep(0.1)
        raise AssertionError(f"topic {self._topic} has no partitions")

    def poll(self, timeout_s: float = 0.2) -> int:
        """Take what is there; the number of all records so far."""
        for message in self._consumer.consume(5000, timeout_s):
            if message.error() is not None:
                raise AssertionError(message.error())
            self._next[message.partition()] = message.offset() + 1
            self.values.append(message.value())
        return len(self.values)

    def until(self, count: int, timeout_s: float, application: Application) -> None:
        """Read until ``count`` records; fails when none comes for ``timeout_s``."""
        since, last, again = time.monotonic(), -1, 0.0
        while (now := self.poll()) < count:
            passed = time.monotonic() - since
            if now != last:
                since, last, again = time.monotonic(), now, FORGETFUL_S
            elif passed > timeout_s:
                raise AssertionError(
                    f"{now} of {count} records, none for {timeout_s} s\n{application.diagnosis()}"
                )
            elif passed > again:
                again = passed + FORGETFUL_S
                self._consumer.close()
                self._open()

    def settle(self, seconds: float = 1.0) -> None:
        """Read on for a while: what should not come would come now."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.poll()

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()


def check_sums(values: list[bytes], keys: int, last: int) -> None:
    """Every (key, count) for count = 1..last exactly once, each with its right total."""
    seen: Counter[tuple[str, int]] = Counter()
    for value in values:
        record = json.loads(value)
        seen[record["key"], record["count"]] += 1
        expected = record["count"] * (record["count"] + 1) // 2
        if record["total"] != expected:
            raise AssertionError(f"{record}: expected total {expected}")
    doubled = {pair: n for pair, n in seen.items() if n > 1}
    lost = [(f"k{k}", n) for k in range(keys) for n in range(1, last + 1) if not seen[f"k{k}", n]]
    if doubled or lost or len(seen) != keys * last:
        raise AssertionError(
            f"{len(doubled)} doubled {list(doubled)[:5]}, {len(lost)} lost {lost[:5]}, "
            f"{len(seen)} distinct of {keys * last}"
        )
