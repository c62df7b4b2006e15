"""Faults of Kafka, of the store and of single processes while an application runs.

In each the output is exactly once after all, and nothing stays open.

Laws: L1 (a coordinator that slept decides nothing), L2, L3, L9, L10 (frames of a zombie count for
nothing), L11, L13, L14, L16 (nothing of a zombie stays open), L17. The rows of "Failure of any one
thing" in docs: a broker restart, the store down, a paused worker, a paused coordinator, a dead
supervisor, a poisonous record.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from penstock.ids import Position, attempt_of
from penstock_kafka import KafkaCluster
from penstock_stack import Stack

from tests.integration.running import (
    PARTITIONS,
    SERVICES,
    Application,
    Reader,
    check_sums,
    environment,
    feed,
    make_topics,
    running,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KEYS = 40
FAST = ("--parallelism", "2", "--checkpoint-interval-ms", "100")


@pytest.fixture
def reader(stack: Stack, app_id: str) -> Iterator[Reader]:
    """The application's topics exist, and somebody reads the output."""
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    reading = Reader(stack, f"{app_id}.sums")
    yield reading
    reading.close()


def finished(application: Application, reader: Reader, last: int) -> None:
    """Everything came exactly once and nothing is left open."""
    reader.until(KEYS * last, 90, application)
    assert application.stop() == 0, application.log()
    reader.settle()
    check_sums(reader.values, KEYS, last)
    assert application.open_transactions() == {}


def attempts(application: Application, state: str = "deployed") -> list[float]:
    """When each attempt came to ``state``."""
    return [
        event["at"]
        for event in application.events()
        if event["event"] == "attempt" and event["state"] == state
    ]


# -- Kafka


@pytest.mark.parametrize("how", ["stop", "kill", "pause"])
def test_a_short_outage_of_kafka_needs_no_restore(
    how: str, stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L13, L14, L17: retries are enough while nobody is given up."""
    patient = ("--heartbeat-timeout-ms", "60000")
    application = Application(stack, app_id, tmp_path, *FAST, *patient)
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        _outage(stack, how, seconds=2)
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        finished(application, reader, 40)
    assert len(attempts(application)) == 1, application.log()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_an_outage_in_which_workers_are_given_up(
    how: str, stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L11, L16: nobody hears a heartbeat for too long: the workers offer themselves again."""
    hasty = ("--heartbeat-timeout-ms", "2000")
    application = Application(stack, app_id, tmp_path, *FAST, *hasty)
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        _outage(stack, how, seconds=6)
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        finished(application, reader, 40)
    assert len(attempts(application)) >= 2, application.log()


@pytest.mark.slow
def test_an_outage_longer_than_the_patience_of_every_client(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L11, L12: every process ends, and is started until Kafka is back; nobody waits for a call
    that began before.
    """
    application = Application(stack, app_id, tmp_path, *FAST)
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        _outage(stack, "pause", seconds=70)
        back = time.time()
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        finished(application, reader, 40)
    # The longest delay of a restart, a start, and what a busy machine needs.
    assert attempts(application, "running")[-1] - back < 40, application.log()
    assert "were not written" in application.log() or "was not written" in application.log()


def test_a_worker_and_the_coordinator_die_in_an_outage(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L12: what is started while Kafka is away tries again until it is back."""
    application = Application(stack, app_id, tmp_path, *FAST)
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        stack.kafka_kill()
        try:
            os.kill(application.pids("worker")["sums/0"], signal.SIGKILL)
            os.kill(application.pids("coordinator")[app_id], signal.SIGKILL)
            # Both were started again and could not reach Kafka.
            application.until(
                lambda: application.log_path.read_text().count("exited with code 3") >= 2,
                what="two starts without Kafka",
                timeout_s=90,
            )
        finally:
            stack.kafka_start()
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        finished(application, reader, 40)


def test_a_source_is_given_up_without_waiting_for_kafka(stack: Stack, app_id: str) -> None:
    """L11: positions for monitoring are on their way to a broker that does not answer.

    A worker ends itself when the clients of an old attempt do not close in time: it would take the
    next attempt with it.
    """
    make_topics(stack, f"{app_id}.numbers")
    feed(stack, f"{app_id}.numbers", KEYS, 1, 5)
    cluster = KafkaCluster.from_env(environment(stack, app_id))
    start: dict[int, Position | None] = {partition: Position(0) for partition in range(PARTITIONS)}
    reader = cluster.source_reader(f"{app_id}.numbers", start, "earliest", f"{app_id}.group")
    deadline = time.monotonic() + 20
    runs = reader.poll(100, 0.5)
    while not any(run.values for run in runs):
        runs = reader.poll(100, 0.5)
        assert time.monotonic() < deadline
    reader.commit_for_monitoring({run.partition: run.next_position for run in runs})
    reader.poll(100, 2)  # the group's coordinator is known, the first positions are there
    stack.kafka_pause()
    try:
        reader.commit_for_monitoring({0: Position(1)})
        time.sleep(0.2)
        began = time.monotonic()
        reader.close()
        assert time.monotonic() - began < 2
    finally:
        stack.kafka_resume()


def _outage(stack: Stack, how: str, *, seconds: float) -> None:
    if how == "pause":
        stack.kafka_pause()
        time.sleep(seconds)
        stack.kafka_resume()
        return
    (stack.kafka_stop if how == "stop" else stack.kafka_kill)()
    time.sleep(seconds)
    stack.kafka_start()


# -- the store


@pytest.fixture
def store(stack: Stack) -> Iterator[Stack]:
    """A stack whose store is a server; it runs again afterwards."""
    if not stack.store_env:
        pytest.skip(f"this stack has no store server: snapshots go to {stack.store_url}")
    yield stack
    with contextlib.suppress(Exception):
        stack.store_start()


def test_the_store_is_down_for_some_seconds(
    store: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L2, L13: checkpoints fail and are counted, processing goes on, output waits."""
    application = Application(
        store, app_id, tmp_path, *FAST, "--checkpoint-timeout-ms", "1500",
        "--tolerable-failures", "100", TEST_PADDING="2000",
    )  # fmt: skip
    with running(application):
        feed(store, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 20, 60, application)
        store.store_stop()
        feed(store, f"{app_id}.numbers", KEYS, 21, 30)
        application.until(
            lambda: len(application.checkpoints("failed")) >= 2,
            what="two failed checkpoints",
            timeout_s=90,
        )
        feed(store, f"{app_id}.numbers", KEYS, 31, 40)
        application.until(
            lambda: _processed(store, app_id) == KEYS * 40, what="all input processed"
        )
        assert reader.poll() == KEYS * 20, "nothing is visible before its checkpoint is complete"
        store.store_start()
        finished(application, reader, 40)
    assert len(attempts(application)) == 1, application.log()
    reasons = [e["reason"] for e in application.events() if e.get("status") == "failed"]
    assert any("not complete within 1500 ms" in reason for reason in reasons)


def test_more_checkpoints_fail_than_are_tolerated(
    store: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L12: the attempt restarts, with growing delays, until the store is back."""
    application = Application(
        store, app_id, tmp_path, *FAST, "--checkpoint-timeout-ms", "1000",
        "--tolerable-failures", "1", TEST_PADDING="2000",
    )  # fmt: skip
    with running(application):
        feed(store, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 20, 60, application)
        store.store_stop()
        feed(store, f"{app_id}.numbers", KEYS, 21, 40)
        application.until(
            lambda: len(attempts(application, "restoring")) >= 2,
            what="a second attempt",
            timeout_s=120,
        )
        store.store_start()
        finished(application, reader, 40)
    assert "2 checkpoints failed in a row, 1 are tolerated" in application.log_path.read_text()


def _processed(stack: Stack, app_id: str) -> int:
    """The sum of the positions that the source reports for monitoring."""
    consumer = Consumer(
        {"bootstrap.servers": stack.bootstrap, "group.id": f"{app_id}.sums.numbers"}
    )
    partitions = [TopicPartition(f"{app_id}.numbers", p) for p in range(PARTITIONS)]
    try:
        return sum(max(0, found.offset) for found in consumer.committed(partitions, timeout=20))
    finally:
        consumer.close()


# -- zombies


def test_a_worker_sleeps_past_its_heartbeat_timeout(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L10, L11, L16: another one takes its slot; when it wakes, nothing that it does counts."""
    application = Application(stack, app_id, tmp_path, *FAST, "--heartbeat-timeout-ms", "3000")
    with running(application), contextlib.ExitStack() as more:
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        spare = more.enter_context(Alone(application, "worker", str(SERVICES / "sums.py")))
        zombie = application.pids("worker")["sums/0"]
        os.kill(zombie, signal.SIGSTOP)
        more.callback(_continued, zombie)
        application.until(lambda: len(attempts(application)) >= 2, what="a second attempt")
        feed(stack, f"{app_id}.numbers", KEYS, 21, 30)
        reader.until(KEYS * 30, 60, application)
        os.kill(zombie, signal.SIGCONT)
        feed(stack, f"{app_id}.numbers", KEYS, 31, 40)
        reader.until(KEYS * 40, 60, application)
        application.until(
            lambda: not _older_than(2, application), what="nothing of the zombie is open"
        )
        assert spare.process.poll() is None
        finished(application, reader, 40)


def test_a_worker_that_was_given_up_comes_back(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L11: nobody else is there; the application waits for it and goes on when it wakes."""
    application = Application(stack, app_id, tmp_path, *FAST, "--heartbeat-timeout-ms", "2000")
    with running(application), contextlib.ExitStack() as more:
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        zombie = application.pids("worker")["sums/1"]
        os.kill(zombie, signal.SIGSTOP)
        more.callback(_continued, zombie)
        application.until(
            lambda: len(attempts(application, "restoring")) >= 2, what="its worker is given up"
        )
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        os.kill(zombie, signal.SIGCONT)
        finished(application, reader, 40)


def test_a_coordinator_sleeps_while_another_one_leads(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L1, L3: what the old one still writes is void; the attempt goes on, and the old one ends."""
    application = Application(stack, app_id, tmp_path, *FAST)
    leading = ("coordinator", app_id, "--service", "sums=2", "--checkpoint-interval-ms", "100")
    working = ("worker", str(SERVICES / "sums.py"), "--slot")
    with contextlib.ExitStack() as stacked:
        old = stacked.enter_context(Alone(application, *leading))
        for slot in ("0", "1"):
            stacked.enter_context(Alone(application, *working, slot))
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        os.kill(old.process.pid, signal.SIGSTOP)
        stacked.callback(_continued, old.process.pid)
        new = stacked.enter_context(Alone(application, *leading))
        feed(stack, f"{app_id}.numbers", KEYS, 21, 30)
        reader.until(KEYS * 30, 60, application)
        os.kill(old.process.pid, signal.SIGCONT)
        assert old.process.wait(30) == 4, application.log()
        feed(stack, f"{app_id}.numbers", KEYS, 31, 40)
        reader.until(KEYS * 40, 60, application)
        new.process.send_signal(signal.SIGTERM)
        assert new.process.wait(60) == 0, application.log()
    reader.settle()
    check_sums(reader.values, KEYS, 40)
    assert application.open_transactions() == {}
    assert len(attempts(application)) == 1, application.log()
    assert "another coordinator leads since offset" in application.log()


def _older_than(attempt: int, application: Application) -> list[str]:
    return [name for name in application.open_transactions() if attempt_of(name) < attempt]


def _continued(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


class Alone:
    """One process of an application without a supervisor; killed at the end."""

    def __init__(self, application: Application, *command: str) -> None:
        self._application = application
        self._command = [sys.executable, "-m", "penstock.runtime.cli", *command]
        if command[0] == "coordinator":
            self._command += ["--events", str(application.events_path)]

    def __enter__(self) -> Self:
        application = self._application
        with application.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=environment(application.stack, application.app),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(30)


# -- the supervisor, and what a user does


def test_a_second_run_takes_over(stack: Stack, app_id: str, reader: Reader, tmp_path: Path) -> None:
    """L1, L16: started twice, the newer one leads; the older one says so and ends."""
    first = Application(stack, app_id, tmp_path, *FAST)
    (tmp_path / "second").mkdir()
    second = Application(stack, app_id, tmp_path / "second", *FAST)
    feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
    with running(first), contextlib.ExitStack() as more:
        reader.until(KEYS * 10, 60, first)
        more.enter_context(running(second))
        assert first.wait(60) == 4, first.log()
        assert "another coordinator leads since offset" in first.log()
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        finished(second, reader, 40)


def test_the_supervisor_is_killed_and_started_again(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L12: the kernel takes its processes with it; a new one goes on from the last checkpoint."""
    application = Application(stack, app_id, tmp_path, *FAST)
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
        reader.until(KEYS * 10, 60, application)
        pids = [*application.pids("worker").values(), *application.pids("coordinator").values()]
        assert len(pids) == 3
        application.kill()
        application.until(lambda: not any(map(_lives, pids)), what="its processes are gone")
    application.events_path.unlink()
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 21, 40)
        finished(application, reader, 40)
    pids = [e["pid"] for e in application.events() if e["event"] == "process"]
    assert not any(map(_lives, pids))


def test_a_poisonous_record_does_not_spin(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """Restarts back off exponentially, however many checkpoints complete in between."""
    application = Application(stack, app_id, tmp_path, *FAST, services=("fragile.py",))
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    producer.produce(f"{app_id}.numbers", b"poison", None, 0)
    assert producer.flush(30) == 0
    with running(application):
        application.until(
            lambda: len(attempts(application, "restoring")) >= 7, what="seven attempts"
        )
        assert application.stop() == 0, application.log()
    begun = attempts(application, "restoring")
    gaps = [after - before for before, after in pairwise(begun)]
    for gap, least in zip(gaps[1:6], [0.5, 1, 2, 4, 8], strict=True):
        assert gap >= least, gaps
    assert reader.poll() == 0


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
