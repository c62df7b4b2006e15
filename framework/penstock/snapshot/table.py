"""The heap backend: one state of one operator as live Python objects, by bucket and key.

A snapshot freezes the dirty keys in O(1) and encodes them later, in slices between batches (L18).
What is not encoded yet and is about to be used is *rescued*: encoded first, as it was at the
barrier
(L4). Whoever touches a key while `frozen` holds calls `rescue` before.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import msgspec

from penstock.failure import ConfigurationError, CorruptedObject
from penstock.snapshot.chunk import Section
from penstock.snapshot.objects import older_checkpoint

PIECE_BYTES = 4 * 1024 * 1024
_encode = msgspec.msgpack.Encoder().encode


class HeapTable:
    """Live values of (operator uid, state name)."""

    __slots__ = (
        "_decode",
        "_decode_keys",
        "_keys",
        "_on_section",
        "_values",
        "_verified",
        "buckets",
        "dirty",
        "frozen",
        "kind",
        "name",
        "operator",
    )

    def __init__(
        self,
        operator: str,
        name: str,
        kind: str,
        key: Any,
        value: Any,
        on_section: Callable[[Section], None],
    ) -> None:
        self.operator = operator
        self.name = name
        self.kind = kind
        self.buckets: dict[int, dict[Any, Any]] = {}
        self.dirty: dict[int, set[Any]] = {}
        self.frozen: dict[int, list[set[Any]]] = {}
        """Dirty keys at the barrier that are not encoded yet; empty most of the time.

        More than one set when a checkpoint was given up: they are disjoint, because a key that is
        touched after a barrier was rescued before.
        """
        self._keys = key
        self._values = value
        self._on_section = on_section
        self._decode = msgspec.msgpack.Decoder(dict[key, value]).decode
        self._decode_keys = msgspec.msgpack.Decoder(list[key]).decode
        self._verified = False

    def twin(self) -> "HeapTable":
        """An empty table of the same types, to load a chain into and compare."""
        return HeapTable(
            self.operator, self.name, self.kind, self._keys, self._values, self._on_section
        )

    def bucket(self, bucket: int) -> dict[Any, Any]:
        """The live values of a bucket; whoever changes one adds its key to ``dirty_keys``."""
        values = self.buckets.get(bucket)
        if values is None:
            values = self.buckets[bucket] = {}
        return values

    def dirty_keys(self, bucket: int) -> set[Any]:
        """Keys changed since the last barrier; another set after every `freeze`."""
        keys = self.dirty.get(bucket)
        if keys is None:
            keys = self.dirty[bucket] = set()
        return keys

    def freeze(self) -> int:
        """Set the dirty keys aside; returns the number of live keys. Does not look at any key."""
        self._verified = False
        live = 0
        for bucket, keys in self.dirty.items():
            if keys:
                self.frozen.setdefault(bucket, []).append(keys)
                self.dirty[bucket] = set()
        for values in self.buckets.values():
            live += len(values)
        return live

    def rescue(self, bucket: int, keys: Iterable[Any]) -> int:
        """Encode those of ``keys`` that the snapshot still needs; returns how many were live."""
        live = 0
        for waiting in self.frozen.get(bucket, ()):
            hit = waiting.intersection(keys)
            if hit:
                waiting -= hit
                live += self._encode(bucket, list(hit))
        return live

    def encode_slice(self, budget: int) -> tuple[int, int]:
        """Encode up to ``budget`` frozen keys; returns (keys taken, of which live)."""
        taken = live = 0
        while self.frozen and taken < budget:
            bucket, sets = next(iter(self.frozen.items()))
            waiting = sets[-1]
            pop = waiting.pop
            keys = [pop() for _ in range(min(budget - taken, len(waiting)))]
            if not waiting:
                sets.pop()
                if not sets:
                    del self.frozen[bucket]
            if keys:
                taken += len(keys)
                live += self._encode(bucket, keys)
        return taken, live

    def encode_live(self, bucket: int, keys: list[Any], out: Callable[[Section], None]) -> None:
        """Encode the present values of ``keys`` that still exist, for a base."""
        values = self.buckets.get(bucket, {})
        present = {key: values[key] for key in keys if key in values}
        self._emit(bucket, present, [], out)

    def apply(self, section: Section, where: str) -> None:
        """Bring a section of a chunk in; raises CorruptedObject or ConfigurationError."""
        try:
            entries = self._decode(section.entries)
            removed = self._decode_keys(section.removed) if section.removed else []
        except msgspec.ValidationError as error:
            raise ConfigurationError(
                f"state {self.name!r} of operator {self.operator!r} in {where} does not fit its "
                f"declared type {_shown(self._keys)} -> {_shown(self._values)}: {error}; give the "
                "state its old type, or a new name"
            ) from error
        except (msgspec.MsgspecError, ValueError, RecursionError, MemoryError, TypeError) as error:
            raise CorruptedObject(
                f"snapshot object {where} is damaged at state {self.name!r} of operator "
                f"{self.operator!r}: {error}; {older_checkpoint()}"
            ) from error
        if len(entries) != section.count:
            raise CorruptedObject(
                f"snapshot object {where} says {section.count} entries of state {self.name!r} of "
                f"operator {self.operator!r} but holds {len(entries)}; {older_checkpoint()}"
            )
        values = self.bucket(section.bucket)
        values.update(entries)
        for key in removed:
            values.pop(key, None)

    def _encode(self, bucket: int, keys: list[Any]) -> int:
        values = self.buckets.get(bucket, {})
        present = {key: values[key] for key in keys if key in values}
        removed = [] if len(present) == len(keys) else [key for key in keys if key not in values]
        self._emit(bucket, present, removed, self._on_section)
        return len(present)

    def _emit(
        self,
        bucket: int,
        present: dict[Any, Any],
        removed: list[Any],
        out: Callable[[Section], None],
    ) -> None:
        try:
            entries = _encode(present)
            gone = _encode(removed) if removed else b""
            if not self._verified:
                # A wrong type would show when it is too late: at restore. One slice is proof enough
                # against a handler that always sets the wrong type, and costs next to nothing.
                self._decode(entries)
                self._verified = True
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise ConfigurationError(
                f"state {self.name!r} of operator {self.operator!r} holds a value that is not of "
                f"its declared type {_shown(self._keys)} -> {_shown(self._values)}: {error}; set "
                "values of the declared type, or declare the type that is set"
            ) from error
        if len(entries) > PIECE_BYTES and len(present) > 1:
            pairs = iter(present.items())
            half = dict(islice(pairs, len(present) // 2))
            self._emit(bucket, half, removed, out)
            self._emit(bucket, dict(pairs), [], out)
            return
        out(Section(self.operator, self.name, bucket, len(present), entries, gone))


def _shown(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
