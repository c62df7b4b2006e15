"""The trial of the fee: one savepoint, both variants over the same transfers, a report, a verdict.

Everything is done with the commands that a user has; what must come out is counted beside them.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from ledger.generator import generate
from mainjob.topics import create_topics, fill
from penstock_kafka import KafkaCluster
from penstock_spark.ab import AbReport, read
from penstock_stack import Stack

from ledger_ab.expectation import Expectation
from ledger_ab.verdict import deviations

ROOT = Path(__file__).parents[2]
LEDGER = ("services/ledger/transfers.py", "services/ledger/accounts.py")
FEE = "services/ledger_ab/transfers.py"
PENSTOCK = Path(sys.executable).with_name("penstock")


class TrialFailed(RuntimeError):
    """A command of the trial ended otherwise than it should."""


@dataclass(frozen=True)
class Size:
    """How many transfers are booked before the savepoint, and how many both variants replay."""

    before: int = 100_000
    replayed: int = 1_000_000


FULL = Size()
QUICK = Size(before=5_000, replayed=50_000)


class Trial:
    """The trial on a running stack; ``folder`` takes the report."""

    def __init__(self, stack: Stack, folder: Path, size: Size, seed: int) -> None:
        self._stack, self._folder, self._size, self._seed = stack, folder.resolve(), size, seed
        self._began = time.monotonic()
        self.seconds: dict[str, float] = {}
        """How long each step took."""
        self._env = {
            **os.environ,
            **stack.store_env,
            "PENSTOCK_BOOTSTRAP": stack.bootstrap,
            "PENSTOCK_STORE": stack.store_url,
        }

    def run(self) -> tuple[AbReport, list[str]]:
        """The report, and what is wrong with it. Raises TrialFailed."""
        size, transfers = self._size, map(msgspec.json.encode, generate(self._total, self._seed))
        create_topics(self._stack.bootstrap, sources=["transfers"], sinks=["postings"])
        fill(self._stack.bootstrap, "transfers", islice(transfers, size.before))
        self._penstock(
            f"the ledger books {size.before:,} transfers",
            *("run", *LEDGER, "--until", self._ends()),
        )
        told = self._penstock(
            "its last checkpoint becomes a savepoint",
            *("savepoint", "convert", "ledger", "--name", "before-the-fee", "--json"),
        )
        savepoint = json.loads(told)["url"]
        fill(self._stack.bootstrap, "transfers", transfers)
        self._penstock(
            f"the ledger and its variant replay {size.replayed:,} transfers, each by itself",
            *("ab", "start", *LEDGER, "--variant", f"b={FEE}"),
            *("--from", savepoint, "--until", "latest"),
        )
        self._penstock(
            "their outputs and end states are compared",
            *("ab", "report", "b", "--app", "ledger", "--out", self._folder),
            *("--on", "postings=transfer,account,side", "--ignore", "postings=total,sequence"),
            is_shown=True,
        )
        report = read((self._folder / "report.json").read_bytes())
        self._say("counting what must come of it")
        return report, deviations(report, self.expected())

    @property
    def _total(self) -> int:
        return self._size.before + self._size.replayed

    def expected(self) -> dict[str, dict[str, Any]]:
        """What the report must say, by plain counting."""
        transfers, expectation = generate(self._total, self._seed), Expectation()
        expectation.before(islice(transfers, self._size.before))
        expectation.replay(transfers)
        return expectation.figures()

    def _ends(self) -> str:
        """Where the input ends now, as ``--until`` takes it."""
        ends = KafkaCluster(self._stack.bootstrap).end_positions("transfers")
        return json.dumps({"transfers": dict(enumerate(ends))})

    def _penstock(self, what: str, *arguments: str | Path, is_shown: bool = False) -> str:
        """Run a command of ``penstock``; what it prints. Raises TrialFailed."""
        self._say(what)
        began = time.monotonic()
        log = self._folder / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            run = subprocess.run(
                [PENSTOCK, *map(str, arguments)],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=None if is_shown else subprocess.PIPE,
                stderr=None if is_shown else errors,
                check=False,
            )
        self.seconds[" ".join(map(str, arguments[:2]))] = round(time.monotonic() - began, 1)
        if run.returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            command = " ".join(map(str, arguments))
            raise TrialFailed(f"penstock {command} ended with {run.returncode}:\n{tail}")
        return (run.stdout or b"").decode()

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {line}", flush=True)
