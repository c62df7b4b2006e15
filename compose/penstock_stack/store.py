"""One MinIO server as a plain process, built once from its Go module."""

import os
import secrets
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import urllib3
from minio import Minio
from minio.error import S3Error, ServerError

from penstock_stack.cache import cached
from penstock_stack.failure import StackError
from penstock_stack.port import HOST
from penstock_stack.progress import Say, step
from penstock_stack.server import Server

MINIO_MODULE = "github.com/minio/minio"
MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
BUCKET = "penstock"
BUILD_TIMEOUT_S = 1800.0
HOW_TO_GET_GO = "Debian: apt-get install golang; or the tarball of the Go project"


class NoGo(StackError):
    """There is neither a built MinIO in the cache nor a Go to build one."""


@dataclass(frozen=True)
class Credentials:
    """The root user of one MinIO server; the secret stays out of its repr."""

    access_key: str = "penstock"
    secret_key: str = field(default_factory=lambda: secrets.token_urlsafe(18), repr=False)

    def as_root_env(self) -> dict[str, str]:
        """The server's side: what MinIO reads at its start, and nothing that calls outside."""
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }

    def as_client_env(self, endpoint: str) -> dict[str, str]:
        """The client's side: what Penstock reads."""
        return {
            "PENSTOCK_S3_ENDPOINT": endpoint,
            "PENSTOCK_S3_ACCESS_KEY": self.access_key,
            "PENSTOCK_S3_SECRET_KEY": self.secret_key,
        }


def minio_binary(say: Say) -> Path:
    """The server's program, built into the cache when it is not there.

    Raises:
        NoGo: it has to be built and there is no Go.
        StackError: the build failed.
    """
    return cached(f"minio/{MINIO_VERSION}", lambda part: _build(part, say)) / "minio"


def minio_server(folder: Path, port: int, credentials: Credentials, binary: Path) -> Server:
    """A server whose data and log lie in ``folder``, not yet started."""
    data = folder / "data"
    data.mkdir(parents=True)
    return Server(
        "MinIO",
        [str(binary), "server", "--quiet", "--address", f"{HOST}:{port}", str(data)],
        log=folder / "minio.log",
        ready=lambda: is_live(port),
        env=credentials.as_root_env(),
    )


def is_live(port: int) -> bool:
    """Whether MinIO on ``port`` says that it can serve."""
    try:
        answer = urllib3.request(
            "GET", f"http://{HOST}:{port}/minio/health/ready", timeout=1.0, retries=False
        )
    except urllib3.exceptions.HTTPError:
        return False
    return answer.status == 200


def make_bucket(endpoint: str, credentials: Credentials, timeout_s: float = 30.0) -> None:
    """Create the bucket ``penstock`` at ``endpoint`` (HOST:PORT) unless it is there.

    A MinIO that just became ready still refuses for a moment and asks to come back in a minute;
    urllib3 would obey and sleep, so the retries are made here.

    Raises:
        StackError: it did not work within ``timeout_s``.
    """
    client = Minio(
        endpoint,
        access_key=credentials.access_key,
        secret_key=credentials.secret_key,
        secure=False,
        http_client=urllib3.PoolManager(retries=False, timeout=5.0),
    )
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            if not client.bucket_exists(bucket_name=BUCKET):
                client.make_bucket(bucket_name=BUCKET)
        except (S3Error, ServerError, urllib3.exceptions.HTTPError) as failure:
            if time.monotonic() > give_up:
                raise StackError(
                    f"MinIO at {endpoint} answers but did not take the bucket {BUCKET!r} within "
                    f"{timeout_s:.0f} s: {failure}"
                ) from failure
            time.sleep(0.05)
        else:
            return


def _build(part: Path, say: Say) -> None:
    go = shutil.which("go")
    if go is None:
        raise NoGo(f"MinIO is built by Go, and there is no `go` on PATH. {HOW_TO_GET_GO}.")
    with step(say, "building MinIO from its Go module (3 to 4 minutes, once)"):
        run = subprocess.run(
            [go, "install", "-trimpath", "-ldflags=-s -w", f"{MINIO_MODULE}@{MINIO_VERSION}"],
            # Without cgo the program is static and runs on any base image too.
            env={**os.environ, "GOBIN": str(part), "CGO_ENABLED": "0"},
            cwd=part,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_TIMEOUT_S,
        )
    if run.returncode != 0:
        end = "\n".join(run.stderr.splitlines()[-15:])
        raise StackError(
            f"`go install {MINIO_MODULE}@{MINIO_VERSION}` failed with exit code {run.returncode}; "
            f"this needs the network once. The end of its output:\n{end}"
        )
