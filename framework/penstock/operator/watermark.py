"""The watermark of a stage that reads an edge: the least over its channels."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from penstock.record import MIN_WATERMARK

C = TypeVar("C", bound=Hashable)


class WatermarkMerger(Generic[C]):
    """The least watermark over inputs; those that are idle do not count; never goes back.

    When all are idle nobody holds the furthest one back, in whatever order they became so.
    """

    def __init__(self, inputs: Iterable[C], floor: int = MIN_WATERMARK) -> None:
        self.current = floor
        self._marks = dict.fromkeys(inputs, MIN_WATERMARK)
        self._idle: set[C] = set()

    @property
    def is_idle(self) -> bool:
        """Every input is idle."""
        return len(self._idle) == len(self._marks)

    def advanced(self, source: C, watermark_ms: int) -> int | None:
        """``source`` reached ``watermark_ms``; the new common watermark when that moved it."""
        self._idle.discard(source)
        if watermark_ms <= self._marks[source]:
            return None
        self._marks[source] = watermark_ms
        return self._moved()

    def idle(self, source: C, is_idle: bool) -> int | None:
        """``source`` is idle, or active again; the new common watermark when that moved it."""
        if is_idle:
            self._idle.add(source)
            return self._moved()
        self._idle.discard(source)
        return None

    def _moved(self) -> int | None:
        marks = self._marks
        idle = self._idle
        furthest = max(marks.values(), default=MIN_WATERMARK)
        least = min((marks[s] for s in marks if s not in idle), default=furthest)
        if least <= self.current:
            return None
        self.current = least
        return least
