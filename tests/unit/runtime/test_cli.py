"""Nonsense on the command line: exit code 2 and one line that names the thing and the remedy."""

import textwrap
from pathlib import Path

import pytest
from penstock.runtime.cli import main

SERVICE = """
    import penstock as ps

    service = ps.Service("copy", app="test")
    service.source("in", topic="in", value=str, serde="string").sink("out", topic="out")
"""
TWO = """
    import penstock as ps

    one = ps.Service("one", app="test")
    two = ps.Service("two", app="test")
    for service in (one, two):
        service.source(f"in-{service.name}", topic="in", value=str).sink(
            f"out-{service.name}", topic="out"
        )
"""


@pytest.fixture
def service(tmp_path: Path) -> Path:
    return written(tmp_path, SERVICE)


def written(folder: Path, text: str) -> Path:
    path = folder / "service.py"
    path.write_text(textwrap.dedent(text))
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on standard error of a command that exits with 2."""
    try:
        code: object = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these gets so far as to look for a server."""
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--parallelism", "x"), "parallelism 'x' is not SERVICE=N or N with N at least 1"),
        (("--parallelism", "0"), "parallelism '0' is not SERVICE=N or N"),
        (("--parallelism", "copy=-1"), "parallelism 'copy=-1' is not"),
        (("--parallelism", "copy="), "parallelism 'copy=' is not"),
        (("--parallelism", "=2"), "parallelism '=2' is not"),
        (("--parallelism", "copy=²"), "parallelism 'copy=²' is not"),
        (("--parallelism", "other=2"), "'other=2' names no service of this run: copy"),
        (("--checkpoint-interval-ms", "soon"), "--checkpoint-interval-ms: 'soon' is not a whole"),
        (("--checkpoint-interval-ms", "0"), "--checkpoint-interval-ms: 0 is less than 1"),
        (("--checkpoint-timeout-ms", "-1"), "--checkpoint-timeout-ms: -1 is less than 1"),
        (("--min-pause-ms", "-1"), "--min-pause-ms: -1 is less than 0"),
        (("--heartbeat-timeout-ms", "500"), "--heartbeat-timeout-ms: 500 is less than 2000"),
        (("--retained", "1"), "--retained: 1 is less than 2"),
        (("--tolerable-failures", "-1"), "--tolerable-failures: -1 is less than 0"),
        (("--mode", "MAYBE_ONCE"), "--mode: invalid choice: 'MAYBE_ONCE'"),
        (("--events", "/no/such/folder/events"), "cannot be written to '/no/such/folder/events'"),
        (("--faster",), "unrecognized arguments: --faster"),
        ((), "no Kafka cluster is named: pass --bootstrap HOST:PORT or set PENSTOCK_BOOTSTRAP"),
        (("--bootstrap", "kafka"), "bootstrap server 'kafka' is not host:port"),
        (("--bootstrap", "kafka:9092"), "no snapshot store is named: pass --store s3://"),
    ],
)
def test_run(
    arguments: tuple[str, ...], expected: str, service: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, "run", service, *arguments)
    assert line.startswith("penstock: ")
    assert expected in line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", "defines no service; assign one at its top level: service = penstock.Service("),
        ("def x(:", "cannot be loaded: SyntaxError: "),
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        (
            TWO,
            "defines 2 services ('one', 'two'); a worker runs one: put each in a file of its own",
        ),
        (
            'import penstock as ps\nservice = ps.Service("Copy", app="test")',
            "service 'Copy' is not a valid name: use 1-100 characters of a-z",
        ),
        (
            'import penstock as ps\nservice = ps.Service("copy", app="test")',
            "service 'copy' has no input; start with .source(...) or .from_edge(...)",
        ),
    ],
)
def test_files(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in said(capsys, "run", written(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nobody.py"
    assert f"there is no service file '{path}'; name a Python file" in said(capsys, "run", path)
    assert f"there is no service file '{tmp_path}'" in said(capsys, "run", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "the following arguments are required: COMMAND; see penstock --help"),
        (("walk",), "invalid choice: 'walk'"),
        (("run",), "the following arguments are required: FILE; see penstock run --help"),
        (("coordinator", "app"), "the following arguments are required: --service"),
        (("worker",), "the following arguments are required: FILE"),
    ],
)
def test_commands(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in said(capsys, *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("app", "--service", "copy"), "parallelism 'copy' is not SERVICE=N with N at least 1"),
        (("app", "--service", "2"), "parallelism '2' is not SERVICE=N with N at least 1"),
        (("app", "--service", "copy=0"), "parallelism 'copy=0' is not SERVICE=N"),
        (("My App", "--service", "copy=1"), "application id 'My App' is not a valid name"),
        (("app", "--service", "copy=1"), "no Kafka cluster is named"),
    ],
)
def test_coordinator(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in said(capsys, "coordinator", *arguments)
