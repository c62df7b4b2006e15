"""A service that has every kind of state, and what tests do with its savepoints."""

import datetime as dt
import decimal
import enum
import uuid
from typing import Any

import msgspec
import penstock as ps
from penstock.ids import Attempt, CheckpointId, Term
from penstock.savepoint.converting import convert
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.restoring import imported
from penstock.savepoint.store import SavepointStore
from penstock.snapshot import manifest as manifests
from penstock.snapshot.chain import ChunkReader
from penstock.testing import Driver
from penstock.testing.driver import Checkpoint
from penstock.testing.store import SimulatedStore


class Rank(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Line(msgspec.Struct, frozen=True):
    price: decimal.Decimal
    day: dt.date
    note: str | None = None


class Account(msgspec.Struct):
    """Two fields are named like columns of the format."""

    key: str
    total: int = 0
    partition: float = 0.5
    rank: Rank = Rank.LOW
    lines: list[Line] = []
    ids: tuple[int, uuid.UUID] | None = None


class Command(msgspec.Struct):
    key: str
    do: str = "add"
    number: int = 1


class Everything(ps.KeyedProcess):
    account = ps.ValueState(Account)
    seen = ps.ListState(str)
    lines = ps.ListState(Line)
    counts = ps.MapState(str, int)
    by_day = ps.MapState(dt.date, Line)
    least = ps.ReducingState(int, min)
    mean = ps.AggregatingState(
        ps.Aggregate(lambda: [0, 0], lambda a, n: [a[0] + n, a[1] + 1], lambda a: a[0])
    )
    recent = ps.OperatorListState(str)
    known = ps.UnionListState(int)
    rates = ps.BroadcastState(str, float)

    def open(self, ctx: ps.Context) -> None:
        self.rates.put("eur", 1.5)
        self.rates.put("usd", self.rates.get("usd") or 2.0)

    def process(self, value: Command, ctx: ps.Context) -> None:
        if value.do == "forget":
            for state in (self.account, self.seen, self.lines, self.counts, self.by_day):
                state.clear()
            self.least.clear()
            return
        number = value.number
        line = Line(decimal.Decimal(number) / 4, dt.date(2026, 1, 1 + number % 9))
        account = self.account.get() or Account(value.key, ids=(number, uuid.UUID(int=number)))
        account.total += number
        account.rank = Rank.HIGH if account.total > 9 else Rank.LOW
        account.lines = [*account.lines, line][-2:]
        self.account.set(account)
        self.seen.add(f"{value.key}{number}")
        self.lines.add(line)
        self.counts.put(f"n{number % 3}", number)
        self.by_day.put(line.day, line)
        self.least.add(number)
        self.mean.add(number)
        self.recent.add(value.key)
        self.known.add(number)
        ctx.timers.event(1000 + number)
        ctx.timers.processing(2000 + number)
        if number % 2:
            ctx.timers.delete_processing(2000 + number)
        ctx.emit([value.key, number])

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        ctx.emit([ctx.key, timer.ms, timer.is_event])


STATES = (
    *("account", "seen", "lines", "counts", "by_day", "least", "mean", "timers"),
    *("recent", "known", "rates"),
)


def service(
    *,
    partitioned: bool = False,
    partitions: int = 8,
    name: str = "all",
    max_parallelism: int = 128,
) -> ps.Service:
    made = ps.Service(name, app="app", max_parallelism=max_parallelism)
    stream = made.source("commands", topic="commands", value=Command, partitioned=partitioned)
    if partitioned:
        keyed = stream.key_by("by-key", lambda c: c.key)
    else:
        keyed = stream.key_by("by-key", lambda c: c.key, partitions=partitions)
    keyed.process("everything", Everything).sink("out", topic="out")
    return made


def savepoint_of(
    checkpoint: Checkpoint, target: SavepointStore | None = None, name: str = "sp-1"
) -> Savepoint:
    """The checkpoint as a savepoint."""
    target = SimulatedStore("simulated://savepoint") if target is None else target
    read = ChunkReader(SimulatedStore(objects=dict(checkpoint.objects)))
    convert(checkpoint.manifest, read, target, savepoint_id=name, created_at_ms=1_700_000_000_000)
    return Savepoint.open(target)


def brought_in(savepoint: Savepoint, *services: ps.Service, partitions: int = 4, **more: Any):
    """The savepoint as a checkpoint of these services."""
    store = SimulatedStore()
    manifest = imported(
        savepoint,
        tuple(service.spec() for service in services),
        "app",
        prefix="app/imports/3-7",
        checkpoint=CheckpointId(41),
        term=Term(3),
        attempt=Attempt(7),
        put=store.put,
        partitions=lambda topic: partitions,
        **more,
    )
    key = "app/imports/3-7/manifest.json"
    store.put(key, manifests.encode(manifest))
    return Checkpoint(key, store.objects)


def live(driver: Driver, operator: str = "everything") -> dict[str, Any]:
    """All state of an operator; of union state what the first subtask has."""
    found = {name: driver.state(operator, name) for name in STATES}
    owners = [s for s in driver._subtasks if (operator, "known") in s.state.cells()]
    found["known"] = [list(s.state.cells()[operator, "known"].items) for s in owners]
    found["timers"] = sorted(found["timers"])  # their order is that of one subtask
    return found
