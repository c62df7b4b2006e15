"""The local stack on containers, driven by testcontainers; the images are built here.

The containers end with this object, and with the program: a reaper process sees the program's end
on its standard input, even after SIGKILL, and removes them (testcontainers' own reaper is an image
of a registry that may not be reached).
"""

import functools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from penstock_stack.failure import StackError
from penstock_stack.images import KAFKA_IMAGE, MINIO_IMAGE
from penstock_stack.port import HOST, free_ports
from penstock_stack.progress import Say, step
from penstock_stack.store import BUCKET, Credentials, is_live, make_bucket
from penstock_stack.warmth import warm_up

READY_TIMEOUT_S = 120.0
HOW_TO_BUILD = "make images"
REAPER = (
    "import subprocess, sys\n"
    "ids = [line.strip() for line in sys.stdin]\n"
    "ids and subprocess.run(['docker', 'rm', '-f', '-v', *ids], capture_output=True)\n"
)


@functools.cache
def why_no_containers() -> str | None:
    """What is missing for a stack on containers; None when nothing is."""
    if shutil.which("docker") is None:
        return "there is no `docker` on PATH"
    asked = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return "the Docker engine did not answer within 20 s"
    if answer.returncode != 0:
        return "no Docker engine answers"
    asked = ["docker", "image", "inspect", KAFKA_IMAGE, MINIO_IMAGE]
    if subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        return f"the images {KAFKA_IMAGE} and {MINIO_IMAGE} are not built; run `{HOW_TO_BUILD}`"
    return None


class ContainerStack:
    """The stack on containers; they end with this object or with the program."""

    kind = "containers"

    def __init__(
        self, *, kafka_overrides: Mapping[str, str] | None, with_store: bool, say: Say
    ) -> None:
        if (missing := why_no_containers()) is not None:
            raise StackError(f"no stack on containers: {missing}")
        testcontainers_config.ryuk_disabled = True
        kafka_port, self._store_port = free_ports(2)
        self._say = say
        self._credentials = Credentials()
        self._reaper = _start_reaper()
        self.bootstrap = f"{HOST}:{kafka_port}"
        self.store_url = f"s3://{BUCKET}" if with_store else _temporary_store()
        endpoint = f"http://{HOST}:{self._store_port}"
        self.store_env = self._credentials.as_client_env(endpoint) if with_store else {}
        self._kafka = _published(KAFKA_IMAGE, 9092, kafka_port).with_envs(
            PENSTOCK_KAFKA_ADVERTISED=self.bootstrap,
            PENSTOCK_KAFKA_SETTINGS=_lines(kafka_overrides or {}),
        )
        self._store = _published(MINIO_IMAGE, 9000, self._store_port).with_envs(
            **self._credentials.as_root_env(), PENSTOCK_BUCKET=BUCKET
        )
        try:
            self._start(with_store=with_store)
        except BaseException:
            self.close()
            raise

    def _start(self, *, with_store: bool) -> None:
        with step(self._say, "starting Kafka and MinIO on containers"):
            for container in (self._kafka, self._store) if with_store else (self._kafka,):
                container.start()
                self._watch(container)
            if with_store:
                self._wait_store()
            self._wait_kafka()

    # --- faults and repairs

    def kafka_kill(self) -> None:
        """SIGKILL of the broker."""
        self._kafka.get_wrapped_container().kill()

    def kafka_stop(self) -> None:
        """An orderly stop of the broker."""
        self._kafka.get_wrapped_container().stop(timeout=20)

    def kafka_start(self) -> None:
        """Start the broker again; returns when it serves transactions and groups."""
        self._kafka.get_wrapped_container().start()
        self._wait_kafka()

    def kafka_pause(self) -> None:
        """Freeze the broker: connections stay open and nobody answers."""
        self._kafka.get_wrapped_container().pause()

    def kafka_resume(self) -> None:
        """Go on after a pause."""
        self._kafka.get_wrapped_container().unpause()

    def store_kill(self) -> None:
        """SIGKILL of the store."""
        self._object_store.get_wrapped_container().kill()

    def store_stop(self) -> None:
        """An orderly stop of the store."""
        self._object_store.get_wrapped_container().stop(timeout=20)

    def store_start(self) -> None:
        """Start the store again; returns when the bucket is served."""
        self._object_store.get_wrapped_container().start()
        self._wait_store()

    @property
    def _object_store(self) -> DockerContainer:
        if not self.store_env:
            raise StackError(f"this stack has no store server: it uses {self.store_url}")
        return self._store

    def _wait_kafka(self) -> None:
        try:
            warm_up(self.bootstrap, READY_TIMEOUT_S)
        except StackError as late:
            raise StackError(f"{late}\nThe end of its log:\n{_tail(self._kafka)}") from late

    def _wait_store(self) -> None:
        give_up = time.monotonic() + READY_TIMEOUT_S
        while not is_live(self._store_port):
            if time.monotonic() > give_up:
                raise StackError(
                    f"MinIO did not answer on port {self._store_port} within "
                    f"{READY_TIMEOUT_S:.0f} s. The end of its log:\n{_tail(self._store)}"
                )
            time.sleep(0.05)
        make_bucket(f"{HOST}:{self._store_port}", self._credentials)

    # --- the end

    def _watch(self, container: DockerContainer) -> None:
        if self._reaper.stdin is not None:
            self._reaper.stdin.write(f"{container.get_container_id()}\n")
            self._reaper.stdin.flush()

    def close(self) -> None:
        """Remove the containers and their data; may be called again."""
        if self._reaper.stdin is not None and not self._reaper.stdin.closed:
            self._reaper.stdin.close()
        self._reaper.wait(60)
        if self.store_url.startswith("file:"):
            shutil.rmtree(self.store_url.removeprefix("file://"), ignore_errors=True)
        for container in (self._kafka, self._store):
            container.get_docker_client().client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_containers(
    *,
    kafka_overrides: Mapping[str, str] | None = None,
    with_store: bool = True,
    progress: Say = print,
) -> ContainerStack:
    """Start Kafka and MinIO on containers of the local Docker engine, on free ports.

    Args:
        kafka_overrides: broker settings that replace the stack's own.
        with_store: False starts no MinIO; ``store_url`` is then a folder.
        progress: takes a line for anything that lasts more than two seconds.

    Raises:
        StackError: there is no engine, an image is missing, or a server did not come up.
    """
    return ContainerStack(kafka_overrides=kafka_overrides, with_store=with_store, say=progress)


def _published(image: str, inside: int, outside: int) -> DockerContainer:
    """A container whose port ``inside`` is ``outside`` on the loopback address, and only there."""
    container = DockerContainer(image, hostname="kafka" if image == KAFKA_IMAGE else "minio")
    ports: dict[str, object] = {f"{inside}/tcp": (HOST, outside)}
    container.ports.update(ports)  # type: ignore[arg-type]  # docker takes (address, port) too
    return container


def _start_reaper() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", REAPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the program, whose end the reaper waits for
    )


def _temporary_store() -> str:
    return Path(tempfile.mkdtemp(prefix="penstock-store-")).as_uri()


def _lines(settings: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in settings.items())


def _tail(container: DockerContainer) -> str:
    stdout, stderr = container.get_logs()
    return "\n".join((stdout + stderr).decode(errors="replace").splitlines()[-25:])
