"""One JSON line per event, whole lines of several processes in one file; lines for people."""

import json
import os
import threading
from pathlib import Path

import pytest
from penstock.failure import ConfigurationError, TransportFailed, UserCodeFailed
from penstock.record import OperatorFailed
from penstock.runtime.events import EventLog, say, where_raised


def test_events_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text('{"at": 0, "event": "before"}\n')
    log = EventLog(str(path))
    log.process("worker", "sums/0", "exited", pid=7, code=-9)
    log.emit("checkpoint", checkpoint=3, status="completed", duration_ms=1.5)
    before, process, checkpoint = [json.loads(line) for line in path.read_text().splitlines()]
    assert before["event"] == "before"
    assert process["at"] > 0
    del process["at"], checkpoint["at"]
    assert process == {
        "event": "process", "role": "worker", "name": "sums/0", "pid": 7,
        "state": "exited", "code": -9,
    }  # fmt: skip
    assert checkpoint == {
        "event": "checkpoint", "checkpoint": 3, "status": "completed", "duration_ms": 1.5,
    }  # fmt: skip


def test_nowhere() -> None:
    EventLog(None).emit("checkpoint", checkpoint=1)


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    """Each opens the file by itself, as processes do."""
    path = tmp_path / "events"

    def write(number: int) -> None:
        log = EventLog(str(path))
        for n in range(200):
            log.emit("x", writer=number, n=n, padding="y" * 500)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for number in range(4):
        assert [line["n"] for line in lines if line["writer"] == number] == list(range(200))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="name a file in a folder that is there"):
        EventLog(str(tmp_path / "no" / "events"))
    with pytest.raises(ConfigurationError, match="Is a directory"):
        EventLog(str(tmp_path))


def test_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    say("coordinator", "leads")
    captured = capsys.readouterr()
    stamp, text = captured.err.split(" ", 1)
    assert len(stamp) == len("17:00:00")
    assert text == "coordinator: leads\n"


def test_of_a_users_exception_only_the_users_frames_are_shown() -> None:
    def handler() -> None:
        raise ValueError("told to")

    def caught() -> UserCodeFailed:
        try:
            try:
                handler()
            except Exception as error:
                raise OperatorFailed("step", 0, "ValueError: told to") from error
        except OperatorFailed as error:
            failed = UserCodeFailed(f"{error}; record: topic 't', partition 0, offset 1")
            failed.__cause__ = error
            return failed

    shown = where_raised(caught())
    assert os.path.basename(__file__) in shown  # noqa: PTH119 - as a traceback shows it
    assert 'raise ValueError("told to")' in shown
    assert "penstock/record.py" not in shown


def test_errors_that_say_all_by_themselves_show_no_frames() -> None:
    for kind in (ConfigurationError, TransportFailed):
        with pytest.raises(kind) as caught:
            raise kind("say it") from KeyError("inner")
        assert where_raised(caught.value) == ""


def test_what_nobody_raised_on_purpose_shows_all_frames() -> None:
    with pytest.raises(KeyError) as caught:
        {}["missing"]
    assert '{}["missing"]' in where_raised(caught.value)
