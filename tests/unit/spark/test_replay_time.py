"""Event time in a replay: what has fired by the end is what had fired live."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import penstock as ps
import pytest
from penstock.operator.timers import Domain
from penstock.record import MIN_WATERMARK
from penstock.testing import Driver
from unit.spark.replaying import Here, Record, plain

LATE_MS = 30


class Tick(msgspec.Struct, frozen=True):
    key: str
    at: int


class Closed(msgspec.Struct, frozen=True):
    key: str
    end: int
    count: int


class Windows(ps.KeyedProcess):
    """Counts by 100 ms; what comes behind a closed window is late."""

    counts = ps.MapState(int, int)
    late = ps.ValueState(int, 0)

    def process(self, tick: Tick, ctx: ps.Context) -> None:
        end = tick.at // 100 * 100 + 100
        if end <= ctx.watermark:
            self.late.set(self.late.get() + 1)
            return
        self.counts.put(end, (self.counts.get(end) or 0) + 1)
        ctx.timers.event(end)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        assert ctx.watermark >= timer.ms == ctx.timestamp
        ctx.emit(Closed(ctx.key, timer.ms, self.counts.get(timer.ms) or 0))
        self.counts.remove(timer.ms)


class Sessions(ps.KeyedProcess):
    """Ticks of a key until none came for 60 ms; a new timer takes the old one's place."""

    ticks = ps.ValueState(int, 0)
    ends_at = ps.ValueState(int)

    def process(self, tick: Tick, ctx: ps.Context) -> None:
        old = self.ends_at.get()
        if old is not None:
            ctx.timers.delete_event(old)
        end = max(old or 0, tick.at + 60)
        self.ticks.set(self.ticks.get() + 1)
        self.ends_at.set(end)
        ctx.timers.event(end)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        ctx.emit(Closed(ctx.key, timer.ms, self.ticks.get()))
        self.ticks.clear()
        self.ends_at.clear()


class Most(ps.KeyedProcess):
    """The fullest of the windows that closed together, told 50 ms of event time after that."""

    best = ps.MapState(int, int)
    late = ps.ValueState(int, 0)

    def process(self, closed: Closed, ctx: ps.Context) -> None:
        if ctx.timestamp <= ctx.watermark:
            self.late.set(self.late.get() + 1)
        self.best.put(closed.end, max(self.best.get(closed.end) or 0, closed.count))
        ctx.timers.event(closed.end + 50)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        ctx.emit([ctx.key, timer.ms, self.best.get(timer.ms - 50)])
        self.best.remove(timer.ms - 50)


def service_of(
    process: type, watermark: ps.Watermark | None, then: Callable[[Any], None] | None = None
) -> ps.Service:
    service = ps.Service("time", app="time", max_parallelism=16)
    closed = (
        service.source(
            "ticks", topic="ticks", value=Tick, timestamp=lambda t: t.at, watermark=watermark
        )
        .key_by("by-key", lambda tick: tick.key, key=str)
        .process("timed", process, returns=Closed)
    )
    closed.sink("closed", topic="closed")
    if then is not None:
        then(closed)
    return service


def and_most(closed: Any) -> None:
    closed.key_by("by-end", lambda c: f"{c.end % 200}", key=str).process(
        "most", Most, returns=list
    ).sink("mosts", topic="mosts")


def ticks(seed: int, partitions: int, *, keys: int = 6, count: int = 240) -> list[Record]:
    """Event time goes on by 0-9 ms a record, in every partition; some records come late."""
    chance = random.Random(seed)
    records, now = [], 10_000
    for number in range(count):
        now += chance.randrange(10)
        at = now - chance.choice([0, 0, 0, 5, LATE_MS])
        partition = number % partitions
        # a key of a partition: its records have one order
        key = f"{partition}-{chance.randrange(keys)}"
        records.append(Record("ticks", partition, Tick(key, at)))
    return records


def live(service: ps.Service, records: Sequence[Record], partitions: int, less: int) -> Driver:
    """The live service, whose watermark moves after every record.

    Its consumer always reads the partition that is furthest behind in event time: one of the orders
    that Kafka may give.
    """
    driver = Driver(service, partitions=partitions)
    left = {p: [r for r in records if r.partition == p] for p in range(partitions)}
    clocks = dict.fromkeys((p for p in left if left[p]), MIN_WATERMARK)
    while clocks:
        partition = min(clocks, key=lambda p: (clocks[p], p))
        record = left[partition].pop(0)
        clocks[partition] = max(clocks[partition], record.value.at - less)
        if not left[partition]:
            del clocks[partition]
        driver.send("ticks", record.value, partition=partition)
        driver.advance(1)
    return driver


def values(here: Here, sink: str) -> list[Any]:
    return sorted(([value, time] for _, value, time in here.output(sink)), key=repr)


def lived(driver: Driver, sink: str) -> list[Any]:
    found = ([msgspec.json.decode(o.value), o.timestamp] for o in driver.outputs(sink))
    return sorted(found, key=repr)


def same(here: Here, driver: Driver, operator: str, *states: str) -> None:
    for state in states:
        found = {key: plain(value) for key, value in driver.state(operator, state).items()}
        replayed = here.state(operator, state)
        if state == "timers":
            found, replayed = dict.fromkeys(found), dict.fromkeys(replayed)
        assert replayed == found, f"{operator}.{state}"


by_time = pytest.mark.parametrize("seed", range(3))


@by_time
@pytest.mark.parametrize("partitions", [1, 3])
def test_windows(seed: int, partitions: int) -> None:
    service = service_of(Windows, ps.Watermark(out_of_orderness_ms=LATE_MS))
    records = ticks(seed, partitions)
    driver = live(service, records, partitions, LATE_MS)
    here = Here(service, records, outputs=True, partitions=partitions)
    same(here, driver, "timed", "counts", "late", "timers")
    assert here.state("timed", "timers"), "the last windows are open"
    assert values(here, "closed") == lived(driver, "closed") != []
    end = min(max(r.value.at for r in records if r.partition == p) for p in range(partitions))
    assert here.watermark("time.by-key") == end - LATE_MS - 1


@by_time
@pytest.mark.parametrize("partitions", [1, 2])
def test_sessions(seed: int, partitions: int) -> None:
    """Whether a timer fires before or after a record of its key decides about everything here."""
    service = service_of(Sessions, ps.Watermark(out_of_orderness_ms=LATE_MS))
    records = ticks(seed, partitions, keys=12)
    driver = live(service, records, partitions, LATE_MS)
    here = Here(service, records, outputs=True, partitions=partitions)
    same(here, driver, "timed", "ticks", "ends_at", "timers")
    assert values(here, "closed") == lived(driver, "closed")
    assert len({value["count"] for value, _ in values(here, "closed")}) > 2


@by_time
def test_keys_in_all_partitions(seed: int) -> None:
    """Where the order of a key's records is Kafka's to decide, the replay's is one that it has."""
    service = service_of(Sessions, ps.Watermark(out_of_orderness_ms=LATE_MS))
    chance = random.Random(seed)
    records = [record._replace(partition=chance.randrange(3)) for record in ticks(seed, 1, keys=12)]
    driver = live(service, records, 3, LATE_MS)
    here = Here(service, records, outputs=True, partitions=3)
    same(here, driver, "timed", "ticks", "ends_at", "timers")
    assert values(here, "closed") == lived(driver, "closed") != []


@by_time
def test_late_records_are_late(seed: int) -> None:
    """Later than the source allows: the windows are closed already, live as here."""
    service = service_of(Windows, ps.Watermark(out_of_orderness_ms=5))
    chance = random.Random(seed)
    records, now = [], 0
    for _ in range(300):
        now += chance.randrange(8)
        at = max(now - chance.choice([0, 0, 3, 250]), 0)
        records.append(Record("ticks", 0, Tick(f"k{chance.randrange(3)}", at)))
    driver = live(service, records, 1, 5)
    here = Here(service, records, partitions=1)
    same(here, driver, "timed", "counts", "late", "timers")
    assert sum(here.state("timed", "late").values()) > 10


@by_time
@pytest.mark.parametrize("partitions", [1, 2])
def test_time_goes_on_over_a_second_stage(seed: int, partitions: int) -> None:
    """A timer's result reaches the next stage in time: not late, and before what is due then."""
    service = service_of(Windows, ps.Watermark(out_of_orderness_ms=LATE_MS), and_most)
    records = ticks(seed, partitions)
    driver = live(service, records, partitions, LATE_MS)
    here = Here(service, records, outputs=True, partitions=partitions)
    same(here, driver, "timed", "counts", "timers")
    same(here, driver, "most", "best", "timers", "late")
    assert here.state("most", "late") == {}
    assert values(here, "mosts") == lived(driver, "mosts") != []


@pytest.mark.parametrize(("tasks", "batch"), [(1, 1), (1, 10_000), (8, 3), (5, 64)])
def test_the_cut_into_tasks_and_batches_does_not_matter(tasks: int, batch: int) -> None:
    service = service_of(Sessions, ps.Watermark(out_of_orderness_ms=LATE_MS), and_most)
    records = ticks(1, 3)
    one = Here(service, records, outputs=True, partitions=3)
    other = Here(service, records, outputs=True, partitions=3, tasks=tasks, batch=batch)
    for operator, state in (("timed", "ticks"), ("timed", "ends_at"), ("most", "best")):
        assert one.state(operator, state) == other.state(operator, state)
    for sink in ("closed", "mosts"):
        assert values(one, sink) == values(other, sink)


def test_records_of_a_key_in_several_partitions_come_by_event_time() -> None:
    """A partition whose history comes first does not make the others' records late."""
    service = service_of(Windows, ps.Watermark())
    records = [Record("ticks", p, Tick("k", 100 * i + p)) for p in (0, 1) for i in range(20)]
    here = Here(service, records, outputs=True)
    assert here.state("timed", "late") == {}
    assert [v["count"] for _, v, _ in here.output("closed")] == [2] * 18


def test_the_order_in_a_partition_stays_where_event_time_goes_back() -> None:
    class Last(ps.KeyedProcess):
        came = ps.ListState(int)

        def process(self, tick: Tick, ctx: ps.Context) -> None:
            self.came.add(tick.at)

    service = service_of(Last, ps.Watermark(out_of_orderness_ms=1000))
    times = [5, 3, 9, 1, 9, 8]
    here = Here(service, [Record("ticks", 0, Tick("k", at)) for at in times], partitions=1)
    assert here.state("timed", "came") == {"k": times}


def test_a_bootstrap_fires_no_timer() -> None:
    service = service_of(Windows, ps.Watermark(out_of_orderness_ms=LATE_MS), and_most)
    records = ticks(0, 2)
    here = Here(service, records, mode="bootstrap", outputs=True)
    driver = Driver(service, partitions=2)
    for record in records:
        driver.send("ticks", record.value, partition=record.partition)
    same(here, driver, "timed", "counts", "late", "timers")
    assert here.output("closed") == []
    assert here.watermark("time.by-key") == MIN_WATERMARK


def test_without_watermarks_no_timer_fires_live_or_here() -> None:
    service = service_of(Windows, None)
    here = Here(service, ticks(0, 2))
    assert len(here.state("timed", "timers")) > 50
    assert here.state("timed", "late") == {}


@pytest.mark.parametrize(("idle_ms", "fires"), [(None, False), (1000, True)])
def test_a_partition_without_records(idle_ms: int | None, fires: bool) -> None:
    """It holds event time back for ever, unless the source calls such partitions idle."""
    service = service_of(Windows, ps.Watermark(idle_ms=idle_ms))
    here = Here(service, ticks(0, 1), outputs=True, partitions=2)
    assert bool(here.output("closed")) == fires
    assert (here.watermark("time.by-key") > MIN_WATERMARK) == fires


def test_timers_beyond_the_end_wait_with_their_times() -> None:
    service = service_of(Windows, ps.Watermark())
    here = Here(service, [Record("ticks", 0, Tick("a", at)) for at in (50, 250)], partitions=1)
    assert list(here.state("timed", "timers")) == [(Domain.EVENT, 300, "a")]
    assert here.watermark("time.by-key") == 249
