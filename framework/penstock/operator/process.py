"""The classes that a user derives: one record at a time, single-threaded, directly testable."""

from typing import Any, ClassVar, Self

from penstock.operator.context import Context
from penstock.operator.state import Declared, take_declarations
from penstock.operator.timers import Timer


class Process:
    """A step without keys; may keep state of the subtask: list, union list, broadcast.

    Methods to define: ``process(self, value, ctx)``.
    """

    __states__: ClassVar[dict[str, Declared]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__states__ = take_declarations(cls)

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """An instance whose states are not bound yet: an operator binds them."""
        instance = super().__new__(cls)
        for name, state in cls.__states__.items():
            setattr(instance, name, state)
        return instance

    def open(self, ctx: Context) -> None:
        """Called once before the first record, after state was restored."""

    def process(self, value: Any, ctx: Context) -> None:
        """Handle one record; results go to ``ctx.emit``."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, value, ctx)")


class KeyedProcess(Process):
    """A step with state and timers per key."""

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Handle a timer of ``ctx.key``."""
        raise NotImplementedError(
            f"{type(self).__name__} registered a timer and must define on_timer(self, timer, ctx)"
        )
