"""Every kind of keyed state, timers of both domains and an operator list; named by TEST_APP.

TEST_MAX_PARALLELISM and TEST_EDGE_PARTITIONS change the graph; TEST_UID and TEST_TYPE what fits.
"""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]
SOURCE = os.environ.get("TEST_SOURCE", f"{APP}.numbers")
SINK = os.environ.get("TEST_SINK", f"{APP}.sums")
FOREVER_MS = 10**15
"""No clock and no watermark comes so far; only a drain fires such timers."""


class Number(msgspec.Struct):
    """One input record: ``n`` counts up from 1 for each key."""

    key: str
    n: int


class Sum(msgspec.Struct):
    """The state of a key and one output record for each input."""

    key: str
    count: int = 0
    total: int = 0


class Changed(msgspec.Struct):
    """A type of the same fields that does not fit what was saved."""

    key: str
    count: str = ""
    total: int = 0


class Fired(msgspec.Struct):
    """A timer that fired."""

    key: str
    ms: int
    is_event: bool


class Everything(ps.KeyedProcess):
    """Keeps the same history in each kind of state, and says when they disagree."""

    sums = ps.ValueState(Changed if os.environ.get("TEST_TYPE") else Sum)
    seen = ps.ListState(int)
    parity = ps.MapState(str, int)
    greatest = ps.ReducingState(int, max)
    mean = ps.AggregatingState(
        ps.Aggregate(
            init=lambda: (0, 0),
            add=lambda acc, n: (acc[0] + 1, acc[1] + n),
            result=lambda acc: acc[1] / acc[0] if acc[0] else 0.0,
            accumulator=tuple[int, int],
        )
    )

    def process(self, value: Number, ctx: ps.Context) -> None:
        state = self.sums.get() or Sum(value.key)
        state.count += 1
        state.total += value.n
        self.sums.set(state)
        self.seen.add(value.n)
        side = "odd" if value.n % 2 else "even"
        self.parity.put(side, (self.parity.get(side) or 0) + 1)
        self.greatest.add(value.n)
        self.mean.add(value.n)
        ctx.timers.event(FOREVER_MS + value.n)
        if value.n > 1:
            ctx.timers.delete_event(FOREVER_MS + value.n - 1)
        ctx.timers.processing(FOREVER_MS)
        found = (
            sum(self.seen.get()),
            sum(self.parity.items().values()),
            self.greatest.get(),
            self.mean.get() * state.count,
        )
        if found != (state.total, state.count, value.n, state.total):
            raise ValueError(f"{value.key}: {state} does not agree with {found}")
        ctx.emit(state)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        ctx.emit_to("fired", Fired(ctx.key, timer.ms, timer.is_event))


class Numbered(ps.Process):
    """Counts what passes, as state of the operator."""

    passed = ps.OperatorListState(int)

    def process(self, value: Number, ctx: ps.Context) -> None:
        count = self.passed.get()
        self.passed.set([sum(count) + 1])
        ctx.emit(value)


service = ps.Service(
    "everything", app=APP, max_parallelism=int(os.environ.get("TEST_MAX_PARALLELISM", "128"))
)
kept = (
    service.source("numbers", topic=SOURCE, value=Number)
    .process("numbered", Numbered, returns=Number)
    .key_by(
        "by-key",
        lambda number: number.key,
        key=str,
        partitions=int(os.environ.get("TEST_EDGE_PARTITIONS", "16")),
    )
    .process(os.environ.get("TEST_UID", "everything"), Everything, returns=Sum)
)
kept.sink("sums", topic=SINK, key=lambda result: result.key)
kept.side_output("fired", Fired).sink("fired", topic=f"{SINK}.fired", key=lambda timer: timer.key)
