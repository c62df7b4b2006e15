"""Made the savepoint of format version 1 that is kept beside this file; never run again for it.

``python -m tests.data.savepoint_v1.make FOLDER`` writes one like it. The services stay as they were
then: a savepoint of version 1 is restored for ever.
"""

import datetime as dt
import json
import sys
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import penstock as ps
from penstock.savepoint.converting import convert
from penstock.snapshot.chain import ChunkReader
from penstock.testing import Driver
from penstock.testing.store import SimulatedStore
from penstock_minio import FileStore


class Rank(Enum):
    LOW = "low"
    HIGH = "high"


class Order(msgspec.Struct, frozen=True):
    account: str
    amount: int
    price: Decimal = Decimal("0.50")
    day: dt.date = dt.date(2026, 11, 20)


class Account(msgspec.Struct):
    key: str
    total: int = 0
    rank: Rank = Rank.LOW
    last: Order | None = None
    tags: dict[str, int] = {}


class Ledger(ps.KeyedProcess):
    account = ps.ValueState(Account)
    orders = ps.ListState(Order)
    by_day = ps.MapState(dt.date, int)
    least = ps.ReducingState(int, min)
    recent = ps.OperatorListState(str)
    known = ps.UnionListState(int)
    rates = ps.BroadcastState(str, float)

    def open(self, ctx: ps.Context) -> None:
        self.rates.put("eur", 1.5)

    def process(self, value: Order, ctx: ps.Context) -> None:
        if value.amount == 0:
            self.account.clear()
            return
        had = self.account.get() or Account(value.account)
        total = had.total + value.amount
        rank = Rank.HIGH if total > 9 else Rank.LOW
        tags = had.tags | {f"a{value.amount}": total}
        self.account.set(Account(value.account, total, rank, value, tags))
        self.orders.add(value)
        self.by_day.put(value.day + dt.timedelta(value.amount % 3), value.amount)
        self.least.add(value.amount)
        self.recent.add(value.account)
        self.known.add(value.amount)
        ctx.timers.event(1000 + value.amount)
        ctx.timers.processing(5000 + value.amount)


class Seen(ps.KeyedProcess):
    count = ps.ValueState(int, default=0)
    anything = ps.ValueState(dict)

    def process(self, value: Order, ctx: ps.Context) -> None:
        self.count.set(self.count.get() + 1)
        self.anything.set({"amounts": [value.amount, None], "account": value.account})


STATES = {
    "ledger": ("account", "orders", "by_day", "least", "recent", "known", "rates", "timers"),
    "seen": ("count", "anything"),
}


def services() -> list[ps.Service]:
    """One whose keys an edge places, one whose keys a topic places."""
    ledger = ps.Service("ledger", app="kept")
    ledger.source("orders", topic="orders", value=Order).key_by(
        "by-account", lambda order: order.account, key=str, partitions=8
    ).process("ledger", Ledger)
    audit = ps.Service("audit", app="kept")
    audit.source("audited", topic="orders", value=Order, partitioned=True).key_by(
        "by-owner", lambda order: order.account, key=str
    ).process("seen", Seen)
    return [ledger, audit]


def state_of(driver: Driver) -> Any:
    """All state as JSON has it: entries as pairs of key and value."""
    found: dict[str, Any] = {}
    for operator, names in STATES.items():
        for name in names:
            state = driver.state(operator, name)
            pairs = state.items() if isinstance(state, dict) else enumerate(state)
            plain = msgspec.to_builtins([list(pair) for pair in pairs], str_keys=True)
            found[f"{operator}.{name}"] = sorted(plain, key=repr)
    return json.loads(json.dumps(found))


def main(folder: Path) -> None:
    """Write the savepoint and what is expected of it."""
    driver = Driver(services(), parallelism={"ledger": 2, "audit": 2})
    for number in range(24):
        order = Order(f"account-{number % 7}", (number * 5) % 11, Decimal(number) / 4)
        driver.send("orders", order, timestamp=number)
        driver.send("audited", order, timestamp=number)
        if number == 12:
            driver.checkpoint()
    driver.watermark(900)
    checkpoint = driver.checkpoint()
    convert(
        checkpoint.manifest,
        ChunkReader(SimulatedStore(objects=checkpoint.objects)),
        FileStore(folder / "savepoint"),
        savepoint_id="kept-1",
        created_at_ms=1_795_200_000_000,
        parent="checkpoint 2",
    )
    expected = {"watermark_ms": 900, "positions": 24, "state": state_of(driver)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
