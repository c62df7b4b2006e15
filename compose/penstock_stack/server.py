"""A server as a plain process that never outlives the program that started it."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from penstock_stack.failure import StackError

LEASH = str(Path(__file__).with_name("leash.py"))

Job = tuple[Callable[[], "subprocess.Popen[bytes]"], "Future[subprocess.Popen[bytes]]"]


class Spawner:
    """One thread that starts all servers and lives as long as the program.

    The parent-death signal fires when the THREAD that forked ends, not the process: a server
    restarted from a short-lived thread (a chaos monkey, a test's helper) would die with it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def spawn(self, start: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
        """Run ``start`` on the thread and hand back what it started."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # the latter after a fork
                self._jobs = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._run, name="spawner", daemon=True)
                self._thread.start()
        done: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((start, done))
        return done.result()

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            start, done = jobs.get()
            try:
                done.set_result(start())
            except BaseException as failure:
                done.set_exception(failure)


SPAWNER = Spawner()


class Server:
    """One server process: a command, its environment, its log, and how to see that it is ready."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._env = dict(env or {})
        self._ready = ready
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            raise StackError(f"{self.name} already runs as process {self.pid}; stop it first")
        self._process = SPAWNER.spawn(self._popen)

    def wait_ready(self) -> None:
        """Return when the server answers.

        Raises:
            StackError: it ended or did not answer in time; carries the end of its log.
        """
        give_up = time.monotonic() + self._start_timeout_s
        while not self._ready():
            if self._process is None or (code := self._process.poll()) is not None:
                raise StackError(
                    f"{self.name} ended with {code if self._process else 'no process'} while "
                    f"starting. The end of {self.log}:\n{self.tail()}"
                )
            if time.monotonic() > give_up:
                raise StackError(
                    f"{self.name} did not answer within {self._start_timeout_s:.0f} s. "
                    f"The end of {self.log}:\n{self.tail()}"
                )
            time.sleep(0.02)

    def start(self) -> None:
        """Start the process and return when it answers."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._end(signal.SIGKILL, timeout_s=20.0)

    def stop(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, and SIGKILL when it has not ended within ``timeout_s``."""
        self._end(signal.SIGTERM, timeout_s)

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after a pause."""
        self._signal(signal.SIGCONT)

    def tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _popen(self) -> "subprocess.Popen[bytes]":
        # -I -S: the leash needs nothing of the user's Python and must be up in milliseconds.
        command = [sys.executable, "-I", "-S", LEASH, str(os.getpid()), *self._command]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._env},
                start_new_session=True,  # Ctrl-C reaches the parent, which stops its servers
            )

    def _signal(self, how: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            raise StackError(f"{self.name} does not run: it cannot be sent {how.name}; start it")
        self._process.send_signal(how)

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20.0)
