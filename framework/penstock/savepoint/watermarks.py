"""The event time of a savepoint's buckets, for the buckets that a graph has now.

The least of what a new bucket is made of: event time may be behind for a while after a restore,
never ahead of a record that is still to come.
"""

from collections.abc import Iterable
from itertools import groupby

from penstock.edge.routing import groups_of_partition
from penstock.record import MIN_WATERMARK
from penstock.savepoint.manifest import SavepointManifest, WatermarkEntry

Range = tuple[int, int, int]
"""Buckets [low, high) and their watermark, ms."""


def of_edge(manifest: SavepointManifest, old: Iterable[str], partitions: int) -> list[Range]:
    """Those of a stage that reads an edge of ``partitions``, whose state was in stages ``old``."""
    groups = manifest.max_parallelism
    sources = {source.stage for source in manifest.sources}
    columns = [
        [_least(marks)] * partitions
        if stage in sources
        else [
            _least(
                m for m in marks if _overlaps(m, groups_of_partition(p, partitions, groups), groups)
            )
            for p in range(partitions)
        ]
        for stage, marks in _by_stage(manifest, old)
    ]
    return _ranges(map(min, zip(*columns, strict=True)))


def of_source(
    manifest: SavepointManifest, old: Iterable[str], partitions: int, read: int
) -> list[Range]:
    """Those of a stage that reads a topic of ``partitions``, of which ``read`` had positions.

    Partitions that the topic has got since have no event time yet, and hold back nobody's: the
    ranges end before them.
    """
    sources = {source.stage for source in manifest.sources}
    found = _by_stage(manifest, old)
    had = max((mark.partitions for _, marks in found for mark in marks), default=partitions)
    count = min(partitions, max(had, read))
    columns = [
        [_least(m for m in marks if m.low <= p < m.high) for p in range(count)]
        if stage in sources
        else [_least(marks)] * count
        for stage, marks in found
    ]
    return _ranges(map(min, zip(*columns, strict=True)))


def _by_stage(
    manifest: SavepointManifest, stages: Iterable[str]
) -> list[tuple[str, list[WatermarkEntry]]]:
    return [
        (stage, [mark for mark in manifest.watermarks if mark.stage == stage])
        for stage in sorted(stages)
    ]


def _least(marks: Iterable[WatermarkEntry]) -> int:
    return min((mark.watermark_ms for mark in marks), default=MIN_WATERMARK)


def _overlaps(mark: WatermarkEntry, groups: range, max_parallelism: int) -> bool:
    """Whether a bucket of ``mark`` held one of ``groups``."""
    first = groups.start * mark.partitions // max_parallelism
    last = max(groups.stop - 1, groups.start) * mark.partitions // max_parallelism
    return mark.low <= last and first < mark.high


def _ranges(watermarks: Iterable[int]) -> list[Range]:
    """Neighbours with the same watermark together."""
    found: list[Range] = []
    at = 0
    for watermark, same in groupby(watermarks):
        size = len(list(same))
        found.append((at, at + size, watermark))
        at += size
    return found
