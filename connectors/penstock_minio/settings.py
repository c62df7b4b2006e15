"""Where a store is and who we are there: settings from the environment, secrets kept hidden."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.failure import ConfigurationError

ENDPOINT = "PENSTOCK_S3_ENDPOINT"
ACCESS_KEY = "PENSTOCK_S3_ACCESS_KEY"
SECRET_KEY = "PENSTOCK_S3_SECRET_KEY"  # noqa: S105 - the name of a variable, not a secret
SESSION_TOKEN = "PENSTOCK_S3_SESSION_TOKEN"  # noqa: S105 - the same
REGION = "PENSTOCK_S3_REGION"
CA_FILE = "PENSTOCK_S3_CA_FILE"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*")
_MOST_PREFIX = 320
"""Characters; the place of a savepoint is a prefix, too. With the longest key, S3 takes it."""
_MAX_SECRET_FILE = 4096


class Secret:
    """A value that no log, repr or error text shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one place that signs with it."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret is not serialised: give the other process its environment")


class S3Settings(NamedTuple):
    """One bucket, the prefix under which Penstock keeps its objects there, and the credentials."""

    endpoint: str
    """Scheme, host and port: ``http://127.0.0.1:9000``."""
    bucket: str
    prefix: str
    """Without a slash at either end; '' is the whole bucket."""
    access_key: Secret
    secret_key: Secret
    session_token: Secret | None = None
    region: str = "us-east-1"
    ca_file: str | None = None

    @property
    def url(self) -> str:
        """``s3://bucket/prefix``."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def secrets(self) -> list[str]:
        """What no text may show."""
        return [
            secret.reveal()
            for secret in (self.secret_key, self.session_token, self.access_key)
            if secret is not None
        ]


def read_settings(url: str, env: Mapping[str, str]) -> S3Settings:
    """Settings of the store at ``s3://bucket/prefix``. Raises ConfigurationError."""
    bucket, prefix = _location(url)
    endpoint = _endpoint(env, url)
    return S3Settings(
        endpoint=endpoint,
        bucket=bucket,
        prefix=prefix,
        access_key=_required_secret(env, ACCESS_KEY, url),
        secret_key=_required_secret(env, SECRET_KEY, url),
        session_token=_secret(env, SESSION_TOKEN),
        region=env.get(REGION) or "us-east-1",
        ca_file=_ca_file(env),
    )


def _location(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError("the store's URL is not a URL: use s3://bucket/prefix") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            "the store's URL holds more than a bucket and a prefix: use s3://bucket/prefix, and "
            f"give credentials in {ACCESS_KEY} and {SECRET_KEY} (or each with _FILE)"
        )
    bucket, prefix = parts.netloc, parts.path.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            f"store {url!r}: {bucket!r} is not a bucket name: expected 3-63 characters of a-z, "
            "0-9, '.' and '-'; use s3://bucket/prefix"
        )
    if prefix and (not _PREFIX.fullmatch(prefix) or ".." in prefix or len(prefix) > _MOST_PREFIX):
        raise ConfigurationError(
            f"store {url!r}: {prefix!r} is not a prefix: expected up to {_MOST_PREFIX} "
            "characters of letters, digits, '.', '_', '=' and '-', with '/' between names and "
            "without '..'"
        )
    return bucket, prefix


def _endpoint(env: Mapping[str, str], url: str) -> str:
    text = env.get(ENDPOINT, "").strip()
    if not text:
        raise ConfigurationError(
            f"store {url!r} needs {ENDPOINT}, which is not set: give the S3 server's address, for "
            "example http://127.0.0.1:9000"
        )
    wrong = ConfigurationError(
        f"{ENDPOINT} is not an S3 server's address: expected http://host:port or "
        "https://host[:port], without a path, a user or a password"
    )
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    extra = (
        parts.path.strip("/")
        or parts.netloc.endswith(":")
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    )
    if parts.scheme not in {"http", "https"} or not host or extra:
        raise wrong
    return f"{parts.scheme}://{parts.netloc}"


def _ca_file(env: Mapping[str, str]) -> str | None:
    name = CA_FILE if env.get(CA_FILE) else "SSL_CERT_FILE"
    path = env.get(name) or None
    if path is not None and not Path(path).is_file():
        raise ConfigurationError(
            f"{name} names {path!r}, which is not a file: expected certificates in PEM form"
        )
    return path


def _required_secret(env: Mapping[str, str], name: str, url: str) -> Secret:
    secret = _secret(env, name)
    if secret is None:
        raise ConfigurationError(
            f"store {url!r} needs {name} or {name}_FILE, and neither is set: give the key itself "
            "or the path of a file that holds it"
        )
    return secret


def _secret(env: Mapping[str, str], name: str) -> Secret | None:
    value, path = env.get(name), env.get(f"{name}_FILE")
    if value and path:
        raise ConfigurationError(f"both {name} and {name}_FILE are set: remove one of the two")
    if value:
        return Secret(value)
    if not path:
        return None
    try:
        text = _first_bytes(Path(path)).decode().strip()
    except OSError as exc:
        raise ConfigurationError(
            f"{name}_FILE names {path!r}, which cannot be read: {exc.strerror}"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > _MAX_SECRET_FILE:
        raise ConfigurationError(
            f"{name}_FILE names {path!r}, which holds no key: expected one line of text"
        )
    return Secret(text)


def _first_bytes(path: Path) -> bytes:
    """Enough of the file to tell a secret from a mistake."""
    with path.open("rb") as file:
        return file.read(_MAX_SECRET_FILE + 2)
