"""A reminder for every record, some milliseconds after it came, by a processing-time timer."""

import os

import msgspec
import penstock as ps

APP = os.environ["TEST_APP"]


class Asked(msgspec.Struct):
    """Remind ``key`` in ``after_ms``."""

    key: str
    after_ms: int


class Reminder(msgspec.Struct, frozen=True):
    """It was due at ``due`` and came at ``at``: both ms of the clock."""

    key: str
    due: int
    at: int


class Reminding(ps.KeyedProcess):
    """One timer for each record."""

    def process(self, value: Asked, ctx: ps.Context) -> None:
        ctx.timers.processing(ctx.now_ms + value.after_ms)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        ctx.emit(Reminder(ctx.key, timer.ms, ctx.now_ms))


service = ps.Service("reminders", app=APP)
(
    service.source("asked", topic=f"{APP}.asked", value=Asked)
    .key_by("by-key", lambda asked: asked.key, key=str, partitions=4)
    .process("reminding", Reminding, returns=Reminder)
    .sink("reminders", topic=f"{APP}.reminders")
)
