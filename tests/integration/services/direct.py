"""The running sum on a topic that is partitioned by the key: no edge, state per partition."""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]


class Number(msgspec.Struct):
    """One input record."""

    key: str
    n: int


class Sum(msgspec.Struct):
    """The state of a key and one output record for each input."""

    key: str
    count: int = 0
    total: int = 0


class Summing(ps.KeyedProcess):
    """Adds up the numbers of a key."""

    sums = ps.ValueState(Sum)

    def process(self, value: Number, ctx: ps.Context) -> None:
        state = self.sums.get() or Sum(value.key)
        state.count += 1
        state.total += value.n
        self.sums.set(state)
        ctx.emit(state)


service = ps.Service("direct", app=APP)
(
    service.source("numbers", topic=f"{APP}.numbers", value=Number, partitioned=True)
    .key_by("by-key", lambda number: number.key)
    .process("summing", Summing)
    .sink("sums", topic=f"{APP}.sums", key=lambda result: result.key)
)
