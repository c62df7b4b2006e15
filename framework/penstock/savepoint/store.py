"""What a savepoint needs of the store that holds it: a folder of objects, written once (L19)."""

from collections.abc import Iterable
from typing import Protocol


class SavepointStore(Protocol):
    """A store opened at the savepoint's own location; every `SnapshotStore` is one."""

    url: str

    def put(self, key: str, data: bytes) -> None:
        """Write one object durably; the same bytes again succeed, other bytes: StoreFailed."""
        ...

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object; CorruptedObject naming it when missing or not of this size and sum."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone already do not matter."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys under a prefix, sorted."""
        ...
