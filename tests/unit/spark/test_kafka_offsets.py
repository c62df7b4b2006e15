"""Which offsets a batch reads."""

import msgspec
import pytest
from penstock.failure import ConfigurationError
from penstock_kafka import KafkaCluster
from penstock_spark.kafka_offsets import Held, OffsetRange, planned, sliced
from penstock_spark.kafka_options import Bound, Wanted

HELD = {"t": {0: Held(low=10, stable=80, high=100), 1: Held(low=0, stable=0, high=0)}}


def wanted(
    starting: Bound = "earliest", ending: Bound = "latest", *, fails_on_loss: bool = True
) -> Wanted:
    return Wanted(
        cluster=KafkaCluster("broker:9092"),
        topics=("t",),
        starting=starting,
        ending=ending,
        fails_on_loss=fails_on_loss,
    )


def test_everything_ends_at_the_last_stable_offset() -> None:
    assert planned(wanted(), HELD) == [OffsetRange("t", 0, 10, 80)]


def test_offsets_are_taken_as_said() -> None:
    asked = wanted({"t": {0: 20, 1: -2}}, {"t": {0: 60, 1: -1}})
    assert planned(asked, HELD) == [OffsetRange("t", 0, 20, 60)]
    whole = wanted({"t": {0: -2, 1: 0}}, {"t": {0: -1, 1: 0}})
    assert planned(whole, HELD) == [OffsetRange("t", 0, 10, 80)]
    nothing = wanted({"t": {0: 60, 1: 0}}, {"t": {0: 60, 1: 0}})
    assert planned(nothing, HELD) == []


def test_a_timestamp_goes_before_starting_offsets() -> None:
    asked = msgspec.structs.replace(wanted({"t": {0: 20}}), starting_ms=1)
    held = {"t": {0: HELD["t"][0]._replace(since=33)}}
    assert planned(asked, held) == [OffsetRange("t", 0, 33, 80)]
    # nothing is young enough: the first younger one would stand at the end of the log
    held = {"t": {0: HELD["t"][0]._replace(since=100)}}
    assert planned(asked, held) == []


@pytest.mark.parametrize(
    ("starting", "ending", "message"),
    [
        ({"t": {0: 9, 1: 0}}, "latest", r"offset 9 of t\[0\] is gone; it begins at 10"),
        ({"t": {0: 101, 1: 0}}, "latest", r"offset 101 of t\[0\] is gone; it ends at 100"),
        ("earliest", {"t": {0: 9, 1: 0}}, r"offset 9 of t\[0\] is gone"),
        ("earliest", {"t": {0: 101, 1: 0}}, r"101 of t\[0\] is not written yet"),
        ("earliest", {"t": {0: 81, 1: 0}}, "open transaction, which begins at 80"),
        ({"t": {0: 60, 1: 0}}, {"t": {0: 50, 1: 0}}, "is behind endingOffsets 50"),
        ({"t": {0: 60}}, "latest", r"names partitions \[0\] of topic 't', which has \[0, 1\]"),
        ("earliest", {"t": {0: 1, 1: 1, 2: 1}}, r"names partitions \[0, 1, 2\]"),
        ({}, "latest", "does not name topic 't'"),
    ],
)
def test_what_cannot_be_read_is_said(starting: Bound, ending: Bound, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        planned(wanted(starting, ending), HELD)


def test_loss_can_be_accepted() -> None:
    early = wanted({"t": {0: 3, 1: 0}}, fails_on_loss=False)
    assert planned(early, HELD) == [OffsetRange("t", 0, 10, 80)]
    another = wanted({"t": {0: 500, 1: 0}}, fails_on_loss=False)
    assert planned(another, HELD) == []


def test_slices_cover_a_range_exactly_and_evenly() -> None:
    for rows in (1, 3, 7, 69, 70, 1000):
        parts = sliced([OffsetRange("t", 0, 10, 80)], rows)
        assert [p.start for p in parts] == [10, *[p.end for p in parts][:-1]]
        assert parts[-1].end == 80
        sizes = [p.end - p.start for p in parts]
        assert max(sizes) <= rows
        assert max(sizes) - min(sizes) <= 1
    assert sliced([OffsetRange("t", 0, 10, 80)], None) == [OffsetRange("t", 0, 10, 80)]
