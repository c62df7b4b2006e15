"""``penstock savepoint`` and ``penstock checkpoint`` as people use them, on real servers.

What a savepoint holds and how it is restored is in test_savepoints.py.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock_minio import open_store
from penstock_stack import Stack

from tests.integration.running import (
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
FATAL = 4


class Shell:
    """One application, and the command line beside it."""

    def __init__(self, stack: Stack, app: str, folder: Path) -> None:
        self.stack, self.app, self.folder = stack, app, folder
        make_topics(stack, f"{app}.numbers", f"{app}.sums")
        self.reader = Reader(stack, f"{app}.sums")
        self.env = environment(stack, app)
        self.runs = 0

    def application(self, *arguments: str) -> Application:
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        return Application(self.stack, self.app, folder, *FAST, *arguments)

    def run(self, *command: str, code: int = 0, **env: str) -> tuple[str, str]:
        """Run a command to its end: standard output, standard error."""
        ran = subprocess.run(
            self.command(*command), env={**self.env, "COLUMNS": "80", **env},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ran.returncode == code, f"{command}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout.strip(), ran.stderr

    def command(self, *command: str) -> list[str]:
        return [sys.executable, "-m", "penstock.runtime.cli", *command]

    def fed(self, application: Application, first: int, last: int) -> None:
        feed(self.stack, f"{self.app}.numbers", KEYS, first, last)
        self.reader.until(KEYS * last, 60, application)


@pytest.fixture
def shell(stack: Stack, app_id: str, tmp_path: Path) -> Iterator[Shell]:
    found = Shell(stack, app_id, tmp_path)
    yield found
    found.reader.close()


def test_taken_listed_looked_at_compared_deleted(shell: Shell) -> None:
    base = f"{shell.stack.store_url}/{shell.app}/savepoints"
    with running(shell.application()) as application:
        shell.fed(application, 1, 5)
        out, told = shell.run("savepoint", "trigger", shell.app, "--name", "a")
        assert out == f"{base}/a"
        assert f"asks application '{shell.app}' for a savepoint" in told
        assert "is a savepoint: " in told
        shell.fed(application, 6, 8)
        out, _ = shell.run("savepoint", "trigger", shell.app, "--name", "b", "--json")
        made = json.loads(out)
        assert made["url"] == f"{base}/b"
        told = shell.run("savepoint", "trigger", shell.app, "--name", "b", code=2)[1]
        assert f"there is a savepoint at {base}/b already" in told
        assert application.checkpoints("completed"), application.log()
    listed = json.loads(shell.run("savepoint", "list", shell.app, "--json")[0])
    assert [each["url"] for each in listed] == [f"{base}/a", f"{base}/b"]
    assert listed[1] | made == made | listed[1]  # what both say is the same
    told = shell.run("savepoint", "inspect", f"{base}/a", "--verify")[1]
    assert "every sum, every row in its key group" in told
    inspected = json.loads(shell.run("savepoint", "inspect", f"{base}/b", "--json")[0])
    (source,) = inspected["sources"]
    assert sum(source["positions"].values()) == KEYS * 8
    out, _ = shell.run("savepoint", "diff", f"{base}/a", f"{base}/b", "--json", code=1)
    difference = json.loads(out)
    assert sum(each["b"] - each["a"] for each in difference["positions"]) == KEYS * 3
    changed = {each["state"]: each["different"] for each in difference["rows"]}
    assert max(changed.values()) == KEYS
    assert shell.run("savepoint", "diff", f"{base}/b", f"{base}/b")[0].endswith("rows")
    shell.run("savepoint", "dispose", f"{base}/a", code=2)  # nobody can answer
    shell.run("savepoint", "dispose", f"{base}/a", "--yes")
    told = shell.run("savepoint", "inspect", f"{base}/a", code=2)[1]
    assert told.startswith(f"penstock: there is no savepoint at {base}/a")
    assert len(told.splitlines()) == 1
    assert json.loads(shell.run("savepoint", "list", base, "--json")[0]) == listed[1:]


def test_a_checkpoint_becomes_a_savepoint_with_kafka_and_without(shell: Shell) -> None:
    with running(shell.application()) as application:
        shell.fed(application, 1, 5)
        assert application.stop() == 0, application.log()
    found = json.loads(shell.run("checkpoint", "list", shell.app, "--json")[0])
    assert not [each for each in found if each["flaw"]]
    newest = found[-1]
    url, _ = shell.run("savepoint", "convert", shell.app)
    assert url.endswith(f"/{shell.app}/savepoints/checkpoint-{newest['checkpoint']}")
    again, _ = shell.run(
        "savepoint", "convert", shell.app, "--manifest", newest["manifest"], "--name", "again",
        PENSTOCK_BOOTSTRAP="",
    )  # fmt: skip
    assert shell.run("savepoint", "diff", url, again)[0].splitlines()[-1].startswith("equal: ")
    older = found[-2]["checkpoint"]
    shell.run("savepoint", "convert", shell.app, "--checkpoint", str(older))
    told = shell.run("savepoint", "convert", shell.app, "--checkpoint", "1000000", code=2)[1]
    assert f"there are {', '.join(str(each['checkpoint']) for each in found[-8:])}" in told
    told = shell.run("savepoint", "convert", shell.app, PENSTOCK_BOOTSTRAP="", code=2)[1]
    assert "without Kafka name a manifest" in told


def test_an_older_checkpoint_when_the_newest_is_damaged(shell: Shell) -> None:
    """As the messages say, word by word; nothing is lost, as nothing came after the older one."""
    with running(shell.application()) as application:
        shell.fed(application, 1, 5)
        seen = len(application.checkpoints())
        application.until(lambda: len(application.checkpoints()) >= seen + 4)
        assert application.stop() == 0, application.log()
    *_, older, newest = json.loads(shell.run("checkpoint", "list", shell.app, "--json")[0])
    store = open_store(shell.stack.store_url, shell.stack.store_env)
    store.delete([newest["manifest"]])
    store.put(newest["manifest"], b"spoilt")
    refused = shell.application().start()
    assert refused.wait(60) == FATAL
    assert f"penstock savepoint convert {shell.app} --checkpoint N, then" in refused.log()
    listed, _ = shell.run("checkpoint", "list", shell.app)
    assert "its manifest is damaged" in listed
    number = str(older["checkpoint"])
    url, _ = shell.run("savepoint", "convert", shell.app, "--checkpoint", number)
    refused = shell.application("--from-savepoint", url).start()
    assert refused.wait(60) == FATAL
    assert "and with --accept-loss" in refused.log()
    with running(shell.application("--from-savepoint", url, "--accept-loss")) as application:
        shell.fed(application, 6, 9)
        shell.reader.settle()
        assert application.stop() == 0, application.log()
    check_sums(shell.reader.values, KEYS, 9)


def test_ctrl_c_takes_the_request_back(shell: Shell) -> None:
    """Nobody leads the application; whoever comes next takes no savepoint."""
    with running(shell.application()) as application:
        shell.fed(application, 1, 5)
        application.kill()
    command = shell.command("savepoint", "trigger", shell.app, "--name", "never")
    trigger = subprocess.Popen(command, env=shell.env, stderr=subprocess.PIPE, text=True)
    assert trigger.stderr is not None
    line = trigger.stderr.readline()
    assert "asks application" in line
    time.sleep(2)
    os.kill(trigger.pid, signal.SIGINT)
    assert trigger.wait(30) == 130
    assert "penstock: interrupted, no savepoint was made" in trigger.stderr.read()
    trigger.stderr.close()
    told = shell.run("savepoint", "trigger", shell.app, "--timeout-s", "1", code=3)[1]
    assert "is its coordinator running" in told
    with running(shell.application()) as application:
        shell.fed(application, 6, 8)
        assert application.stop() == 0, application.log()
        assert "takes savepoint" not in application.log()
    check_sums(shell.reader.values, KEYS, 8)


def test_what_is_not_there(shell: Shell) -> None:
    with running(shell.application()) as application:
        shell.fed(application, 1, 2)
        application.until(application.checkpoints)
        wrong = shell.app[:-1]
        for command in (("trigger", wrong), ("convert", wrong), ("list", wrong)):
            told = shell.run("savepoint", *command, code=2)[1]
            assert f"did you mean '{shell.app}'?" in told
            assert len(told.splitlines()) == 1
        for command in (
            ("inspect", "s3://no-such-bucket/x"),
            ("trigger", shell.app, "--to", "s3://no-such-bucket/x"),
        ):
            told = shell.run("savepoint", *command, code=2)[1]
            assert "bucket 'no-such-bucket'" in told
            assert len(told.splitlines()) == 1
        elsewhere = f"{shell.stack.store_url}/elsewhere"
        told = shell.run("savepoint", "trigger", shell.app, "--store", elsewhere, "--stop", code=2)[
            1
        ]
        assert "name the store that the application uses, with --store" in told
        told = shell.run("savepoint", "trigger", shell.app, "--to", elsewhere.rpartition("/")[0],
                         code=2)[1]  # fmt: skip
        assert "give the savepoint a folder of its own" in told
        shell.fed(application, 3, 4)  # it was not asked to stop
        assert application.stop() == 0, application.log()
        assert "takes savepoint" not in application.log()
