"""Replayed state is the live service's, for every key: the tasks of a replay beside the Driver."""

import random
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgspec
import penstock as ps
import pytest
from ledger import accounts, transfers
from ledger.generator import generate
from penstock.testing import Driver
from unit.spark.replaying import Here, Record, plain


class Click(msgspec.Struct, frozen=True):
    user: str
    page: str
    at: int
    cost: float = 0.0


class Visit(msgspec.Struct):
    pages: int = 0
    last: str = ""


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


CLICKS = [
    Click(f"user-{chance.randrange(40)}", f"/{chance.randrange(9)}", at, chance.random())
    for chance in [random.Random(7)]
    for at in range(300)
]
RECORDS = [Record("clicks", hash_ % 2, click) for hash_, click in enumerate(CLICKS)]


class Everything(ps.KeyedProcess):
    """Each kind of state; lists show the order of records."""

    visit = ps.ValueState(Visit)
    pages = ps.ListState(str)
    counts = ps.MapState(str, int)
    longest = ps.ReducingState(str, max)
    mean = ps.AggregatingState(
        ps.Aggregate(
            lambda: (0, 0.0),
            lambda acc, cost: (acc[0] + 1, acc[1] + cost),
            lambda acc: acc[1] / acc[0],
            accumulator=tuple[int, float],
        )
    )
    seen = ps.ValueState(int, 0)

    def process(self, click: Click, ctx: ps.Context) -> None:
        visit = self.visit.get() or Visit()
        self.visit.set(Visit(visit.pages + 1, click.page))
        self.pages.add(click.page)
        self.counts.put(click.page, (self.counts.get(click.page) or 0) + 1)
        if click.page == "/3":
            self.counts.remove(click.page)
        self.longest.add(click.page)
        self.mean.add(click.cost)
        self.seen.set(self.seen.get() + 1)
        if self.seen.get() % 20 == 0:
            self.pages.clear()
        ctx.timers.processing(ctx.now_ms + click.at % 3)
        ctx.emit(visit)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        raise AssertionError("processing timers do not fire in a replay")


STATES = ("visit", "pages", "counts", "longest", "mean", "seen", "timers")


def by_user(click: Click) -> str:
    return click.user


def sends(driver: Driver, source: str, records: Iterable[Record]) -> None:
    for record in records:
        driver.send(
            source,
            record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.time,
        )


def same(here: Here, driver: Driver, operator: str, *states: str) -> None:
    for state in states:
        live = driver.state(operator, state)
        replayed = here.state(operator, state)
        assert live, f"{operator}.{state} is empty: the test shows nothing"
        if state == "timers":
            live, replayed = dict.fromkeys(live), dict.fromkeys(replayed)
        assert {key: plain(v) for key, v in live.items()} == replayed, f"{operator}.{state}"


def service_of(build: Callable[[ps.Service], None]) -> ps.Service:
    service = ps.Service("shop", app="shop", max_parallelism=16)
    build(service)
    return service


def test_every_kind_of_state() -> None:
    def build(service: ps.Service) -> None:
        service.source("clicks", topic="clicks", value=Click).key_by("by-user", by_user).process(
            "all", Everything
        )

    # each user's clicks in one partition: else the order of a list is the broker's to decide
    records = [Record("clicks", int(r.value.user[5:]) % 2, r.value) for r in RECORDS]
    driver = Driver(service_of(build), partitions=2)
    sends(driver, "clicks", records)
    for batch, tasks in ((7, 3), (1, 1), (1000, 16)):
        here = Here(service_of(build), records, batch=batch, tasks=tasks)
        same(here, driver, "all", *STATES)


@pytest.mark.parametrize("batch", [1, 5, 5000])
def test_reduce_and_aggregate_behind_steps_without_keys(batch: int) -> None:
    """Steps before and behind the key_by; one record becomes several, or none."""

    def letters(click: Click) -> list[str]:
        return [*click.user, *click.page] if click.at % 5 else []

    def letter(text: str) -> str:
        return text

    def build(service: ps.Service) -> None:
        keyed = (
            service.source("clicks", topic="clicks", value=Click)
            .filter("odd", lambda click: click.at % 2)
            .flat_map("letters", letters)
            .map("upper", str.upper, returns=str)
            .key_by("by-letter", letter)
        )
        keyed.reduce("longest", lambda a, b: (a + b)[-50:])
        keyed.filter("not-u", lambda text: text != "U").aggregate(
            "count", ps.Aggregate(lambda: 0, lambda n, _: n + 1, lambda n: n)
        ).reduce("sum", lambda a, b: a + b)

    driver = Driver(service_of(build), partitions=1)
    records = [r._replace(partition=0) for r in RECORDS]
    sends(driver, "clicks", records)
    here = Here(service_of(build), records, batch=batch, partitions=1)
    same(here, driver, "longest", "reduced")
    same(here, driver, "count", "aggregated")
    same(here, driver, "sum", "reduced")


def test_the_ledger_over_two_services() -> None:
    """The order in which different debtors reach one creditor is open; the state is not."""
    found = list(generate(500, seed=3, accounts=50))
    # each debtor in one partition: else the order of its transfers is the broker's to decide
    records = [Record("transfers", int(t.debtor[-5:]) % 3, t) for t in found]
    services = [transfers.service, accounts.service]
    driver = Driver(services, partitions=3, parallelism=2)
    sends(driver, "transfers", records)
    here = Here(services, records, partitions=3, outputs=True)
    same(here, driver, "debit", "book")
    same(here, driver, "credit", "book")
    assert [s.name for s in here.plan.stages] == [
        "transfers.transfers",
        "transfers.by-debtor",
        "accounts.credits",
    ]
    for sink in ("debits", "credits-booked"):
        live = [(o.key, msgspec.json.decode(o.value), o.timestamp) for o in driver.outputs(sink)]
        assert sum(row[1]["amount"] for row in here.output(sink)) == sum(
            row[1]["amount"] for row in live
        )
    assert sorted(here.output("debits"), key=repr) == sorted(
        [(o.key, msgspec.json.decode(o.value), o.timestamp) for o in driver.outputs("debits")],
        key=repr,
    )


class Numbered(ps.KeyedProcess):
    """Emits several records for one, and to a side output."""

    count = ps.ValueState(int, 0)

    def process(self, click: Click, ctx: ps.Context) -> None:
        number = self.count.get() + 1
        self.count.set(number)
        for part in range(number % 3):
            ctx.emit([click.user, number, part, ctx.timestamp])
        if number % 4 == 0:
            ctx.emit_to("fourth", f"{click.user}:{number}")


class Latest(ps.KeyedProcess):
    """Remembers what came, in order."""

    came = ps.ListState(Any)

    def process(self, value: Any, ctx: ps.Context) -> None:
        self.came.add([value, ctx.timestamp])


def test_results_of_one_key_reach_the_next_stage_in_their_order() -> None:
    def build(service: ps.Service) -> None:
        numbered = (
            service.source("clicks", topic="clicks", value=Click, timestamp=lambda c: c.at)
            .key_by("by-user", by_user)
            .process("number", Numbered)
        )
        numbered.filter("keep", lambda row: row[1] != 7).key_by(
            "again", lambda row: row[0]
        ).process("latest", Latest)
        numbered.side_output("fourth", str).key_by(
            "fourths", lambda text: text.partition(":")[0]
        ).process("latest-fourth", Latest)

    records = [Record("clicks", 0, click) for click in CLICKS]
    driver = Driver(service_of(build), partitions=1, parallelism=3)
    sends(driver, "clicks", records)
    for tasks, batch in ((1, 1), (4, 100)):
        here = Here(service_of(build), records, partitions=1, tasks=tasks, batch=batch)
        same(here, driver, "number", "count")
        same(here, driver, "latest", "came")
        same(here, driver, "latest-fourth", "came")


def test_a_source_partitioned_by_the_key() -> None:
    """No edge live: here the stage is cut at the key_by, and the rows say the partition."""

    def build(service: ps.Service) -> None:
        service.source("clicks", topic="clicks", value=Click, partitioned=True).filter(
            "cheap", lambda click: click.cost < 0.9
        ).key_by("by-user", by_user).process("all", Everything, returns=Visit).key_by(
            "by-page", lambda visit: visit.last, key=str
        ).reduce("pages", lambda a, b: a if a.pages > b.pages else b)

    records = [Record("clicks", int(r.value.user[5:]) % 3, r.value) for r in RECORDS]
    driver = Driver(service_of(build), partitions=3)
    sends(driver, "clicks", records)
    here = Here(service_of(build), records, partitions=3)
    same(here, driver, "all", *STATES)
    same(here, driver, "pages", "reduced")
    assert [s.name for s in here.plan.stages] == [
        "shop.clicks",
        "shop.clicks/by-user",
        "shop.by-page",
    ]


def test_a_source_keyed_by_its_record_keys() -> None:
    def build(service: ps.Service) -> None:
        keyed = service.source("clicks", topic="clicks", value=Click, key=str, partitioned=True)
        keyed.process("all", Everything)
        keyed.map("cost", lambda click: click.cost, returns=float).reduce("most", max)

    records = [
        Record("clicks", int(r.value.user[5:]) % 3, r.value, key=f"k{r.value.user}")
        for r in RECORDS
    ]
    driver = Driver(service_of(build), partitions=3)
    sends(driver, "clicks", records)
    here = Here(service_of(build), records, partitions=3)
    same(here, driver, "all", *STATES)
    same(here, driver, "most", "reduced")


class Where(msgspec.Struct, frozen=True):
    shop: int
    till: bool


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (lambda c: c.at % 2 == 0, bool),
        (lambda c: Colour.RED if c.at % 3 else Colour.BLUE, Colour),
        (lambda c: float(c.at % 4) / 2, float),
        (lambda c: (c.user, c.at % 2 == 0), tuple[str, bool]),
        (lambda c: Where(c.at % 5, c.at % 2 == 0), Where),
        (lambda c: c.at % 7, None),
        (lambda c: c.user if c.at % 2 else c.at % 3, None),
        (lambda c: None if c.at % 2 else "x", str | None),
        (lambda c: c.user.encode(), bytes),
    ],
)
def test_keys_of_every_type(key: Callable[[Click], Any], kind: Any) -> None:
    def build(service: ps.Service) -> None:
        service.source("clicks", topic="clicks", value=Click).key_by("by", key, key=kind).reduce(
            "most", lambda a, b: a if a.cost > b.cost else b
        )

    driver = Driver(service_of(build), partitions=2)
    sends(driver, "clicks", RECORDS)
    live = {repr(plain(k)): plain(v) for k, v in driver.state("most", "reduced").items()}
    here = Here(service_of(build), RECORDS)
    found = {repr(plain(k)): v for k, v in here.state("most", "reduced").items()}
    assert found == live
