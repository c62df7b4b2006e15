"""The running sum again, in code that cannot take some records until it is mended.

TEST_MENDED=1 is the mended code. Before it, a record that is no Number fails in the source's serde,
and a negative number fails in the process.
"""

import os
from collections.abc import Iterable

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]
MENDED = os.environ.get("TEST_MENDED") == "1"


class Number(msgspec.Struct):
    """One input record: ``n`` counts up from 1 for each key."""

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
        if value.n < 0:
            if MENDED:
                return
            raise ValueError("a negative number")
        state = self.sums.get() or Sum(value.key)
        state.count += 1
        state.total += value.n
        self.sums.set(state)
        ctx.emit(state)


def read(data: bytes) -> Iterable[Number]:
    """A Number, or nothing where there is none."""
    try:
        yield msgspec.json.decode(data, type=Number)
    except msgspec.DecodeError:
        return


service = ps.Service("sums", app=APP)
topic = f"{APP}.numbers"
if MENDED:
    raw = service.source("numbers", topic=topic, value=bytes, serde="bytes")
    numbers = raw.flat_map("readable", read, returns=Number)
else:
    numbers = service.source("numbers", topic=topic, value=Number)
(
    numbers.key_by("by-key", lambda number: number.key)
    .process("summing", Summing)
    .sink("sums", topic=f"{APP}.sums", key=lambda result: result.key)
)
