"""The demo as a user runs it, with less input: exactly once, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "services" / "demo.py"


def processes_that_mention(text: str) -> dict[int, str]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command and int(folder.name) != os.getpid():
            found[int(folder.name)] = command
    return found


def await_none(text: str, timeout_s: float = 10.0) -> dict[int, str]:
    give_up = time.monotonic() + timeout_s
    while (left := processes_that_mention(text)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return left


def test_the_quick_demo_is_exactly_once(tmp_path: Path):
    report = tmp_path / "demo.json"
    logs = tmp_path / "logs"
    command = [sys.executable, str(DEMO), "--quick", "--json", str(report), "--logs", str(logs)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=390)
    said = f"{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    figures = json.loads(report.read_text())
    assert figures["verdict"] == "exactly-once", said
    assert (figures["duplicates"], figures["lost"], figures["open_transactions"]) == (0, 0, 0)
    assert figures["kills"] >= 6
    assert figures["rescales"] == 1
    assert figures["checkpoints"]["completed"] > 0
    assert "killed coordinator" in run.stdout
    assert "killed worker" in run.stdout
    assert await_none(str(logs)) == {}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, how: signal.Signals):
    logs = tmp_path / "logs"
    output = tmp_path / "output"
    command = [sys.executable, str(DEMO), "--quick", "--seed", "3", "--logs", str(logs)]
    command += ["--json", str(tmp_path / "demo.json")]
    with output.open("wb") as file:
        demo = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        give_up = time.monotonic() + 180
        while "killed" not in output.read_text():  # well under way: every process was started
            assert demo.poll() is None, output.read_text()
            assert time.monotonic() < give_up, output.read_text()
            time.sleep(0.1)
        servers = servers_of(demo.pid)
        assert servers, "the demo runs without servers?"
        demo.send_signal(how)
        code = demo.wait(60)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    assert await_none(str(logs)) == {}
    give_up = time.monotonic() + 10
    while left := [pid for pid in servers if is_alive(pid)]:
        assert time.monotonic() < give_up, f"servers left behind: {left}"
        time.sleep(0.05)


def servers_of(pid: int) -> list[int]:
    children = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        children += [int(child) for child in file.read_text().split()]
    return children


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] != "Z"
