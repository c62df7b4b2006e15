"""All state of one subtask: tables, cells and the chain of chunks (decision 0002).

Life of a checkpoint here: ``freeze(n)`` at the barrier, ``advance(budget)`` between batches until
it says
True, ``take_chunk()`` for what must be uploaded (and again ``stored``/``upload_failed``), then
``sealed(n)`` for the acknowledgement, and ``completed(n, manifest)`` after Complete(n).

Invariants: the chain of checkpoint n, applied in order, is the state at barrier n (L4); the work in
``freeze`` does not depend on the number of keys (L18); an object has one name for ever (L19).
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.control import ChunkRef
from penstock.failure import CorruptedObject
from penstock.ids import CheckpointId
from penstock.snapshot.base import BaseRun
from penstock.snapshot.cells import Cells
from penstock.snapshot.chunk import OBJECT_BYTES, Chunk, Section, decode_chunk, section_bytes
from penstock.snapshot.objects import older_checkpoint
from penstock.snapshot.table import HeapTable

REBASE_FACTOR = 2
REBASE_BYTES = 256 * 1024
REBASE_REFS = 64


class Sealed:
    """A checkpoint whose chunk is encoded: what the acknowledgement needs."""

    __slots__ = ("_chain", "checkpoint", "checkpointed_bytes", "chunks", "operator_state")

    def __init__(
        self,
        checkpoint: CheckpointId,
        chunks: tuple[Chunk, ...],
        operator_state: dict[str, dict[str, list[bytes]]],
        checkpointed_bytes: int,
    ) -> None:
        self.checkpoint = checkpoint
        self.chunks = chunks
        self.operator_state = operator_state
        self._chain: tuple[ChunkRef, ...] | None = None
        self.checkpointed_bytes = checkpointed_bytes
        """About the bytes that are new with this checkpoint."""

    @property
    def is_stored(self) -> bool:
        """Every object of the chain is durable or travels inline."""
        return all(chunk.inline or chunk.status == "stored" for chunk in self.chunks)

    @property
    def state_bytes(self) -> int:
        """About the bytes of the whole chain."""
        return sum(chunk.size_hint for chunk in self.chunks)

    def chain(self) -> tuple[ChunkRef, ...]:
        """The chain for the manifest; may hash what is not uploaded yet."""
        chain = self._chain
        if chain is None:
            chain = self._chain = tuple(chunk.ref for chunk in self.chunks)
        return chain

    def inline(self) -> dict[str, bytes]:
        """Entry -> bytes of the chunks that travel with the acknowledgement."""
        return {chunk.name: chunk.data for chunk in self.unplaced()}

    def unplaced(self) -> list[Chunk]:
        """The inline chunks for which this checkpoint's chain names no manifest yet."""
        pairs = zip(self.chunks, self.chain(), strict=True)
        return [chunk for chunk, ref in pairs if ref.entry is not None and not ref.key]


class SubtaskState:
    """The state of one subtask in the life of one attempt.

    Args:
        prefix: ``<app>/<attempt>/<stage>-<index>``: no other subtask or attempt has it, so that
        object
            names under it are never used twice (L19).
        buckets: the partitions of the input that the subtask owns.
    """

    def __init__(self, prefix: str, buckets: range) -> None:
        self.prefix = prefix
        self.buckets = buckets
        self.encoding: CheckpointId | None = None
        """The frozen checkpoint that is not sealed yet; touched keys need `rescue` meanwhile."""
        self._tables: dict[tuple[str, str], HeapTable] = {}
        self._cells: dict[tuple[str, str], Cells] = {}
        self._links: list[_Link] = []
        self._ordinal = 0
        self._names = 0
        self._sections: list[Section] = []
        self._size = 0
        self._full: list[Chunk] = []
        self._live_frozen = 0
        self._live_encoded = 0
        self._operator_state: dict[str, dict[str, list[bytes]]] = {}
        self._sealed: dict[CheckpointId, Sealed] = {}
        self._base: BaseRun | None = None
        self._base_is_valid = False

    def table(self, operator: str, name: str, kind: str, key: Any, value: Any) -> HeapTable:
        """The table of a keyed state, made on first use."""
        table = self._tables.get((operator, name))
        if table is None:
            table = HeapTable(operator, name, kind, key, value, self._take)
            self._tables[operator, name] = table
        return table

    def add_cells(self, cells: Cells) -> None:
        """Take in an operator state: it is part of every checkpoint from now on."""
        self._cells[cells.operator, cells.name] = cells

    def tables(self) -> list[HeapTable]:
        """Every table, in the order of making."""
        return list(self._tables.values())

    def cells(self) -> dict[tuple[str, str], Cells]:
        """Every operator state, by (operator, name)."""
        return dict(self._cells)

    def freeze(self, checkpoint: CheckpointId) -> None:
        """The state is now that of barrier ``checkpoint``; the time does not grow with keys (L18).

        A checkpoint that is still being encoded is given up: it can never be `sealed`, and what it
        owes goes into this one.
        """
        if self.encoding is not None:
            self._link(whole=False)
        self.encoding = checkpoint
        self._live_frozen = sum(table.freeze() for table in self._tables.values())
        self._live_encoded = 0
        self._operator_state = {}
        for (operator, name), cells in self._cells.items():
            # What is the same everywhere is written once, by the first subtask.
            if self.buckets.start == 0 or not cells.everywhere:
                self._operator_state.setdefault(operator, {})[name] = cells.encode()
        if self._base is not None and self._base.is_done:
            self._base_is_valid = True

    def advance(self, budget_keys: int = 512) -> bool:
        """Encode up to about ``budget_keys``; True when no checkpoint waits for `advance` any more.

        Goes on with a base in the background; call it between batches whether or not a checkpoint
        is
        under way. Raises ConfigurationError when a value is not of its declared type.
        """
        if self.encoding is not None:
            for table in self._tables.values():
                if table.frozen:
                    taken, live = table.encode_slice(budget_keys)
                    self._live_encoded += live
                    budget_keys -= taken
                    if budget_keys <= 0 and self._has_frozen():
                        return False
            self._seal(self.encoding)
        elif self._base is not None and not self._base.is_done:
            self._base.advance(budget_keys)
        return True

    @property
    def is_busy(self) -> bool:
        """`advance` has something to do: do not wait long for input."""
        return self.encoding is not None or (self._base is not None and not self._base.is_done)

    def rescue(self, tables: Iterable[HeapTable], bucket: int, keys: Iterable[Any]) -> None:
        """Encode what the frozen checkpoint still needs of ``keys``, before they are touched."""
        for table in tables:
            if table.frozen:
                self._live_encoded += table.rescue(bucket, keys)

    def sealed(self, checkpoint: CheckpointId) -> Sealed | None:
        """What checkpoint ``checkpoint`` is made of, once `advance` is through with it."""
        return self._sealed.get(checkpoint)

    def take_chunk(self) -> list[Chunk]:
        """Objects to upload now, ``(chunk.name, chunk.data)`` each; none is given twice unless its
        upload failed.
        """
        chunks = [chunk for link in self._links for chunk in link.chunks]
        if self._base is not None:
            chunks += self._base.chunks
        due = [chunk for chunk in chunks if chunk.status == "new" and not chunk.inline]
        for chunk in due:
            chunk.status = "taken"
        return due

    def upload_failed(self, chunk: Chunk) -> None:
        """The chunk stays a member of the chain: the next `take_chunk` has it again."""
        if chunk.status == "taken":
            chunk.status = "new"

    def completed(self, checkpoint: CheckpointId, manifest_key: str) -> None:
        """Complete(checkpoint) is decided: its inline chunks now stand in that manifest."""
        sealed = self._sealed.get(checkpoint)
        if sealed is not None:
            for chunk in sealed.unplaced():
                chunk.placed(manifest_key)
        self._forget(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        """Checkpoint ``checkpoint`` will not complete; its chunk is part of the next chain."""
        self._sealed.pop(checkpoint, None)

    def restore(self, chunks: Iterable[tuple[ChunkRef, bytes]]) -> None:
        """Load a chain, oldest first; the sizes and sums were checked by the store (L19).

        Buckets that are not in the reference's range or not owned are left out (L20). All tables
        must
        have been made. Raises CorruptedObject, or ConfigurationError for a changed type.
        """
        for ref, data in chunks:
            where = repr(ref.key if ref.entry is None else f"{ref.key}#{ref.entry}")
            if len(data) != ref.size:
                raise CorruptedObject(
                    f"snapshot object {where} has {len(data)} bytes, expected {ref.size}; "
                    f"{older_checkpoint(ref.key.partition('/')[0])}"
                )
            low = max(ref.low, self.buckets.start)
            high = min(ref.high, self.buckets.stop)
            for section in decode_chunk(where, data):
                table = self._tables.get((section.operator, section.state))
                if low <= section.bucket < high and table is not None:
                    table.apply(section, where)
            self._links.append(_Link(-1, (Chunk.restored(ref),)))

    def restore_cells(self, operator_state: dict[str, dict[str, list[bytes]]]) -> None:
        """Load this subtask's share of the operator states."""
        for operator, states in operator_state.items():
            for name, elements in states.items():
                cells = self._cells.get((operator, name))
                if cells is not None:
                    cells.restore(elements)

    def _has_frozen(self) -> bool:
        return any(table.frozen for table in self._tables.values())

    def _take(self, section: Section) -> None:
        if not section.count and not section.removed:
            return
        size = section_bytes(section)
        if self._sections and self._size + size > OBJECT_BYTES:
            self._full.append(self._chunk(self._sections, False))
            self._sections = []
            self._size = 0
        self._sections.append(section)
        self._size += size

    def _chunk(self, sections: list[Section], base: bool) -> Chunk:
        self._names += 1
        number = self.encoding if self.encoding is not None else 0
        name = f"{self.prefix}/{number}-{self._names}.chunk"
        return Chunk(name, sections, self.buckets, base=base)

    def _link(self, whole: bool) -> None:
        """Close the delta that is being encoded; ``whole`` when it holds every live key."""
        sections, self._sections, self._size = self._sections, [], 0
        chunks, self._full = self._full, []
        if sections:
            chunks.append(self._chunk(sections, whole))
        for chunk in chunks:
            chunk.base = whole
        if whole:
            self._links.clear()
            self._base = None
            self._base_is_valid = False
        self._ordinal += 1
        if chunks:
            self._links.append(_Link(self._ordinal, tuple(chunks)))

    def _seal(self, checkpoint: CheckpointId) -> None:
        """Every frozen key is encoded."""
        before = {chunk.name for link in self._links for chunk in link.chunks}
        self._link(whole=self._live_encoded == self._live_frozen)
        self.encoding = None
        if self._base is not None and self._base_is_valid:
            base = self._base
            self._links = [link for link in self._links if link.ordinal >= base.first_delta]
            self._links.insert(0, _Link(base.first_delta, tuple(base.chunks)))
            self._base = None
            self._base_is_valid = False
        chunks = tuple(chunk for link in self._links for chunk in link.chunks)
        new = sum(chunk.size_hint for chunk in chunks if chunk.name not in before)
        self._sealed[checkpoint] = Sealed(checkpoint, chunks, self._operator_state, new)
        if self._base is None and self._wants_base(chunks):
            self._base = BaseRun(self.tables(), self._ordinal + 1, self._chunk)

    def _wants_base(self, chunks: tuple[Chunk, ...]) -> bool:
        base_bytes = sum(chunk.size_hint for chunk in chunks if chunk.base)
        delta_bytes = sum(chunk.size_hint for chunk in chunks if not chunk.base)
        return len(chunks) > REBASE_REFS or delta_bytes > REBASE_FACTOR * base_bytes + REBASE_BYTES

    def _forget(self, checkpoint: CheckpointId) -> None:
        for older in [n for n in self._sealed if n <= checkpoint]:
            del self._sealed[older]


class _Link(msgspec.Struct, frozen=True):
    """The chunks of one delta, or of a base."""

    ordinal: int
    chunks: tuple[Any, ...]
