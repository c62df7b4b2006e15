"""A keyed running sum over an edge: source, key_by, process, sink; named by TEST_APP."""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]
PADDING = "x" * int(os.environ.get("TEST_PADDING", "0"))


class Number(msgspec.Struct):
    """One input record: ``n`` counts up from 1 for each key."""

    key: str
    n: int


class Sum(msgspec.Struct):
    """The state of a key and one output record for each input."""

    key: str
    count: int = 0
    total: int = 0
    padding: str = ""


class Summing(ps.KeyedProcess):
    """Adds up the numbers of a key; the output names the how-manieth record it was."""

    sums = ps.ValueState(Sum)

    def process(self, value: Number, ctx: ps.Context) -> None:
        if value.n < 0:
            raise ValueError("a negative number")
        state = self.sums.get() or Sum(value.key, padding=PADDING)
        state.count += 1
        state.total += value.n
        self.sums.set(state)
        ctx.emit(state)


service = ps.Service("sums", app=APP)
(
    service.source("numbers", topic=f"{APP}.numbers", value=Number)
    .key_by("by-key", lambda number: number.key)
    .process("summing", Summing)
    .sink("sums", topic=f"{APP}.sums", key=lambda result: result.key)
)
