"""What is replayed: running totals by account, and with ``REPLAY_TIMED`` also counts by minute."""

import os

import msgspec
import penstock as ps

TIMED = bool(os.environ.get("REPLAY_TIMED"))
MINUTE_MS = 60_000


class Event(msgspec.Struct):
    """``amount`` was moved on ``account`` at ``at`` (ms)."""

    id: int
    account: str
    amount: int
    at: int
    note: str


class Account(msgspec.Struct, frozen=True):
    """What is known of an account."""

    total: int = 0
    events: int = 0
    last_ms: int = 0


class Totals(ps.KeyedProcess):
    """One value by key."""

    account = ps.ValueState(Account, Account())

    def process(self, event: Event, ctx: ps.Context) -> None:
        account = self.account.get()
        self.account.set(Account(account.total + event.amount, account.events + 1, event.at))


class Minutes(Totals):
    """Also the events of each open minute, which a timer of event time closes."""

    minutes = ps.MapState(int, int)

    def process(self, event: Event, ctx: ps.Context) -> None:
        super().process(event, ctx)
        end = event.at // MINUTE_MS * MINUTE_MS + MINUTE_MS
        self.minutes.put(end, (self.minutes.get(end) or 0) + 1)
        ctx.timers.event(end)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        self.minutes.remove(timer.ms)


service = ps.Service("replay", app="replay")
(
    service.source(
        "events",
        topic=os.environ["REPLAY_TOPIC"],
        value=Event,
        timestamp=(lambda event: event.at) if TIMED else None,
        watermark=ps.Watermark() if TIMED else None,
    )
    .key_by("by-account", lambda event: event.account, key=str)
    .process("totals", Minutes if TIMED else Totals)
)
