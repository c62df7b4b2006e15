"""A list state of a user's operator: remembers numbers, and tells all it has when it is asked."""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]


class Number(msgspec.Struct):
    """``n`` is remembered; a negative one asks, and is given back with the answer."""

    n: int


class Remembered(msgspec.Struct):
    """All that one subtask has."""

    asked: int
    numbers: list[int]


class Remembering(ps.Process):
    """Keeps every number in the list of its subtask."""

    numbers = ps.OperatorListState(int)

    def process(self, value: Number, ctx: ps.Context) -> None:
        if value.n >= 0:
            self.numbers.add(value.n)
        else:
            ctx.emit(Remembered(value.n, list(self.numbers.get())))


service = ps.Service("listing", app=APP)
(
    service.source("numbers", topic=f"{APP}.numbers", value=Number)
    .process("remembering", Remembering, returns=Remembered)
    .sink("remembered", topic=f"{APP}.remembered")
)
