"""A store is opened by its URL; nothing is reached until it is used or checked."""

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.failure import ConfigurationError
from penstock.runtime.ports import SnapshotStore

from penstock_minio.bucket import MinioStore
from penstock_minio.folder import FileStore
from penstock_minio.settings import read_settings

SCHEMES = "use s3://bucket/prefix or file:///absolute/path"


def open_store(url: str, env: Mapping[str, str]) -> SnapshotStore:
    """The snapshot store at ``s3://bucket/prefix`` or ``file:///path``.

    ``env`` gives PENSTOCK_S3_ENDPOINT, PENSTOCK_S3_ACCESS_KEY and PENSTOCK_S3_SECRET_KEY (the keys
    also as ``…_FILE``), and where needed PENSTOCK_S3_REGION, _SESSION_TOKEN and _CA_FILE.

    Raises ConfigurationError for a URL or a setting that cannot work; ``check`` finds out the rest.
    """
    scheme = url.partition("://")[0]
    if scheme == "s3":
        return MinioStore(read_settings(url, env))
    if scheme == "file":
        return FileStore(_folder(url))
    raise ConfigurationError(f"the store's URL does not start with s3:// or file://: {SCHEMES}")


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    path = unquote(parts.path)
    inside = path.strip("/")
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or not inside:
        raise ConfigurationError(f"store {url!r} is not a folder on this machine: {SCHEMES}")
    if "\0" in path or ".." in inside.split("/") or parts.query or parts.fragment:
        raise ConfigurationError(
            f"store {url!r} holds '..', a NUL, '?' or '#': expected a plain absolute path; "
            f"{SCHEMES}"
        )
    return Path(path)
