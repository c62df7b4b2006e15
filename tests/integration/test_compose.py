"""The word count of compose.yaml: all of it on Docker, killed, and counted by another reader."""

import json
import os
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from penstock_stack.images import build_app_image
from penstock_stack.port import free_ports
from wordcount.tokenizer import words_of

pytestmark = [pytest.mark.integration, pytest.mark.containers, pytest.mark.timeout(420)]

COMPOSE = Path(__file__).parents[2] / "compose" / "compose.yaml"
LINES = 30_000
KILL_ALL = (
    "import os, signal\n"
    "others = [int(p) for p in os.listdir('/proc') if p.isdigit()]\n"
    "[os.kill(p, signal.SIGKILL) for p in others if p not in (1, os.getpid())]\n"
)
PARTITIONS = 4


class Project:
    """One run of compose.yaml under a name and on ports of its own."""

    def __init__(self) -> None:
        kafka, minio = free_ports(2)
        self.bootstrap = f"127.0.0.1:{kafka}"
        self._name = f"penstock-test-{secrets.token_hex(3)}"
        self._env = {
            **os.environ,
            "PENSTOCK_KAFKA_PORT": str(kafka),
            "PENSTOCK_MINIO_PORT": str(minio),
            "PENSTOCK_INPUT_LINES": str(LINES),
        }

    def compose(self, *arguments: str) -> str:
        command = ["docker", "compose", "-p", self._name, "-f", str(COMPOSE)]
        run = subprocess.run(
            [*command, "--profile", "wordcount", *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if run.returncode != 0:
            logs = "" if arguments[0] == "logs" else self.compose("logs", "--tail", "15")
            pytest.fail(f"docker compose {' '.join(arguments)}: {run.stderr[-2000:]}\n{logs}")
        return run.stdout

    def kill(self, service: str) -> None:
        """SIGKILL of the process of one replica; its restart policy brings it back."""
        container = f"{self._name}-{service}-1"
        before = self._restarts(container)
        # Its exit code is chance: the container may be gone before the command has answered.
        command = ["docker", "exec", container, "python3", "-c", KILL_ALL]
        subprocess.run(command, capture_output=True, check=False, timeout=60)
        give_up = time.monotonic() + 60
        while self._restarts(container) == before:
            assert time.monotonic() < give_up, f"{container} was killed and did not come back"
            time.sleep(0.2)

    def _restarts(self, container: str) -> int:
        asked = ["docker", "inspect", "--format", "{{.RestartCount}}", container]
        return int(subprocess.check_output(asked, timeout=60))


@pytest.fixture
def project() -> Iterator[Project]:
    version = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if version.returncode != 0:
        pytest.skip("docker has no compose plugin")
    build_app_image(print)  # the one that is there may be of yesterday
    running = Project()
    try:
        running.compose("up", "--wait", "--wait-timeout", "200")
        yield running
    finally:
        running.compose("down", "--volumes", "--timeout", "2")


class Reader:
    """An independent reader of one topic, from its beginning."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "reader"}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed"})
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        self.values: list[bytes] = []

    def read_until(self, count: int, timeout_s: float) -> None:
        """Return when ``count`` values were read, or nothing new came for ``timeout_s``."""
        quiet_since = time.monotonic()
        while len(self.values) < count and time.monotonic() - quiet_since < timeout_s:
            messages = self._consumer.consume(5000, 0.5)
            new = [message.value() for message in messages if message.error() is None]
            self.values += [value for value in new if value is not None]
            if new:
                quiet_since = time.monotonic()

    def close(self) -> None:
        self._consumer.close()


def test_killed_replicas_lose_and_repeat_nothing(project: Project) -> None:
    source = Reader(project.bootstrap, "lines")
    source.read_until(LINES, 30)
    source.close()
    assert len(source.values) == LINES
    words = Counter(word for line in source.values for word in words_of(line.decode()))
    expected = {(word, n) for word, count in words.items() for n in range(1, count + 1)}

    counts = Reader(project.bootstrap, "counts")
    counts.read_until(1, 90)  # the pipe runs
    for service in ("counter", "tokenizer", "coordinator"):
        project.kill(service)
        counts.read_until(len(counts.values) + 1, 60)
    counts.read_until(len(expected), 60)
    counts.read_until(len(expected) + 1, 5)  # nothing comes after the last one
    counts.close()

    found = Counter((count["word"], count["n"]) for count in map(json.loads, counts.values))
    assert set(found) == expected
    assert max(found.values()) == 1, [entry for entry, n in found.items() if n > 1][:10]
