"""SimulatedLeader: a coordinator process around the real machine, one effect at a time.

It stands where `penstock.runtime.leader` and `penstock.runtime.recovery` stand. All attributes are
values: a copy of the object is a fork of the process.
"""

from typing import Any

import msgspec

from penstock import control
from penstock.checkpoint import coordinator as machine
from penstock.checkpoint import history as hist
from penstock.checkpoint import restore
from penstock.ids import CheckpointId, Term, transactional_prefix
from penstock.testing.broker import ONGOING, Refused
from penstock.testing.surroundings import APP, Mark, Surroundings


class Recovery(msgspec.Struct, frozen=True):
    """A recovery on its way: first every EndTxn, then every fence, then the verdict (L16)."""

    asked: machine.Recover
    transactions: tuple[control.Committable, ...]
    newest: bool
    older: CheckpointId | None
    to_commit: tuple[control.Committable, ...]
    committed: frozenset[control.Committable] = frozenset()
    to_fence: tuple[str, ...] | None = None


class SimulatedLeader:
    """One coordinator process; ``world`` is passed in at every call and never kept."""

    def __init__(self, name: str, settings: machine.Settings) -> None:
        self.name = name
        self.settings = settings
        self.alive = True
        self.paused = False
        self.decisions_at = 0
        self.reports_at = 0
        self.state: machine.Coordinator | None = None
        self.exit: machine.Exit | None = None
        self.todo: tuple[machine.Effect, ...] = ()
        self.tasks: tuple[Any, ...] = ()
        self.kept: tuple[str, ...] = ()
        """Manifests that the last Retain named."""

    def fork(self) -> "SimulatedLeader":
        """A copy; every attribute is a value."""
        other = SimulatedLeader.__new__(SimulatedLeader)
        other.__dict__.update(self.__dict__)
        return other

    def start(self, world: Surroundings) -> None:
        """Claim a term, read the log up to it, and lead (L1)."""
        self.reports_at = world.broker.end(f"{APP}.reports", 0)
        term = Term(world.decide(control.TermBegan(leader=self.name)))
        history = hist.History()
        for offset in range(term + 1):
            history, _ = hist.applied(history, offset, world.decision(offset))
        self.decisions_at = term + 1
        self.state, effects = machine.coordinator(self.settings, term, history, world.now_ms)
        world.mark(Mark("coordinator", self.name, None, None, self.state, effects))
        self._later(world, effects)

    # -- what may happen next

    def actions(self, world: Surroundings) -> list[tuple[Any, ...]]:
        """Names of what this process can do now, for `perform`."""
        if not self.alive or self.paused or self.exit is not None:
            return []
        found: list[tuple[Any, ...]] = [("task", i) for i in range(len(self.tasks))]
        if self.todo:
            return [*found, ("effect",)]
        if self.decisions_at < world.broker.end(f"{APP}.decisions", 0):
            if world.eager and self._knows(world.decision(self.decisions_at)):
                return [("decision",)]
            found.append(("decision",))
        if self.reports_at < world.broker.end(f"{APP}.reports", 0):
            found.append(("report",))
        if self._ticks(world):
            found.append(("tick",))
        return found

    def _knows(self, decision: control.AnyDecision) -> bool:
        """Whether reading our own decision changes nothing, so that its moment is no choice."""
        news = (control.TermBegan, control.Restore, control.Complete)
        ours = self.state is not None and decision.term == self.state.term
        return ours and not isinstance(decision, news)

    def _ticks(self, world: Surroundings) -> bool:
        """Whether time has something to say: a later clock, or a checkpoint at any time."""
        state = self.state
        if state is None or state.now_ms < world.now_ms:
            return state is not None
        at_any_time = state.phase is machine.Phase.RUNNING and state.in_flight is None
        return at_any_time and self.settings.interval_ms == 0 and world.may_trigger()

    def perform(self, world: Surroundings, action: tuple[Any, ...]) -> None:
        """Do one of `actions`."""
        match action:
            case ("effect",):
                effect, self.todo = self.todo[0], self.todo[1:]
                self._effect(world, effect)
            case ("task", i):
                work = self.tasks[i]
                self.tasks = self.tasks[:i] + self.tasks[i + 1 :]
                self._task(world, work)
            case ("decision",):
                offset = self.decisions_at
                self.decisions_at += 1
                self.event(world, machine.DecisionRead(offset, world.decision(offset)))
            case ("report",):
                entry = world.broker.entry(f"{APP}.reports", 0, self.reports_at)
                self.reports_at += 1
                report = control.decode_report(entry.value)
                self.event(world, machine.Reported(report, world.now_ms))
            case ("tick",):
                self.event(world, machine.Ticked(world.now_ms))

    def event(self, world: Surroundings, event: machine.Event) -> None:
        """Step the machine."""
        if self.state is None:
            return
        before = self.state
        self.state, effects = machine.step(before, event)
        world.mark(Mark("coordinator", self.name, before, event, self.state, effects))
        self._later(world, effects)

    def _later(self, world: Surroundings, effects: tuple[machine.Effect, ...]) -> None:
        self.todo = (*self.todo, *(e for e in effects if not isinstance(e, machine.Say)))
        while world.eager and self.todo:
            effect, self.todo = self.todo[0], self.todo[1:]
            self._effect(world, effect)
            if self.tasks and isinstance(self.tasks[-1], machine.Measure | machine.Sweep):
                work, self.tasks = self.tasks[-1], self.tasks[:-1]
                self._task(world, work)

    # -- effects

    def _effect(self, world: Surroundings, effect: machine.Effect) -> None:
        match effect:
            case machine.Append(decision):
                world.decide(decision)
            case machine.Retain(checkpoints):
                self._retain(world, tuple(manifest for _, manifest in checkpoints))
            case machine.Exit():
                self.exit = effect
            case machine.Recover():
                self._recover(world, effect)
            case machine.StoreManifest() | machine.Measure() | machine.Sweep():
                self.tasks = (*self.tasks, effect)

    def _retain(self, world: Surroundings, manifests: tuple[str, ...]) -> None:
        kept = {
            ref.key
            for manifest in manifests
            for part in world.store.get(manifest, ())
            for ref in part.chain
        }
        for manifest in self.kept:
            if manifest not in manifests:
                for part in world.store.get(manifest, ()):
                    for ref in part.chain:
                        if ref.key not in kept:
                            world.store.pop(ref.key, None)
                world.store.pop(manifest, None)
        self.kept = manifests

    def _recover(self, world: Surroundings, asked: machine.Recover) -> None:
        history = self.state.history if self.state is not None else hist.History()
        try:
            parts = world.manifest(asked.manifest, asked.attempt)
        except Refused as refusal:
            self.event(world, machine.RecoveryFailed(asked.attempt, refusal.code))
            return
        transactions = tuple(sorted(t for part in parts for t in part.transactions))
        complete = [n for n, _ in history.completed]
        newest = bool(complete) and asked.checkpoint == complete[-1]
        recovery = Recovery(
            asked,
            transactions,
            newest,
            asked.older,
            to_commit=transactions if newest else (),
        )
        self.tasks = (*self.tasks, recovery)

    # -- background work

    def _task(self, world: Surroundings, work: Any) -> None:
        match work:
            case machine.StoreManifest(checkpoint, snapshots):
                key = f"{APP}/manifests/{checkpoint}-{self.state.term if self.state else 0}"
                if world.put(key, snapshots):
                    self.event(world, machine.ManifestStored(checkpoint, key, world.now_ms))
                else:
                    failed = machine.ManifestFailed(checkpoint, "store down", world.now_ms)
                    self.event(world, failed)
            case machine.Measure(attempt, services, importing):
                imported = None if importing is None else self._imported(world, attempt)
                if imported == "":
                    refused = machine.RecoveryFailed(attempt, "store down")
                    self.event(world, refused)
                    return
                starts = {
                    edge.name: [
                        world.broker.end(f"{APP}.edge.{edge.name}", p)
                        for p in range(edge.partitions)
                    ]
                    for service in services
                    for stage in service.stages
                    for edge in stage.edges
                }
                self.event(world, machine.Measured(attempt, starts, imported))
            case machine.Sweep(attempt):
                states = world.broker.transactions(transactional_prefix(APP))
                open_ids = [name for name, state in states.items() if state == ONGOING]
                for name in sorted(restore.fenceable(open_ids, attempt)):
                    world.initialise(name, self.name)
            case Recovery():
                self._recovery(world, work)

    def _imported(self, world: Surroundings, attempt: int) -> str:
        """The manifest that a savepoint of the newest complete checkpoint becomes; '': no store.

        A savepoint has no transactions (L23): those of that checkpoint were decided by recovery.
        """
        completed = self.state.history.completed if self.state is not None else ()
        parts = world.store.get(completed[-1][1], ()) if completed else ()
        bare = tuple(msgspec.structs.replace(part, transactions=()) for part in parts)
        key = f"{APP}/imports/{self.state.term if self.state else 0}-{attempt}"
        return key if world.put(key, bare) else ""

    def _recovery(self, world: Surroundings, found: Recovery) -> None:
        """One request of a recovery."""
        if found.to_commit:
            self._recover_one(world, found)
        elif found.to_fence is None:
            known = world.broker.transactions(transactional_prefix(APP))
            ids = tuple(sorted(restore.fenceable(known, found.asked.attempt)))
            self._goes_on(found, to_fence=ids)
        elif found.to_fence:
            at_once = len(found.to_fence) if world.eager else 1
            for name in found.to_fence[:at_once]:
                world.initialise(name, self.name)
            self._goes_on(found, to_fence=found.to_fence[at_once:])
        else:
            self._decide(world, found)

    def _recover_one(self, world: Surroundings, found: Recovery) -> None:
        transaction = found.to_commit[0]
        committed = found.committed
        identity = (transaction.producer_id, transaction.producer_epoch)
        world.mark(Mark("recover", self.name, event=transaction))
        try:
            world.end_transaction(transaction.transactional_id, identity, commit=True)
            committed = committed | {transaction}
        except Refused:
            pass  # ambiguous: the witness decides (L15)
        self._goes_on(found, to_commit=found.to_commit[1:], committed=committed)

    def _goes_on(self, recovery: Recovery, **changes: Any) -> None:
        self.tasks = (*self.tasks, msgspec.structs.replace(recovery, **changes))

    def _decide(self, world: Surroundings, found: Recovery) -> None:
        asked = found.asked
        verdict = restore.verdict(
            found.transactions, found.committed, world.witnesses(), found.older
        )
        world.mark(Mark("verdict", self.name, event=(found.transactions, verdict)))
        match verdict:
            case restore.Proceed():
                self.event(world, machine.Recovered(asked.attempt, asked.checkpoint))
            case restore.FallBack(checkpoint, _):
                reason = "its transactions are lost"
                fell = machine.RecoveryFailed(asked.attempt, reason, fall_back=checkpoint)
                self.event(world, fell)
            case restore.Refuse():
                report = restore.loss_report(verdict)
                self.event(world, machine.RecoveryFailed(asked.attempt, report, fatal=True))
