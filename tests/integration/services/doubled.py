"""The running sum of `sums`, changed: every third number counts twice; named by TEST_APP."""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]


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
    """Adds up the numbers of a key, those that three divides twice."""

    sums = ps.ValueState(Sum)

    def process(self, value: Number, ctx: ps.Context) -> None:
        state = self.sums.get() or Sum(value.key)
        state.count += 1
        state.total += 2 * value.n if value.n % 3 == 0 else value.n
        self.sums.set(state)
        ctx.emit(state)


service = ps.Service("sums", app=APP)
(
    service.source("numbers", topic=f"{APP}.numbers", value=Number)
    .key_by("by-key", lambda number: number.key)
    .process("summing", Summing)
    .sink("sums", topic=f"{APP}.sums", key=lambda result: result.key)
)
