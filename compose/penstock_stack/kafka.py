"""One Kafka node (KRaft: broker and controller in one process) as a plain process."""

import base64
import functools
import hashlib
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock_stack.cache import cached
from penstock_stack.failure import StackError
from penstock_stack.jars import KAFKA_VERSION, kafka_jars
from penstock_stack.java import find_java
from penstock_stack.port import HOST, free_ports
from penstock_stack.progress import Say, silent, step
from penstock_stack.server import Server
from penstock_stack.settings import JVM, LOGGING, properties, write_properties
from penstock_stack.warmth import speaks, warm_up


def kafka_server(
    folder: Path,
    port: int,
    controller_port: int,
    *,
    overrides: Mapping[str, str] | None,
    say: Say,
) -> Server:
    """A node whose settings, log and data lie in ``folder``, formatted and not yet started."""
    archive = class_archive(say)
    options = (f"-XX:SharedArchiveFile={archive}",) if archive is not None else ()
    settings = properties(port, controller_port, folder / "data", overrides)
    return _server(folder, port, settings, options, say)


def _server(
    folder: Path, port: int, settings: Mapping[str, str], options: Sequence[str], say: Say
) -> Server:
    folder.mkdir(parents=True)
    file = folder / "server.properties"
    write_properties(file, settings)
    _format(folder / "data", say)
    command = [find_java(), *JVM, *LOGGING, *options, "-cp", _classpath(say), "kafka.Kafka"]
    return Server(
        "Kafka",
        [*command, str(file)],
        log=folder / "kafka.log",
        ready=lambda: speaks(HOST, port),
    )


def class_archive(say: Say) -> Path | None:
    """What the JVM needs of Kafka's classes, loaded and checked once: it halves a start.

    It is written by a broker that starts, serves and stops, once per Java and Kafka version. None
    when that did not work: a start then only takes longer.
    """

    def make(part: Path) -> None:
        with (
            step(say, "preparing Kafka for quick starts (once)"),
            tempfile.TemporaryDirectory(prefix="penstock-kafka-") as scratch,
        ):
            port, controller_port = free_ports(2)
            folder = Path(scratch) / "kafka"
            settings = properties(port, controller_port, folder / "data")
            options = [f"-XX:ArchiveClassesAtExit={part / 'kafka.jsa'}"]
            server = _server(folder, port, settings, options, silent)
            server.start()
            warm_up(f"{HOST}:{port}")
            server.stop(timeout_s=90.0)
        if not (part / "kafka.jsa").exists():
            raise StackError("the JVM wrote no archive of classes")

    java = _java_build(find_java())
    try:
        return cached(f"kafka/classes-{KAFKA_VERSION}-{java}", make) / "kafka.jsa"
    except StackError as failure:
        say(f"Kafka will start more slowly: {failure}")
        return None


@functools.cache
def _java_build(java: str) -> str:
    """A short name of the exact build of ``java``: an archive is good for one build only."""
    run = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return hashlib.sha256(f"{Path(java).resolve()}\n{run.stderr}".encode()).hexdigest()[:12]


def formatted_storage(say: Say) -> Path:
    """A formatted data folder to copy, made by Kafka's storage tool once per version.

    The tool takes more than a second of JVM start; a copy with ids of its own takes none.
    """

    def make(part: Path) -> None:
        template = part / "server.properties"
        write_properties(template, properties(19092, 19093, part / "data"))
        tool = ["kafka.tools.StorageTool", "format", "-t", _kafka_id(), "-c", str(template)]
        _run_java([find_java(), "-cp", _classpath(say), *tool])

    return cached(f"kafka/formatted-{KAFKA_VERSION}", make) / "data"


def _format(data: Path, say: Say) -> None:
    """Make ``data`` a formatted folder whose ids are its own."""
    shutil.copytree(formatted_storage(say), data)
    meta = data / "meta.properties"
    lines = [line for line in meta.read_text().splitlines() if not line.startswith("#")]
    entries = dict(line.split("=", 1) for line in lines)
    entries["cluster.id"] = _kafka_id()
    entries["directory.id"] = _kafka_id()
    write_properties(meta, entries)


def _classpath(say: Say) -> str:
    return ":".join(str(jar) for jar in kafka_jars(say))


def _kafka_id() -> str:
    """A UUID as Kafka writes it: base64 without padding, no leading dash (a tool reads it)."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text if not text.startswith("-") else _kafka_id()


def _run_java(command: Sequence[str]) -> None:
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if run.returncode != 0:
        raise StackError(
            f"formatting Kafka's storage failed with exit code {run.returncode}:\n"
            f"{(run.stdout + run.stderr)[-2000:]}"
        )
