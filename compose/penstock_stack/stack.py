"""The local stack as plain processes: a real Kafka and, where it can be had, a real MinIO."""

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, Self

from penstock_stack.failure import StackError
from penstock_stack.kafka import kafka_server
from penstock_stack.port import HOST, free_ports
from penstock_stack.progress import Say, step
from penstock_stack.server import Server
from penstock_stack.store import (
    BUCKET,
    HOW_TO_GET_GO,
    Credentials,
    make_bucket,
    minio_binary,
    minio_server,
)
from penstock_stack.warmth import warm_up

FOLDER_PREFIX = "penstock-stack-"


class Stack(Protocol):
    """A running Kafka and snapshot store, whatever they run on; a context manager.

    Every stopped or killed server comes back with ``…_start`` on the same port with the same
    data, and the call returns when clients can work with it.
    """

    kind: str
    """``processes`` or ``containers``."""
    bootstrap: str
    """``127.0.0.1:PORT`` of Kafka."""
    store_url: str
    """``s3://penstock``, whose bucket exists, or ``file:///…`` where there is no MinIO."""
    store_env: dict[str, str]
    """PENSTOCK_S3_ENDPOINT, …_ACCESS_KEY and …_SECRET_KEY; empty for ``file://``."""

    def kafka_kill(self) -> None: ...
    def kafka_stop(self) -> None: ...
    def kafka_start(self) -> None: ...
    def kafka_pause(self) -> None: ...
    def kafka_resume(self) -> None: ...
    def store_kill(self) -> None: ...
    def store_stop(self) -> None: ...
    def store_start(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class ProcessStack:
    """The stack as plain processes; they end with this object or with the program."""

    kind = "processes"

    def __init__(
        self, *, kafka_overrides: Mapping[str, str] | None, with_store: bool, say: Say
    ) -> None:
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self._say = say
        self._overrides = kafka_overrides
        self._kafka: Server | None = None
        self._store: Server | None = None
        self._store_endpoint = ""
        self._credentials = Credentials()
        self.bootstrap = ""
        self.store_url = (self.folder / "store").as_uri()
        self.store_env: dict[str, str] = {}
        atexit.register(self.close)
        try:
            self._start(with_store=with_store)
        except BaseException:
            self.close()
            raise

    def _start(self, *, with_store: bool) -> None:
        kafka_port, controller_port, store_port = free_ports(3)
        failures: list[BaseException] = []

        def start_store() -> None:
            try:
                self._start_store(store_port)
            except BaseException as failure:
                failures.append(failure)

        # Side by side: the first time, one fetches jars while the other compiles for minutes.
        store = threading.Thread(target=start_store, name="store-start", daemon=True)
        if with_store:
            store.start()
        self._kafka = kafka_server(
            self.folder / "kafka",
            kafka_port,
            controller_port,
            overrides=self._overrides,
            say=self._say,
        )
        self.bootstrap = f"{HOST}:{kafka_port}"
        self.kafka_start()
        if with_store:
            store.join()
        if failures:
            raise failures[0]

    def _start_store(self, port: int) -> None:
        try:
            binary = minio_binary(self._say)
        except StackError as missing:
            self._say(f"No MinIO: {missing}")
            self._say(f"Snapshots go to the folder {self.store_url} instead.")
            return
        self._store_endpoint = f"{HOST}:{port}"
        self._store = minio_server(self.folder / "minio", port, self._credentials, binary)
        self.store_start()
        self.store_url = f"s3://{BUCKET}"
        self.store_env = self._credentials.as_client_env(f"http://{self._store_endpoint}")

    # --- faults and repairs

    def kafka_kill(self) -> None:
        """SIGKILL of the broker."""
        self._broker.kill()

    def kafka_stop(self) -> None:
        """An orderly stop of the broker."""
        self._broker.stop()

    def kafka_start(self) -> None:
        """Start the broker again; returns when it serves transactions and groups."""
        with step(self._say, "starting Kafka"):
            self._broker.start()
            warm_up(self.bootstrap)

    def kafka_pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        self._broker.pause()

    def kafka_resume(self) -> None:
        """SIGCONT, after a pause."""
        self._broker.resume()

    def store_kill(self) -> None:
        """SIGKILL of the store."""
        self._object_store.kill()

    def store_stop(self) -> None:
        """An orderly stop of the store."""
        self._object_store.stop()

    def store_start(self) -> None:
        """Start the store again; returns when the bucket is served."""
        self._object_store.start()
        make_bucket(self._store_endpoint, self._credentials)

    @property
    def _broker(self) -> Server:
        if self._kafka is None:
            raise StackError("this stack is closed; start a new one")
        return self._kafka

    @property
    def _object_store(self) -> Server:
        if self._store is None:
            raise StackError(
                f"this stack has no store server to stop or start: it keeps snapshots in "
                f"{self.store_url}. For a MinIO, install Go ({HOW_TO_GET_GO}) and start it again."
            )
        return self._store

    # --- the end

    def close(self) -> None:
        """Stop everything and delete the data; may be called again."""
        atexit.unregister(self.close)
        servers = [server for server in (self._store, self._kafka) if server is not None]
        self._kafka = self._store = None
        for server in servers:
            server.kill()  # the data is deleted below: nothing is worth an orderly stop
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_stack(
    *,
    kafka_overrides: Mapping[str, str] | None = None,
    with_store: bool = True,
    progress: Say = print,
) -> ProcessStack:
    """Start Kafka and MinIO as plain processes on free ports of this machine.

    Args:
        kafka_overrides: broker settings that replace the stack's own.
        with_store: False starts no MinIO; ``store_url`` is then a folder.
        progress: takes a line for anything that lasts more than two seconds.

    Raises:
        StackError: Java is missing, or a server did not come up; says what to do.
    """
    return ProcessStack(kafka_overrides=kafka_overrides, with_store=with_store, say=progress)


def _sweep() -> None:
    """Delete the data of stacks whose program was killed; their servers died with it."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if pid.isdigit() and not _lives(int(pid)) and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
