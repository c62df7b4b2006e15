"""One running subtask: its machine's effects performed, its snapshot taken, encoded, stored,
acknowledged.

Everything here runs in the worker's loop, between batches. Blocking work goes to the background.
"""

import time
from collections.abc import Callable

from penstock.barrier import alignment as barrier
from penstock.control import Acknowledge, Committable, Decline, Deploy, Report, SubtaskSnapshot
from penstock.edge.writer import EdgeWriter
from penstock.graph import StageSpec
from penstock.ids import Attempt, ChannelId, CheckpointId, Position, SubtaskId
from penstock.record import MAX_WATERMARK, MIN_WATERMARK
from penstock.runtime.background import Background
from penstock.runtime.faultpoint import reached
from penstock.runtime.intake import EdgeIntake, SourceIntake
from penstock.runtime.ports import EdgeSender, SnapshotStore
from penstock.runtime.sinks import SinkWriter
from penstock.snapshot.state import SubtaskState
from penstock.stage import StageChain
from penstock.task import subtask as machine

ENCODE_KEYS = 1024
"""Keys encoded between two batches while a snapshot is under way."""
SELDOM_S = 1.0
"""How often positions are reported and producers looked after."""
WATERMARK_EVERY_S = 0.05


class Frozen:
    """What the synchronous part of a snapshot noted at the barrier."""

    __slots__ = (
        "at",
        "checkpoint",
        "edge_positions",
        "positions",
        "stats",
        "watermark",
    )

    def __init__(self, checkpoint: CheckpointId, at: float) -> None:
        self.checkpoint = checkpoint
        self.at = at
        self.positions: dict[str, dict[int, int]] = {}
        self.edge_positions: dict[int, int] = {}
        self.watermark = 0
        self.stats: dict[str, float] = {}


class Subtask:
    """One subtask in one attempt. Built by `penstock.runtime.deployment`."""

    def __init__(
        self,
        subtask: SubtaskId,
        spec: StageSpec,
        deploy: Deploy,
        *,
        worker: str,
        state: SubtaskState,
        buckets: range,
        store: SnapshotStore,
        work: Background,
        report: Callable[[Report], None],
    ) -> None:
        self.id = subtask
        self.spec = spec
        self.finished = False
        self._worker = worker
        self._attempt: Attempt = deploy.attempt
        self._state = state
        self._buckets = buckets
        self._store = store
        self._work = work
        self._report = report
        self._machine, self._first_effects = machine.subtask(
            deploy.attempt, deploy.checkpoint, tuple(s.uid for s in spec.sinks), deploy.pool
        )
        self._alignment: barrier.Alignment | None = None
        self._seen: dict[CheckpointId, float] = {}
        self._began: dict[CheckpointId, float] = {}
        self._frozen: Frozen | None = None
        self._uploading = 0
        self._paused_after: CheckpointId | None = None
        self._draining = False
        self._leaving = False
        self._fires_all = False
        self._seldom_at = 0.0
        self._watermark_at = 0.0
        self._reading_s = 0.0
        self.sinks: dict[str, SinkWriter] = {}
        self.edges: dict[str, EdgeWriter] = {}
        self.stage: StageChain
        self.intake: SourceIntake | EdgeIntake
        self.sender: EdgeSender | None = None

    def started(
        self,
        stage: StageChain,
        intake: SourceIntake | EdgeIntake,
        sender: EdgeSender | None,
        alignment: barrier.Alignment | None,
    ) -> None:
        """All parts are there: warm the sinks."""
        self.stage = stage
        self.intake = intake
        self.sender = sender
        self._alignment = alignment
        self._perform(self._first_effects)
        self._first_effects = ()
        stage.open(int(time.time() * 1000))
        if stage.watermark > MIN_WATERMARK:
            # The channels below begin anew: one without new records must not hold event time back.
            for writer in self.edges.values():
                writer.watermark(stage.watermark)

    # -- the loop

    def turn(self, wait_s: float) -> bool:
        """One round: encode a slice, take a batch, fire what is due. Whether anything was done."""
        busy = self._state.is_busy
        if busy:
            self._state.advance(ENCODE_KEYS)
            self._upload()
        worked = False
        if self._paused_after is None:
            worked = self.intake.take(0.0 if busy else wait_s)
        elif not busy:
            self._work.wait(wait_s)
        self._clock()
        return worked or busy

    def _clock(self) -> None:
        now, steady = time.time(), time.monotonic()
        if self._paused_after is None:
            self.stage.on_processing_time(int(now * 1000))
            self._source_watermark(steady)
        steady_ms = int(steady * 1000)
        for writer in self.edges.values():
            writer.flush_due(steady_ms)
        if self.sender is not None:
            self.sender.poll()
        if steady - self._seldom_at >= SELDOM_S:
            self._seldom_at = steady
            if isinstance(self.intake, SourceIntake):
                self.intake.report_positions()
            for sink in self.sinks.values():
                sink.look()

    def _source_watermark(self, steady: float) -> None:
        """Seldom: a watermark flushes every edge. Only timers go by a clock that may jump.

        While the loop was held up nothing was read, and no partition was idle: that time is not
        counted.
        """
        passed = steady - self._watermark_at
        if passed < WATERMARK_EVERY_S:
            return
        self._watermark_at = steady
        self._reading_s += min(passed, 2 * WATERMARK_EVERY_S)
        watermark = self.stage.source_watermark(int(self._reading_s * 1000))
        if watermark is not None:
            self.stage.on_watermark(watermark)

    # -- what is decided

    @property
    def exhausted(self) -> bool:
        """A source that came to its end; a stage that reads an edge never does."""
        return not isinstance(self.intake, SourceIntake) or self.intake.exhausted

    def triggered(self, checkpoint: CheckpointId, *, stop: bool, drain: bool) -> None:
        """The decision log holds Trigger: sources take the barrier between two records (L5)."""
        self._seen = {checkpoint: time.monotonic()}
        if stop:
            self._draining = True
        self._fires_all = drain
        if isinstance(self.intake, SourceIntake) and self._paused_after is None:
            self._pass_barrier(checkpoint)

    def barrier_arrived(self, channel: ChannelId, checkpoint: CheckpointId) -> None:
        """A barrier is the next frame of a channel."""
        self._align(barrier.BarrierArrived(channel, checkpoint))

    def completed(self, checkpoint: CheckpointId, manifest: str) -> None:
        """The decision log holds Complete: commit (L14)."""
        self._state.completed(checkpoint, manifest)
        self.event(machine.CheckpointCompleted(checkpoint))
        leaving = self._leaving and self._paused_after is not None
        if leaving and checkpoint >= (self._paused_after or 0):
            self.event(machine.StopDecided(checkpoint))

    def aborted(self, checkpoint: CheckpointId) -> None:
        """The decision log holds Abort: go on; the transactions stay (decision 0004)."""
        self._state.aborted(checkpoint)
        if self._alignment is not None:
            self._align(barrier.CheckpointAborted(checkpoint))
        self.event(machine.CheckpointAborted(checkpoint))
        if self._paused_after is not None and checkpoint >= self._paused_after:
            self._paused_after = None

    def stopped(self, checkpoint: CheckpointId | None) -> None:
        """The decision log holds Stop."""
        self.event(machine.StopDecided(checkpoint))

    def drain(self) -> None:
        """Stop taking records after the next barrier and finish with its checkpoint."""
        self._draining = self._leaving = True

    def event(self, event: machine.Event) -> None:
        """Step the machine and perform what follows."""
        self._machine, effects = machine.step(self._machine, event)
        self._perform(effects)

    def close(self) -> list[Callable[[], None]]:
        """Stop acting; the clients to close."""
        self._machine, _ = machine.step(
            self._machine, machine.Superseded(Attempt(self._attempt + 1))
        )
        closing = [close for sink in self.sinks.values() for close in sink.close()]
        if hasattr(self, "intake"):
            closing.append(self.intake.close)
        return closing

    # -- effects

    def _perform(self, effects: tuple[machine.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case machine.ForwardBarrier(checkpoint):
                    reached("a1")
                    for writer in self.edges.values():
                        writer.barrier(checkpoint)
                case machine.Freeze(checkpoint):
                    self._freeze(checkpoint)
                case machine.OnSink(uid, sink_effect):
                    self.sinks[uid].perform(sink_effect)
                case machine.Acknowledge(checkpoint, transactions):
                    self._acknowledge(checkpoint, transactions)
                case machine.Decline(checkpoint, reason):
                    self._report(
                        Decline(
                            worker=self._worker,
                            attempt=self._attempt,
                            checkpoint=checkpoint,
                            subtask=self.id,
                            reason=reason,
                        )
                    )
                case machine.Finish() | machine.Cease():
                    self.finished = True

    def _align(self, event: barrier.Event) -> None:
        if self._alignment is None:
            return
        self._alignment, effects = barrier.step(self._alignment, event)
        intake = self.intake
        if not isinstance(intake, EdgeIntake):
            return
        for effect in effects:
            match effect:
                case barrier.Began(checkpoint):
                    self._began = {checkpoint: time.monotonic()}
                case barrier.Hold(channel):
                    intake.hold(channel)
                    reached("a3")
                case barrier.Aligned(checkpoint):
                    self._pass_barrier(checkpoint)
                case barrier.Release():
                    intake.release()

    def _pass_barrier(self, checkpoint: CheckpointId) -> None:
        """The subtask stands exactly at the barrier: this is the pause that users feel (L18)."""
        if self._fires_all:
            self._fire_all()
        began = time.monotonic()
        for sink in self.sinks.values():
            sink.settle()
        self.event(machine.BarrierPassed(checkpoint))
        if self._draining:
            self._paused_after = checkpoint
        if self.sender is not None:
            self.sender.poll()
        frozen = self._frozen
        if frozen is not None:
            frozen.stats["sync_ms"] = (time.monotonic() - began) * 1000
            frozen.stats["start_delay_ms"] = _since_ms(self._seen.get(checkpoint), began)
            frozen.stats["alignment_ms"] = _since_ms(self._began.get(checkpoint), began)

    def _fire_all(self) -> None:
        """Every timer fires before the last barrier; downstream, event time comes by the edges.

        The snapshot keeps the watermark of before: the savepoint can be gone on from.
        """
        self._fires_all = False
        stage = self.stage
        if isinstance(self.intake, SourceIntake):
            stage.on_watermark(MAX_WATERMARK)
        stage.on_drain(int(time.time() * 1000))

    def _freeze(self, checkpoint: CheckpointId) -> None:
        self._state.freeze(checkpoint)
        frozen = Frozen(checkpoint, time.monotonic())
        intake = self.intake
        if isinstance(intake, SourceIntake):
            frozen.positions = {intake.topic: {p: int(at) for p, at in intake.positions.items()}}
        else:
            frozen.edge_positions = intake.positions()
            frozen.stats["held_bytes"] = float(intake.held_bytes)
        frozen.watermark = self.stage.resumable_watermark
        self._frozen = frozen
        reached("a4")

    def _upload(self) -> None:
        """Send what is encoded to the store; the snapshot is stored when its chain is."""
        for chunk in self._state.take_chunk():
            self._uploading += 1

            def put(chunk=chunk) -> None:  # type: ignore[no-untyped-def]
                reached("a5", delay_s=0.0005)
                self._store.put(chunk.name, chunk.data)
                chunk.ref  # noqa: B018 - hashes here, off the loop

            def stored(_: object, chunk=chunk) -> None:  # type: ignore[no-untyped-def]
                self._uploading -= 1
                chunk.stored()
                self._check_stored()

            def failed(error: BaseException, chunk=chunk) -> None:  # type: ignore[no-untyped-def]
                self._uploading -= 1
                self._state.upload_failed(chunk)
                if self._frozen is not None:
                    self.event(machine.SnapshotFailed(self._frozen.checkpoint, str(error)))

            self._work.submit(put, stored, failed)
        self._check_stored()

    def _check_stored(self) -> None:
        frozen = self._frozen
        if frozen is None:
            return
        sealed = self._state.sealed(frozen.checkpoint)
        if sealed is not None and sealed.is_stored:
            self.event(machine.SnapshotStored(frozen.checkpoint))

    def _acknowledge(self, checkpoint: CheckpointId, transactions: tuple[Committable, ...]) -> None:
        frozen, sealed = self._frozen, self._state.sealed(checkpoint)
        if frozen is None or frozen.checkpoint != checkpoint or sealed is None:
            return
        self._frozen = None
        reached("a7")
        stats = frozen.stats
        stats["async_ms"] = (time.monotonic() - frozen.at) * 1000
        stats["checkpointed_bytes"] = float(sealed.checkpointed_bytes)
        stats["state_bytes"] = float(sealed.state_bytes)
        snapshot = SubtaskSnapshot(
            subtask=self.id,
            buckets=(self._buckets.start, self._buckets.stop),
            positions=frozen.positions,
            edge_positions=frozen.edge_positions,
            watermark=frozen.watermark,
            chain=sealed.chain(),
            operator_state=sealed.operator_state,
            transactions=transactions,
            inline=sealed.inline(),
            stats=stats,
        )
        self._report(
            Acknowledge(
                worker=self._worker,
                attempt=self._attempt,
                checkpoint=checkpoint,
                snapshot=snapshot,
            )
        )


def seek_positions(positions: dict[int, int], buckets: range) -> dict[int, Position]:
    """The positions of the owned partitions."""
    return {p: Position(positions[p]) for p in buckets}


def _since_ms(began: float | None, now: float) -> float:
    return 0.0 if began is None else (now - began) * 1000
