"""Where a store is: URLs and settings that cannot work are refused, secrets are never shown."""

import copy
import json
import logging
import pickle
from pathlib import Path

import pytest
from penstock.failure import ConfigurationError
from penstock_minio import FileStore, MinioStore, open_store
from penstock_minio.settings import Secret, read_settings

CANARY = "canary-7f3a-secret"
ENV = {
    "PENSTOCK_S3_ENDPOINT": "http://127.0.0.1:9000",
    "PENSTOCK_S3_ACCESS_KEY": "user",
    "PENSTOCK_S3_SECRET_KEY": CANARY,
}


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("", "does not start with s3:// or file://"),
        ("/tmp/x", "does not start with"),
        ("http://host/bucket", "does not start with"),
        ("s3://", "is not a bucket name"),
        ("s3://ab", "is not a bucket name"),
        ("s3://Bucket/x", "is not a bucket name"),
        ("s3://bucket/../x", "is not a prefix"),
        ("s3://bucket/a//b", "is not a prefix"),
        ("s3://bucket/a%2e%2e", "is not a prefix"),
        ("s3://bucket/a\\b", "is not a prefix"),
        ("s3://bucket/" + "a" * 321, "up to 320 characters"),
        ("s3://bucket/a?x=1", "more than a bucket and a prefix"),
        (f"s3://user:{CANARY}@bucket/a", "more than a bucket and a prefix"),
        ("s3://[bucket/a", "is not a URL"),
        ("file://host/tmp", "is not a folder on this machine"),
        ("file://", "is not a folder on this machine"),
        ("file:///", "is not a folder on this machine"),
        ("file:///tmp/../etc", "'..'"),
        ("file:///tmp/%2e%2e/etc", "'..'"),
        ("file:///tmp/a%00b", "NUL"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, cause: str) -> None:
    with pytest.raises(ConfigurationError, match=r"use s3://|'\.'") as caught:
        open_store(url, ENV)
    assert cause in str(caught.value)
    assert CANARY not in str(caught.value)


def test_urls_that_work() -> None:
    assert open_store("s3://bucket/a/b/", ENV).url == "s3://bucket/a/b"
    assert open_store("s3://bucket", ENV).url == "s3://bucket"
    savepoint = f"s3://bucket/{'p' * 100}/{'a' * 100}/savepoints/{'n' * 100}"
    assert open_store(savepoint, ENV).url == savepoint
    assert open_store("file:///tmp/with%20space", {}).url == "file:///tmp/with%20space"
    assert isinstance(open_store("file://localhost/tmp/x", {}), FileStore)


@pytest.mark.parametrize("name", sorted(ENV))
def test_a_missing_setting_is_named(name: str) -> None:
    env = {key: value for key, value in ENV.items() if key != name}
    with pytest.raises(ConfigurationError, match=rf"'s3://bucket/x' needs {name}\b"):
        open_store("s3://bucket/x", env)


@pytest.mark.parametrize(
    "endpoint",
    ["ftp://h:1", "http://", "http://h:port", f"http://u:{CANARY}@h:9", "http://h/path", "h:99999"],
)
def test_an_endpoint_that_cannot_work_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="PENSTOCK_S3_ENDPOINT is not") as caught:
        open_store("s3://bucket/x", ENV | {"PENSTOCK_S3_ENDPOINT": endpoint})
    assert CANARY not in str(caught.value)


def test_an_endpoint_without_scheme_is_http() -> None:
    env = ENV | {"PENSTOCK_S3_ENDPOINT": "minio:9000"}
    assert read_settings("s3://bucket/x", env).endpoint == "http://minio:9000"


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{CANARY}\n")
    env = {key: value for key, value in ENV.items() if key != "PENSTOCK_S3_SECRET_KEY"}
    settings = read_settings("s3://bucket/x", env | {"PENSTOCK_S3_SECRET_KEY_FILE": str(file)})
    assert settings.secret_key.reveal() == CANARY


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe", b"x" * 5000])
def test_a_file_without_a_secret_is_named(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    env = {key: value for key, value in ENV.items() if key != "PENSTOCK_S3_SECRET_KEY"}
    with pytest.raises(ConfigurationError, match=r"PENSTOCK_S3_SECRET_KEY_FILE names .*secret'"):
        read_settings("s3://bucket/x", env | {"PENSTOCK_S3_SECRET_KEY_FILE": str(file)})


def test_a_secret_given_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"both .* remove one"):
        read_settings("s3://bucket/x", ENV | {"PENSTOCK_S3_SECRET_KEY_FILE": "/x"})


def test_a_certificate_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="PENSTOCK_S3_CA_FILE names '/no/such'"):
        read_settings("s3://bucket/x", ENV | {"PENSTOCK_S3_CA_FILE": "/no/such"})


def test_no_text_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = read_settings("s3://bucket/x", ENV)
    store = MinioStore(settings)
    shown = [repr(settings), str(settings), f"{settings.secret_key}", repr(store), str(store)]
    shown += [repr(vars(store)), f"{settings.secret_key!r:>40}", json.dumps(settings, default=str)]
    assert all(CANARY not in text for text in [*shown, caplog.text])
    assert "***" in repr(settings)
    for serialise in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="not serialised"):
            serialise(Secret(CANARY))  # type: ignore[operator]
