"""One attempt on one worker: the subtasks of its slot, restored and connected."""

import time
from collections.abc import Callable, Mapping

from penstock.api import Service
from penstock.barrier import alignment as barrier
from penstock.control import Abort, Complete, Deploy, Report, Stop, Trigger
from penstock.edge.frame import Kind
from penstock.edge.writer import EdgeWriter
from penstock.graph import EdgeInputSpec, SourceSpec, StageSpec
from penstock.ids import Position, SubtaskId, owned_partitions
from penstock.plan import edge_input
from penstock.runtime.background import Background
from penstock.runtime.faultpoint import is_armed, reached
from penstock.runtime.intake import EdgeIntake, SourceIntake
from penstock.runtime.plan import lanes, service_of, slot_of, upstreams
from penstock.runtime.ports import EdgeSender, Kafka, SnapshotStore
from penstock.runtime.sinks import SinkWriter
from penstock.runtime.subtask import Subtask
from penstock.snapshot import manifest as manifests
from penstock.snapshot.assign import Restored, assign
from penstock.snapshot.chain import ChunkReader
from penstock.snapshot.state import SubtaskState
from penstock.stage import StageChain

IDLE_WAIT_S = 0.001
"""Not less: the client counts in whole milliseconds, and less than one would spin."""
IDLE_ROUNDS = 500
LONG_WAIT_S = 0.003
"""The wait after IDLE_ROUNDS without work: a decision is seen this much later at the most."""
BACKGROUND_THREADS = 6


class Deployment:
    """The subtasks that one worker runs in one attempt."""

    def __init__(
        self,
        deploy: Deploy,
        worker: str,
        service: Service,
        kafka: Kafka,
        store: SnapshotStore,
        *,
        report: Callable[[Report], None],
        timeout_ms: int,
        until: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self._deploy = deploy
        self._worker = worker
        self._service = service
        self._kafka = kafka
        self._store = store
        self._report = report
        self._timeout_ms = timeout_ms
        self._until = until
        self._work = Background(BACKGROUND_THREADS, "background")
        self._subtasks: list[Subtask] = []
        self._sender: EdgeSender | None = None
        self._chunks = ChunkReader(store, keeps=True)
        self._idle_rounds = 0
        self.is_ready = False

    def open(self) -> None:
        """Restore and connect every subtask of the slot; idempotent for a checkpoint (L12)."""
        place = slot_of(self._deploy, self._worker)
        if place is None:
            return
        _, index = place
        manifest = self._manifest()
        spec = service_of(self._deploy, self._service.name)
        if any(stage.edges for stage in spec.stages):
            self._sender = self._kafka.edge_sender(self._deploy.services[0].app)
        for stage in spec.stages:
            self._open(stage, index, manifest)
        self._chunks.forget()
        self.is_ready = True

    def turn(self) -> None:
        """One round of the worker's loop; waits for input only when there was nothing to do."""
        worked = self._work.drain()
        for subtask in self._subtasks:
            if not subtask.finished and subtask.turn(0.0):
                worked = True
        if worked:
            self._idle_rounds = 0
            return
        self._idle_rounds += 1
        waiting = self._subtasks[self._idle_rounds % len(self._subtasks)]
        if not waiting.finished:
            waiting.turn(IDLE_WAIT_S if self._idle_rounds < IDLE_ROUNDS else LONG_WAIT_S)

    @property
    def finished(self) -> bool:
        """Every subtask committed everything up to Stop."""
        return bool(self._subtasks) and all(subtask.finished for subtask in self._subtasks)

    @property
    def exhausted(self) -> bool:
        """Every source of the slot came to the end that it was given."""
        return bool(self._subtasks) and all(subtask.exhausted for subtask in self._subtasks)

    def triggered(self, decision: Trigger) -> None:
        """A checkpoint begins."""
        if decision.attempt == self._deploy.attempt:
            for subtask in self._subtasks:
                subtask.triggered(
                    decision.checkpoint, stop=decision.stops, drain=decision.kind == "drain"
                )

    def completed(self, decision: Complete) -> None:
        """A checkpoint is complete."""
        if decision.attempt == self._deploy.attempt:
            for subtask in self._subtasks:
                subtask.completed(decision.checkpoint, decision.manifest)

    def aborted(self, decision: Abort) -> None:
        """A checkpoint failed."""
        if decision.attempt == self._deploy.attempt:
            for subtask in self._subtasks:
                subtask.aborted(decision.checkpoint)

    def stopped(self, decision: Stop) -> None:
        """The application stops."""
        for subtask in self._subtasks:
            subtask.stopped(decision.checkpoint)

    def drain(self) -> None:
        """Leave after the next checkpoint."""
        for subtask in self._subtasks:
            subtask.drain()

    def close(self) -> list[Callable[[], None]]:
        """Stop acting for the attempt (L11); what remains is closing clients."""
        closing = [close for subtask in self._subtasks for close in subtask.close()]
        if self._sender is not None:
            closing.append(self._sender.close)
        self._work.close()
        return closing

    # -- building

    def _manifest(self) -> manifests.Manifest | None:
        key = self._deploy.manifest
        return None if key is None else manifests.load(self._store.get(key), key)

    def _open(self, spec: StageSpec, index: int, manifest: manifests.Manifest | None) -> None:
        deploy = self._deploy
        app = deploy.services[0].app
        parallelism = deploy.parallelism[self._service.name]
        buckets = owned_partitions(self._partitions(spec), parallelism, index)
        state = SubtaskState(f"{app}/{deploy.attempt}/{spec.name}-{index}", buckets)
        subtask = Subtask(
            SubtaskId(spec.name, index),
            spec,
            deploy,
            worker=self._worker,
            state=state,
            buckets=buckets,
            store=self._store,
            work=self._work,
            report=self._report,
        )
        self._subtasks.append(subtask)  # now: what it opens is closed even if the rest fails
        subtask.edges = self._edge_writers(spec, index)
        subtask.sinks = {
            sink.uid: SinkWriter(
                subtask,
                self._kafka,
                self._work,
                app=app,
                uid=sink.uid,
                index=index,
                topic=sink.topic,
                timeout_ms=self._timeout_ms,
                clock_s=time.monotonic,
                attempt=deploy.attempt,
            )
            for sink in spec.sinks
        }
        stage = self._service.build(
            spec.name, state=state, edges=subtask.edges, sinks=subtask.sinks
        )
        restored = self._restored(spec, index, parallelism, manifest, state=state, stage=stage)
        if isinstance(spec.input, EdgeInputSpec):
            intake, alignment = self._edge_intake(spec.input, app, buckets, stage, subtask)
            subtask.started(stage, intake, self._sender, alignment)
        else:
            source = self._source_intake(
                spec=spec,
                source=spec.input,
                app=app,
                buckets=buckets,
                stage=stage,
                restored=restored,
            )
            subtask.started(stage, source, self._sender, None)

    def _partitions(self, spec: StageSpec) -> int:
        if isinstance(spec.input, EdgeInputSpec):
            return spec.input.partitions
        return self._kafka.partitions(spec.input.topic)

    def _edge_writers(self, spec: StageSpec, index: int) -> dict[str, EdgeWriter]:
        sender = self._sender
        if sender is None:
            return {}
        me = SubtaskId(spec.name, index)
        return {
            edge.name: self._service.edge_writer(
                spec.name,
                edge.name,
                self._deploy.attempt,
                upstreams(self._deploy, edge.name).index(me),
                _faulty(sender.send) if is_armed("a2") else sender.send,
                lanes=lanes(self._deploy, edge.name, edge.partitions),
            )
            for edge in spec.edges
        }

    def _restored(
        self,
        spec: StageSpec,
        index: int,
        parallelism: int,
        manifest: manifests.Manifest | None,
        *,
        state: SubtaskState,
        stage: StageChain,
    ) -> Restored | None:
        if manifest is None:
            return None
        restored = assign(manifest, spec, index, parallelism, partitions=self._partitions(spec))
        reached("a13")
        state.restore((ref, self._chunks(ref)) for ref in restored.chain)
        state.restore_cells(restored.operator_state)
        stage.restored(restored.watermark)
        return restored

    def _edge_intake(
        self,
        spec: EdgeInputSpec,
        app: str,
        buckets: range,
        stage: StageChain,
        subtask: Subtask,
    ) -> tuple[EdgeIntake, barrier.Alignment]:
        deploy = self._deploy
        starts = deploy.edge_starts[spec.uid]
        positions = {p: Position(starts[p]) for p in buckets}
        carried_by = lanes(deploy, spec.uid, spec.partitions)
        read = sorted({carried_by[bucket] for bucket in buckets})
        edge = edge_input(
            self._service.stage(subtask.id.stage),
            deploy.attempt,
            len(upstreams(deploy, spec.uid)),
            read,
        )
        reader = self._kafka.edge_reader(app, spec.uid, {p: positions[p] for p in read})
        intake = EdgeIntake(
            reader,
            stage,
            edge,
            f"{app}.edge.{spec.uid}",
            positions,
            on_barrier=subtask.barrier_arrived,
        )
        alignment = barrier.alignment(
            frozenset(edge.channels()),
            deploy.checkpoint,
            exactly_once=deploy.mode == "EXACTLY_ONCE",
        )
        return intake, alignment

    def _source_intake(
        self,
        *,
        spec: StageSpec,
        source: SourceSpec,
        app: str,
        buckets: range,
        stage: StageChain,
        restored: Restored | None,
    ) -> SourceIntake:
        stored = restored.positions.get(source.topic, {}) if restored is not None else {}
        wanted = {p: Position(stored[p]) if p in stored else None for p in buckets}
        reader = self._kafka.source_reader(
            source.topic,
            wanted,
            source.start,
            f"{app}.{spec.name}",
            want_keys=stage.takes_source_keys,
            until=None if self._until is None else self._until[source.topic],
        )
        # Where each partition was started from belongs in the first snapshot, read or not.
        return SourceIntake(reader, stage, source.topic, dict(reader.started))


def _faulty(send: Callable[[str, int, bytes], None]) -> Callable[[str, int, bytes], None]:
    """Fault point a2: counts barriers partition by partition."""

    def counted(edge: str, partition: int, frame: bytes) -> None:
        send(edge, partition, frame)
        if frame[1] == Kind.BARRIER:
            reached("a2")

    return counted
