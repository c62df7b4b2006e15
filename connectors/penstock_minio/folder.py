"""FileStore: the snapshot store in a folder of this machine, for a single host (L19)."""

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from errno import EMLINK, ENOSYS, ENOTSUP, EOPNOTSUPP, EPERM
from pathlib import Path
from typing import BinaryIO

from penstock.failure import ConfigurationError, StoreFailed
from penstock.snapshot.objects import (
    checked_key,
    checked_prefix,
    is_key,
    missing,
    settled,
    verified,
)

_NO_LINKS = {EPERM, ENOTSUP, EOPNOTSUPP, ENOSYS, EMLINK}
_STALE_S = 24 * 3600.0
_MAKING_TRIES = 100


class FileStore:
    """Objects as files under one folder; a file appears under its name whole or not at all.

    Written under a temporary name beside it, synced, linked to its own name (which fails when the
    name is taken) and the folder synced. ``check`` raises ConfigurationError; every other call
    raises StoreFailed, CorruptedObject from ``get``, ProtocolViolation for a bad key.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = root.as_uri()
        self._durable: set[Path] = set()
        """Folders whose own names are on disk."""

    def __repr__(self) -> str:
        return f"FileStore({self.url!r})"

    def check(self) -> None:
        """Make the folder and write in it, or raise ConfigurationError naming it."""
        try:
            self._make(self._root)
            with self._temporary(self._root) as (file, _path):
                file.write(b"check")
            self._sweep()
        except OSError as exc:
            raise ConfigurationError(
                f"store {self.url} cannot be used: {exc.strerror} ({exc.filename}); name a folder "
                "that this user may write to"
            ) from None

    def put(self, key: str, data: bytes) -> None:
        """Write one object durably; StoreFailed.

        A second put of the same bytes is a retry and succeeds; other bytes are refused.
        """
        self.put_stream(key, [data])

    def put_stream(self, key: str, parts: Iterable[bytes]) -> tuple[int, str]:
        """Write one object part by part; returns (size, sha256 hex).

        When ``parts`` raises, nothing stays behind and that exception comes out.
        """
        path = self._path(checked_key(key))
        total = hashlib.sha256()
        size = 0
        source = iter(parts)
        with self._failing("write", key):
            with self._temporary(path.parent) as (file, temporary):
                while (part := _next(source)) is not None:
                    file.write(part)
                    total.update(part)
                    size += len(part)
                file.flush()
                os.fsync(file.fileno())
                taken = not _claim(temporary, path)
            _sync_folder(path.parent)
        if taken:
            settled(self.url, key, self.get(key), size, total.hexdigest())
        return size, total.hexdigest()

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object; CorruptedObject naming it when missing or not of this size and sum."""
        path = self._path(checked_key(key))
        with self._failing("read", key):
            try:
                data = path.read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                if not self._root.is_dir():
                    raise
                raise missing(self.url, key) from None
        return verified(self.url, key, data, size=size, sha256=sha256)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects and the folders they leave empty; what is gone already does not matter."""
        paths = [self._path(checked_key(key)) for key in keys]
        with self._failing("delete", f"{len(paths)} objects"):
            for path in paths:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
            for folder in {path.parent for path in paths}:
                self._prune(folder)

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted; names that are no keys of ours are left out."""
        start = self._root / checked_prefix(prefix).rpartition("/")[0]
        found = []
        with self._failing("list", prefix):
            for folder, _, files in os.walk(start, onerror=_unless_gone):
                inside = Path(folder).relative_to(self._root).as_posix()
                at = "" if inside == "." else f"{inside}/"
                found += [f"{at}{file}" for file in files]
        return sorted(key for key in found if key.startswith(prefix) and is_key(key))

    def _path(self, key: str) -> Path:
        return self._root / key

    @contextlib.contextmanager
    def _temporary(self, folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
        """A new file in ``folder`` that is gone afterwards; its name can be no key."""
        path = folder / f".{secrets.token_hex(12)}.tmp"
        file = self._opened(path)
        try:
            with file:
                yield file, path
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _opened(self, path: Path) -> BinaryIO:
        """The file, newly made; its folder is made again while ``delete`` removes it as empty."""
        for _ in range(_MAKING_TRIES):
            try:
                if path.parent not in self._durable:
                    self._make(path.parent)
                return path.open("xb")
            except FileNotFoundError:
                self._durable.discard(path.parent)
        self._make(path.parent)
        return path.open("xb")

    def _make(self, folder: Path) -> None:
        """Make a folder and sync those above it, whoever made them: no object without its name."""
        top = self._root
        while not top.exists():
            top = top.parent
        folder.mkdir(parents=True, exist_ok=True)
        at = folder
        while at != top:
            at = at.parent
            _sync_folder(at)
        self._durable.add(folder)

    def _prune(self, folder: Path) -> None:
        while folder != self._root and self._root in folder.parents:
            try:
                folder.rmdir()
            except OSError:
                return  # not empty, or gone by another hand
            folder = folder.parent

    def _sweep(self) -> None:
        """Remove what processes that were killed while writing left a day ago or earlier."""
        before = time.time() - _STALE_S
        for path in self._root.rglob(".*.tmp"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    @contextlib.contextmanager
    def _failing(self, action: str, what: str) -> Iterator[None]:
        try:
            yield
        except _SourceFailed as exc:
            raise exc.failure from None
        except OSError as exc:
            raise StoreFailed(
                f"{self.url} did not {action} {what!r}: {exc.strerror} ({exc.filename}); check "
                "that the folder is there, writable and not full"
            ) from None


class _SourceFailed(Exception):
    """The caller's iterator raised; kept apart so that its OSError is not taken for the store's."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure


def _next(source: Iterator[bytes]) -> bytes | None:
    try:
        return next(source, None)
    except Exception as exc:
        raise _SourceFailed(exc) from exc


def _claim(temporary: Path, path: Path) -> bool:
    """Give the file its name; False when the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as exc:
        if exc.errno not in _NO_LINKS:
            raise
        # A file system without links: names are never reused, so looking first is enough.
        if path.exists():
            return False
        temporary.rename(path)
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unless_gone(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError | NotADirectoryError):
        raise exc
