"""The contract of a snapshot store, on real S3 servers: the stack's MinIO, and moto's.

Nothing in the store may hang on one server's manners (PROTOCOL: it speaks plain S3).
"""

import hashlib
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.store import BIG, CONTRACT, KB, Check
from minio import Minio
from penstock.failure import CorruptedObject, StoreFailed
from penstock_minio import MinioStore, copy, open_store

pytestmark = pytest.mark.integration

Env = dict[str, str]


def opened(url: str, env: Env) -> MinioStore:
    store = open_store(f"{url}/{secrets.token_hex(6)}", env)
    assert isinstance(store, MinioStore)
    return store


@pytest.fixture
def on_minio(stack: Any) -> Iterator[MinioStore]:
    store = opened(stack.store_url, dict(stack.store_env))
    yield store
    store.close()


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Env]]:
    if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
        pytest.skip("the second S3 server needs moto[server], which is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    log = Path(tmp_path_factory.mktemp("moto")) / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": "1000"},
        )
    try:
        env = {
            "PENSTOCK_S3_ENDPOINT": endpoint,
            "PENSTOCK_S3_ACCESS_KEY": "moto-user",
            "PENSTOCK_S3_SECRET_KEY": "moto-password",
        }
        for _ in range(150):
            try:
                urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail(f"moto did not start: {log.read_text()[-2000:]}")
        Minio(
            endpoint.removeprefix("http://"), "moto-user", "moto-password", secure=False
        ).make_bucket("penstock")
        yield "s3://penstock/second", env
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def on_moto(moto: tuple[str, Env]) -> Iterator[MinioStore]:
    store = opened(*moto)
    yield store
    store.close()


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_minio(check: Check, on_minio: MinioStore) -> None:
    check(on_minio)


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_a_second_s3_server(check: Check, on_moto: MinioStore) -> None:
    check(on_moto)


def copies_are_made_by_the_server(store: MinioStore) -> None:
    """Objects of one and of several parts, between prefixes; names stay used once."""
    other = MinioStore(store._settings._replace(prefix=f"{store._settings.prefix}/other"))
    store.put("small", KB)
    store.put("big", BIG)
    fetched: list[str] = []
    read = MinioStore._read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MinioStore, "_read", lambda s, key: fetched.append(key) or read(s, key))
        for name, data in {"small": KB, "big": BIG}.items():
            copy(store, name, other, f"copies/{name}", size=len(data), sha256="")
        assert fetched == [], "no bytes came by"
        copy(store, "small", other, "copies/small", size=len(KB), sha256="")
        with pytest.raises(CorruptedObject, match=r"'none' in .* is missing"):
            copy(store, "none", other, "copies/none", size=1, sha256="")
        with pytest.raises(StoreFailed, match=r"'copies/small' .*never used twice"):
            copy(store, "big", other, "copies/small", size=len(BIG), sha256="")
        with pytest.raises(CorruptedObject, match=r"'small' in .* expected 5 bytes"):
            copy(store, "small", other, "copies/short", size=5, sha256="")
    assert other.list("") == ["copies/big", "copies/short", "copies/small"]
    assert other.get("copies/small") == KB
    assert other.get("copies/big") == BIG


def test_minio_copies(on_minio: MinioStore) -> None:
    copies_are_made_by_the_server(on_minio)


def test_a_second_s3_server_copies(on_moto: MinioStore) -> None:
    copies_are_made_by_the_server(on_moto)


def test_bytes_go_from_server_to_server(on_minio: MinioStore, on_moto: MinioStore) -> None:
    on_minio.put("big", BIG)
    total = hashlib.sha256(BIG).hexdigest()
    copy(on_minio, "big", on_moto, "copy", size=len(BIG), sha256=total)
    assert on_moto.get("copy", size=len(BIG), sha256=total) == BIG
    with pytest.raises(CorruptedObject, match=r"'big' in .* is corrupted"):
        copy(on_minio, "big", on_moto, "other", size=1, sha256=total)


def parts_left(store: MinioStore, key: str) -> int:
    """Unfinished uploads of one object (MinIO lists them only by the whole name)."""
    name = store._name(key)
    found = store._client._list_multipart_uploads(store._settings.bucket, prefix=name)
    return len(found.uploads)


def test_an_upload_whose_source_fails_leaves_no_parts(on_minio: MinioStore) -> None:
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        yield BIG
        yield BIG
        seen.append(parts_left(on_minio, "half"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_minio.put_stream("half", parts())
    assert seen == [1], "the upload was under way"
    assert parts_left(on_minio, "half") == 0
    assert on_minio.list("") == []


def test_a_server_that_does_not_know_conditional_writes_is_asked_without(
    on_minio: MinioStore,
) -> None:
    on_minio.http.write_once = False
    on_minio.put("a", KB)
    on_minio.put_stream("b", [BIG, KB])
    assert on_minio.get("a") == KB
    assert on_minio.get("b") == BIG + KB


def test_connections_are_kept(on_minio: MinioStore) -> None:
    on_minio.check()
    for number in range(100):
        on_minio.put(f"k/{number}", KB)
        assert on_minio.get(f"k/{number}") == KB
    on_minio.delete(on_minio.list(""))
    pool = on_minio.http.connection_from_url(on_minio._settings.endpoint)
    assert pool.num_connections == 1
    assert pool.num_requests == 203  # one request for each put: nothing is asked beforehand
    assert on_minio.http.retries == 0


def test_memory_of_a_streamed_object_is_bounded(on_minio: MinioStore) -> None:
    script = """
import os, resource, sys
from penstock_minio import open_store
store = open_store(sys.argv[1], os.environ)
slab = b"x" * (1 << 20)
store.put_stream("warm", [slab] * 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
store.put_stream("large", (slab for _ in range(300)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = subprocess.run(
        [sys.executable, "-c", script, on_minio.url],
        env={
            **os.environ,
            "PENSTOCK_S3_ENDPOINT": on_minio._settings.endpoint,
            "PENSTOCK_S3_ACCESS_KEY": on_minio._settings.access_key.reveal(),
            "PENSTOCK_S3_SECRET_KEY": on_minio._settings.secret_key.reveal(),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(grown.stdout) < 24_000, "KB more for 300 MB than for 20 MB"
    on_minio.delete(["warm", "large"])


def test_a_refused_name_is_refused_by_the_server_itself(on_minio: MinioStore) -> None:
    other = MinioStore(on_minio._settings)
    on_minio.put("a", KB)
    with pytest.raises(StoreFailed, match="never used twice"):
        other.put("a", b"from another process")
    other.close()
