"""The supervisor: who is restarted, after how long, and which exits end the run."""

import subprocess
from itertools import pairwise
from typing import Any

import pytest
from penstock.control import Leave, decode_report
from penstock.failure import TransportFailed
from penstock.runtime import supervisor as module
from penstock.runtime.events import EventLog
from penstock.runtime.supervisor import (
    QUICK_RESTARTS,
    RESTART_MAX_S,
    STEADY_S,
    STOPPED_AT_ONCE,
    Supervisor,
)


class FakeProcess:
    """A child that dies when the test says so."""

    pids = iter(range(1000, 100_000))

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command = command
        self.pid = next(self.pids)
        self.code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.code = -9

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            raise subprocess.TimeoutExpired(self.command, timeout or 0)
        return self.code


class FakeReports:
    """The reports topic; may be unreachable."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.failing = False
        self.closed = False

    def append(self, data: bytes, on_written: Any = None) -> None:
        del on_written
        self.sent.append(decode_report(data))

    def poll(self, timeout_s: float = 0.0) -> None:
        del timeout_s
        if self.failing:
            raise TransportFailed("a record for app.reports was not written: _MSG_TIMED_OUT")

    def flush(self, timeout_s: float) -> None: ...

    def close(self) -> None:
        self.closed = True


class World:
    """A supervisor of one coordinator and one worker, with a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.started: list[FakeProcess] = []
        self.writers: list[FakeReports] = []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module.subprocess, "Popen", self._popen)
        self.supervisor = Supervisor("app", self, EventLog(None), {})  # type: ignore[arg-type]
        self.supervisor.add("coordinator", "app", ["coordinator", "app"])
        self.supervisor.add("worker", "sums/0", ["worker", "sums.py"])
        self.supervisor._reports = self.log_writer("app.reports")  # type: ignore[assignment]
        assert self.turn() is None

    def _popen(self, command: list[str], **more: Any) -> FakeProcess:
        process = FakeProcess(command, **more)
        self.started.append(process)
        return process

    def log_writer(self, topic: str) -> FakeReports:
        assert topic == "app.reports"
        self.writers.append(FakeReports())
        return self.writers[-1]

    def turn(self) -> int | None:
        return self.supervisor._turn()

    def running(self, role: str) -> FakeProcess:
        return [process for process in self.started if role in process.command][-1]

    def died(self, role: str, code: int = -9) -> int | None:
        self.running(role).code = code
        return self.turn()

    def restarted_after(self, role: str, most_s: float = 100.0) -> float:
        before, began = len(self.started), self.now
        while self.now - began <= most_s:
            assert self.turn() is None
            if len(self.started) > before:
                assert role in self.started[-1].command
                return self.now - began
            self.now += 0.01
        raise AssertionError(f"{role} was not restarted within {most_s} s")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("role", ["worker", "coordinator"])
def test_the_first_deaths_are_answered_at_once_then_the_delay_doubles(
    role: str, world: World
) -> None:
    delays = []
    for _ in range(QUICK_RESTARTS + 9):
        assert world.died(role) is None
        delays.append(world.restarted_after(role))
    assert delays[:QUICK_RESTARTS] == [0.0] * QUICK_RESTARTS
    growing = delays[QUICK_RESTARTS:]
    assert growing[0] == pytest.approx(0.5, abs=0.02)
    for before, after in pairwise(growing):
        assert after == pytest.approx(min(RESTART_MAX_S, 2 * before), abs=0.05)
    assert growing[-1] == pytest.approx(RESTART_MAX_S, abs=0.02)


def test_a_process_that_was_steady_is_restarted_at_once(world: World) -> None:
    for _ in range(QUICK_RESTARTS + 3):
        world.died("worker")
        world.restarted_after("worker")
    world.now += STEADY_S
    world.died("worker")
    assert world.restarted_after("worker") == 0.0


def test_the_death_of_a_worker_is_reported_at_once(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    process = world.running("worker")
    worker_id = process.command[process.command.index("--worker-id") + 1]
    world.died("worker")
    (report,) = world.writers[0].sent
    assert isinstance(report, Leave)
    assert report.worker == worker_id
    assert report.reason == f"process {process.pid} was killed by SIGKILL"
    assert "worker sums/0 was killed by SIGKILL; restarting" in capsys.readouterr().err
    world.restarted_after("worker")
    assert worker_id not in world.running("worker").command, "an id is used once"


@pytest.mark.parametrize(
    ("code", "ends"), [(0, True), (2, True), (4, True), (1, False), (3, False)]
)
def test_exits_of_the_coordinator(
    code: int, ends: bool, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 as asked, 2 configuration, 4 fatal; a crash and an outage are worth another try."""
    found = world.died("coordinator", code)
    assert found == (code if ends else None)
    assert ("restarting" in capsys.readouterr().err) is not ends


def test_a_worker_that_cannot_be_configured_ends_the_run(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.died("worker", 2) == 2
    assert "restarting" not in capsys.readouterr().err


def test_a_first_coordinator_waits_for_nobody_a_second_one_does(world: World) -> None:
    grace = ["--resume-grace-ms", "0"]
    command = world.running("coordinator").command
    assert command[command.index(grace[0]) :][:2] == grace
    world.died("coordinator")
    world.restarted_after("coordinator")
    assert grace[0] not in world.running("coordinator").command


def test_a_stop_is_asked_of_the_coordinator_and_of_the_one_after_it(world: World) -> None:
    world.supervisor.ask_stop()
    assert world.turn() is None
    assert world.running("coordinator").signals == [15]
    assert world.turn() is None
    assert world.running("coordinator").signals == [15], "once"
    world.died("worker")
    world.died("coordinator", 1)
    world.restarted_after("coordinator")
    assert "--stop" in world.running("coordinator").command
    assert [p for p in world.started if "worker" in p.command and p.code is None] == []


def test_a_second_signal_stops_at_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.supervisor.ask_stop()
    world.supervisor.ask_stop()
    assert world.turn() == STOPPED_AT_ONCE
    assert "the next start goes on from the last checkpoint" in capsys.readouterr().err


def test_an_outage_of_the_reports_topic_is_survived(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was lost with it is told by heartbeats too."""
    world.writers[0].failing = True
    assert world.turn() is None
    assert world.writers[0].closed
    assert "_MSG_TIMED_OUT" in capsys.readouterr().err
    world.died("worker")
    assert len(world.writers[1].sent) == 1


def test_workers_that_are_killed_at_the_end_are_reported(world: World) -> None:
    """Another run of the application may lead already, and would wait for their heartbeats."""
    world.supervisor._kill_all()
    (report,) = world.writers[0].sent
    assert isinstance(report, Leave)
    assert world.running("worker").code == -9


def test_a_stop_that_takes_long_is_explained_once(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka may be away: whoever pressed Ctrl-C is told what it waits for, and what helps."""
    world.supervisor.ask_stop()
    for _ in range(30):
        world.now += 0.3
        assert world.turn() is None
    assert capsys.readouterr().err == ""
    for _ in range(100):
        world.now += 0.3
        assert world.turn() is None
    said = capsys.readouterr().err
    assert said.count("still waits for the last checkpoint") == 1
    assert "a second Ctrl-C or SIGTERM stops at once" in said
