"""MinioStore: the snapshot store in a bucket of MinIO or of any other S3 server (L19)."""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO, cast

import certifi
from minio import Minio
from minio.commonconfig import REPLACE, CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error
from penstock.failure import ConfigurationError, CorruptedObject, StoreFailed
from penstock.snapshot.objects import (
    checked_key,
    checked_prefix,
    is_key,
    missing,
    settled,
    verified,
)

from penstock_minio.causes import S3_FAILURES, explained, redacted
from penstock_minio.patience import MAX_CONNECTIONS, Patience, PatientPool
from penstock_minio.settings import S3Settings

PART_BYTES = 8 << 20
"""One part of a streamed object; at most three copies are in memory. The largest object: 80 GB."""
CHECK_DEADLINE_S = 8.0
_WRITE = "penstock-write"
_WRITE_HEADER = f"x-amz-meta-{_WRITE}"


class MinioStore:
    """Objects in ``s3://bucket/prefix``; thread-safe, connections are kept and reused.

    ``check`` raises ConfigurationError; every other call raises StoreFailed (a checkpoint fails,
    the application goes on), CorruptedObject from ``get``, ProtocolViolation for a bad key.

    An upload cut off by the death of this process leaves parts that no listing of objects shows:
    MinIO drops them after a day; on other servers set a rule AbortIncompleteMultipartUpload.
    """

    def __init__(
        self,
        settings: S3Settings,
        patience: Patience | None = None,
        connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._settings = settings
        self.url = settings.url
        self.http = PatientPool(
            patience or Patience(), settings.ca_file or certifi.where(), connections
        )
        secure = settings.endpoint.startswith("https://")
        token = settings.session_token
        try:
            self._client = Minio(
                endpoint=settings.endpoint.partition("://")[2],
                access_key=settings.access_key.reveal(),
                secret_key=settings.secret_key.reveal(),
                session_token=token.reveal() if token is not None else None,
                secure=secure,
                region=settings.region,  # given, so that no request is spent on asking for it
                http_client=self.http,
            )
        except ValueError as exc:
            raise ConfigurationError(
                f"store {self.url} at {settings.endpoint} cannot be described to the client: {exc}"
            ) from None

    def __repr__(self) -> str:
        return f"MinioStore({self.url!r} at {self._settings.endpoint})"

    def check(self) -> None:
        """Find the bucket, within about 10 s. Raises ConfigurationError naming both."""
        try:
            with self.http.within(CHECK_DEADLINE_S):
                next(self._client.list_objects(self._settings.bucket, self._name("")), None)
        except S3_FAILURES as exc:
            raise ConfigurationError(
                f"bucket {self._settings.bucket!r} at {self._settings.endpoint} cannot be used: "
                f"{explained(exc, self._settings)}"
            ) from None

    def put(self, key: str, data: bytes) -> None:
        """Write one object durably, in one request; StoreFailed.

        A second put of the same bytes is a retry and succeeds; other bytes are refused.
        """
        if len(data) > PART_BYTES:
            self.put_stream(key, _slices(data))
            return
        name = self._name(checked_key(key))
        with self._failing("write", key):
            try:
                self._client.put_object(self._settings.bucket, name, BytesIO(data), len(data))
            except S3Error as exc:
                if exc.code != "PreconditionFailed":
                    raise
            else:
                return
        settled(self.url, key, self._read(key), len(data), hashlib.sha256(data).hexdigest())

    def put_stream(self, key: str, parts: Iterable[bytes]) -> tuple[int, str]:
        """Write one object part by part with bounded memory; returns (size, sha256 hex).

        When ``parts`` raises, the upload is aborted and that exception comes out.
        """
        name = self._name(checked_key(key))
        source = _Source(parts)
        ours = secrets.token_hex(16)
        with self._failing("write", key):
            try:
                self._client.put_object(
                    self._settings.bucket,
                    name,
                    cast("BinaryIO", source),
                    length=-1,
                    part_size=PART_BYTES,
                    num_parallel_uploads=1,
                    metadata={_WRITE_HEADER: ours},
                )
            except Exception as exc:
                if source.failure is not None:
                    raise source.failure from None
                code = exc.code if isinstance(exc, S3Error) else None
                if code not in {"PreconditionFailed", "NoSuchUpload"}:
                    raise
                # Either the answer to our completed upload was lost, or the name was used before.
                written = self._written(name)
                if written is None or (code == "NoSuchUpload" and written[0] != ours):
                    raise
            else:
                return source.size, source.sha256
        if written[0] != ours:
            source.drain()
            settled(self.url, key, self._read(key), source.size, source.sha256)
        return source.size, source.sha256

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object; CorruptedObject naming it when missing or not of this size and sum."""
        data = self._read(key)
        try:
            return verified(self.url, key, data, size=size, sha256=sha256)
        except CorruptedObject:
            # Damaged on the way or where it lies? Reading again tells.
            return verified(self.url, key, self._read(key), size=size, sha256=sha256)

    def is_beside(self, other: "MinioStore") -> bool:
        """Whether the server can copy from ``other`` by itself: one server, one user."""
        mine, its = self._settings, other._settings  # noqa: SLF001  (one of its kind)
        return (mine.endpoint, mine.secrets) == (its.endpoint, its.secrets)

    def copy_from(self, source: "MinioStore", source_key: str, key: str, *, size: int) -> None:
        """Write one object as a copy of another store's, made by the server; see `is_beside`.

        The object's bytes are not seen here: only its size is proven. CorruptedObject when there is
        no such object, StoreFailed when ``key`` is taken by other bytes.
        """
        name = self._name(checked_key(key))
        its = source._settings  # noqa: SLF001  (one of its kind)
        its_name = f"{its.prefix}/{checked_key(source_key)}".lstrip("/")
        ours = secrets.token_hex(16)
        with self._failing("copy", key):
            if self._written(name) is None:
                try:
                    self._client.copy_object(
                        self._settings.bucket,
                        name,
                        CopySource(its.bucket, its_name),
                        metadata={_WRITE_HEADER: ours},
                        metadata_directive=REPLACE,
                    )
                except S3Error as exc:
                    if exc.code == "NoSuchKey":
                        raise missing(source.url, source_key) from None
                    if exc.code != "PreconditionFailed":
                        raise
            written = self._written(name)
        if written == (ours, size):
            return
        data = source.get(source_key, size=size)
        settled(self.url, key, self._read(key), size, hashlib.sha256(data).hexdigest())

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand per request; those that are gone already do not matter."""
        names = [DeleteObject(self._name(checked_key(key))) for key in keys]
        if not names:
            return
        with self._failing("delete", f"{len(names)} objects"):
            refused = [
                error
                for error in self._client.remove_objects(self._settings.bucket, names)
                if error.code != "NoSuchKey"
            ]
        if refused:
            first = refused[0]
            raise StoreFailed(
                f"{len(refused)} of {len(names)} objects of {self.url} were not deleted, the first "
                + redacted(f"{first.name!r}: {first.code}: {first.message}", self._settings)
            )

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted; names that are no keys of ours are left out."""
        cut = len(self._name(""))
        with self._failing("list", prefix):
            found = [
                (item.object_name or "")[cut:]
                for item in self._client.list_objects(
                    self._settings.bucket, self._name(checked_prefix(prefix)), recursive=True
                )
            ]
        return sorted(filter(is_key, found))

    def close(self) -> None:
        """Give up the connections; they are opened again when needed."""
        self.http.clear()

    def _name(self, key: str) -> str:
        prefix = self._settings.prefix
        return f"{prefix}/{key}" if prefix else key

    def _read(self, key: str) -> bytes:
        name = self._name(checked_key(key))
        with self._failing("read", key):
            try:
                response = self._client.get_object(self._settings.bucket, name)
            except S3Error as exc:
                if exc.code == "NoSuchKey":
                    raise missing(self.url, key) from None
                raise
        return response.data or b""

    def _written(self, name: str) -> tuple[str, int | None] | None:
        """Mark of the upload that made the object, '' without, and size; None: no object."""
        try:
            found = self._client.stat_object(self._settings.bucket, name)
        except S3Error as exc:
            if exc.code == "NoSuchKey":
                return None
            raise
        return (found.metadata or {}).get(_WRITE_HEADER, ""), found.size

    @contextmanager
    def _failing(self, action: str, what: str) -> Iterator[None]:
        try:
            yield
        except S3_FAILURES as exc:
            raise StoreFailed(
                f"{self.url} at {self._settings.endpoint} did not {action} {what!r}: "
                f"{explained(exc, self._settings)}"
            ) from None


def _slices(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    for start in range(0, len(data), PART_BYTES):
        yield bytes(view[start : start + PART_BYTES])


class _SourceFailed(Exception):
    """The caller's iterator raised; not a BaseException, so that the upload is aborted for it."""


class _Source:
    """The caller's parts as the file that the client library reads; counts and sums as it goes."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._next: Callable[[], bytes | None]
        iterator = iter(parts)
        self._next = lambda: next(iterator, None)
        self._buffer = bytearray()
        self._sum = hashlib.sha256()
        self.size = 0
        self.failure: BaseException | None = None

    @property
    def sha256(self) -> str:
        return self._sum.hexdigest()

    def read(self, length: int) -> bytes:
        """Exactly ``length`` bytes while there are so many."""
        while len(self._buffer) < length:
            try:
                part = self._next()
            except BaseException as exc:
                self.failure = exc
                raise _SourceFailed from exc
            if part is None:
                break
            self._buffer += part
            self._sum.update(part)
            self.size += len(part)
        taken = bytes(memoryview(self._buffer)[:length])
        del self._buffer[:length]
        return taken

    def drain(self) -> None:
        """Read what is left, for its size and sum."""
        while self.read(PART_BYTES):
            pass
