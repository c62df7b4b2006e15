"""A chunk: one object of state, sections of one (operator, state, bucket) each (L19, L21).

``magic, msgpack([section...])``; a section holds ``{key: value}`` and the keys that were removed,
both
msgpack bytes that only the table with the declared types decodes. Nothing in a chunk is executed.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from penstock.control import ChunkRef
from penstock.failure import CorruptedObject
from penstock.snapshot.objects import older_checkpoint

MAGIC = b"PSCHUNK\x01"
OBJECT_BYTES = 8 * 1024 * 1024
INLINE_BYTES = 16 * 1024
_SECTION_OVERHEAD = 64


class Section(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Some entries of one table's bucket."""

    operator: str
    state: str
    bucket: int
    count: int
    """Entries in ``entries``."""
    entries: bytes
    """msgpack map key -> value."""
    removed: bytes
    """msgpack array of keys; empty for none."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Section])


def section_bytes(section: Section) -> int:
    """About the bytes that a section takes in an object."""
    return len(section.entries) + len(section.removed) + _SECTION_OVERHEAD


def encode_chunk(sections: Iterable[Section]) -> bytes:
    """The bytes of an object."""
    return MAGIC + _encoder.encode(list(sections))


def decode_chunk(name: str, data: bytes) -> list[Section]:
    """The sections of an object; raises CorruptedObject naming it."""
    if data[: len(MAGIC)] != MAGIC:
        raise CorruptedObject(
            f"snapshot object {name!r} starts with {data[: len(MAGIC)].hex()}, expected "
            f"{MAGIC.hex()}: it is no chunk of this version; {older_checkpoint()}"
        )
    try:
        return _decoder.decode(memoryview(data)[len(MAGIC) :])
    except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError) as error:
        raise CorruptedObject(
            f"snapshot object {name!r} ({len(data)} bytes) is damaged: {error}; "
            f"{older_checkpoint()}"
        ) from error


class Chunk:
    """An object in the life of the subtask that made it: bytes until stored, a reference after.

    ``data`` and ``ref`` do the joining and hashing, and are meant for a background thread.
    """

    __slots__ = (
        "_data",
        "_ref",
        "_sections",
        "base",
        "high",
        "inline",
        "low",
        "name",
        "size_hint",
        "status",
    )

    def __init__(self, name: str, sections: list[Section], buckets: range, *, base: bool) -> None:
        self.name = name
        self.base = base
        self.low = buckets.start
        self.high = buckets.stop
        self.size_hint = sum(map(section_bytes, sections))
        self.inline = self.size_hint <= INLINE_BYTES
        self.status = "new"
        """new, taken (being uploaded) or stored."""
        self._sections = sections
        self._data: bytes | None = None
        self._ref: ChunkRef | None = None

    @classmethod
    def restored(cls, ref: ChunkRef) -> "Chunk":
        """A chunk that another attempt stored."""
        chunk = cls(ref.entry or ref.key, [], range(ref.low, ref.high), base=ref.base)
        chunk.size_hint = ref.size
        chunk.inline = ref.entry is not None
        chunk.status = "stored"
        chunk._ref = ref
        return chunk

    @property
    def data(self) -> bytes:
        """The object's bytes, as long as it is not stored."""
        data = self._data
        if data is None:
            data = self._data = encode_chunk(self._sections)
        return data

    @property
    def ref(self) -> ChunkRef:
        """The reference for the manifest; of an inline chunk without key until it is `placed`."""
        ref = self._ref
        if ref is None:
            data = self.data
            ref = self._ref = ChunkRef(
                key="" if self.inline else self.name,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                low=self.low,
                high=self.high,
                base=self.base,
                entry=self.name if self.inline else None,
            )
        return ref

    def placed(self, manifest_key: str) -> None:
        """The manifest object ``manifest_key`` holds this inline chunk for good."""
        self._ref = msgspec.structs.replace(self.ref, key=manifest_key)
        self.stored()

    def stored(self) -> None:
        """Durable: the bytes are no longer needed here."""
        if self._ref is None:
            self._ref = self.ref
        self.status = "stored"
        self._data = None
        self._sections = []
