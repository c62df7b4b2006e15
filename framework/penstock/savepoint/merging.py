"""The chain of a subtask, merged bucket by bucket: what each key's entry is at the barrier (L4).

Bases and deltas are applied in their order, narrowed to the subtask's buckets. The bytes of the
chunks are kept, what they hold is decoded a bucket at a time.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from penstock.control import ChunkRef, SubtaskSnapshot
from penstock.failure import CorruptedObject
from penstock.savepoint.layout import StateLayout
from penstock.snapshot.chunk import Section, decode_chunk

_keys_of = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode


class Chain:
    """The sections of one subtask's part of a checkpoint, by state and bucket, oldest first.

    Args:
        part: the subtask's snapshot.
        read: the bytes of a chunk.

    Raises CorruptedObject for a chunk that is none.
    """

    def __init__(self, part: SubtaskSnapshot, read: Callable[[ChunkRef], bytes]) -> None:
        self.buckets = range(*part.buckets)
        self._sections: dict[tuple[str, str], dict[int, list[tuple[Section, str]]]] = {}
        for ref in part.chain:
            where = f"snapshot object {ref.key if ref.entry is None else ref.entry!r}"
            data = read(ref)
            if len(data) != ref.size:
                raise CorruptedObject(
                    f"{where} has {len(data)} bytes, expected {ref.size}; convert an older "
                    "checkpoint"
                )
            mine = range(max(ref.low, self.buckets.start), min(ref.high, self.buckets.stop))
            for section in decode_chunk(where, data):
                if section.bucket in mine:
                    state = (section.operator, section.state)
                    by_bucket = self._sections.setdefault(state, {})
                    by_bucket.setdefault(section.bucket, []).append((section, where))

    def entries(self, layout: StateLayout, bucket: int) -> dict[Any, Any]:
        """Key -> value of one bucket of a state, as wire values.

        Raises CorruptedObject, or ConfigurationError when they are not of the state's type.
        """
        found: dict[Any, Any] = {}
        state = (layout.operator.uid, layout.state.name)
        for section, where in self._sections.get(state, {}).get(bucket, ()):
            entries = layout.decoded(section.entries, where)
            if len(entries) != section.count:
                raise CorruptedObject(
                    f"{where} says {section.count} entries of state {state[1]!r} of operator "
                    f"{state[0]!r} but holds {len(entries)}; convert an older checkpoint"
                )
            found.update(entries)
            for key in layout.decoded_keys(section.removed, where):
                found.pop(key, None)
        return found

    def undeclared_keys(self, operator: str, name: str) -> Iterator[list[Any]]:
        """The keys of a state whose key type is not known, section by section."""
        for sections in self._sections.get((operator, name), {}).values():
            for section, where in sections:
                try:
                    yield list(_keys_of(section.entries))
                except (msgspec.MsgspecError, ValueError, RecursionError, TypeError) as error:
                    raise CorruptedObject(
                        f"{where} is damaged at state {name!r} of operator {operator!r}: {error}; "
                        "convert an older checkpoint"
                    ) from error
