"""Which offsets a batch reads: what was asked for, held against what the topics hold. Pure.

The end of a batch is planned once. Of committed records it is at most the last stable offset: what
is behind the first open transaction is not decided yet, and a reader of committed records cannot
pass it. Nothing that was asked for is left out in silence.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from penstock.failure import ConfigurationError

from penstock_spark.kafka_options import EARLIEST, LATEST, Bound, Wanted


class Held(NamedTuple):
    """What a partition holds now."""

    low: int
    """First offset that is not deleted."""
    stable: int
    """The end for a reader: the last stable offset when it reads committed records only."""
    high: int
    """The end of the log."""
    since: int | None = None
    """First offset of a record that is young enough; None when no timestamp was asked for."""


class OffsetRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    topic: str
    partition: int
    start: int
    end: int


def planned(wanted: Wanted, held: Mapping[str, Mapping[int, Held]]) -> list[OffsetRange]:
    """The range of every partition, empty ones left out.

    Raises ConfigurationError for records that are gone or not there yet.
    """
    ranges: list[OffsetRange] = []
    for topic in wanted.topics:
        there = held[topic]
        _check_partitions("startingOffsets", wanted.starting, topic, there)
        _check_partitions("endingOffsets", wanted.ending, topic, there)
        for partition, has in sorted(there.items()):
            start = _start(wanted, topic, partition, has)
            end = _end(wanted, topic, partition, has)
            if start > end and _named(wanted.ending, topic) and _named(wanted.starting, topic):
                raise ConfigurationError(
                    f"{topic}[{partition}]: startingOffsets {start} is behind endingOffsets "
                    f"{end}; start at or before the end"
                )
            if start < end:
                ranges.append(OffsetRange(topic, partition, start, end))
    return ranges


def sliced(ranges: list[OffsetRange], rows: int | None) -> list[OffsetRange]:
    """The ranges cut into about equal parts of at most ``rows`` offsets each."""
    if rows is None:
        return ranges
    parts: list[OffsetRange] = []
    for topic, partition, start, end in ranges:
        count = -(-(end - start) // rows)
        cuts = [start + (end - start) * i // count for i in range(count + 1)]
        parts += [OffsetRange(topic, partition, a, b) for a, b in pairwise(cuts)]
    return parts


def lost(topic: str, partition: int, start: int, low: int, high: int) -> ConfigurationError:
    """The error for offsets that a partition does not hold any more."""
    where = f"{topic}[{partition}]"
    if start > high:
        cause = f"it ends at {high}: it is not the topic that the offsets are of"
    else:
        cause = f"it begins at {low}: retention or DeleteRecords has taken the records before"
    return ConfigurationError(
        f"offset {start} of {where} is gone; {cause}. Start at what is there "
        '(startingOffsets "earliest"), or accept the loss with failOnDataLoss=false'
    )


def _named(bound: Bound, topic: str) -> bool:
    return not isinstance(bound, str) and topic in bound


def _check_partitions(option: str, bound: Bound, topic: str, there: Mapping[int, Held]) -> None:
    if isinstance(bound, str):
        return
    if topic not in bound:
        raise ConfigurationError(f"{option} does not name topic {topic!r}; name all its partitions")
    if bound[topic].keys() != there.keys():
        raise ConfigurationError(
            f"{option} names partitions {sorted(bound[topic])} of topic {topic!r}, which has "
            f"{sorted(there)}; name each of them ({EARLIEST} is earliest, {LATEST} is latest)"
        )


def _start(wanted: Wanted, topic: str, partition: int, has: Held) -> int:
    if wanted.starting_ms is not None and has.since is not None:
        return has.since
    if isinstance(wanted.starting, str):
        return has.low
    start = wanted.starting[topic][partition]
    if start == EARLIEST:
        return has.low
    if start == LATEST:
        return has.stable
    if has.low <= start <= has.high:
        return start
    if wanted.fails_on_loss:
        raise lost(topic, partition, start, has.low, has.high)
    return has.low if start < has.low else has.stable


def _end(wanted: Wanted, topic: str, partition: int, has: Held) -> int:
    if isinstance(wanted.ending, str):
        return has.stable
    end = wanted.ending[topic][partition]
    if end == LATEST:
        return has.stable
    if end == EARLIEST:
        return has.low
    if end > has.high:
        raise ConfigurationError(
            f"endingOffsets {end} of {topic}[{partition}] is not written yet: the log ends at "
            f"{has.high}; end there, or wait"
        )
    if end > has.stable:
        raise ConfigurationError(
            f"endingOffsets {end} of {topic}[{partition}] lies behind an open transaction, which "
            f"begins at {has.stable}: whether its records count is not decided; end at "
            f"{has.stable} or wait until it ends, or read with isolationLevel=read_uncommitted"
        )
    if end < has.low and wanted.fails_on_loss:
        raise lost(topic, partition, end, has.low, has.high)
    return end
