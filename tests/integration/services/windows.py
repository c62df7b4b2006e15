"""Counts per key and 1000 ms of event time by an event-time timer, over an edge."""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]
WINDOW_MS = 1000


class Tick(msgspec.Struct):
    """Something of ``key`` happened at ``at`` (ms)."""

    key: str
    at: int


class Closed(msgspec.Struct, frozen=True):
    """``count`` ticks of ``key`` happened in the window that ends at ``end`` (ms)."""

    key: str
    end: int
    count: int
    late: bool = False


class Counting(ps.KeyedProcess):
    """One timer a window: it fires when event time has passed the window's end."""

    counts = ps.MapState(int, int)

    def process(self, value: Tick, ctx: ps.Context) -> None:
        end = value.at // WINDOW_MS * WINDOW_MS + WINDOW_MS
        if end <= ctx.watermark:
            ctx.emit(Closed(value.key, end, 1, late=True))
            return
        self.counts.put(end, (self.counts.get(end) or 0) + 1)
        ctx.timers.event(end)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        ctx.emit(Closed(ctx.key, timer.ms, self.counts.get(timer.ms) or 0))
        self.counts.remove(timer.ms)


service = ps.Service("windows", app=APP)
(
    service.source(
        "ticks",
        topic=f"{APP}.ticks",
        value=Tick,
        timestamp=lambda tick: tick.at,
        watermark=ps.Watermark(out_of_orderness_ms=300, idle_ms=4000),
    )
    .key_by("by-key", lambda tick: tick.key, key=str, partitions=4)
    .process("counting", Counting, returns=Closed)
    .sink("closed", topic=f"{APP}.closed")
)
