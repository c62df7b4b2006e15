"""A/B runs and replays on real servers: isolated copies, a range, a promotion, determinism.

Laws: L5, L14 (both sides stop at one set of offsets, everything before committed), L16, L22, L23.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.ids import transactional_prefix
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
FAST = ("--checkpoint-interval-ms", "100")
A, B = str(SERVICES / "sums.py"), str(SERVICES / "doubled.py")
Row = tuple[str, int, int]


class Lab:
    """An application that has run a while, its savepoint, and the command line."""

    def __init__(self, stack: Stack, app_id: str, folder: Path) -> None:
        self.stack, self.app, self.folder = stack, app_id, folder
        self.env = environment(stack, app_id)
        self.kafka = KafkaCluster.from_env(self.env)

    def penstock(self, *command: str, code: int = 0) -> str:
        """Run a command to its end; what it said."""
        with self.started(*command) as process:
            found = process.wait(200)
        said = self.log.read_text()
        assert found == code, f"{command}: {found}\n{said}"
        return said

    @contextlib.contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command while it runs."""
        self.log = self.folder / f"{command[0]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.runtime.cli", *command],
                env=self.env, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def rows(self, topic: str) -> Counter[Row]:
        """What a topic shows to a reader of committed records."""
        reader = Reader(self.stack, topic)
        try:
            reader.settle(2)
            found = [json.loads(value) for value in reader.values]
        finally:
            reader.close()
        return Counter((r["key"], r["count"], r["total"]) for r in found)

    def savepoint(self, last: int) -> str:
        """The original processes 1..last, and leaves a savepoint; what it wrote is committed."""
        application = Application(self.stack, self.app, self.folder, *FAST)
        reader = Reader(self.stack, f"{self.app}.sums")
        with running(application):
            feed(self.stack, f"{self.app}.numbers", KEYS, 1, last)
            reader.until(KEYS * last, 60, application)
            url = self.penstock("savepoint", "trigger", self.app, "--stop").splitlines()[-1]
            assert application.wait(60) == 0, application.log()
        reader.close()
        return url

    def open_transactions(self, app: str) -> dict[str, str]:
        recovery = self.kafka.recovery(app)
        try:
            return recovery.open_transactions(transactional_prefix(app))
        finally:
            recovery.close()


@pytest.fixture
def lab(stack: Stack, app_id: str, tmp_path: Path) -> Lab:
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    return Lab(stack, app_id, tmp_path)


def sums(first: int, last: int, *, doubled_from: int | None = None) -> Counter[Row]:
    """Plain Python: the outputs first..last; from some number on every third counts twice."""
    found: Counter[Row] = Counter()
    for k in range(KEYS):
        total = 0
        for n in range(1, last + 1):
            twice = doubled_from is not None and n >= doubled_from and n % 3 == 0
            total += 2 * n if twice else n
            if n >= first:
                found[f"k{k}", n, total] += 1
    return found


def test_both_sides_read_a_range_and_end(lab: Lab) -> None:
    """L22, L23: from one savepoint, at full speed, into outputs of their own."""
    url = lab.savepoint(10)
    feed(lab.stack, f"{lab.app}.numbers", KEYS, 11, 20)
    before = lab.rows(f"{lab.app}.sums")
    until = json.dumps({f"{lab.app}.numbers": dict.fromkeys(range(PARTITIONS), KEYS // 4 * 17)})
    started = ("ab", "start", A, "--from", url, "--variant", f"b={B}", "--parallelism", "2", *FAST)
    said = lab.penstock(*started, "--until", until)
    assert f"penstock ab report b --app {lab.app}" in said
    assert lab.rows(f"{lab.app}.sums.b-a") == sums(11, 17)
    assert lab.rows(f"{lab.app}.sums.b") == sums(11, 17, doubled_from=11)
    assert lab.rows(f"{lab.app}.sums") == before, "nothing of the original was touched"
    for app in (lab.app, f"{lab.app}-b", f"{lab.app}-b-a"):
        assert lab.open_transactions(app) == {}
    for side in ("a", "b"):
        final = f"{lab.stack.store_url}/{lab.app}/savepoints/ab-b-{side}"
        assert "2 workers" not in lab.penstock("savepoint", "inspect", final)
    assert "was started before" in lab.penstock(*started, code=2)
    lab.penstock("ab", "drop", "b", "--app", lab.app)
    assert lab.kafka.topics_under(f"{lab.app}-b") == []
    assert lab.kafka.topics_under(f"{lab.app}.sums") == [f"{lab.app}.sums"]


def test_a_variant_takes_over(lab: Lab) -> None:
    """L5, L14: the production output has every record once, the old ones and then the new."""
    url = lab.savepoint(10)
    original = Application(lab.stack, lab.app, lab.folder, *FAST)
    reader = Reader(lab.stack, f"{lab.app}.sums")
    with running(original):
        with lab.started("ab", "start", A, "--from", url, "--variant", f"b={B}", *FAST) as variant:
            feed(lab.stack, f"{lab.app}.numbers", KEYS, 11, 20)
            reader.until(KEYS * 20, 60, original)
            theirs = Reader(lab.stack, f"{lab.app}.sums.b")
            theirs.until(KEYS * 10, 60, original)
            theirs.close()
            feed(lab.stack, f"{lab.app}.numbers", KEYS, 21, 30)  # while both are being stopped
            lab.penstock("ab", "promote", "b", "--app", lab.app, "--no-run", *FAST)
            assert variant.wait(60) == 0
        assert original.wait(60) == 0, original.log()
    reader.settle()
    handed = len(reader.values) // KEYS
    said = lab.log.read_text()
    command = next(line for line in said.splitlines() if " run " in line and "--app-id" in line)
    arguments = command.partition("penstock run ")[2].split()
    with lab.started("run", *arguments):
        feed(lab.stack, f"{lab.app}.numbers", KEYS, 31, 35)
        reader.until(KEYS * 35, 90, original)
    reader.settle()
    reader.close()
    assert handed >= 20
    found = Counter((r["key"], r["count"]) for r in map(json.loads, reader.values))
    assert found == Counter((f"k{k}", n) for k in range(KEYS) for n in range(1, 36))
    ours, doubled = sums(1, 35), sums(1, 35, doubled_from=11)
    for row in lab.rows(f"{lab.app}.sums"):
        assert row in ours or row in doubled
        if row[1] > 30:
            assert row in doubled, "the variant's rule"
        if row[1] <= 20:
            assert row in ours, "the original's"
    assert "was promoted" in lab.penstock("ab", "drop", "b", "--app", lab.app, code=2)


@pytest.mark.parametrize("origin", ["earliest", "savepoint"])
def test_a_replay_writes_the_same_again(origin: str, lab: Lab) -> None:
    url = lab.savepoint(10)
    with running(Application(lab.stack, lab.app, lab.folder, *FAST)) as application:
        feed(lab.stack, f"{lab.app}.numbers", KEYS, 11, 20)
        reader = Reader(lab.stack, f"{lab.app}.sums")
        reader.until(KEYS * 20, 60, application)
        reader.close()
        assert application.stop() == 0
    until = json.dumps({f"{lab.app}.numbers": dict.fromkeys(range(PARTITIONS), KEYS // 4 * 15)})
    begin = url if origin == "savepoint" else origin
    said = lab.penstock("replay", lab.app, A, "--from", begin, "--until", until, *FAST)
    assert "verdict: deterministic" in said
    assert f"{KEYS * (5 if origin == 'savepoint' else 15)}" in said
    assert lab.kafka.topics_under(f"{lab.app}-replay") == []
    assert lab.kafka.topics_under(f"{lab.app}.sums") == [f"{lab.app}.sums"]
    check = Reader(lab.stack, f"{lab.app}.sums")
    check.settle(2)
    check_sums(check.values, KEYS, 20)
    check.close()


def test_a_replay_that_differs_says_so(lab: Lab) -> None:
    """The files have changed since: what they write now was not recorded."""
    lab.savepoint(10)
    said = lab.penstock("replay", lab.app, B, "--from", "earliest", *FAST, code=1)
    assert "NOT deterministic" in said
