"""Copies of objects from store to store: inside the server where both are on one."""

from penstock.runtime.ports import SnapshotStore

from penstock_minio.bucket import MinioStore


def copy(
    source: SnapshotStore,
    source_key: str,
    target: SnapshotStore,
    key: str,
    *,
    size: int,
    sha256: str,
) -> None:
    """Write ``key`` of ``target`` with the bytes of ``source_key`` of ``source``.

    ``size`` and ``sha256`` are proven where the bytes come by; where the server copies, whoever
    reads the copy proves them. Raises CorruptedObject naming the object, StoreFailed.
    """
    match source, target:
        case MinioStore(), MinioStore() if target.is_beside(source):
            target.copy_from(source, source_key, key, size=size)
        case _:
            target.put(key, source.get(source_key, size=size, sha256=sha256))
