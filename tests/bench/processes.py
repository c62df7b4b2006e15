"""Processes under measurement: started, sampled (CPU and memory of the whole tree) and ended."""

import bisect
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from penstock_stack.server import LEASH

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Crashed(Exception):
    """A measured process ended by itself."""


def tree(pid: int) -> list[int]:
    """``pid`` and all its living descendants."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in children.read_text().split())
            except OSError:
                continue  # it ended while we looked
    return found


def cpu_and_rss(pid: int) -> tuple[float, float]:
    """(CPU seconds so far, resident MB) of one process."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S, int(fields[21]) * PAGE_MB


class Sampler:
    """CPU and memory of process trees over time, by epoch seconds."""

    def __init__(self, roots: list[int], every_s: float = 0.05) -> None:
        self.roots = roots
        self.every_s = every_s
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.rss: list[float] = []
        self._by_pid: dict[int, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            self.sample()
            self._end.wait(self.every_s)

    def sample(self) -> None:
        rss = 0.0
        for pid in [pid for root in self.roots for pid in tree(root)]:
            try:
                cpu, resident = cpu_and_rss(pid)
            except (OSError, ValueError):
                continue  # it ended: its last value stays counted
            self._by_pid[pid] = cpu
            rss += resident
        self.times.append(time.time())
        self.cpu.append(sum(self._by_pid.values()))
        self.rss.append(rss)

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def cpu_between(self, begin: float, end: float) -> float:
        """CPU seconds in a window, interpolated between samples."""
        return self._cpu_at(end) - self._cpu_at(begin)

    def _cpu_at(self, at: float) -> float:
        after = bisect.bisect_left(self.times, at)
        if after == 0:
            return self.cpu[0]
        if after == len(self.times):
            return self.cpu[-1]
        t0, t1 = self.times[after - 1], self.times[after]
        c0, c1 = self.cpu[after - 1], self.cpu[after]
        return c0 + (c1 - c0) * (at - t0) / (t1 - t0)

    @property
    def peak_rss_mb(self) -> float:
        return max(self.rss, default=0.0)


class Contender:
    """The processes of one thing that is measured."""

    def __init__(self, commands: list[list[str]], log: Path, env: dict[str, str]) -> None:
        self.log = log
        self.commands = commands
        self.env = env
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            for command in self.commands:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, "-I", "-S", LEASH, str(os.getpid()), *command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, **self.env},
                        start_new_session=True,
                    )
                )
        return self

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def check(self) -> None:
        """Raise Crashed when a process ended."""
        for process, command in zip(self.processes, self.commands, strict=True):
            if (code := process.poll()) is not None:
                end = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise Crashed(f"{' '.join(command)} ended with {code}:\n{end}")

    def stop(self, timeout_s: float = 30.0) -> None:
        """SIGTERM and an orderly end within ``timeout_s``, else Crashed."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        give_up = time.monotonic() + timeout_s
        for process, command in zip(self.processes, self.commands, strict=True):
            try:
                code = process.wait(max(give_up - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                end = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise Crashed(
                    f"{' '.join(command)} did not end within {timeout_s} s of SIGTERM:\n{end}"
                ) from None
            if code != 0:
                end = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
                raise Crashed(f"{' '.join(command)} ended with {code} on SIGTERM:\n{end}")

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                for pid in reversed(tree(process.pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
