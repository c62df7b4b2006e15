"""The place of every source record in one line, and how far event time had come there."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from penstock.record import MIN_WATERMARK

from penstock_spark.kafka_offsets import OffsetRange

STATE = 0
"""The place of state that was there before; records have places from 1 on."""


class Places:
    """Numbers all offsets of the replayed ranges: partition after partition, offset after offset.

    A record's place keeps the order in its partition, and says where it came from.
    """

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        self.ranges = tuple(ranges)
        self._starts: list[int] = []
        at = STATE + 1
        for part in self.ranges:
            self._starts.append(at)
            at += part.end - part.start
        self._number = {(r.topic, r.partition): i for i, r in enumerate(self.ranges)}

    def range_of(self, topic: str, partition: int) -> OffsetRange | None:
        """The range of a partition; None when nothing of it is replayed."""
        number = self._number.get((topic, partition))
        return None if number is None else self.ranges[number]

    def of(self, topic: str, partition: int, offsets: Any) -> Any:
        """The places of offsets (an array) of one partition, all within its range."""
        number = self._number[topic, partition]
        return offsets + (self._starts[number] - self.ranges[number].start)

    def origin(self, place: int) -> tuple[str, int, int]:
        """Topic, partition and offset of a place."""
        number = bisect_right(self._starts, place) - 1
        part = self.ranges[number]
        return part.topic, part.partition, place - self._starts[number] + part.start


class Clock:
    """How far event time has come in one source partition.

    It is the greatest event time so far, less what the source allows records to be late; the
    watermark that this partition would make alone is one less. A record is put where the clock
    stood *before* it. So records sorted by clock and place come as if always the partition that is
    furthest behind were read, and the clock before a record is the least of all partitions'
    clocks: the watermark that a live service would have, were it to move after every record.
    """

    def __init__(self, out_of_orderness_ms: int) -> None:
        self._less = out_of_orderness_ms
        self.reached = MIN_WATERMARK
        """Behind the last record."""

    def passed(self, times: Sequence[int]) -> Any:
        """The clock before each of the next records, as an array."""
        clocks = np.empty(len(times) + 1, np.int64)
        clocks[0] = self.reached
        clocks[1:] = times
        clocks[1:] -= self._less
        np.maximum.accumulate(clocks, out=clocks)
        self.reached = int(clocks[-1])
        return clocks[:-1]


class Reached(NamedTuple):
    """What a source partition's clock showed at the end of its range."""

    stage: str
    partition: int
    clock: int


def final_watermark(
    reached: Sequence[Reached], stage: str, partitions: int, *, skips_empty: bool
) -> int:
    """The watermark of a source stage at the end: the least over its partitions.

    A partition without records holds it back for ever, as it does live; ``skips_empty`` for a
    source with ``idle_ms``, where it would not.
    """
    clocks: dict[int, int] = {}
    for found in reached:
        if found.stage == stage:
            clocks[found.partition] = max(found.clock, clocks.get(found.partition, MIN_WATERMARK))
    if not clocks or (len(clocks) < partitions and not skips_empty):
        return MIN_WATERMARK
    return min(clocks.values()) - 1
