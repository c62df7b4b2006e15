"""One application as a user runs it: ``penstock run FILE…``, seen from outside.

What it is made of comes from the file of events that all of its processes write.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock_stack import Stack
from penstock_stack.server import LEASH

from mainjob.failure import JobFailed

PENSTOCK = Path(sys.executable).with_name("penstock")


@dataclass(frozen=True)
class Killed:
    """A process that was sent SIGKILL."""

    app: str
    role: str
    name: str
    pid: int


class Application:
    """The processes of one application; they end with this program, however it ends."""

    def __init__(
        self, name: str, files: Sequence[Path], stack: Stack, folder: Path, interval_ms: int
    ) -> None:
        self.name = name
        self.events_file = folder / f"{name}.events.jsonl"
        self.log_file = folder / f"{name}.log"
        for file in (self.events_file, self.log_file):  # of an earlier run
            file.unlink(missing_ok=True)
        self.events: list[dict[str, Any]] = []
        self._files = list(files)
        self._stack = stack
        self._interval_ms = interval_ms
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._read = 0
        self._rest = b""
        self._living: dict[str, tuple[str, int]] = {}
        self._pids: set[int] = set()

    def start(self, parallelism: int) -> None:
        """Run it with ``parallelism`` subtasks a service."""
        command = [
            *(str(PENSTOCK), "run", *map(str, self._files)),
            *("--bootstrap", self._stack.bootstrap, "--store", self._stack.store_url),
            *("--checkpoint-interval-ms", str(self._interval_ms)),
            *("--parallelism", str(parallelism), "--events", str(self.events_file)),
        ]
        with self.log_file.open("ab") as log:
            self._supervisor = subprocess.Popen(
                # The leash: a SIGKILL of this program ends the supervisor, and that its workers.
                [sys.executable, "-I", "-S", LEASH, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._stack.store_env},
                start_new_session=True,  # Ctrl-C comes to this program, which stops it in order
            )
        self._pids.add(self._supervisor.pid)

    def look(self) -> None:
        """Read new events. Raises JobFailed when the application has ended by itself."""
        self._read_events()
        if self._supervisor is not None and (code := self._supervisor.poll()) is not None:
            self._supervisor = None
            raise JobFailed(f"application {self.name!r} ended with {code}:\n{self.log_tail()}")

    def _read_events(self) -> None:
        if self.events_file.exists():
            with self.events_file.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            self._read += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] != "process":
            return
        if event["state"] == "started":
            self._pids.add(event["pid"])
            self._living[event["name"]] = (event["role"], event["pid"])
        elif self._living.get(event["name"], ("", 0))[1] == event["pid"]:
            del self._living[event["name"]]

    def kill_one(self, role: str, chance: random.Random) -> Killed | None:
        """SIGKILL to a random living process of ``role``; None when there is none just now."""
        victims = sorted(name for name, (each, _) in self._living.items() if each == role)
        if not victims:
            return None
        name = chance.choice(victims)
        _, pid = self._living.pop(name)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return Killed(self.name, role, name, pid)

    def kill_all(self) -> None:
        """SIGKILL to everything, the supervisor first; returns when nothing is left."""
        if self._supervisor is not None:
            self._supervisor.kill()
            self._supervisor.wait()
            self._supervisor = None
        give_up = time.monotonic() + 10
        while left := self.left_behind():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if time.monotonic() > give_up:
                raise JobFailed(f"processes of {self.name!r} survive SIGKILL: {sorted(left)}")
            time.sleep(0.02)
        self._living.clear()

    def stop(self, timeout_s: float = 60.0) -> None:
        """SIGTERM: a last checkpoint, its commit, and the end with exit code 0."""
        supervisor = self._supervisor
        if supervisor is None:
            return
        supervisor.terminate()
        try:
            code = supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise JobFailed(
                f"application {self.name!r} did not stop within {timeout_s:.0f} s of SIGTERM:\n"
                f"{self.log_tail()}"
            ) from None
        self._supervisor = None
        self._read_events()
        if code != 0:
            raise JobFailed(
                f"application {self.name!r} ended with {code} on SIGTERM:\n{self.log_tail()}"
            )

    def left_behind(self) -> set[int]:
        """Processes of this application that are still there."""
        self._read_events()
        return {pid for pid in self._pids if _lives(pid)}

    def log_tail(self, lines: int = 30) -> str:
        """The end of what its processes wrote."""
        if not self.log_file.exists():
            return "(no log)"
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-lines:])


def _lives(pid: int) -> bool:
    """Whether ``pid`` is a process of ours still; one that waits to be buried has no command."""
    try:
        return b"penstock" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
