"""Idle inputs hold no watermark back, in whatever order they become idle."""

from itertools import permutations

import pytest
from penstock.operator.watermark import WatermarkMerger
from penstock.source.watermark import SourceWatermarks, Watermark


@pytest.mark.parametrize("order", list(permutations(["a", "b", "c"])))
def test_when_all_channels_are_idle_the_furthest_counts(order: tuple[str, ...]) -> None:
    merger = WatermarkMerger(["a", "b", "c"])
    merger.advanced("a", 500)
    merger.advanced("b", 300)
    moved = [merger.idle(channel, True) for channel in order]
    assert merger.is_idle
    assert merger.current == 500
    assert [m for m in moved if m is not None] == sorted(m for m in moved if m is not None)


def test_partitions_that_become_idle_at_one_look() -> None:
    """The partition without any record and the one with records have the same age."""
    marks = SourceWatermarks(range(2), Watermark(out_of_orderness_ms=100, idle_ms=50))
    marks.observed(0, 1000)
    marks.reached_end(0)
    marks.reached_end(1)
    assert marks.advance(0) is None
    assert marks.advance(60) == 899
    assert marks.is_idle
    assert marks.advance(70) is None


def test_a_watermark_never_goes_back() -> None:
    marks = SourceWatermarks(range(2), Watermark(idle_ms=50))
    marks.observed(0, 1000)
    marks.reached_end(0)
    marks.reached_end(1)
    marks.advance(0)
    assert marks.advance(60) == 999
    marks.observed(1, 500)
    assert marks.advance(70) is None
    marks.observed(0, 2000)
    marks.observed(1, 1500)
    assert marks.advance(80) == 1499


def test_a_partition_that_was_not_read_yet_is_not_idle() -> None:
    """Whatever it holds would be late if the partitions read first moved event time on (L20)."""
    marks = SourceWatermarks(range(2), Watermark(idle_ms=50))
    marks.observed(0, 1000)
    marks.reached_end(0)
    assert marks.advance(0) is None
    assert marks.advance(200) is None, "nothing was heard of partition 1"
    marks.observed(1, 400)
    assert marks.advance(210) == 399
    assert marks.advance(400) is None, "partition 1 has more, which was not read for long"
    marks.reached_end(1)
    assert marks.advance(410) is None
    assert marks.advance(460) == 999, "idle: at its end, and silent for idle_ms"
    assert marks.is_idle
