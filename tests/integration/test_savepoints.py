"""Savepoints of running applications on real servers: taken, restored, gone on exactly once.

Laws: L2, L14 (a stop with savepoint commits everything up to it), L19 (what becomes a savepoint is
kept), L20 (any parallelism), L22 (self-contained), L23 (another id touches no transaction).
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from penstock.runtime.savepoint_making import opened
from penstock.savepoint.reading import Savepoint
from penstock_stack import Stack

from tests.integration.running import (
    PARTITIONS,
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
FILES = ("everything.py",)


class Place:
    """An application's topics, its reader, and the command line at hand."""

    def __init__(self, stack: Stack, app_id: str, folder: Path) -> None:
        self.stack, self.app, self.folder = stack, app_id, folder
        make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums", f"{app_id}.sums.fired")
        self.reader = Reader(stack, f"{app_id}.sums")
        self.fired = Reader(stack, f"{app_id}.sums.fired")
        self.runs = 0

    def application(self, *arguments: str, app: str | None = None, **env: str) -> Application:
        """One run; under another id it reads and writes the same topics."""
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        where = {"TEST_SOURCE": f"{self.app}.numbers", "TEST_SINK": f"{self.app}.sums", **env}
        return Application(
            self.stack, app or self.app, folder, *FAST, *arguments, services=FILES, **where
        )

    def penstock(self, *command: str, code: int = 0) -> str:
        """Run a command to its end; its standard output."""
        ran = subprocess.run(
            [sys.executable, "-m", "penstock.runtime.cli", *command],
            env=environment(self.stack, self.app),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == code, f"{command}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout.strip() if code == 0 else ran.stderr

    def savepoint(self, url: str) -> Savepoint:
        return Savepoint.open(opened(environment(self.stack, self.app), url))

    def close(self) -> None:
        self.reader.close()
        self.fired.close()


@pytest.fixture
def place(stack: Stack, app_id: str, tmp_path: Path) -> Iterator[Place]:
    found = Place(stack, app_id, tmp_path)
    yield found
    found.close()


def rows(savepoint: Savepoint, operator: str, state: str) -> list[dict[str, Any]]:
    return list(savepoint.table(operator, state).to_pylist())


def check_state(savepoint: Savepoint, last: int) -> None:
    """Every value, timer and position is that of KEYS keys with the records 1..last."""
    keys = [f"k{k}" for k in range(KEYS)]
    total = last * (last + 1) // 2
    sums = {
        row["key_value"]: (row["count"], row["total"])
        for row in rows(savepoint, "everything", "sums")
    }
    assert sums == dict.fromkeys(keys, (last, total))
    seen: dict[str, list[int]] = {}
    for row in rows(savepoint, "everything", "seen"):
        assert row["list_index"] == len(seen.setdefault(row["key_value"], []))
        seen[row["key_value"]].append(row["value"])
    assert seen == {key: list(range(1, last + 1)) for key in keys}
    parity = {
        (r["key_value"], r["map_key"]): r["value"] for r in rows(savepoint, "everything", "parity")
    }
    assert parity == {
        (key, side): count
        for key in keys
        for side, count in (("odd", (last + 1) // 2), ("even", last // 2))
        if count
    }
    assert {r["key_value"]: r["value"] for r in rows(savepoint, "everything", "greatest")} == (
        dict.fromkeys(keys, last)
    )
    timers = Counter(
        (r["key_value"], r["time_domain"], r["timestamp_ms"])
        for r in rows(savepoint, "everything", "timers")
    )
    forever = 10**15
    assert timers == Counter(
        timer
        for key in keys
        for timer in ((key, "event", forever + last), (key, "processing", forever))
    )
    assert sum(row["value"] for row in rows(savepoint, "numbered", "passed")) == KEYS * last
    (source,) = savepoint.manifest.sources
    each = KEYS // PARTITIONS * last
    assert source.positions == dict.fromkeys(range(PARTITIONS), each)


def fed(place: Place, application: Application, first: int, last: int) -> None:
    """The records first..last of every key are written, and their output is seen."""
    feed(place.stack, f"{place.app}.numbers", KEYS, first, last)
    place.reader.until(KEYS * last, 60, application)


# -- taken while it runs, restored elsewhere


@pytest.mark.parametrize(("parallelism", "edge_partitions"), [("1", "16"), ("3", "16"), ("4", "7")])
def test_a_savepoint_is_gone_on_from_elsewhere(
    parallelism: str, edge_partitions: str, place: Place
) -> None:
    """L20, L22, L23: another id, parallelism and edge; the original's records are not needed."""
    with running(place.application()) as original:
        fed(place, original, 1, 12)
        url = place.penstock("savepoint", "trigger", place.app)
        fed(place, original, 13, 15)  # it goes on
        assert original.stop() == 0, original.log()
    check_state(place.savepoint(url), 12)
    feed(place.stack, f"{place.app}.numbers", KEYS, 16, 20)
    sums = f"{place.app}.sums.other"
    make_topics(place.stack, sums, f"{sums}.fired")
    other = place.application(
        *("--from-savepoint", url, "--parallelism", parallelism),
        app=f"{place.app}-other", TEST_SINK=sums, TEST_EDGE_PARTITIONS=edge_partitions,
    )  # fmt: skip
    theirs = Reader(place.stack, sums)
    try:
        with running(other):
            theirs.until(KEYS * 8, 60, other)
            assert other.stop() == 0, other.log()
        theirs.settle()
    finally:
        theirs.close()
    place.reader.settle()
    check_sums(place.reader.values, KEYS, 15)
    found = Counter((r["key"], r["count"], r["total"]) for r in map(json.loads, theirs.values))
    assert found == Counter(
        (f"k{k}", n, n * (n + 1) // 2) for k in range(KEYS) for n in range(13, 21)
    ), "from the savepoint on, once each"
    assert other.open_transactions() == {}


def test_a_killed_restore_begins_again_and_a_restart_does_not(place: Place) -> None:
    """L12: the savepoint is imported once, however often the processes are started."""
    with running(place.application()) as original:
        fed(place, original, 1, 10)
        url = place.penstock("savepoint", "trigger", place.app, "--stop")
        assert original.wait(60) == 0, original.log()
    check_state(place.savepoint(url), 10)
    application = place.application("--from-savepoint", url)
    with running(application):
        application.until(lambda: application.pids("coordinator"), what="a coordinator")
        os.kill(application.pids("coordinator")[place.app], signal.SIGKILL)
        fed(place, application, 11, 15)
        os.kill(application.pids("coordinator")[place.app], signal.SIGKILL)
        fed(place, application, 16, 20)
        application.kill()
    again = place.application("--from-savepoint", url)
    with running(again):
        fed(place, again, 21, 25)
        assert again.stop() == 0, again.log()
    place.reader.settle()
    check_sums(place.reader.values, KEYS, 25)
    once_more = place.application("--from-savepoint", url, "--restore-again")
    with running(once_more):
        place.reader.until(KEYS * (25 + 15), 60, once_more)
        assert once_more.stop() == 0, once_more.log()
    place.reader.settle()
    counts = Counter(json.loads(value)["count"] for value in place.reader.values)
    assert counts == Counter({n: KEYS * (2 if n > 10 else 1) for n in range(1, 26)}), (
        "asked to, it begins again from the savepoint"
    )


# -- stop and drain


def test_a_stop_with_savepoint_commits_everything(place: Place) -> None:
    """L14: what the savepoint reflects is visible, and nothing is open."""
    with running(place.application("--checkpoint-interval-ms", "60000")) as application:
        application.until(application.checkpoints, what="the checkpoint at the beginning")
        feed(place.stack, f"{place.app}.numbers", KEYS, 1, 10)
        topic = {f"{place.app}.numbers": dict.fromkeys(range(PARTITIONS), KEYS // PARTITIONS * 10)}
        application.until(lambda: processed(place) == topic, what="everything is processed")
        assert place.reader.poll() == 0, "no checkpoint has committed anything"
        url = place.penstock("savepoint", "trigger", place.app, "--stop")
        assert application.wait(60) == 0, application.log()
    assert application.open_transactions() == {}
    place.reader.settle(2)
    check_sums(place.reader.values, KEYS, 10)
    check_state(place.savepoint(url), 10)
    assert place.fired.poll() == 0


def processed(place: Place) -> dict[str, dict[int, int]]:
    """Where the source says that it is, for monitoring."""
    from confluent_kafka import Consumer, TopicPartition

    topic = f"{place.app}.numbers"
    consumer = Consumer(
        {"bootstrap.servers": place.stack.bootstrap, "group.id": f"{place.app}.everything.numbers"}
    )
    try:
        wanted = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        return {topic: {p.partition: p.offset for p in consumer.committed(wanted, timeout=20)}}
    finally:
        consumer.close()


def test_a_drain_fires_every_timer(place: Place) -> None:
    """Those of event and of processing time, also behind an edge; and it can be gone on from."""
    with running(place.application()) as application:
        fed(place, application, 1, 10)
        url = place.penstock("savepoint", "trigger", place.app, "--stop", "--drain")
        assert application.wait(60) == 0, application.log()
    place.fired.settle(2)
    fired = Counter(
        (r["key"], r["ms"] - 10**15, r["is_event"]) for r in map(json.loads, place.fired.values)
    )
    assert fired == Counter(
        (f"k{k}", ms, is_event) for k in range(KEYS) for ms, is_event in ((10, True), (0, False))
    )
    savepoint = place.savepoint(url)
    assert savepoint.table("everything", "timers").num_rows == 0
    with running(place.application("--from-savepoint", url)) as again:
        fed(place, again, 11, 15)
        assert again.stop() == 0, again.log()
    place.reader.settle()
    check_sums(place.reader.values, KEYS, 15)
    place.fired.settle()
    assert len(place.fired.values) == 2 * KEYS, "no timer set later fires at once"


# -- what is kept, and what is claimed


def test_a_claimed_savepoint_is_deleted_when_it_is_needed_no_more(place: Place) -> None:
    """L19."""
    with running(place.application()) as application:
        fed(place, application, 1, 5)
        kept = place.penstock("savepoint", "trigger", place.app, "--name", "kept")
        claimed = place.penstock("savepoint", "trigger", place.app, "--name", "claimed", "--stop")
        assert application.wait(60) == 0, application.log()
    again = place.application("--from-savepoint", claimed, "--claim-mode", "claim")
    with running(again):
        fed(place, again, 6, 10)
        store = opened(environment(place.stack, place.app), claimed)
        again.until(lambda: store.list("") == [], what="the claimed savepoint is gone")
        assert again.stop() == 0, again.log()
    place.reader.settle()
    check_sums(place.reader.values, KEYS, 10)
    check_state(place.savepoint(kept), 5)


# -- what does not fit


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"TEST_UID": "everythin"}, "everythin"),
        ({"TEST_TYPE": "changed"}, "count"),
        ({"TEST_MAX_PARALLELISM": "64"}, "max_parallelism"),
        ({"TEST_SOURCE": "elsewhere"}, "elsewhere"),
    ],
    ids=["uid", "type", "key-groups", "topic"],
)
def test_a_graph_that_does_not_fit_is_refused(env: dict[str, str], told: str, place: Place) -> None:
    """L22: one clear line, exit code 4, and nothing is lost: the right graph starts from it."""
    with running(place.application()) as application:
        fed(place, application, 1, 5)
        url = place.penstock("savepoint", "trigger", place.app, "--stop")
        assert application.wait(60) == 0, application.log()
    if "TEST_SOURCE" in env:
        env = {"TEST_SOURCE": f"{place.app}.elsewhere"}
        make_topics(place.stack, env["TEST_SOURCE"])
    wrong = place.application("--from-savepoint", url, **env)
    with running(wrong):
        assert wrong.wait(60) == 4, wrong.log()
    assert told in wrong.log()
    assert url.rpartition("/")[2] in wrong.log()
    with running(place.application("--from-savepoint", url)) as right:
        fed(place, right, 6, 10)
        assert right.stop() == 0, right.log()
    place.reader.settle()
    check_sums(place.reader.values, KEYS, 10)


def test_state_that_nobody_takes_is_dropped_when_told_to(place: Place) -> None:
    with running(place.application()) as application:
        fed(place, application, 1, 5)
        url = place.penstock("savepoint", "trigger", place.app, "--stop")
        assert application.wait(60) == 0, application.log()
    bare = place.application("--from-savepoint", url, "--allow-non-restored-state", TEST_UID="new")
    with running(bare):
        feed(place.stack, f"{place.app}.numbers", KEYS, 1, 3)
        place.reader.until(KEYS * 8, 60, bare)
        assert bare.stop() == 0, bare.log()
    counts = Counter(json.loads(value)["count"] for value in place.reader.values)
    assert counts == Counter({1: 80, 2: 80, 3: 80, 4: 40, 5: 40})


def test_no_savepoint_of_an_application_that_does_not_run(place: Place) -> None:
    """It says so, and what to do instead."""
    with running(place.application()) as application:
        fed(place, application, 1, 5)
        assert application.stop() == 0, application.log()
    told = place.penstock("savepoint", "trigger", place.app, code=2)
    assert "is stopped" in told
    assert f"penstock savepoint convert {place.app}" in told
    url = place.penstock("savepoint", "convert", place.app)
    check_state(place.savepoint(url), 5)
