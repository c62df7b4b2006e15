"""Event time after a rescale: never ahead of what any of the old buckets had reached."""

from hypothesis import given
from hypothesis import strategies as st
from penstock.ids import owned_partitions
from penstock.record import MIN_WATERMARK
from penstock.savepoint.manifest import SavepointManifest, SourceEntry, WatermarkEntry
from penstock.savepoint.watermarks import of_edge, of_source


def marks(partitions: int, values: list[int], stage: str = "s") -> list[WatermarkEntry]:
    found = []
    for index, value in enumerate(values):
        owned = owned_partitions(partitions, len(values), index)
        mark = WatermarkEntry(
            stage=stage,
            low=owned.start,
            high=owned.stop,
            partitions=partitions,
            watermark_ms=value,
        )
        found.append(mark)
    return found


def manifest(watermarks: list[WatermarkEntry], groups: int = 8, source: str = ""):
    entry = SourceEntry(uid="in", stage=source, topic="t", positions={})
    return SavepointManifest(
        savepoint_id="sp",
        app="app",
        checkpoint=1,
        created_at_ms=0,
        created_by="test",
        max_parallelism=groups,
        sources=(entry,) if source else (),
        watermarks=tuple(watermarks),
    )


def spelled_out(ranges) -> list[int]:
    assert [low for low, _, _ in ranges[1:]] == [high for _, high, _ in ranges[:-1]]
    return [mark for low, high, mark in ranges for _ in range(low, high)]


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 30),
    st.lists(st.integers(-9, 9), min_size=1, max_size=5),
)
def test_a_bucket_has_the_least_of_its_key_groups(before, after, groups, values):
    old = marks(before, values[:before])
    found = spelled_out(of_edge(manifest(old, groups), {"s"}, after))
    assert len(found) == after
    for group in range(groups):
        had = next(m for m in old if m.low <= group * before // groups < m.high)
        assert found[group * after // groups] <= had.watermark_ms
        if before == after:
            assert found[group * after // groups] == had.watermark_ms


def test_partitions_of_a_source_keep_theirs():
    made = manifest(marks(4, [5, 7]), source="s")
    assert of_source(made, {"s"}, 4, 4) == [(0, 2, 5), (2, 4, 7)]
    assert of_source(made, {"s"}, 9, 4) == [(0, 2, 5), (2, 4, 7)]
    assert of_source(made, {"s"}, 9, 5) == [(0, 2, 5), (2, 4, 7), (4, 5, MIN_WATERMARK)]


def test_a_stage_made_of_several_has_the_least_of_them():
    made = manifest([*marks(4, [5, 7]), *marks(8, [6, 6, 1, 9], "other")])
    assert of_edge(made, {"s", "other"}, 4) == [(0, 2, 5), (2, 3, 1), (3, 4, 7)]
    moved = manifest([*marks(4, [5, 7]), *marks(2, [3, 9], "other")], source="other")
    assert of_edge(moved, {"s", "other"}, 4) == [(0, 4, 3)]
    assert of_source(moved, {"s", "other"}, 2, 2) == [(0, 1, 3), (1, 2, 5)]


def test_without_event_time_there_is_none():
    assert of_edge(manifest([]), {"s"}, 2) == [(0, 2, MIN_WATERMARK)]
    assert of_source(manifest([], source="s"), {"s"}, 3, 1) == [(0, 3, MIN_WATERMARK)]
