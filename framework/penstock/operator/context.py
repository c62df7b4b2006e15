"""What a handler knows about the record it has, and where it leaves results."""

from collections.abc import Callable
from typing import Any

from penstock.failure import ConfigurationError
from penstock.operator.isolation import copier
from penstock.record import MIN_WATERMARK


class SideBuffer:
    """What one batch gave to one side output."""

    __slots__ = ("indexes", "times", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.times: list[int] = []
        self.indexes: list[int] = []


class Context:
    """Given to every handler; valid during the call only.

    Attributes:
        emit: ``emit(value)`` sends a value on, with the time of the record.
        key: the current key (keyed processes).
        timestamp: event time of the record or the timer, ms since the epoch.
        watermark: event time reached so far, MIN_WATERMARK when none is known.
        now_ms: the clock, as of this turn of the loop: use it instead of time.time().
        timers: registers timers for the current key (keyed processes).
    """

    __slots__ = (
        "_left",
        "_sides",
        "_uid",
        "emit",
        "key",
        "now_ms",
        "timers",
        "timestamp",
        "watermark",
    )

    emit: Callable[[Any], None]
    key: Any
    timers: Any

    def __init__(self, uid: str, tags: tuple[str, ...] = ()) -> None:
        self._uid = uid
        self._sides = {tag: SideBuffer() for tag in tags}
        self._left: Callable[[], int] | None = None
        self.key = None
        self.timestamp = 0
        self.watermark = MIN_WATERMARK
        self.now_ms = 0
        self.timers = None

    def emit_to(self, tag: str, value: Any) -> None:
        """Send a value to the side output ``tag``. An error when nobody takes it."""
        side = self._sides.get(tag)
        if side is None:
            raise ConfigurationError(
                f"operator {self._uid!r} emits to side output {tag!r}, which nobody takes (taken: "
                f"{sorted(self._sides) or 'none'}); add .side_output({tag!r}) behind the step"
            )
        copied = copier(type(value))
        side.values.append(value if copied is None else copied(value))
        side.times.append(self.timestamp)
        side.indexes.append(-1 if self._left is None else self._left())
