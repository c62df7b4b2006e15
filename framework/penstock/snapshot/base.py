"""A base: every live entry, encoded in slices over as many epochs as it takes (decision 0002).

A base is fuzzy: each entry is as it was when its slice was encoded. It is true from the first
barrier after its end, together with every delta since the epoch in which it began.
"""

from collections.abc import Callable
from typing import Any

from penstock.snapshot.chunk import OBJECT_BYTES, Chunk, Section, section_bytes
from penstock.snapshot.table import HeapTable


class BaseRun:
    """A base in the making."""

    def __init__(
        self,
        tables: list[HeapTable],
        first_delta: int,
        make_chunk: Callable[[list[Section], bool], Chunk],
    ) -> None:
        self.first_delta = first_delta
        """Ordinal of the first delta that belongs on top of this base."""
        self.is_done = False
        self.chunks: list[Chunk] = []
        self._make_chunk = make_chunk
        self._work = [(table, bucket) for table in tables for bucket in table.buckets]
        self._keys: list[Any] = []
        self._at = 0
        self._table: HeapTable | None = None
        self._bucket = -1
        self._sections: list[Section] = []
        self._size = 0

    def advance(self, budget: int) -> None:
        """Encode up to ``budget`` more keys; sets ``is_done`` with the last one."""
        while budget > 0:
            if self._at >= len(self._keys):
                if not self._work:
                    self._seal()
                    self.is_done = True
                    return
                self._table, self._bucket = self._work.pop()
                # Keys that come later are in a delta anyway.
                self._keys = list(self._table.buckets[self._bucket])
                self._at = 0
                continue
            keys = self._keys[self._at : self._at + budget]
            self._at += len(keys)
            budget -= len(keys)
            assert self._table is not None
            self._table.encode_live(self._bucket, keys, self._take)

    def _take(self, section: Section) -> None:
        if not section.count:
            return
        size = section_bytes(section)
        if self._size + size > OBJECT_BYTES:
            self._seal()
        self._sections.append(section)
        self._size += size

    def _seal(self) -> None:
        if self._sections:
            self.chunks.append(self._make_chunk(self._sections, True))
            self._sections = []
            self._size = 0
