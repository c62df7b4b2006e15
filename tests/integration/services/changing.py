"""A count per key whose state changes its type (TEST_STATE=float) or goes away (=none)."""

import os

import penstock as ps

APP = os.environ["TEST_APP"]
STATE = os.environ.get("TEST_STATE", "int")


class Counting(ps.KeyedProcess):
    """Counts the records of a key."""

    counts = ps.ValueState(float if STATE == "float" else int, 0)

    def process(self, value: str, ctx: ps.Context) -> None:
        self.counts.set(self.counts.get() + 1)
        ctx.emit(f"{value} {self.counts.get()}")


class Passing(ps.KeyedProcess):
    """Keeps nothing."""

    def process(self, value: str, ctx: ps.Context) -> None:
        ctx.emit(f"{value} passed")


service = ps.Service("changing", app=APP)
(
    service.source("lines", topic=f"{APP}.lines", value=str, serde="string")
    .key_by("by-line", lambda line: line, key=str, partitions=4)
    .process("counting", Passing if STATE == "none" else Counting, returns=str)
    .sink("counts", topic=f"{APP}.counts", serde="string")
)
