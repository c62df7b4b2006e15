"""How services are cut for a replay, and what is refused because it could not be exact."""

from itertools import pairwise
from typing import Any

import numpy as np
import penstock as ps
import pytest
from penstock.failure import ConfigurationError
from penstock.record import MIN_WATERMARK
from penstock_spark.kafka_offsets import OffsetRange
from penstock_spark.replay.places import Clock, Places, Reached, final_watermark
from penstock_spark.replay.plan import ReplayPlan, planned
from unit.spark.replaying import Here, Record


class Keyed(ps.KeyedProcess):
    count = ps.ValueState(int, 0)

    def process(self, value: Any, ctx: ps.Context) -> None:
        ctx.emit(value)


class Batching(ps.Process):
    waiting = ps.OperatorListState(str)

    def process(self, value: Any, ctx: ps.Context) -> None:
        ctx.emit(value)


class KeyedWithList(ps.KeyedProcess):
    count = ps.ValueState(int, 0)
    waiting = ps.OperatorListState(str)


def service(name: str = "s", **how: Any) -> ps.Service:
    return ps.Service(name, app="app", **how)


def source(made: ps.Service, uid: str = "in") -> ps.Stream[str]:
    return made.source(uid, topic=uid, value=str)


def names(plan: ReplayPlan) -> list[str]:
    return [stage.name for stage in plan.stages]


def plan_of(*services: ps.Service, outputs: bool = False) -> ReplayPlan:
    return planned(services, "replay", with_outputs=outputs)


def first(value: str) -> str:
    return value[:1]


def test_what_leads_to_no_state_is_left_out() -> None:
    made = service()
    stream = source(made)
    stream.map("loud", str.upper, returns=str).sink("all", topic="all")
    stream.filter("some", bool).key_by("by", first).process("count", Keyed).map(
        "text", str, returns=str
    ).sink("out", topic="out")
    source(made, "other").sink("copy", topic="copy")
    plan = plan_of(made)
    assert names(plan) == ["s.in", "s.by"]
    assert plan.sinks == ()
    assert [step.uid for step in plan.stage("s.in").root.walk()] == ["in", "some", "by"]
    assert [step.uid for step in plan.stage("s.by").root.walk()] == ["s.by", "count"]
    with_outputs = plan_of(made, outputs=True)
    assert names(with_outputs) == ["s.in", "s.other", "s.by"]
    assert set(with_outputs.sinks) == {"all", "out", "copy"}


def test_a_side_output_that_nobody_needs_stays_open() -> None:
    """The process may emit to it."""

    class Splitting(Keyed):
        def process(self, value: str, ctx: ps.Context) -> None:
            self.count.set(self.count.get() + 1)
            ctx.emit_to("odd", value)

    made = service()
    split = source(made).key_by("by", first).process("split", Splitting)
    split.side_output("odd", str).sink("odd", topic="odd")
    records = [Record("in", 0, "a"), Record("in", 0, "b"), Record("in", 0, "a")]
    assert Here(made, records, partitions=1).state("split", "count") == {"a": 2, "b": 1}


def test_stages_come_behind_those_that_they_read() -> None:
    last = service("last")
    last.from_edge("two", value=str, key=str).process("c", Keyed)
    middle = service("middle")
    middle.from_edge("one", value=str, key=str).process("b", Keyed, returns=str).to_edge(
        "two", key=first
    )
    begin = service("begin")
    source(begin).key_by("by", first).process("a", Keyed, returns=str).to_edge("one", key=first)
    assert names(plan_of(last, middle, begin)) == ["begin.in", "begin.by", "middle.one", "last.two"]


def test_a_stage_without_keys_between_others_needs_no_shuffle() -> None:
    made = service()
    source(made).to_edge("plain")
    made.from_edge("plain", value=str).flat_map("letters", list, returns=str).key_by(
        "by", str, key=str
    ).reduce("longest", max)
    plan = plan_of(made)
    assert [(stage.name, stage.is_keyed) for stage in plan.stages] == [
        ("s.in", False),
        ("s.plain", False),
        ("s.by", True),
    ]
    records = [Record("in", 0, "abca"), Record("in", 1, "xa")]
    assert Here(made, records).state("longest", "reduced") == {c: c for c in "abcx"}


def test_records_of_several_topics_meet_by_event_time() -> None:
    class Last(ps.KeyedProcess):
        came = ps.ListState(str)

        def process(self, value: str, ctx: ps.Context) -> None:
            self.came.add(value)

    a, b, made = service("a"), service("b"), service("joined")
    source(a, "one").to_edge("both", key=first)
    source(b, "two").to_edge("both", key=first)
    made.from_edge("both", value=str, key=str).process("last", Last)
    assert plan_of(a, b, made).by_clock
    records = [
        *(Record("one", 0, f"k{n}", time=n) for n in range(0, 40, 4)),
        *(Record("two", 0, f"k{n}", time=n) for n in range(1, 40, 3)),
    ]
    came = Here([a, b, made], records, partitions=1).state("last", "came")["k"]
    numbers = [int(value[1:]) for value in came]
    assert sorted(numbers) == sorted(record.time for record in records)
    # always from the topic that is behind: at most one record ahead of the other's next
    assert all(later > sooner - 4 for sooner, later in pairwise(numbers))


@pytest.mark.parametrize(
    ("process", "waiting"), [(Batching, "waiting"), (KeyedWithList, "waiting")]
)
def test_state_of_a_subtask_is_refused(process: Any, waiting: str) -> None:
    made = service()
    stream = source(made)
    if process is Batching:
        stream.process("batch", process).key_by("by", first).process("count", Keyed)
    else:
        stream.key_by("by", first).process("batch", process)
    with pytest.raises(ConfigurationError, match=f"step 'batch' of stage .* keeps {waiting}"):
        plan_of(made)


def test_a_missing_writer_and_a_loop_are_refused_by_name() -> None:
    reader = service("reader")
    reader.from_edge("there", value=str, key=str).process("count", Keyed, returns=str).to_edge(
        "back", key=first
    )
    with pytest.raises(ConfigurationError, match=r"'reader\.there' reads edge 'there', which none"):
        plan_of(reader)
    loop = service("loop")
    loop.from_edge("back", value=str, key=str).process("again", Keyed, returns=str).to_edge(
        "there", key=first
    )
    with pytest.raises(ConfigurationError, match="reads what comes of its own output"):
        plan_of(reader, loop)


def test_a_service_without_state_is_refused() -> None:
    made = service()
    source(made).sink("copy", topic="copy")
    with pytest.raises(ConfigurationError, match="service 's' keeps no state by key"):
        plan_of(made)


def test_values_without_a_type_cannot_go_on() -> None:
    """Where no edge is live, a replay has one: what is sent over it must come back as it was."""

    class Odd:
        pass

    made = service()
    made.source("in", topic="in", value=str, partitioned=True).map("odd", lambda _: Odd()).key_by(
        "by", lambda _: "k"
    ).process("count", Keyed)
    with pytest.raises(ConfigurationError, match="step 'by' sends a Odd"):
        Here(made, [Record("in", 0, "a")], partitions=1).state("count", "count")


def test_places_number_offsets_and_say_where_they_came_from() -> None:
    ranges = [OffsetRange("a", 0, 5, 9), OffsetRange("a", 2, 0, 3), OffsetRange("b", 0, 100, 101)]
    places = Places(ranges)
    found = [
        (place, part.topic, part.partition, offset)
        for part in ranges
        for offset in range(part.start, part.end)
        for place in [int(places.of(part.topic, part.partition, np.array([offset]))[0])]
    ]
    assert [place for place, *_ in found] == list(range(1, 9))
    for place, *origin in found:
        assert places.origin(place) == tuple(origin)


def test_a_clock_stands_before_each_record_and_never_goes_back() -> None:
    clock = Clock(10)
    assert clock.passed([100, 90, 130]).tolist() == [MIN_WATERMARK, 90, 90]
    assert clock.passed([40, 200]).tolist() == [120, 120]
    assert clock.reached == 190


def test_the_final_watermark_is_that_of_the_partition_that_is_furthest_behind() -> None:
    reached = [Reached("s", 0, 50), Reached("s", 1, 30), Reached("other", 0, 7)]
    assert final_watermark(reached, "s", 2, skips_empty=False) == 29
    assert final_watermark(reached, "s", 3, skips_empty=False) == MIN_WATERMARK
    assert final_watermark(reached, "s", 3, skips_empty=True) == 29
    assert final_watermark([], "s", 1, skips_empty=True) == MIN_WATERMARK
