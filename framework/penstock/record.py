"""What travels between operators: columns of keys, values and event times (ms since the epoch).

A batch is three lists of equal length that nobody changes once they are passed on; ``keys`` is None
until the stream is keyed. ``bucket`` is the input partition that the batch came from: the unit of
ownership of keyed state (L20).
"""

from collections.abc import Callable
from typing import Any, Protocol

from penstock.failure import UserCodeFailed

MIN_WATERMARK = -(2**62)
"""No event time is known yet."""
MAX_WATERMARK = 2**62
"""Every event time has passed: the input ended."""

Push = Callable[[int, "list[Any] | None", list[Any], list[int]], None]
"""``push(bucket, keys, values, times)``."""


class SinkPort(Protocol):
    """Where a stage leaves the records of a sink; a producer of the transaction that is open."""

    def write(
        self, keys: list[bytes | None], values: list[bytes | None], times: list[int] | None
    ) -> None: ...


class EdgePort(Protocol):
    """Where a stage leaves the records of an edge."""

    def write(self, keys: list[Any] | None, values: list[Any], times: list[int]) -> None: ...

    def watermark(self, watermark_ms: int) -> None: ...

    def idle(self, is_idle: bool) -> None: ...


class OperatorFailed(UserCodeFailed):
    """A record that an operator, a serde or an edge could not take.

    ``index`` is the record's place in the batch that was pushed; None when no record is to blame (a
    timer fired). Every operator on the way back to the input translates it, so that the runtime can
    name topic, partition and offset.
    """

    def __init__(self, uid: str, index: int | None, reason: str) -> None:
        super().__init__(uid, index, reason)
        self.uid = uid
        self.index = index
        self.reason = reason

    def __str__(self) -> str:
        return f"operator {self.uid!r}: {self.reason}"


def described(error: BaseException) -> str:
    """An exception as a person reads it in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
