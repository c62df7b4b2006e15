"""A user's process in a replay: event time passes record by record, and results know their origin.

Live, the watermark moves between two batches, whenever the clock says so. Here it moves before
every record, to where all source partitions had come by then (see `Clock`), and
the timers that are due fire: the same at every run, however the records are cut into batches.
"""

from itertools import repeat
from typing import Any

from penstock.operator.isolation import isolating
from penstock.operator.keyed import ProcessNode
from penstock.operator.process import KeyedProcess
from penstock.operator.stateless import failed
from penstock.operator.timers import Domain, Timer
from penstock.record import MIN_WATERMARK, OperatorFailed, described

_BEFORE_RECORDS = -1
"""A place before that of every record with the same clock."""


class At(int):
    """An event time (ms) that knows which record it is of; everything hands it on unchanged."""

    row: int
    """In the `Origins` of the batch."""


class Origins:
    """Of the records that are under way: event time, clock and place, by row."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.clocks: list[int] = []
        self.places: list[int] = []

    def arrived(self, times: list[int], clocks: list[int], places: list[int]) -> list[Any]:
        """A new batch; what is to be pushed as its times."""
        self.times, self.clocks, self.places = times, clocks, places
        return list(map(_at, times, range(len(times))))

    def emerged(self, time: int, clock: int, place: int) -> At:
        """A record that no record is the origin of, but a timer."""
        self.times.append(time)
        self.clocks.append(clock)
        self.places.append(place)
        return _at(time, len(self.times) - 1)


class ReplayNode(ProcessNode):
    """A process whose records are `At` times; see the module.

    ``final_ms`` is the watermark at the end of the replay: no timer after it fires.
    """

    origins: Origins
    has_event_time: bool
    final_ms: int
    _entered = 0
    _clock = MIN_WATERMARK
    """Of the record before."""
    _place = _BEFORE_RECORDS

    def push(
        self, bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]
    ) -> None:
        """Run the process over a batch, then push its results on."""
        self._enter(bucket)
        self._entered = bucket
        left = iter(values)
        taken = _Taken(self)
        ctx = self.context
        ctx.emit = isolating(taken.values.append) if self._isolates else taken.values.append
        origins, plain_times = self.origins, self.origins.times
        clocks, places = origins.clocks, origins.places
        process = self.instance.process
        keyed: Any = repeat(None) if keys is None else keys
        try:
            for key, value, at in zip(keyed, left, times, strict=False):
                row = at.row  # type: ignore[attr-defined]
                if clocks[row] > self._clock:
                    if self.has_event_time:
                        self._pass(clocks[row] - 1, taken)
                    self._clock = clocks[row]
                self._place = places[row]
                ctx.key = key
                ctx.timestamp = plain_times[row]
                process(value, ctx)
                taken.of(at)
        except Exception as error:
            raise failed(self.uid, len(values), left, error) from error
        self._follow_up(bucket, taken, times)

    def on_watermark(self, watermark_ms: int) -> None:
        """The end of a key group: what is due by the end of the replay fires."""
        if self.timers is None or not self.has_event_time:
            return
        taken = _Taken(self)
        self.context.emit = isolating(taken.values.append)
        self._pass(watermark_ms, taken)
        self._follow_up(self._entered, taken, [])

    def begin(self, watermark_ms: int) -> None:
        """Other keys come: their event time goes on from ``watermark_ms``."""
        self.context.watermark = watermark_ms
        self._clock = MIN_WATERMARK
        self._place = _BEFORE_RECORDS

    def _pass(self, watermark_ms: int, taken: "_Taken") -> None:
        """Event time reaches ``watermark_ms``, or the end of the replay before it."""
        upto = min(watermark_ms, self.final_ms)
        self.context.watermark = max(self.context.watermark, upto)
        timers = self.timers
        if timers is None:
            return
        head = timers.next_ms(Domain.EVENT)
        while head is not None and head <= upto:
            due = timers.due(Domain.EVENT, upto, 2**63)
            if due is None:
                return
            self._fire_one(due, taken)
            head = timers.next_ms(Domain.EVENT)

    def _fire_one(self, due: tuple[int, int, Any], taken: "_Taken") -> None:
        assert isinstance(self.instance, KeyedProcess)
        ms, bucket, key = due
        self._enter(bucket)
        ctx = self.context
        ctx.key, ctx.timestamp = key, ms
        try:
            self.instance.on_timer(Timer(ms, Domain.EVENT), ctx)
        except Exception as error:
            raise OperatorFailed(
                self.uid, None, f"timer {ms} of key {key!r:.200}: {described(error)}"
            ) from error
        if taken.is_behind():
            clock = max(self._clock, ms)
            place = self._place if clock == self._clock else _BEFORE_RECORDS
            taken.of(self.origins.emerged(ms, clock, place))

    def _follow_up(self, bucket: int, taken: "_Taken", times: list[int]) -> None:
        for follow, values, ats in taken.outputs():
            if not values:
                continue
            try:
                follow(bucket, None, values, ats)
            except OperatorFailed as error:
                error.index = None if error.index is None else _index(times, ats[error.index])
                raise


class _Taken:
    """What a batch has given so far, each with the time of what it came from."""

    def __init__(self, node: ReplayNode) -> None:
        self.values: list[Any] = []
        self._follow = node._follow  # noqa: SLF001  (its own part)
        self._ats: list[Any] = []
        self._sides = []
        for tag, follow in node._sides.items():  # noqa: SLF001  (its own part)
            side = node.context._sides[tag]  # noqa: SLF001  (its own part)
            side.values, side.times, side.indexes = [], [], []
            ats: list[Any] = []
            self._sides.append((side.values, ats, follow))

    def of(self, at: Any) -> None:
        """Everything new is of this record, or timer."""
        new = len(self.values) - len(self._ats)
        if new:
            self._ats.extend(repeat(at, new))
        for values, ats, _ in self._sides:
            new = len(values) - len(ats)
            if new:
                ats.extend(repeat(at, new))

    def is_behind(self) -> bool:
        """Something is there whose origin was not said."""
        return len(self.values) != len(self._ats) or any(
            len(values) != len(ats) for values, ats, _ in self._sides
        )

    def outputs(self) -> list[tuple[Any, list[Any], list[Any]]]:
        """Where it goes, and the columns."""
        main = (self._follow, self.values, self._ats)
        return [main, *((follow, values, ats) for values, ats, follow in self._sides)]


def _at(time: int, row: int) -> At:
    at = At(time)
    at.row = row
    return at


def _index(times: list[Any], at: Any) -> int | None:
    return next((i for i, other in enumerate(times) if other.row == at.row), None)
