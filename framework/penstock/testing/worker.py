"""SimulatedWorker: a worker process around the real machines, one effect at a time.

It stands where `penstock.runtime.worker` stands, with one subtask a process. Every effect, every
request and every record is one action of the world, so a crash or a pause can fall between any two.
All attributes are values: a copy of the object is a fork of the process.
"""

from typing import Any

import msgspec

from penstock import control
from penstock.barrier import alignment as barrier
from penstock.checkpoint import history as hist
from penstock.failure import ProtocolViolation
from penstock.graph import ServiceSpec
from penstock.ids import (
    Attempt,
    ChannelId,
    CheckpointId,
    transactional_id,
)
from penstock.sink import transaction as tx
from penstock.task import subtask as task
from penstock.testing.broker import Refused
from penstock.testing.running import Frame, Part, Producer, Running, accepts, restored
from penstock.testing.surroundings import APP, Crash, Mark, Record, Surroundings, edge_partition


class SimulatedWorker:
    """One worker process; ``world`` is passed in at every call and never kept."""

    def __init__(self, name: str, service: ServiceSpec) -> None:
        self.name = name
        self.service = service
        self.alive = True
        self.paused = False
        self.left = False
        """The coordinator was told that the process is gone, or it left by itself."""
        self.decisions_at = 0
        self.history = hist.History()
        self.joined = False
        self.attempt = Attempt(0)
        self.running: Running | None = None

    def fork(self) -> "SimulatedWorker":
        """A copy; every attribute is a value."""
        other = SimulatedWorker.__new__(SimulatedWorker)
        other.__dict__.update(self.__dict__)
        return other

    # -- what may happen next

    def actions(self, world: Surroundings) -> list[tuple[Any, ...]]:
        """Names of what this process can do now, for `perform`."""
        if not self.alive or self.paused or self.left:
            return []
        if not self.joined:
            return [("join",)]
        run = self.running
        found: list[tuple[Any, ...]] = []
        if run is not None:
            found += [("task", i) for i in range(len(run.tasks))]
            if run.todo:
                return [*found, ("effect",)]
            found += self._inputs(world, run)
        if self.decisions_at < world.broker.end(f"{APP}.decisions", 0):
            found.append(("decision",))
        return found

    def _inputs(self, world: Surroundings, run: Running) -> list[tuple[Any, ...]]:
        if run.draining is not None and run.reads_source:
            return []
        if run.replay:
            return [("replay",)] if run.can_take(run.replay[0][1]) else []
        if run.reads_source:
            ready = run.has_transactions
            return [
                ("source", p)
                for p, at in run.positions.items()
                if ready and at < len(world.sources[p])
            ]
        topic = run.edge_topic
        return [
            ("edge", p)
            for p, at in run.edge_positions.items()
            if at < world.broker.end(topic, p)
            and run.can_take(world.broker.entry(topic, p, at).value)
        ]

    def perform(self, world: Surroundings, action: tuple[Any, ...]) -> None:
        """Do one of `actions`. A refusal by the broker ends the attempt, not the process."""
        try:
            self._perform(world, action)
        except Refused as refusal:
            self._give_up(world, f"{action[0]}: {refusal.code}")

    def _perform(self, world: Surroundings, action: tuple[Any, ...]) -> None:
        match action:
            case ("join",):
                self.joined = True
                self._join(world)
            case ("decision",):
                self._decision(world)
            case ("effect",):
                self._effect(world)
            case ("task", i):
                self._task(world, i)
            case ("source", p):
                self._source(world, p)
            case ("edge", p):
                self._edge(world, p)
            case ("replay",) if self._frame(world, *self._run().replay[0]):
                self._set(replay=self._run().replay[1:])

    def beat(self, world: Surroundings) -> None:
        """Say that we live; who runs nothing offers itself again, for it may have been given up."""
        if not self.alive or self.paused or not self.joined or self.left:
            return
        if self.running is None:
            self._join(world)
        else:
            world.report(control.Heartbeat(worker=self.name, attempt=self.attempt))

    # -- decisions

    def _decision(self, world: Surroundings) -> None:
        offset = self.decisions_at
        decision = world.decision(offset)
        self.decisions_at += 1
        self.history, counts = hist.applied(self.history, offset, decision)
        if not counts:
            return
        run = self.running
        match decision:
            case control.TermBegan():
                self._join(world)
            case control.Restore():
                if run is not None:
                    self._step(world, task.Superseded(decision.attempt))
                    self._drain(world)
            case control.Deploy():
                self._deploy(world, decision)
            case control.Stop():
                if run is None:
                    self.left = True
                    world.report(control.Leave(worker=self.name, reason="stopped"))
                else:
                    self._step(world, task.StopDecided(decision.checkpoint))
            case _ if run is not None and decision.attempt == run.deploy.attempt:
                self._checkpoint(world, run, decision)

    def _checkpoint(self, world: Surroundings, run: Running, decision: control.AnyDecision) -> None:
        match decision:
            case control.Trigger(checkpoint=n):
                if run.reads_source:
                    self._step(world, task.BarrierPassed(n))
                if decision.kind == "stop":
                    self._set(draining=n)
            case control.Complete(checkpoint=n):
                self._step(world, task.CheckpointCompleted(n))
            case control.Abort(checkpoint=n):
                if run.alignment is not None:
                    self._align(world, barrier.CheckpointAborted(n))
                self._step(world, task.CheckpointAborted(n))
                self._set(draining=None)

    def _join(self, world: Surroundings) -> None:
        attempt = self.attempt if self.running is not None else Attempt(0)
        world.report(control.Join(worker=self.name, service=self.service, attempt=attempt))

    def _deploy(self, world: Surroundings, deploy: control.Deploy) -> None:
        mine = [place for place, worker in deploy.assignment.items() if worker == self.name]
        if not mine:
            return
        service, _, index = mine[0].rpartition("/")
        stage = next(s for s in deploy.services if s.name == service).stages[0]
        self.attempt = deploy.attempt
        self.running, effects = restored(world, deploy, stage, int(index))
        self._later((*effects, control.Ready(worker=self.name, attempt=deploy.attempt)))
        if world.eager:
            self._drain(world)

    # -- the loop's effects

    def _effect(self, world: Surroundings) -> None:
        run = self._run()
        effect = run.todo[0]
        self._set(todo=run.todo[1:])
        match effect:
            case task.ForwardBarrier(checkpoint):
                partitions = range(run.stage.edges[0].partitions) if run.stage.edges else ()
                self._first([("barrier", checkpoint, p) for p in partitions])
            case ("barrier", checkpoint, p):
                self._send(world, p, checkpoint, None)
            case task.Freeze(checkpoint):
                self._freeze(checkpoint)
            case task.OnSink(uid, change):
                self._on_sink(world, uid, change)
            case task.Acknowledge(checkpoint, transactions):
                self._acknowledge(world, checkpoint, transactions)
            case task.Decline(checkpoint, reason):
                world.report(
                    control.Decline(
                        worker=self.name,
                        attempt=self.attempt,
                        checkpoint=checkpoint,
                        subtask=run.subtask,
                        reason=reason,
                    )
                )
            case task.Cease():
                self._cease(world)
            case task.Finish():
                self.running = None
                self.left = True
                world.report(control.Finished(worker=self.name, attempt=self.attempt))
            case control.Ready():
                world.report(effect)
            case barrier.Hold(channel):
                self._set(held=run.held | {channel})
            case barrier.Release():
                self._set(held=frozenset(), held_frames=(), replay=run.held_frames + run.replay)
            case barrier.Aligned(checkpoint):
                self._step(world, task.BarrierPassed(checkpoint), first=True)

    def _on_sink(self, world: Surroundings, uid: str, change: tx.Effect) -> None:
        run = self._run()
        match change:
            case tx.Open(slot):
                name = transactional_id(
                    APP, uid, run.subtask.index, slot, world.id_attempt(run.deploy.attempt)
                )
                self._set(producers={**run.producers, f"{uid}!{slot}": Producer(name)})
                self._spawn(("open", uid, slot))
            case tx.Begin(slot):
                producer = run.producers[f"{uid}!{slot}"]._replace(records=0)
                self._set(producers={**run.producers, f"{uid}!{slot}": producer})
            case tx.PreCommit(slot, checkpoint):
                self._spawn(("precommit", uid, slot, checkpoint))
            case tx.Commit(permit):
                self._spawn(("commit", uid, permit.slot, permit.checkpoint))
            case tx.Renew(slot):
                kept = {at: p for at, p in run.producers.items() if at != f"{uid}!{slot}"}
                self._set(producers=kept)
            case tx.Exhausted():
                self._give_up(world, "no transactional id is left")

    def _freeze(self, checkpoint: CheckpointId) -> None:
        run = self._run()
        part = Part(run.positions, run.edge_positions, run.tables)
        self._set(frozen={**run.frozen, checkpoint: part})
        self._spawn(("upload", checkpoint))

    def _acknowledge(
        self,
        world: Surroundings,
        checkpoint: CheckpointId,
        transactions: tuple[control.Committable, ...],
    ) -> None:
        run = self._run()
        snapshot = run.snapshot(checkpoint, transactions)
        self._set(
            frozen={n: p for n, p in run.frozen.items() if n > checkpoint},
            chunks={n: k for n, k in run.chunks.items() if n > checkpoint},
        )
        report = control.Acknowledge(
            worker=self.name, attempt=self.attempt, checkpoint=checkpoint, snapshot=snapshot
        )
        world.mark(Mark("acknowledged", self.name, event=report))
        world.report(report)

    def _cease(self, world: Surroundings) -> None:
        """Close the clients; what no barrier has closed yet is aborted, nobody else knows of it."""
        run = self._run()
        self.running = None
        for uid, pool in run.machine.sinks:
            at = tx.open_slot(pool)
            producer = None if at is None else run.producers.get(f"{uid}!{at}")
            if producer is not None and producer.identity is not None:
                try:
                    world.end_transaction(producer.name, producer.identity, commit=False)
                except Refused:
                    continue  # fenced: recovery has done it

    def _give_up(self, world: Surroundings, reason: str) -> None:
        if self.running is not None:
            self.running = None
            world.report(control.Failed(worker=self.name, attempt=self.attempt, reason=reason))

    # -- background work

    def _task(self, world: Surroundings, i: int) -> None:
        run = self._run()
        work = run.tasks[i]
        self._set(tasks=run.tasks[:i] + run.tasks[i + 1 :])
        match work:
            case ("open", uid, slot):
                self._open(world, uid, slot)
            case ("precommit", uid, slot, checkpoint):
                self._precommit(world, uid, slot, checkpoint)
            case ("commit", uid, slot, checkpoint):
                self._commit(world, uid, slot, checkpoint)
            case ("committed", uid, slot, definite):
                self._step(world, task.SinkChanged(uid, tx.Committed(slot, definite)))
            case ("upload", checkpoint):
                self._upload(world, checkpoint)

    def _open(self, world: Surroundings, uid: str, slot: int) -> None:
        run = self._run()
        producer = run.producers[f"{uid}!{slot}"]
        identity = world.initialise(producer.name, self.name)
        opened = producer._replace(identity=identity)
        self._set(producers={**run.producers, f"{uid}!{slot}": opened})
        self._step(world, task.SinkChanged(uid, tx.SlotOpened(slot)))

    def _precommit(
        self, world: Surroundings, uid: str, slot: int, checkpoint: CheckpointId
    ) -> None:
        producer = self._run().producers[f"{uid}!{slot}"]
        if producer.identity is None:
            raise Crash(f"slot {slot} was pre-committed before it was opened")
        world.broker.write(
            producer.name,
            producer.identity,
            f"{APP}.witness",
            0,
            key=producer.name,
            value=int(checkpoint),
        )
        flushed = producer.committable(uid, checkpoint)
        self._step(world, task.SinkChanged(uid, tx.Prepared(slot, flushed)))

    def _commit(self, world: Surroundings, uid: str, slot: int, checkpoint: CheckpointId) -> None:
        """EndTxn; now and then the answer is lost, and a copy of the request stays on its way."""
        producer = self._run().producers[f"{uid}!{slot}"]
        if producer.identity is None:
            raise Crash(f"slot {slot} was committed before it was opened")
        world.mark(Mark("commit", self.name, event=(uid, slot, checkpoint, self.attempt)))
        definite = world.commit(producer.name, producer.identity)
        self._spawn(("committed", uid, slot, definite))

    def _upload(self, world: Surroundings, checkpoint: CheckpointId) -> None:
        run = self._run()
        part = run.frozen.get(checkpoint)
        if part is None:
            return
        key = f"{APP}/{self.attempt}/{run.subtask}/{checkpoint}"
        if not world.put(key, part):
            self._step(world, task.SnapshotFailed(checkpoint, "the store is down"))
            return
        self._set(chunks={**run.chunks, checkpoint: key})
        self._step(world, task.SnapshotStored(checkpoint))

    # -- records

    def _source(self, world: Surroundings, p: int) -> None:
        if not self._transactions_open(world):
            return
        run = self._run()
        offset = run.positions[p]
        record = Record(p, offset, world.sources[p][offset])
        self._set(positions={**run.positions, p: offset + 1})
        for sink in run.stage.sinks:
            self._write(world, sink.uid, (record.partition, record.offset, "", 0))
        if run.stage.edges:
            partition = edge_partition(record.key, run.stage.edges[0].partitions)
            self._send(world, partition, None, record)

    def _edge(self, world: Surroundings, p: int) -> None:
        run = self._run()
        offset = run.edge_positions[p]
        frame: Frame = world.broker.entry(run.edge_topic, p, offset).value
        if not accepts(frame, run.deploy.attempt):
            self._set(edge_positions={**run.edge_positions, p: offset + 1})
            return
        channel = ChannelId(run.stage.input.uid, p, frame.upstream)
        if self._frame(world, channel, frame):
            run = self._run()
            if frame.attempt == run.deploy.attempt:
                self._sequenced(channel, frame)
            self._set(edge_positions={**self._run().edge_positions, p: offset + 1})

    def _sequenced(self, channel: ChannelId, frame: Frame) -> None:
        run = self._run()
        expected = run.received.get(str(channel), 0)
        if frame.sequence != expected:
            raise ProtocolViolation(f"{channel}: frame {frame.sequence}, expected {expected} (L9)")
        self._set(received={**run.received, str(channel): expected + 1})

    def _frame(self, world: Surroundings, channel: ChannelId, frame: Frame) -> bool:
        """Take one frame; False when it must wait for a transaction."""
        run = self._run()
        if channel in run.held:
            self._set(held_frames=(*run.held_frames, (channel, frame)))
            return True
        if frame.checkpoint is not None:
            self._align(world, barrier.BarrierArrived(channel, CheckpointId(frame.checkpoint)))
            return True
        if not self._transactions_open(world):
            return False
        self._count(world, channel.partition, frame)
        return True

    def _count(self, world: Surroundings, p: int, frame: Frame) -> None:
        run, record = self._run(), frame.record
        if record is None:
            raise ProtocolViolation("a frame without record or barrier")
        table = run.tables.get(p, {})
        count = table.get(record.key, 0) + 1
        self._set(tables={**run.tables, p: {**table, record.key: count}})
        for sink in run.stage.sinks:
            self._write(world, sink.uid, (record.partition, record.offset, record.key, count))

    def _transactions_open(self, world: Surroundings) -> bool:
        """Whether every sink has an open transaction; asks for those that have none."""
        for uid, _ in self._run().machine.sinks:
            if tx.open_slot(task.sink_of(self._run().machine, uid)) is None:
                self._step(world, task.SinkChanged(uid, tx.TransactionNeeded()))
        run = self._run()
        opened = [tx.open_slot(pool) is not None for _, pool in run.machine.sinks]
        return all(opened) and not run.todo

    def _write(self, world: Surroundings, uid: str, value: tuple[Any, ...]) -> None:
        run = self._run()
        slot = tx.open_slot(task.sink_of(run.machine, uid))
        if slot is None:
            raise Crash(f"sink {uid} has no open transaction")
        producer = run.producers[f"{uid}!{slot}"]
        if producer.identity is None:
            raise Crash(f"slot {slot} of sink {uid} was begun before it was opened")
        world.broker.write(producer.name, producer.identity, uid, 0, key=None, value=value)
        written = producer._replace(records=producer.records + 1)
        self._set(producers={**run.producers, f"{uid}!{slot}": written})

    def _send(self, world: Surroundings, p: int, n: int | None, record: Record | None) -> None:
        run = self._run()
        edge, sequence = run.stage.edges[0], run.sent.get(p, 0)
        frame = Frame(run.deploy.attempt, run.subtask.index, sequence, n, record)
        self._set(sent={**run.sent, p: sequence + 1})
        world.broker.append(f"{APP}.edge.{edge.name}", p, None, frame)

    # -- machines

    def _step(self, world: Surroundings, event: task.Event, *, first: bool = False) -> None:
        run = self._run()
        machine, effects = task.step(run.machine, event)
        world.mark(Mark("subtask", self.name, run.machine, event, machine, effects))
        self._set(machine=machine)
        if first:
            self._first(effects)
        else:
            self._later(effects)
        if world.eager:
            self._drain(world)

    def _align(self, world: Surroundings, event: barrier.Event) -> None:
        run = self._run()
        if run.alignment is None:
            raise Crash("a source has no alignment")
        state, effects = barrier.step(run.alignment, event)
        world.mark(Mark("alignment", self.name, run.alignment, event, state, effects))
        self._set(alignment=state)
        self._later(effects)
        if world.eager:
            self._drain(world)

    def _drain(self, world: Surroundings) -> None:
        """Perform the loop's effects now, as one action."""
        while self.running is not None:
            if self.running.todo:
                self._effect(world)
            elif (at := self._prompt(world)) is not None:
                self._task(world, at)
            else:
                return

    def _prompt(self, world: Surroundings) -> int | None:
        """Background work that an eager world does at once: nothing depends on its moment."""
        for i, work in enumerate(self._run().tasks):
            if world.eager and work[0] in ("open", "committed", "upload"):
                return i
        return None

    def _run(self) -> Running:
        if self.running is None:
            raise Refused("the attempt was given up")
        return self.running

    def _set(self, **changes: Any) -> None:
        self.running = msgspec.structs.replace(self._run(), **changes)

    def _later(self, effects: Any) -> None:
        self._set(todo=(*self._run().todo, *effects))

    def _first(self, effects: Any) -> None:
        self._set(todo=(*effects, *self._run().todo))

    def _spawn(self, work: tuple[Any, ...]) -> None:
        self._set(tasks=(*self._run().tasks, work))
