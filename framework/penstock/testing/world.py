"""A whole application in one thread: real machines, a simulated broker and store, and faults.

The world knows at every moment what may happen next (`World.actions`) and does one of it
(`World.perform`). Who chooses decides what kind of test it is: all of them in turn (exhaustive
search), hypothesis, or a seed (`run`). Between any two actions a process may die, sleep, or wake
when its place is long taken; a request may arrive late; the store may be down; the broker may lose
what is open.

The application: service ``src`` reads topic ``in`` and writes edge ``e`` (and, when the plan says
so, sink ``echo``); service ``cnt`` counts records by key and writes (record, count) to sink
``out``.
"""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from penstock import control
from penstock.checkpoint import coordinator as machine
from penstock.checkpoint import history as hist
from penstock.graph import (
    EdgeInputSpec,
    EdgeOutputSpec,
    ServiceSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
)
from penstock.ids import Attempt, CheckpointId
from penstock.testing.broker import ONGOING, Refused, SimulatedBroker
from penstock.testing.leader import SimulatedLeader
from penstock.testing.surroundings import APP, Mark, Record
from penstock.testing.worker import SimulatedWorker

Action = tuple[Any, ...]
Observer = Callable[["World", Mark], None]

FOREVER_MS = 10**9


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a world is made of."""

    sources: tuple[tuple[str, ...], ...]
    """Per source partition the key of each record."""
    parallelism: dict[str, int]
    """Subtasks of ``src`` and ``cnt``."""
    edge_partitions: int = 2
    echo: bool = False
    """``src`` has a sink too."""
    eager: bool = False
    """No fault falls between two effects of a loop: far fewer worlds."""
    interval_ms: int = 10
    timeout_ms: int = 200
    heartbeat_timeout_ms: int = 400
    tolerable_failures: int = 3
    retained: int = 2
    checkpoints: int | None = None
    """At most so many checkpoints are triggered (only with ``interval_ms`` 0)."""

    def settings(self, parallelism: dict[str, int], savepoint: str = "") -> machine.Settings:
        """How the coordinator runs it."""
        return machine.Settings(
            services=parallelism,
            interval_ms=self.interval_ms,
            timeout_ms=self.timeout_ms,
            heartbeat_timeout_ms=self.heartbeat_timeout_ms,
            tolerable_failures=self.tolerable_failures,
            retained=self.retained,
            resume_grace_ms=100,
            restart_initial_ms=10,
            restart_max_ms=80,
            sweep_interval_ms=0,
            savepoint=savepoint,
        )

    def services(self) -> tuple[ServiceSpec, ...]:
        """The two services of the application."""
        edge = EdgeOutputSpec(name="e", key="str", value="str", partitions=self.edge_partitions)
        src = StageSpec(
            name="src.in",
            input=SourceSpec(uid="in", topic="in", value="str"),
            operators=(),
            edges=(edge,),
            sinks=(SinkSpec(uid="echo", topic="echo"),) if self.echo else (),
        )
        cnt = StageSpec(
            name="cnt.e",
            input=EdgeInputSpec(uid="e", key="str", value="str", partitions=self.edge_partitions),
            operators=(),
            edges=(),
            sinks=(SinkSpec(uid="out", topic="out"),),
        )
        return (
            ServiceSpec(name="src", app=APP, stages=(src,)),
            ServiceSpec(name="cnt", app=APP, stages=(cnt,)),
        )


class Broken(AssertionError):
    """An invariant does not hold, or the application does not get on."""


class World:
    """The state of everything; `fork` copies it, `key` tells two apart."""

    shared_ids = False
    """Whether attempts share transactional ids: False as the protocol wants it (decision 0007)."""

    def __init__(self, plan: Plan, observer: Observer | None = None) -> None:
        self.plan = plan
        self.observer = observer
        self.sources = plan.sources
        self.eager = plan.eager
        self.now_ms = 0
        self.broker = SimulatedBroker()
        self.store: dict[str, Any] = {}
        self.store_down = False
        self.truth = hist.History()
        """What the decision log says, by its own rules."""
        self.complete: frozenset[CheckpointId] = frozenset()
        """Every checkpoint that ever was complete; ``truth`` forgets those given up since."""
        self.parallelism = dict(plan.parallelism)
        self.savepoint = ""
        """What the next coordinator is to start from."""
        self.workers: dict[str, SimulatedWorker] = {}
        self.leaders: dict[str, SimulatedLeader] = {}
        self.spawned = 0
        self.late: tuple[tuple[str, tuple[int, int]], ...] = ()
        """Copies of EndTxn(commit) that are still on their way."""
        self.next_commit_is_indefinite = False
        self.lost: tuple[str, ...] = ()
        """Transactional ids whose open transaction the broker gave up."""
        self.services = {service.name: service for service in plan.services()}

    def fork(self) -> "World":
        """A world with the same past."""
        other = World.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.broker = self.broker.fork()
        other.store = dict(self.store)
        other.workers = dict(self.workers)
        other.leaders = dict(self.leaders)
        return other

    def key(self) -> int:
        """Equal for worlds in which the same can happen from here on."""
        processes = tuple(
            (name, _digest(process))
            for table in (self.workers, self.leaders)
            for name, process in table.items()
        )
        rest = (self.now_ms, self.store_down, self.late, self.next_commit_is_indefinite, self.lost)
        return hash((self.broker.key(), processes, rest, tuple(sorted(self.store))))

    # -- what processes see

    def decision(self, offset: int) -> control.AnyDecision:
        """The record of the decision log at an offset."""
        return _decoded(self.broker.entry(f"{APP}.decisions", 0, offset).value)

    def decide(self, decision: control.AnyDecision) -> int:
        """Append to the decision log."""
        offset = self.broker.append(f"{APP}.decisions", 0, None, control.encode(decision))
        before = self.truth
        self.truth, counts = hist.applied(before, offset, decision)
        if counts and isinstance(decision, control.Complete):
            self.complete = self.complete | {decision.checkpoint}
        self.mark(Mark("decision", "log", before, decision, self.truth, (counts,)))
        return offset

    def report(self, report: control.AnyReport) -> None:
        """Append to the reports topic."""
        self.broker.append(f"{APP}.reports", 0, None, control.encode(report))

    def may_trigger(self) -> bool:
        """Whether the plan has a checkpoint left."""
        limit = self.plan.checkpoints
        return limit is None or self.truth.last_checkpoint < limit

    def mark(self, mark: Mark) -> None:
        """Show something that happened to the observer."""
        if self.observer is not None:
            self.observer(self, mark)

    def id_attempt(self, attempt: Attempt) -> Attempt:
        """The attempt that a transactional id names."""
        return Attempt(0) if self.shared_ids else attempt

    def initialise(self, name: str, who: str) -> tuple[int, int]:
        """InitProducerId."""
        self.mark(Mark("initialise", who, event=name, before=self.broker.ids.get(name)))
        return self.broker.initialise(name, FOREVER_MS)

    def commit(self, name: str, identity: tuple[int, int]) -> bool:
        """EndTxn(commit); False when the answer was lost and a copy is still on its way (L17)."""
        self.end_transaction(name, identity, commit=True)
        if self.next_commit_is_indefinite:
            self.next_commit_is_indefinite = False
            self.late = (*self.late, (name, identity))
            return False
        return True

    def end_transaction(self, name: str, identity: tuple[int, int], *, commit: bool) -> bool:
        """EndTxn with an answer."""
        before = self.broker.ids.get(name)
        ended = self.broker.end_transaction(name, identity, commit=commit)
        if ended:
            self.mark(Mark("ended", name, before, commit))
        return ended

    def put(self, key: str, value: Any) -> bool:
        """Write an object, when the store is up."""
        if self.store_down:
            return False
        self.store[key] = value
        return True

    def manifest(self, key: str | None, attempt: Attempt) -> tuple[control.SubtaskSnapshot, ...]:
        """The snapshots of the checkpoint that ``attempt`` is restored from."""
        if key is None:
            return ()
        found: tuple[control.SubtaskSnapshot, ...] = self.chunk(key, attempt)
        return found

    def chunk(self, key: str, attempt: Attempt) -> Any:
        """An object; when it is gone, its reader slept through attempts, or L19 is broken."""
        if key in self.store:
            return self.store[key]
        if self.truth.attempt > attempt:
            raise Refused(f"object {key} is gone, and so is attempt {attempt}")
        raise Broken(f"object {key} is needed by attempt {attempt} and was deleted (L19)")

    def upstreams(self, deploy: control.Deploy) -> int:
        """Subtasks that write the edge."""
        return deploy.parallelism["src"]

    def witnesses(self) -> dict[str, CheckpointId]:
        """Newest committed witness of each transactional id (L15)."""
        return {
            entry.key: CheckpointId(entry.value)
            for _, entry in self.broker.read(f"{APP}.witness", 0)
            if entry.key is not None
        }

    # -- what may happen next

    def actions(self) -> list[Action]:
        """Everything that processes and their supervisors may do now; faults are apart."""
        found = [
            (name, *action)
            for table in (self.workers, self.leaders)
            for name, process in table.items()
            for action in process.actions(self)
        ]
        return found + self.supervision() + [("late", i) for i in range(len(self.late))]

    def actions_of(self, name: str) -> list[Action]:
        """What one process may do now; of none, the supervisors and the network."""
        process = self.workers.get(name) or self.leaders.get(name)
        if process is None:
            return self.supervision() + [("late", i) for i in range(len(self.late))]
        return [(name, *action) for action in process.actions(self)]

    def supervision(self) -> list[Action]:
        """Dead processes are noticed and replaced."""
        found: list[Action] = [
            ("leave", name) for name, w in self.workers.items() if not w.alive and not w.left
        ]
        there = [
            worker.service.name
            for worker in self.workers.values()
            if worker.alive and not worker.paused and not worker.left
        ]
        for service, wanted in self.parallelism.items():
            if there.count(service) < wanted and not self.truth.stopped:
                found.append(("spawn", service))
        if not self.leading() and not self.ended():
            found.append(("lead",))
        return found

    def leading(self) -> list[SimulatedLeader]:
        """Coordinators that can act."""
        return [
            leader
            for leader in self.leaders.values()
            if leader.alive and not leader.paused and leader.exit is None
        ]

    def ended(self) -> str | None:
        """Why the application ended for good: "stopped", or the error that a person must read."""
        if self.truth.stopped:
            return "stopped"
        for leader in self.leaders.values():
            if leader.exit is not None and "lost" in leader.exit.error:
                return leader.exit.error
        return None

    def perform(self, action: Action) -> None:
        """Do one of `actions`, or a fault."""
        match action:
            case ("leave", name):
                self._worker(name).left = True
                self.report(control.Leave(worker=name, reason="killed"))
            case ("spawn", service):
                self.spawned += 1
                name = f"{service}-{self.spawned}"
                self.workers[name] = SimulatedWorker(name, self.services[service])
            case ("lead",):
                self.spawned += 1
                name = f"leader-{self.spawned}"
                settings = self.plan.settings(self.parallelism, self.savepoint)
                self.leaders[name] = SimulatedLeader(name, settings)
                self.leaders[name].start(self)
            case ("late", i):
                name, identity = self.late[i]
                self.late = self.late[:i] + self.late[i + 1 :]
                try:
                    self.end_transaction(name, identity, commit=True)
                except Refused:
                    return
            case ("fault", *fault):
                self._fault(tuple(fault))
            case (name, *rest) if name in self.workers:
                self._worker(name).perform(self, tuple(rest))
            case (name, *rest):
                self._leader(name).perform(self, tuple(rest))

    def _worker(self, name: str) -> SimulatedWorker:
        self.workers[name] = self.workers[name].fork()
        return self.workers[name]

    def _leader(self, name: str) -> SimulatedLeader:
        self.leaders[name] = self.leaders[name].fork()
        return self.leaders[name]

    def _process(self, name: str) -> SimulatedWorker | SimulatedLeader:
        return self._worker(name) if name in self.workers else self._leader(name)

    def _fault(self, fault: Action) -> None:
        match fault:
            case ("crash" | "pause" | "wake" as what, name):
                process = self._process(name)
                process.alive = process.alive and what != "crash"
                process.paused = what == "pause" or (process.paused and what == "crash")
            case ("suspect", name):
                self.report(control.Leave(worker=name, reason="no heartbeat"))
            case ("store", is_down):
                self.store_down = bool(is_down)
            case ("indefinite",):
                self.next_commit_is_indefinite = True
            case ("forget", *names):
                for name in names or self.open_transactions():
                    self.lost = (*self.lost, name)
                    self.broker.time_out(name)
            case ("rescale", service, parallelism):
                self.parallelism = {**self.parallelism, service: parallelism}
                self._replace_leaders()
            case ("import", savepoint):
                self.savepoint = savepoint
                self._replace_leaders()
            case ("savepoint", request):
                self.report(control.SavepointAsked(worker="cli", request=request))
            case ("clock", by_ms):
                self.tick(by_ms)
            case ("stop",):
                self._stop_leaders()

    def _replace_leaders(self) -> None:
        for leader in self.leading():
            self._leader(leader.name).alive = False

    def _stop_leaders(self) -> None:
        for leader in self.leading():
            self._leader(leader.name).event(self, machine.StopAsked())

    def tick(self, by_ms: int) -> None:
        """Time passes; who lives says so."""
        self.now_ms += by_ms
        self.broker.now_ms = self.now_ms
        for worker in self.workers.values():
            worker.beat(self)

    def open_transactions(self) -> list[str]:
        """Transactional ids whose transaction is not finished."""
        return [name for name, known in self.broker.ids.items() if known.state == ONGOING]

    def undecided(self) -> list[str]:
        """Those of them that the newest complete checkpoint lists."""
        if not self.truth.completed:
            return []
        listed = {
            t.transactional_id
            for part in self.store.get(self.truth.completed[-1][1], ())
            for t in part.transactions
        }
        return [name for name in self.open_transactions() if name in listed]

    # -- what came out

    def output(self, sink: str = "out") -> list[Any]:
        """What an independent read_committed reader of a sink's topic sees."""
        return [entry.value for _, entry in self.broker.read(sink, 0)]

    def expected(self) -> set[Record]:
        """Every record of the sources."""
        return {
            Record(p, offset, key)
            for p, keys in enumerate(self.sources)
            for offset, key in enumerate(keys)
        }

    def is_complete(self) -> bool:
        """Whether every sink shows every record."""
        sinks = ["out", "echo"] if self.plan.echo else ["out"]
        return all(len(self.output(sink)) >= len(self.expected()) for sink in sinks)


class Settled(NamedTuple):
    """How a run ended."""

    outcome: str
    steps: int
    checkpoints: int
    attempts: int


def settle(world: World, chance: random.Random, limit: int = 20_000) -> Settled:
    """No fault any more: everything wakes, gets on, ends; and the output is whole.

    Raises Broken when the application does not get to its end.
    """
    world.store_down = False
    world.next_commit_is_indefinite = False
    for name in [*world.workers, *world.leaders]:
        world.perform(("fault", "wake", name))
    steps = 0
    stopping = False
    while world.ended() is None or world.actions():
        actions = world.actions()
        steps += 1
        if steps > limit:
            raise Broken(f"not settled after {limit} actions: {_stuck(world)}")
        if actions:
            world.perform(chance.choice(actions))
        elif not stopping and world.is_complete() and is_running(world):
            stopping = True
            world.perform(("fault", "stop"))
        else:
            stopping = stopping and is_running(world)
            world.tick(10)
    return Settled(world.ended() or "", steps, len(world.truth.completed), world.truth.attempt)


def is_running(world: World) -> bool:
    """Whether a coordinator says that the application runs."""
    return any(
        leader.state is not None and leader.state.phase is machine.Phase.RUNNING
        for leader in world.leading()
    )


def _stuck(world: World) -> str:
    phases = [leader.state.phase.value for leader in world.leading() if leader.state is not None]
    return (
        f"coordinators {phases}, checkpoint {world.truth.last_checkpoint}, attempt "
        f"{world.truth.attempt}, {len(world.output())} of {len(world.expected())} records out"
    )


_decode = control.decode_decision
_known_decisions: dict[bytes, control.AnyDecision] = {}


def _decoded(data: bytes) -> control.AnyDecision:
    found = _known_decisions.get(data)
    if found is None:
        if len(_known_decisions) > 50_000:
            _known_decisions.clear()
        found = _known_decisions[data] = _decode(data)
    return found


_encoder = msgspec.msgpack.Encoder()
_digests: dict[int, tuple[Any, int]] = {}


def _digest(process: SimulatedWorker | SimulatedLeader) -> int:
    """A hash of a process; remembered, for most processes are shared by many worlds."""
    found = _digests.get(id(process))
    if found is not None and found[0] is process:
        return found[1]
    if len(_digests) > 200_000:
        _digests.clear()
    digest = hash(_encoder.encode(process.__dict__))
    _digests[id(process)] = (process, digest)
    return digest
