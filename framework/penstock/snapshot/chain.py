"""The bytes of the chunks that a chain names, wherever they stand (L19)."""

from typing import Protocol

from penstock.control import ChunkRef
from penstock.failure import CorruptedObject
from penstock.snapshot import manifest as manifests
from penstock.snapshot.objects import verified


class Objects(Protocol):
    """What is read of a snapshot store."""

    url: str

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object; CorruptedObject naming it when missing or not of this size and sum."""
        ...


class ChunkReader:
    """Reads chunks from a store: whole objects, and those that stand inside a manifest.

    Args:
        store: where the objects are.
        keeps: an object is read once, for chains that share their objects; `forget` frees them.
    """

    def __init__(self, store: Objects, *, keeps: bool = False) -> None:
        self._store = store
        self._keeps = keeps
        self._objects: dict[str, bytes] = {}
        self._holder: tuple[str, manifests.Manifest] | None = None

    def __call__(self, ref: ChunkRef) -> bytes:
        """The bytes of a chunk, of the size and sum of its reference. Raises CorruptedObject."""
        name = f"{ref.key}#{ref.entry}"
        data = self._objects.get(name)
        if data is None:
            if ref.entry is None:
                data = self._store.get(ref.key, size=ref.size, sha256=ref.sha256)
            else:
                data = self._inline(ref)
            if self._keeps:
                self._objects[name] = data
        return data

    def forget(self) -> None:
        """Free what is kept."""
        self._objects.clear()
        self._holder = None

    def _inline(self, ref: ChunkRef) -> bytes:
        data = manifests.entry(self._holding(ref), ref)
        if data is None:
            raise CorruptedObject(f"manifest {ref.key!r} holds no chunk {ref.entry!r}")
        where = f"{self._store.url} (inline chunk {ref.entry!r})"
        return verified(where, ref.key, data, size=ref.size, sha256=ref.sha256)

    def _holding(self, ref: ChunkRef) -> manifests.Manifest:
        if self._holder is None or self._holder[0] != ref.key:
            try:
                manifest = manifests.load(self._store.get(ref.key), ref.key)
            except CorruptedObject as error:
                raise CorruptedObject(f"{error} (it holds chunk {ref.entry!r})") from error
            self._holder = (ref.key, manifest)
        return self._holder[1]
