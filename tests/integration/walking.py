"""Walks through a page: its commands in terminals, its cells in one session, block by block."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock_stack import Stack

from tests.docs.pages import Block, matches

BIN = Path(sys.executable).parent
PATIENCE_S = 90.0


class Terminals:
    """The reader's terminals: one command in front, at most one left running behind it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._behind: subprocess.Popen[bytes] | None = None
        self._log = folder / "terminal.log"
        self._read = 0
        self._env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}

    def run(self, block: Block) -> str:
        """A command to its end; what it printed."""
        done = subprocess.run(
            ["bash", "-ec", block.text],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert done.returncode == 0, self._said(block, done.stdout + done.stderr)
        return done.stdout

    def leave_running(self, block: Block, until: str) -> None:
        """A command that goes on in a terminal of its own."""
        self._read = 0
        with self._log.open("wb") as log:
            self._behind = subprocess.Popen(
                ["bash", "-ec", block.text],
                cwd=self._folder,
                env=self._env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.await_logged(block, until)

    def await_logged(self, block: Block, expected: str) -> None:
        """Wait until what runs behind has printed a line that looks like this."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            rest = self._log.read_text(errors="replace")[self._read :]
            for line in rest.splitlines():
                if matches(f"…{expected.strip()}…", line):
                    self._read += rest.index(line) + len(line)
                    return
            assert time.monotonic() < give_up, self._said(block, f"never printed {expected!r}")
            assert self._behind is None or self._behind.poll() is None, self._said(block, "ended")
            time.sleep(0.1)

    def interrupt(self, block: Block) -> None:
        """Ctrl-C: it ends in order."""
        assert self._behind is not None
        os.killpg(self._behind.pid, signal.SIGINT)
        code = self._behind.wait(PATIENCE_S)
        self._behind = None
        assert code == 0, self._said(block, f"exit code {code}")

    def close(self) -> None:
        """Leave nothing behind, however the walk ended."""
        if self._behind is not None and self._behind.poll() is None:
            os.killpg(self._behind.pid, signal.SIGKILL)
            self._behind.wait(30)

    def _said(self, block: Block, what: str) -> str:
        log = self._log.read_text(errors="replace")[-6000:] if self._log.exists() else ""
        return f"{block.where}: {what}\nthe other terminal:\n{log}"


def settings(stack: Stack) -> dict[str, str]:
    """What a program must know of the servers."""
    where = {"PENSTOCK_BOOTSTRAP": stack.bootstrap, "PENSTOCK_STORE": stack.store_url}
    return where | stack.store_env


def exports(stack: Stack) -> str:
    """What `python -m penstock_stack up` prints."""
    return "".join(f"export {name}='{value}'\n" for name, value in settings(stack).items())


def walk(blocks: list[Block], terminals: Terminals, folder: Path) -> None:
    """Do what each block says."""
    printed = ""
    names: dict[str, Any] = {}
    for block in blocks:
        if block.title is not None:
            (folder / block.title).write_text(block.text)
        elif block.how == "interrupt":
            terminals.interrupt(block)
        elif block.how == "logged":
            for line in block.text.splitlines():
                terminals.await_logged(block, line)
        elif block.how == "output":
            assert matches(block.text, printed), f"{block.where}: what was printed:\n{printed}"
        elif block.how.startswith("stack, background until "):
            terminals.leave_running(block, block.how.split('"')[1])
        elif block.language == "sh" and (block.needs_stack or block.how == "run"):
            printed = terminals.run(block)
        elif block.language == "python" and block.needs_stack:
            printed = _cell(block, names)


def _cell(block: Block, names: dict[str, Any]) -> str:
    """Run a cell of a notebook in this process; what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * block.line + block.text, block.where, "exec"), names)
    return out.getvalue()
