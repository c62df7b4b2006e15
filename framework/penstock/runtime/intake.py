"""Where records come into a subtask: a source topic, or an edge with its held channels.

An intake reads a batch, hands it to the stage and keeps the positions. What a barrier means is
decided elsewhere (`penstock.barrier`, `penstock.task`); here are only the frames that wait.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.edge.frame import Frame, Kind
from penstock.edge.input import EdgeInput
from penstock.failure import UserCodeFailed
from penstock.ids import ChannelId, CheckpointId, Position
from penstock.operator.watermark import WatermarkMerger
from penstock.record import OperatorFailed
from penstock.runtime.ports import EdgeReader, SourceReader
from penstock.stage import StageChain

BATCH_RECORDS = 4000
"""Records between two looks at the decision log: bounds how late a barrier is taken."""
BATCH_FRAMES = 16
HELD_BYTES = 64 * 1024 * 1024
"""Frames held in memory while aligning; past it Kafka is the spill (L7)."""


class Intake(Protocol):
    """What a subtask needs of its input."""

    def take(self, wait_s: float) -> bool:
        """Process what is there, waiting at most ``wait_s`` for the first; whether any was."""
        ...

    def close(self) -> None: ...


class SourceIntake:
    """The owned partitions of a source topic; position = NEXT offset (L5)."""

    def __init__(
        self,
        reader: SourceReader,
        stage: StageChain,
        topic: str,
        positions: dict[int, Position],
    ) -> None:
        self._reader = reader
        self._stage = stage
        self.topic = topic
        self.positions = positions
        self.records = 0

    def take(self, wait_s: float) -> bool:
        """One batch of records, partition by partition."""
        runs = self._reader.poll(BATCH_RECORDS, wait_s)
        for run in runs:
            try:
                if run.values:
                    self._stage.push_source(run.partition, run.keys, run.values, run.times)
            except OperatorFailed as error:
                raise self._located(error, run.partition, run.messages) from error
            if run.is_at_end:
                self._stage.source_reached_end(run.partition)
            self.positions[run.partition] = run.next_position
            self.records += len(run.values)
        return bool(runs)

    @property
    def exhausted(self) -> bool:
        """Everything up to the end that the source was given is processed."""
        return self._reader.exhausted

    def report_positions(self) -> None:
        """Give the positions to the consumer group, for lag dashboards only."""
        self._reader.commit_for_monitoring(self.positions)

    def close(self) -> None:
        """Close the client."""
        self._reader.close()

    def _located(self, error: OperatorFailed, partition: int, messages: object) -> UserCodeFailed:
        if error.index is None:
            return UserCodeFailed(str(error))
        offset = self._reader.offset_of(messages[error.index])  # type: ignore[index]
        return UserCodeFailed(
            f"{error}; record: topic {self.topic!r}, partition {partition}, offset {offset}"
        )


class EdgeIntake:
    """The owned partitions of an edge: accepts frames, holds those behind a barrier."""

    def __init__(
        self,
        reader: EdgeReader,
        stage: StageChain,
        edge: EdgeInput,
        topic: str,
        starts: dict[int, Position],
        *,
        on_barrier: Callable[[ChannelId, CheckpointId], None],
        held_bytes: int = HELD_BYTES,
    ) -> None:
        self._reader = reader
        self._stage = stage
        self._edge = edge
        self._topic = topic
        self._on_barrier = on_barrier
        self._bound = held_bytes
        self._at: dict[int, int] = dict(starts)
        """Where the reader stands; below ``_next`` while spilled frames are read again."""
        self._next: dict[int, int] = dict(starts)
        """First offset that was never read."""
        self._holding: set[tuple[int, int]] = set()
        self._held: list[Frame] = []
        self._held_bytes = 0
        self._released: deque[Frame] = deque()
        self._spilled: dict[int, tuple[int, dict[int, int]]] = {}
        self._sought: set[int] = set()
        self._watermarks = WatermarkMerger(edge.channels(), stage.watermark)
        self.records = 0
        self.spills = 0

    def take(self, wait_s: float) -> bool:
        """One batch of frames, each processed, held, or passed over (L10)."""
        worked = self._replay()
        self._sought.clear()
        frames = self._reader.poll(BATCH_FRAMES, 0.0 if worked else wait_s)
        for partition, offset, data in frames:
            if partition in self._sought:
                continue  # read again from the spill's first offset
            frame = self._edge.accept(partition, offset, data)
            self._at[partition] = offset + 1
            self._next[partition] = max(self._next[partition], offset + 1)
            if frame is not None:
                self._dispatch(frame)
                self._replay()
        return worked or bool(frames)

    def hold(self, channel: ChannelId) -> None:
        """Hold the channel's frames from now on."""
        self._holding.add((channel.partition, channel.upstream))

    def release(self) -> None:
        """Hold nothing: what was held comes next, in order, before any frame that is read later.

        What was spilled is read again from Kafka (L7). Nothing is processed in here: a barrier
        among the held frames must not change the alignment whose effects are being performed.
        """
        self._holding.clear()
        held, self._held, self._held_bytes = self._held, [], 0
        spilled, self._spilled = self._spilled, {}
        # Frames of an earlier release that wait here are younger than those held since.
        self._released.extendleft(reversed(held))
        for partition, (offset, forgotten) in spilled.items():
            self._edge.skip_below(partition, Position(self._next[partition]), forgotten)
            self._at[partition] = min(offset, self._at[partition])
            self._reader.seek(partition, Position(self._at[partition]))
            self._sought.add(partition)
        if spilled and self._released:
            again = {(p, upstream) for p, (_, found) in spilled.items() for upstream in found}
            waiting = [f for f in self._released if (f.partition, f.upstream) not in again]
            self._released = deque(waiting)

    @property
    def held_bytes(self) -> int:
        """Bytes of the frames that wait in memory."""
        return self._held_bytes

    def positions(self) -> dict[int, int]:
        """First offset of each partition that is not reflected yet (L24)."""
        result = dict(self._at)
        for frame in (*self._held, *self._released):
            result[frame.partition] = min(result[frame.partition], frame.offset)
        for partition, (offset, _) in self._spilled.items():
            result[partition] = min(result[partition], offset)
        return result

    def close(self) -> None:
        """Close the client."""
        self._reader.close()

    def _replay(self) -> bool:
        """Process what was released; whether there was any."""
        released = self._released
        if not released:
            return False
        while released:
            self._dispatch(released.popleft())
            released = self._released
        return True

    def _dispatch(self, frame: Frame) -> None:
        if self._holding and (frame.partition, frame.upstream) in self._holding:
            self._hold_frame(frame)
        elif frame.kind is Kind.DATA:
            self._process(frame)
        else:
            self._control(frame)

    def _process(self, frame: Frame) -> None:
        before = 0
        for bucket, keys, values, times in self._edge.groups(frame):
            try:
                self._stage.push(bucket, keys, values, times)
            except OperatorFailed as error:
                at = "" if error.index is None else f", record {before + error.index} of its frame"
                raise UserCodeFailed(
                    f"{error}; record: topic {self._topic!r}, partition {frame.partition}, "
                    f"offset {frame.offset}{at}"
                ) from error
            before += len(values)
        self.records += before

    def _control(self, frame: Frame) -> None:
        channel = ChannelId(self._edge.edge, frame.partition, frame.upstream)
        match frame.kind:
            case Kind.BARRIER:
                self._on_barrier(channel, CheckpointId(frame.value))
            case Kind.WATERMARK:
                self._moved(self._watermarks.advanced(channel, frame.value))
            case Kind.STATUS:
                self._moved(self._watermarks.idle(channel, bool(frame.value)))
                self._stage.on_idle(self._watermarks.is_idle)

    def _moved(self, watermark: int | None) -> None:
        if watermark is not None:
            self._stage.on_watermark(watermark)

    def _hold_frame(self, frame: Frame) -> None:
        if frame.partition in self._spilled:
            self._forget(frame)
            return
        self._held.append(frame)
        self._held_bytes += len(frame.data)
        if self._held_bytes > self._bound:
            self._spill()

    def _spill(self) -> None:
        """Forget every held frame; remember where each partition must be read again."""
        self.spills += 1
        for frame in self._held:
            self._forget(frame)
        self._held.clear()
        self._held_bytes = 0

    def _forget(self, frame: Frame) -> None:
        first, forgotten = self._spilled.get(frame.partition, (frame.offset, {}))
        forgotten.setdefault(frame.upstream, frame.sequence)
        self._spilled[frame.partition] = (min(first, frame.offset), forgotten)
