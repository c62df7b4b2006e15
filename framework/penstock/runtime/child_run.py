"""Whole applications run side by side: each a ``penstock run`` of its own, ended with this process.

Two variants of a service often define modules of the same names, so that each needs a process of
its own from the first line on; and a stop of one must not stop the other half-way.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgspec

from penstock.failure import PenstockError

LONG_S = 20.0
"""How often it is said that they still run."""


class RunFailed(PenstockError):
    """An application did not end as it was asked to."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """One application to run."""

    name: str
    """What its lines are marked with."""
    files: tuple[str, ...]
    arguments: tuple[str, ...]


class ChildRun:
    """One ``penstock run``; what it says comes out on our standard error, marked with its name."""

    def __init__(self, wanted: Wanted, env: Mapping[str, str]) -> None:
        self.name = wanted.name
        command = [sys.executable, "-m", "penstock.runtime.cli", "run", *wanted.files]
        command += [*wanted.arguments, "--leash", str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us only; we stop it in order
        )
        lines = self._process.stdout
        assert lines is not None
        self._lines = threading.Thread(target=self._mark, args=(lines,), daemon=True)
        self._lines.start()

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self._process.poll()

    def stop(self) -> None:
        """Stop after a last checkpoint; asked twice, at once."""
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self.code is None:
            self._process.kill()
        self._process.wait()
        self._lines.join(5)

    def _mark(self, lines: IO[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            sys.stderr.write(f"{self.name} | {text}\n")
            sys.stderr.flush()


def run_all(wanted: Sequence[Wanted], env: Mapping[str, str]) -> bool:
    """Run applications until all have ended by themselves; False when a person stopped them.

    Raises RunFailed when one ends with an error: the others are stopped in order, then.
    """
    stops = 0
    runs: list[ChildRun] = []

    def asked(*_: Any) -> None:
        nonlocal stops
        stops += 1
        for run in runs:
            run.stop()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    began = told = time.monotonic()
    try:
        runs += [ChildRun(each, env) for each in wanted]
        bad: ChildRun | None = None
        while any(run.code is None for run in runs):
            failed = next((run for run in runs if run.code not in (None, 0)), None)
            if failed is not None and bad is None:
                bad = failed
                for run in runs:
                    run.stop()
            now = time.monotonic()
            if now - told >= LONG_S:
                told = now
                left = ", ".join(run.name for run in runs if run.code is None)
                sys.stderr.write(f"{left}: running for {now - began:.0f} s\n")
            time.sleep(0.05)
        bad = bad or next((run for run in runs if run.code != 0), None)
        if bad is not None and not stops:
            raise RunFailed(
                f"{bad.name} ended with exit code {bad.code}; what it said stands above"
            )
        return not stops
    finally:
        for run in runs:
            run.close()
        for number, handler in before.items():
            signal.signal(number, handler)
