"""Runs a user's process over batches: the loop that the product's speed hangs on.

``ctx.emit`` is the append of the batch's result list. As long as every record gives one result,
times
need no work at all; from the first that does not, running counts are kept.
"""

from bisect import bisect_right
from operator import length_hint
from typing import Any

from penstock.operator.context import Context
from penstock.operator.isolation import is_immutable, isolating
from penstock.operator.process import KeyedProcess, Process
from penstock.operator.state import Keyed, declared
from penstock.operator.stateless import failed, spread
from penstock.operator.timers import Domain, Timer, Timers
from penstock.record import MAX_WATERMARK, OperatorFailed, Push, described
from penstock.snapshot.state import SubtaskState
from penstock.snapshot.table import HeapTable

_FIRED_PER_PUSH = 1000


class ProcessNode:
    """A `Process` or `KeyedProcess` in a chain.

    Args:
        uid: the step.
        instance: the user's object, of this subtask alone.
        state: the subtask's state; tables are made here.
        key: type of the keys; None for a step without keys.
        follow: where ``emit`` goes.
        sides: where ``emit_to`` goes, by tag.
    """

    def __init__(
        self,
        uid: str,
        instance: Process,
        state: SubtaskState,
        key: Any,
        follow: Push,
        sides: dict[str, Push],
    ) -> None:
        self.uid = uid
        self.instance = instance
        self.context = Context(uid, tuple(sides))
        self.timers: Timers | None = None
        self._state = state
        self._follow = follow
        self._sides = sides
        self._handles: list[Keyed] = []
        self._tables: list[HeapTable] = []
        self._bucket: int | None = None
        self._isolates = False
        keyed, of_subtask = declared(type(instance))
        for name, spec in keyed.items():
            table = state.table(uid, name, spec.kind, key, spec.stored)
            handle = spec.bound(self.context, table)
            setattr(instance, name, handle)
            self._handles.append(handle)
            self._tables.append(table)
            self._isolates = self._isolates or not is_immutable(spec.stored)
        for name, declaration in of_subtask.items():
            cells = declaration.cells(uid)
            state.add_cells(cells)
            setattr(instance, name, declaration.bound(cells))
            self._isolates = self._isolates or not is_immutable(declaration.stored)
        if isinstance(instance, KeyedProcess):
            entry: Any = tuple[int, int, key]
            table = state.table(uid, "timers", "timers", entry, int)
            self.timers = self.context.timers = Timers(self.context, state, table)

    def push(
        self, bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]
    ) -> None:
        """Run the process over a batch, then push its results on."""
        self._enter(bucket)
        if keys is None:
            keys = [None] * len(values)
        elif self._state.encoding is not None:
            self._state.rescue(self._tables, bucket, keys)
        out: list[Any] = []
        ends: list[int] = []
        left = iter(values)
        ctx = self.context
        ctx.emit = isolating(out.append) if self._isolates else out.append
        if self._sides:
            total = len(values)
            ctx._left = lambda: total - length_hint(left) - 1
        try:
            self._run(keys, left, times, out, ends)
        except Exception as error:
            raise failed(self.uid, len(values), left, error) from error
        if out:
            out_times = spread(times, ends) if ends else times
            try:
                self._follow(bucket, None, out, out_times)
            except OperatorFailed as error:
                if ends and error.index is not None:
                    error.index = bisect_right(ends, error.index)
                raise
        if self._sides:
            self._push_sides(bucket)

    def _run(
        self, keys: list[Any], left: Any, times: list[int], out: list[Any], ends: list[int]
    ) -> None:
        """Call the user once per record; leaves ``ends`` empty when each gave one result."""
        ctx = self.context
        process = self.instance.process
        rows = zip(range(1, len(keys) + 1), keys, left, times, strict=False)
        for number, ctx.key, value, ctx.timestamp in rows:
            process(value, ctx)
            if len(out) != number:
                ends.extend(range(1, number))
                ends.append(len(out))
                break
        else:
            return
        end = ends.append
        for _, ctx.key, value, ctx.timestamp in rows:
            process(value, ctx)
            end(len(out))

    def on_watermark(self, watermark_ms: int) -> None:
        """Event time has reached ``watermark_ms``: its timers fire."""
        self.context.watermark = watermark_ms
        timers = self.timers
        if timers is not None:
            head = timers.next_ms(Domain.EVENT)
            if head is not None and head <= watermark_ms:
                self._fire(timers, Domain.EVENT, watermark_ms)

    def on_processing_time(self, now_ms: int) -> None:
        """The clock shows ``now_ms``: its timers fire."""
        self.context.now_ms = now_ms
        timers = self.timers
        if timers is not None:
            head = timers.next_ms(Domain.PROCESSING)
            if head is not None and head <= now_ms:
                self._fire(timers, Domain.PROCESSING, now_ms)

    def on_drain(self, now_ms: int) -> None:
        """Nothing comes any more: all processing timers fire, whatever the clock shows."""
        self.context.now_ms = now_ms
        timers = self.timers
        if timers is not None and timers.next_ms(Domain.PROCESSING) is not None:
            self._fire(timers, Domain.PROCESSING, MAX_WATERMARK)

    def restored(self) -> None:
        """State is loaded: bring the timers back, and forget what was bound before."""
        self._bucket = None
        if self.timers is not None:
            self.timers.rebuild()

    def open(self) -> None:
        """The first record comes after this."""
        self.context.emit = _no_emit
        try:
            self.instance.open(self.context)
        except Exception as error:
            raise OperatorFailed(self.uid, None, f"open() failed: {described(error)}") from error

    def _enter(self, bucket: int) -> None:
        for handle in self._handles:
            handle.enter(bucket)
        if self.timers is not None:
            self.timers.enter(bucket)

    def _fire(self, timers: Timers, domain: Domain, upto_ms: int) -> None:
        assert isinstance(self.instance, KeyedProcess)
        # At the end of all time, a timer that sets itself anew would never let the stage finish.
        ends = domain is Domain.PROCESSING or upto_ms >= MAX_WATERMARK
        before = timers.order if ends else 2**63
        ctx = self.context
        ctx._left = None
        out: list[Any] = []
        times: list[int] = []
        ctx.emit = isolating(out.append)
        last: int | None = None
        while (due := timers.due(domain, upto_ms, before)) is not None:
            ms, bucket, key = due
            if last is not None and (bucket != last or len(out) >= _FIRED_PER_PUSH):
                self._push_fired(last, out, times)
            last = bucket
            self._enter(bucket)
            if self._state.encoding is not None:
                self._state.rescue(self._tables, bucket, (key,))
            ctx.key = key
            # Fired early, at the end of all time: what comes of it is of now, for a broker refuses
            # records of the far future.
            stamp = ctx.timestamp = ms if upto_ms < MAX_WATERMARK else min(ms, ctx.now_ms)
            try:
                self.instance.on_timer(Timer(ms, domain), ctx)
            except Exception as error:
                raise OperatorFailed(
                    self.uid, None, f"timer {ms} of key {key!r:.200}: {described(error)}"
                ) from error
            times.extend([stamp] * (len(out) - len(times)))
        if last is not None:
            self._push_fired(last, out, times)

    def _push_fired(self, bucket: int, out: list[Any], times: list[int]) -> None:
        values, out_times = out[:], times[:]
        out.clear()
        times.clear()
        try:
            if values:
                self._follow(bucket, None, values, out_times)
            self._push_sides(bucket)
        except OperatorFailed as error:
            error.index = None
            raise

    def _push_sides(self, bucket: int) -> None:
        for tag, follow in self._sides.items():
            side = self.context._sides[tag]
            if not side.values:
                continue
            values, times, indexes = side.values, side.times, side.indexes
            side.values, side.times, side.indexes = [], [], []
            try:
                follow(bucket, None, values, times)
            except OperatorFailed as error:
                if error.index is not None:
                    error.index = indexes[error.index]
                raise


def _no_emit(value: Any) -> None:
    raise RuntimeError(f"open() cannot emit {value!r:.100}: there is no record yet")
