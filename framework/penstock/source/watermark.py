"""Watermarks of a source: how far event time has come. Clocks are passed in."""

from collections.abc import Iterable

import msgspec

from penstock.failure import ConfigurationError
from penstock.record import MIN_WATERMARK


class Watermark(msgspec.Struct, frozen=True):
    """How a source makes watermarks.

    ``out_of_orderness_ms``: records come at most this much later than a later one. ``idle_ms``: a
    partition that is read to its end and has had no record for so long holds nothing back (None: it
    does).
    """

    out_of_orderness_ms: int = 0
    idle_ms: int | None = None

    def __post_init__(self) -> None:
        if self.out_of_orderness_ms < 0 or (self.idle_ms is not None and self.idle_ms <= 0):
            raise ConfigurationError(
                f"{self}: out_of_orderness_ms must be 0 or more and idle_ms None or more than 0"
            )


class SourceWatermarks:
    """The watermark of one source subtask: least over its partitions.

    A partition of which nothing was heard may hold any number of records: only one that is read to
    its end can be idle. Otherwise those read first after a restart would make the rest late.
    """

    def __init__(self, partitions: Iterable[int], policy: Watermark) -> None:
        self._policy = policy
        self._partitions = tuple(partitions)
        self._current = MIN_WATERMARK
        self._latest = dict.fromkeys(self._partitions, MIN_WATERMARK)
        self._seen: set[int] = set()
        self._at_end: set[int] = set()
        self._active_ms: dict[int, int] = {}
        self._next_ms = MIN_WATERMARK
        self.is_idle = False
        """Every partition is idle."""

    def restored(self, watermark_ms: int) -> None:
        """Event time had come this far; it does not go back."""
        self._current = watermark_ms

    def observed(self, partition: int, latest_ms: int) -> None:
        """A batch of ``partition`` came, with this greatest event time."""
        self._seen.add(partition)
        self._at_end.discard(partition)
        self._latest[partition] = max(self._latest[partition], latest_ms)

    def reached_end(self, partition: int) -> None:
        """Everything that ``partition`` holds was read."""
        self._at_end.add(partition)

    def advance(self, now_ms: int, interval_ms: int = 0) -> int | None:
        """The new watermark, when it moved; looks at most every ``interval_ms``."""
        if now_ms < self._next_ms:
            return None
        self._next_ms = now_ms + interval_ms
        policy = self._policy
        for partition in self._partitions:
            is_quiet = partition in self._at_end and partition not in self._seen
            if not is_quiet or partition not in self._active_ms:
                self._active_ms[partition] = now_ms
        active = {
            partition
            for partition in self._partitions
            if policy.idle_ms is None or now_ms - self._active_ms[partition] < policy.idle_ms
        }
        self._seen.clear()
        self.is_idle = not active
        # When all are idle nobody holds the furthest one back, in whatever order they became so.
        furthest = max(self._latest.values(), default=MIN_WATERMARK)
        least = min((self._latest[partition] for partition in active), default=furthest)
        reached = least - policy.out_of_orderness_ms - 1
        if least == MIN_WATERMARK or reached <= self._current:
            return None
        self._current = reached
        return reached
