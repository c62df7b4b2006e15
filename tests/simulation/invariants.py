"""Everything that must hold, in one list: every tier looks at it after every step.

Numbers are those of the machines' docstrings (B alignment, S sink, T subtask, C coordinator, H
decision log, R restore); X are those that only the whole world can break. Each names the laws it
stands for.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from penstock import control
from penstock.barrier import alignment as barrier
from penstock.checkpoint import coordinator as machine
from penstock.checkpoint import restore
from penstock.sink import transaction as tx
from penstock.task import subtask as task
from penstock.testing.broker import ONGOING
from penstock.testing.surroundings import Mark
from penstock.testing.world import Broken, World


class Invariant(NamedTuple):
    number: str
    laws: str
    holds: Callable[[World, Mark], bool]

    @property
    def sentence(self) -> str:
        return " ".join((self.holds.__doc__ or "").split())


INVARIANTS: dict[str, list[Invariant]] = {}
"""By the kind of mark that they look at."""


def on(what: str, number: str, laws: str) -> Callable[[Any], Any]:
    def added(holds: Callable[[World, Mark], bool]) -> Callable[[World, Mark], bool]:
        INVARIANTS.setdefault(what, []).append(Invariant(number, laws, holds))
        return holds

    return added


def observe(world: World, mark: Mark) -> None:
    """Raise Broken when an invariant does not hold."""
    for invariant in INVARIANTS.get(mark.what, ()):
        if not invariant.holds(world, mark):
            raise Broken(
                f"{invariant.number} ({invariant.laws}) {invariant.sentence}\n  {mark.who}: "
                f"{mark.event}\n  -> {mark.effects}"
            )


# -- alignment


def _of(kind: Any, effects: tuple[Any, ...]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


@on("alignment", "B1", "L4")
def aligned_when_all_channels_met_their_barrier(_: World, mark: Mark) -> bool:
    """Aligned(n) is said when barrier n has arrived on every channel, all held until then."""
    before, after = mark.before, mark.after
    for said in _of(barrier.Aligned, mark.effects):
        others = set(after.channels) - {mark.event.channel}
        if set(after.latest) != {said.checkpoint} or (others and before.arrived != others):
            return False
    grown = after.arrived - before.arrived
    return not after.exactly_once or all(barrier.Hold(c) in mark.effects for c in grown)


@on("alignment", "B2", "L4, L11")
def nothing_settled_is_aligned(_: World, mark: Mark) -> bool:
    """A checkpoint that was aborted or superseded is never aligned."""
    return all(e.checkpoint > mark.before.settled for e in _of(barrier.Aligned, mark.effects))


@on("alignment", "B3", "L7")
def what_is_held_is_released(_: World, mark: Mark) -> bool:
    """Whatever is held is released when its checkpoint is aligned, aborted or superseded."""
    over = mark.before.aligning is not None and mark.after.aligning != mark.before.aligning
    over = over or bool(_of(barrier.Aligned, mark.effects))
    if isinstance(mark.event, barrier.CheckpointAborted) and mark.before.aligning is not None:
        over = over or mark.before.aligning <= mark.event.checkpoint
    return not over or bool(_of(barrier.Release, mark.effects))


@on("alignment", "B4", "L9")
def barriers_increase(_: World, mark: Mark) -> bool:
    """The barriers of a channel strictly increase."""
    return all(a >= b for a, b in zip(mark.after.latest, mark.before.latest, strict=True))


# -- sinks and subtasks


def _sink_effects(mark: Mark, kind: Any) -> Iterator[tuple[str, Any]]:
    for effect in _of(task.OnSink, mark.effects):
        if isinstance(effect.effect, kind):
            yield effect.uid, effect.effect


@on("subtask", "S1", "L13")
def one_open_transaction(_: World, mark: Mark) -> bool:
    """At most one transaction of a sink subtask takes records."""
    return all(
        sum(slot.phase is tx.Phase.OPEN for slot in pool.slots) <= 1 for _, pool in mark.after.sinks
    )


@on("subtask", "S2", "L14")
def commit_only_after_complete(world: World, mark: Mark) -> bool:
    """A commit is asked for only after Complete(m), m at or past the transaction's checkpoint."""
    for uid, commit in _sink_effects(mark, tx.Commit):
        slot = task.sink_of(mark.before, uid).slots[commit.permit.slot]
        if (
            not isinstance(mark.event, task.CheckpointCompleted)
            or slot.checkpoint is None
            or slot.checkpoint > commit.permit.checkpoint
            or commit.permit.checkpoint not in world.complete
        ):
            return False
    return True


@on("subtask", "S3", "L17")
def no_listed_producer_is_used_again(world: World, mark: Mark) -> bool:
    """No transaction is begun on a producer that the newest complete manifest still lists, or whose
    last commit may still be on its way.
    """
    run = world.workers[mark.who].running
    for uid, begun in _sink_effects(mark, tx.Begin):
        producer = run.producers.get(f"{uid}!{begun.slot}") if run is not None else None
        if producer is not None and (producer.name, producer.identity) in world.late:
            return False
        if producer is not None and any(
            (t.transactional_id, (t.producer_id, t.producer_epoch))
            == (producer.name, producer.identity)
            for t in newest_transactions(world)
        ):
            return False
    return True


@on("subtask", "S4", "L13")
def acknowledged_with_everything_undecided(_: World, mark: Mark) -> bool:
    """An acknowledgement lists every transaction up to it that is not proven committed."""
    undecided = (tx.Phase.PREPARED, tx.Phase.COMMITTING, tx.Phase.FLUSHING)
    for said in _of(task.Acknowledge, mark.effects):
        slots = [
            slot
            for _, pool in mark.after.sinks
            for slot in pool.slots
            if slot.phase in undecided and slot.checkpoint <= said.checkpoint
        ]
        if {slot.committable for slot in slots} != set(said.transactions):
            return False
    return True


@on("subtask", "S5", "L16")
def the_pool_is_bounded(_: World, mark: Mark) -> bool:
    """No slot beyond the pool's limit is used."""
    return all(len(pool.slots) == pool.limit for _, pool in mark.after.sinks)


@on("subtask", "T1", "L6, L4")
def barrier_then_freeze_then_precommit(_: World, mark: Mark) -> bool:
    """At a barrier the effects are ForwardBarrier, Freeze, then each sink's PreCommit."""
    if not isinstance(mark.event, task.BarrierPassed) or mark.before.ended:
        return True
    n, effects = mark.event.checkpoint, mark.effects
    return effects[:2] == (task.ForwardBarrier(n), task.Freeze(n)) and all(
        isinstance(effect, task.OnSink) and isinstance(effect.effect, tx.PreCommit)
        for effect in effects[2:]
    )


@on("acknowledged", "T2", "L2, L13")
def acknowledged_when_durable(world: World, mark: Mark) -> bool:
    """An acknowledged chunk is in the store, its transactions are flushed with their witness."""
    snapshot = mark.event.snapshot
    return all(ref.key in world.store for ref in snapshot.chain) and all(
        witness_of(world, t.transactional_id) == t.checkpoint
        for t in snapshot.transactions
        if (known := world.broker.ids.get(t.transactional_id)) is not None
        and known.state == ONGOING
        and known.epoch == t.producer_epoch
    )


@on("subtask", "T3", "L11")
def nothing_after_the_end(_: World, mark: Mark) -> bool:
    """After Cease or Finish nothing is asked for."""
    return not mark.before.ended or not mark.effects


@on("subtask", "T5", "L11")
def only_the_pending_checkpoint_is_acknowledged(_: World, mark: Mark) -> bool:
    """A checkpoint that was aborted, superseded or declined is never acknowledged."""
    return all(
        mark.before.pending is not None and mark.before.pending.checkpoint == said.checkpoint
        for said in _of(task.Acknowledge, mark.effects)
    )


# -- the coordinator


def _appended(mark: Mark, kind: Any) -> list[Any]:
    return [e.decision for e in _of(machine.Append, mark.effects) if isinstance(e.decision, kind)]


@on("coordinator", "C1", "L2")
def complete_after_manifest_after_acknowledgements(world: World, mark: Mark) -> bool:
    """Complete(n) follows its durable manifest, that an acknowledgement of every subtask."""
    for asked in _of(machine.StoreManifest, mark.effects):
        expected = machine.expected_subtasks(mark.after.history.deploy)
        attempts = mark.event.report.attempt
        if {s.subtask for s in asked.snapshots} != expected or len(asked.snapshots) != len(
            expected
        ):
            return False
        if attempts != mark.after.history.attempt:
            return False
    for complete in _appended(mark, control.Complete):
        stored = mark.event
        if not isinstance(stored, machine.ManifestStored) or complete.manifest not in world.store:
            return False
        if stored.checkpoint != complete.checkpoint or mark.before.in_flight.missing:
            return False
    return True


@on("coordinator", "C2", "L3")
def no_abort_while_the_manifest_is_in_flight(_: World, mark: Mark) -> bool:
    """After the last acknowledgement a checkpoint ends by its manifest alone."""
    flight = mark.before.in_flight if mark.before is not None else None
    if flight is None or not flight.storing or isinstance(mark.event, machine.ManifestFailed):
        return True
    return not any(a.checkpoint == flight.checkpoint for a in _appended(mark, control.Abort))


@on("coordinator", "C3", "L11")
def other_attempts_do_not_count(_: World, mark: Mark) -> bool:
    """A report of another attempt or checkpoint changes nothing about the one in flight."""
    if not isinstance(mark.event, machine.Reported):
        return True
    report = mark.event.report
    if not isinstance(report, control.Acknowledge | control.Decline):
        return True
    flight = mark.before.in_flight
    ours = report.attempt == mark.before.history.attempt
    ours = ours and flight is not None and report.checkpoint == flight.checkpoint
    return ours or flight == mark.after.in_flight


@on("coordinator", "C4", "L2")
def one_checkpoint_at_a_time(_: World, mark: Mark) -> bool:
    """At most one checkpoint is in flight, and ids increase."""
    return all(
        mark.before.in_flight is None and t.checkpoint > mark.before.history.last_checkpoint
        for t in _appended(mark, control.Trigger)
    )


@on("coordinator", "C5", "L16")
def restore_is_read_before_recovery(_: World, mark: Mark) -> bool:
    """Recovery begins when Restore was read back, and Deploy comes after it."""
    for asked in _of(machine.Recover, mark.effects):
        read = mark.event
        if not isinstance(read, machine.DecisionRead) or not (
            isinstance(read.decision, control.Restore)
            and read.decision.attempt == asked.attempt
            and read.decision.term == mark.after.term
        ):
            return False
    return all(mark.before.confirmed for _ in _appended(mark, control.Deploy))


@on("coordinator", "C6", "L1")
def silent_after_the_end(_: World, mark: Mark) -> bool:
    """An ended coordinator does nothing more."""
    ended = mark.before is not None and mark.before.phase is machine.Phase.ENDED
    return not ended or not mark.effects


@on("coordinator", "C7", "L19")
def nothing_is_given_up_on_our_own_word(_: World, mark: Mark) -> bool:
    """Retain follows a Complete that was read back."""
    read = mark.event
    return not _of(machine.Retain, mark.effects) or (
        isinstance(read, machine.DecisionRead) and isinstance(read.decision, control.Complete)
    )


@on("coordinator", "C8", "L14")
def a_stop_leaves_nothing_undecided(world: World, mark: Mark) -> bool:
    """A graceful stop ends when every transaction of the newest checkpoint is committed."""
    if not any(not e.error for e in _of(machine.Exit, mark.effects)):
        return True
    witnesses = world.witnesses()
    return all(restore.is_proven(t, witnesses) for t in newest_transactions(world))


@on("coordinator", "C9", "L2")
def import_is_durable(world: World, mark: Mark) -> bool:
    """Import follows a Measured that names the manifest, which is there."""
    found = _appended(mark, control.Import)
    return not found or (
        isinstance(mark.event, machine.Measured)
        and all(decision.manifest in world.store for decision in found)
    )


@on("coordinator", "C10", "L19")
def what_becomes_a_savepoint_is_kept(_: World, mark: Mark) -> bool:
    """A checkpoint that a savepoint is being made of is retained."""
    made = {w.made_of for w in mark.after.wanted.values() if w.made_of is not None}
    return all(made <= set(retain.checkpoints) for retain in _of(machine.Retain, mark.effects))


# -- the decision log and restore


@on("decision", "H1", "L1")
def void_records_change_nothing(_: World, mark: Mark) -> bool:
    """A record of a lesser term after a greater Term record changes nothing."""
    (counts,) = mark.effects
    stale = not isinstance(mark.event, control.TermBegan) and mark.event.term < mark.before.term
    return counts is not stale and (not stale or mark.after == mark.before)


@on("decision", "H2", "L2")
def complete_is_what_the_log_says(_: World, mark: Mark) -> bool:
    """A checkpoint is complete exactly when a Complete or Import that counts is in the log."""
    (counts,) = mark.effects
    complete = {n for n, _ in mark.after.completed}
    if isinstance(mark.event, control.Import) and counts:
        return complete == {mark.event.checkpoint}
    if isinstance(mark.event, control.Complete) and counts:
        return mark.event.checkpoint in complete
    return complete <= {n for n, _ in mark.before.completed}


@on("verdict", "R1", "L15")
def nothing_lost_is_passed_over(world: World, mark: Mark) -> bool:
    """A restore goes on only when every transaction of its checkpoint is committed."""
    listed, verdict = mark.event
    if not isinstance(verdict, restore.Proceed):
        return True
    witnesses = world.witnesses()
    return all(restore.is_proven(t, witnesses) for t in listed)


@on("verdict", "R2", "L15")
def fall_back_only_over_invisible_output(world: World, mark: Mark) -> bool:
    """A fallback writes again only what nobody has seen."""
    listed, verdict = mark.event
    if not isinstance(verdict, restore.FallBack):
        return True
    witnesses = world.witnesses()
    return not any(
        restore.is_proven(t, witnesses) for t in listed if t.checkpoint > verdict.checkpoint
    )


# -- the whole world


@on("ended", "X1", "L13, L14")
def nothing_is_seen_twice(world: World, mark: Mark) -> bool:
    """No record is in a sink's committed output twice."""
    if not mark.event:
        return True
    for sink in ("out", "echo"):
        values = world.output(sink)
        if len({value[:2] for value in values}) != len(values):
            return False
        counted = [value[2:] for value in values if sink == "out"]
        if len(set(counted)) != len(counted):
            return False
    return True


@on("ended", "X2", "L14")
def only_complete_checkpoints_are_seen(world: World, mark: Mark) -> bool:
    """What is committed is listed by a complete checkpoint's manifest."""
    if not mark.event:
        return True
    before = mark.before
    return any(
        (t.transactional_id, t.producer_id, t.producer_epoch)
        == (mark.who, before.producer_id, before.epoch)
        for t in newest_transactions(world)
    )


@on("decision", "X3", "L4, L5, L6")
def snapshots_are_consistent(world: World, mark: Mark) -> bool:
    """The counts of checkpoint n are those of the records before the sources' positions in n."""
    (counts,) = mark.effects
    if not counts or not isinstance(mark.event, control.Complete | control.Import):
        return True
    parts = [world.store[ref.key] for s in world.store[mark.event.manifest] for ref in s.chain]
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for part in parts:
        for p, position in part.positions.items():
            wanted.update(world.sources[p][:position])
        for table in part.tables.values():
            found.update(table)
    return wanted == found


@on("initialise", "X4", "L14, L16")
def nobody_aborts_what_is_complete(world: World, mark: Mark) -> bool:
    """No initialisation aborts a transaction that the newest complete checkpoint lists."""
    before = mark.before
    if before is None or before.state != ONGOING:
        return True
    return not any(
        (t.transactional_id, t.producer_id, t.producer_epoch)
        == (mark.event, before.producer_id, before.epoch)
        for t in newest_transactions(world)
    )


@on("ended", "X5", "L14, L16")
def nobody_aborts_what_is_complete_by_request(world: World, mark: Mark) -> bool:
    """No EndTxn(abort) ends a transaction that the newest complete checkpoint lists."""
    return (
        bool(mark.event)
        or only_complete_checkpoints_are_seen(world, mark._replace(event=True)) is False
    )


def newest_transactions(world: World) -> list[control.Committable]:
    """What the newest complete checkpoint lists."""
    if not world.truth.completed:
        return []
    manifest = world.store.get(world.truth.completed[-1][1], ())
    return [t for part in manifest for t in part.transactions]


def witness_of(world: World, name: str) -> int | None:
    """The last witness that a transaction wrote, committed or not."""
    known = world.broker.ids[name]
    values = [
        world.broker.entry(topic, p, offset).value
        for (topic, p), offset in known.writes
        if topic.endswith(".witness")
    ]
    return values[-1] if values else None


def at_the_end(world: World, outcome: str) -> None:
    """Exactly once: everything is there, once; nothing is left open (L13-L16)."""
    if outcome != "stopped":
        if not world.lost:
            raise Broken(f"output is said to be lost, but the broker lost nothing: {outcome}")
        return
    expected = world.expected()
    for sink in ["out", "echo"] if world.plan.echo else ["out"]:
        found = sorted(value[:2] for value in world.output(sink))
        wanted = sorted((r.partition, r.offset) for r in expected)
        if found != wanted:
            raise Broken(f"sink {sink}: found {found}, expected {wanted}")
    counted = sorted((key, n) for _, _, key, n in world.output())
    keys = Counter(r.key for r in expected)
    wanted_counts = sorted((key, n) for key in keys for n in range(1, keys[key] + 1))
    if counted != wanted_counts:
        raise Broken(f"counts {counted}, expected {wanted_counts}")
    if world.open_transactions():
        raise Broken(f"left open: {world.open_transactions()} (L16)")
