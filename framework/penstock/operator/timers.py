"""Timers of event and processing time, as keyed state: (domain, ms, key) -> order of registration.

They fire in (ms, order); a restore rebuilds the order from the state.
"""

from collections.abc import Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from penstock.operator.context import Context
from penstock.snapshot.state import SubtaskState
from penstock.snapshot.table import HeapTable

_STALE_ENTRIES = 1000


class Domain(IntEnum):
    """Which clock a timer waits for."""

    EVENT = 0
    PROCESSING = 1


class Timer(NamedTuple):
    """A timer that fires."""

    ms: int
    domain: Domain

    @property
    def is_event(self) -> bool:
        """It waited for the watermark."""
        return self.domain is Domain.EVENT


class Timers:
    """The timers of one keyed operator."""

    def __init__(self, context: Context, state: SubtaskState, table: HeapTable) -> None:
        self._context = context
        self._state = state
        self._table = table
        self._tables = (table,)
        self._bucket = -1
        self._order = 0
        self._live = [0, 0]
        self._heaps: tuple[list[tuple[int, int, int, Any]], list[tuple[int, int, int, Any]]] = (
            [],
            [],
        )

    def event(self, ms: int) -> None:
        """Call ``on_timer`` for the current key when the watermark has reached ``ms``."""
        self._register(Domain.EVENT, ms)

    def processing(self, ms: int) -> None:
        """Call ``on_timer`` for the current key when the clock has reached ``ms``."""
        self._register(Domain.PROCESSING, ms)

    def delete_event(self, ms: int) -> None:
        """Take back an event timer of the current key; nothing happens when there is none."""
        self._delete(Domain.EVENT, ms)

    def delete_processing(self, ms: int) -> None:
        """Take back a processing timer of the current key; nothing happens when there is none."""
        self._delete(Domain.PROCESSING, ms)

    def enter(self, bucket: int) -> None:
        """The keys that come now are of ``bucket``."""
        self._bucket = bucket

    def due(self, domain: Domain, upto_ms: int, before: int) -> tuple[int, int, Any] | None:
        """Take out the next timer at or before ``upto_ms``: (ms, bucket, key).

        ``before`` bounds the order of registration: a processing timer registered by a timer that
        fires now waits for the next turn.
        """
        heap = self._heaps[domain]
        while heap and heap[0][0] <= upto_ms:
            ms, order, bucket, key = heap[0]
            entry = (int(domain), ms, key)
            if self._table.bucket(bucket).get(entry) != order:
                heappop(heap)
                continue
            if order >= before:
                return None
            heappop(heap)
            self._remove(bucket, entry)
            return ms, bucket, key
        return None

    @property
    def order(self) -> int:
        """Every timer registered from now on has at least this order."""
        return self._order

    def next_ms(self, domain: Domain) -> int | None:
        """When the next timer may fire."""
        heap = self._heaps[domain]
        return heap[0][0] if heap else None

    def rebuild(self) -> None:
        """Fill the heaps from the state after a restore."""
        for heap in self._heaps:
            heap.clear()
        self._live = [0, 0]
        self._order = 0
        for bucket, entries in self._table.buckets.items():
            for (domain, ms, key), order in entries.items():
                self._heaps[domain].append((ms, order, bucket, key))
                self._live[domain] += 1
                self._order = max(self._order, order + 1)
        for heap in self._heaps:
            # Orders of two old subtasks may be equal: the bucket decides, keys need no order.
            heap.sort(key=lambda timer: timer[:3])

    def added(self, bucket: int, entries: Iterable[tuple[tuple[int, int, Any], int]]) -> None:
        """Entries that were loaded into the table while others were there."""
        for (domain, ms, key), order in entries:
            heappush(self._heaps[domain], (ms, order, bucket, key))
            self._live[domain] += 1
            self._order = max(self._order, order + 1)

    def _register(self, domain: Domain, ms: int) -> None:
        bucket, key = self._bucket, self._context.key
        entry = (int(domain), int(ms), key)
        entries = self._table.bucket(bucket)
        if entry in entries:
            return
        if self._state.encoding is not None:
            self._state.rescue(self._tables, bucket, (entry,))
        order = self._order
        self._order = order + 1
        entries[entry] = order
        self._table.dirty_keys(bucket).add(entry)
        self._live[domain] += 1
        heap = self._heaps[domain]
        heappush(heap, (int(ms), order, bucket, key))
        if len(heap) > 2 * self._live[domain] + _STALE_ENTRIES:
            self._compact(domain)

    def _delete(self, domain: Domain, ms: int) -> None:
        entry = (int(domain), int(ms), self._context.key)
        if entry in self._table.bucket(self._bucket):
            self._remove(self._bucket, entry)

    def _remove(self, bucket: int, entry: tuple[int, int, Any]) -> None:
        if self._state.encoding is not None:
            self._state.rescue(self._tables, bucket, (entry,))
        del self._table.bucket(bucket)[entry]
        self._table.dirty_keys(bucket).add(entry)
        self._live[entry[0]] -= 1

    def _compact(self, domain: Domain) -> None:
        heap = self._heaps[domain]
        bucket_of = self._table.bucket
        heap[:] = [t for t in heap if bucket_of(t[2]).get((int(domain), t[0], t[3])) == t[1]]
        heapify(heap)
