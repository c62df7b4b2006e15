"""The local supervisor: an application on one machine, every process restarted when it dies.

It decides nothing about checkpoints. When a worker exits it says so in the reports topic at once,
so that nobody waits for a heartbeat, and starts another in its place.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec

from penstock.control import Leave, encode
from penstock.failure import PenstockError, TransportFailed
from penstock.runtime.events import EventLog, say
from penstock.runtime.ports import Kafka, LogWriter

QUICK_RESTARTS = 3
"""Deaths in a row that are answered at once; a process that dies at every start waits longer."""
STEADY_S = 10.0
"""A process that lived this long is restarted at once; younger ones with growing delay."""
RESTART_MAX_S = 16.0
PATIENCE_S = 10.0
"""A stop that takes so long is explained."""
DONE_S = 2.0
"""A worker that was done is started again after so long, should the run go on without it."""
STOPPED_AT_ONCE = 5
"""Exit code after a second signal: nothing is lost, but the next start has more to do."""
FINAL_CODES = (0, 2, 4)
"""Coordinator exit codes that end the run: 0 as asked, 2 configuration, 4 fatal failure."""


class Child(msgspec.Struct):
    """One supervised process and how to start it again."""

    role: str
    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    worker_id: str = ""
    started_at: float = 0.0
    start_at: float = 0.0
    deaths: int = 0


class Supervisor:
    """Starts, watches, restarts and stops the processes of one application."""

    def __init__(self, app: str, kafka: Kafka, events: EventLog, env: dict[str, str]) -> None:
        self._app = app
        self._kafka = kafka
        self._events = events
        self._env = env
        self._children: list[Child] = []
        self._stopping = False
        self._at_once = False
        self._told = False
        self._explain_at = math.inf
        self._reports: LogWriter | None = None

    def add(self, role: str, name: str, command: list[str]) -> None:
        """A process to keep running; ``command`` are the arguments after ``penstock``."""
        self._children.append(Child(role, name, command))

    def ask_stop(self, *_: Any) -> None:
        """Signal handler: let the coordinator stop the application; asked twice, stop at once."""
        self._at_once = self._stopping
        self._stopping = True
        self._explain_at = time.monotonic() + PATIENCE_S

    def run(self) -> int:
        """Supervise until the coordinator ends the run; its exit code."""
        signal.signal(signal.SIGTERM, self.ask_stop)
        signal.signal(signal.SIGINT, self.ask_stop)
        self._reports = self._kafka.log_writer(f"{self._app}.reports")
        self._events.process("supervisor", self._app, "started", pid=os.getpid())
        try:
            while True:
                code = self._turn()
                if code is not None:
                    return self._ended(code)
                time.sleep(0.01)
        finally:
            self._kill_all()

    def _turn(self) -> int | None:
        now = time.monotonic()
        for child in self._children:
            if child.process is None:
                if now >= child.start_at and not (self._stopping and child.role == "worker"):
                    self._start(child)
                continue
            code = child.process.poll()
            if code is None:
                continue
            self._exited(child, code)
            if child.role == "coordinator" and code in FINAL_CODES:
                return code
            if child.role == "worker" and code == 2:
                self._stopping = True
                return 2
        if self._at_once:
            say("supervisor", "stopped at once: the next start goes on from the last checkpoint")
            return STOPPED_AT_ONCE
        if self._stopping and not self._told:
            self._tell_coordinator()
        if now >= self._explain_at:
            self._explain_at = math.inf
            say(
                "supervisor",
                "still waits for the last checkpoint and its commits, which need Kafka and the "
                "store; a second Ctrl-C or SIGTERM stops at once, and nothing is lost by it",
            )
        self._poll_reports()
        return None

    def _poll_reports(self) -> None:
        """An outage that lasts loses what we reported; heartbeats say the same, only later."""
        if self._reports is None:
            return
        try:
            self._reports.poll(0)
        except TransportFailed as error:
            say("supervisor", str(error))
            self._reports.close()
            self._reports = self._kafka.log_writer(f"{self._app}.reports")

    def _start(self, child: Child) -> None:
        child.worker_id = f"{child.name.replace('/', '-')}-{os.urandom(4).hex()}"
        command = [sys.executable, "-m", "penstock.runtime.cli", *child.command]
        command += ["--leash", str(os.getpid())]
        if child.role == "worker":
            command += ["--worker-id", child.worker_id]
        elif child.started_at == 0.0:
            # Nobody runs yet that a first coordinator could wait for.
            command += ["--resume-grace-ms", "0"]
        if child.role == "coordinator" and self._stopping:
            command += ["--stop"]  # a signal could come before its handler is there
        # A new session: a Ctrl-C in the terminal reaches the supervisor only, which stops in order.
        child.process = subprocess.Popen(command, env=self._env, start_new_session=True)
        child.started_at = time.monotonic()
        self._events.process(child.role, child.name, "started", pid=child.process.pid)
        if child.role == "coordinator":
            self._told = self._stopping

    def _exited(self, child: Child, code: int) -> None:
        process, child.process = child.process, None
        pid = process.pid if process is not None else 0
        self._events.process(child.role, child.name, "exited", pid=pid, code=code)
        now = time.monotonic()
        child.deaths = 0 if now - child.started_at >= STEADY_S else child.deaths + 1
        doubled = min(RESTART_MAX_S, 0.25 * 2 ** min(child.deaths - QUICK_RESTARTS, 10))
        child.start_at = now + (0.0 if child.deaths <= QUICK_RESTARTS else doubled)
        self._report_gone(child, pid, code)
        if child.role == "worker" and code == 0:
            # Most likely the whole run is done, and the coordinator is about to say so.
            child.start_at = now + DONE_S
        elif not self._stopping and not _is_final(child, code):
            say("supervisor", f"{child.role} {child.name} {_how(code)}; restarting")

    def _report_gone(self, child: Child, pid: int, code: int) -> None:
        """Whoever leads need not wait for a heartbeat that does not come."""
        if child.role == "worker" and self._reports is not None:
            reason = f"process {pid} {_how(code)}"
            with contextlib.suppress(TransportFailed):  # the queue is full: an outage
                self._reports.append(encode(Leave(worker=child.worker_id, reason=reason)))

    def _tell_coordinator(self) -> None:
        for child in self._children:
            if child.role == "coordinator" and child.process is not None:
                child.process.send_signal(signal.SIGTERM)
                self._told = True

    def _ended(self, code: int) -> int:
        """The coordinator is done: workers leave by themselves; the slow ones are made to."""
        deadline = time.monotonic() + (5.0 if code == 0 else 0.5)
        for child in self._children:
            if child.process is not None:
                try:
                    left = child.process.wait(max(0.0, deadline - time.monotonic()))
                    self._events.process(
                        child.role, child.name, "exited", pid=child.process.pid, code=left
                    )
                    child.process = None
                except subprocess.TimeoutExpired:
                    pass
        return code

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                child.process.kill()
                child.process.wait()
                self._events.process(
                    child.role, child.name, "exited", pid=child.process.pid, code=-9
                )
                self._report_gone(child, child.process.pid, -9)
                child.process = None
        if self._reports is not None:
            with contextlib.suppress(PenstockError):
                self._reports.flush(2)
        self._events.process("supervisor", self._app, "exited", pid=os.getpid())


def _is_final(child: Child, code: int) -> bool:
    """The run ends with this exit: only a person can help, or all is done."""
    return code in FINAL_CODES if child.role == "coordinator" else code == 2


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
