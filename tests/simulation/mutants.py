"""Protocol bugs, patched into the real machines or their driver, to see that the tests catch them.

A mutant that no tier catches is a hole in the tests; `test_mutants` says which tier catches which.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
from penstock.checkpoint import attempts, coordinator, restore, savepoint
from penstock.checkpoint.leadership import Recover, StoreManifest, Sweep
from penstock.control import Restore
from penstock.sink import transaction as tx
from penstock.task import subtask as task
from penstock.testing import worker as worker_module
from penstock.testing.leader import SimulatedLeader
from penstock.testing.worker import SimulatedWorker
from penstock.testing.world import World

replace = msgspec.structs.replace


class Mutant(NamedTuple):
    breaks: str
    """The law."""
    patched: Callable[[], Any]


MUTANTS: dict[str, Mutant] = {}


def mutant(breaks: str) -> Callable[[Callable[[ExitStack], None]], Callable[[ExitStack], None]]:
    def added(install: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
        @contextmanager
        def patched() -> Iterator[None]:
            with ExitStack() as stack:
                install(stack)
                yield

        MUTANTS[install.__name__.replace("_", " ")] = Mutant(breaks, patched)
        return install

    return added


def _put(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by what ``make`` makes of the original."""
    stack.enter_context(patch.object(owner, name, make(getattr(owner, name))))


@mutant("L11")
def stale_acknowledgement_accepted(stack: ExitStack) -> None:
    """An acknowledgement of another attempt or checkpoint counts for the one in flight."""

    def make(real: Any) -> Any:
        def acknowledged(state: Any, report: Any) -> Any:
            flight = state.in_flight
            if flight is not None:
                attempt = state.history.attempt
                report = replace(report, attempt=attempt, checkpoint=flight.checkpoint)
            return real(state, report)

        return acknowledged

    _put(stack, coordinator, "acknowledged", make)


@mutant("L19")
def a_savepoint_is_made_of_a_checkpoint_that_is_not_kept(stack: ExitStack) -> None:
    """Retention forgets what somebody still copies."""
    _put(stack, savepoint, "pinned", lambda _: lambda state, recent: ())


@mutant("L14")
def an_import_forgets_what_was_complete(stack: ExitStack) -> None:
    """The recovery before an import commits nothing: its fence aborts what was complete."""

    def make(real: Any) -> Any:
        def begun(state: Any, reason: str, checkpoint: Any = None) -> Any:
            if attempts.importing(state) is not None:
                state = replace(state, history=replace(state.history, completed=()))
            return real(state, reason, checkpoint)

        return begun

    _put(stack, coordinator, "restore_begun", make)


@mutant("L3")
def abort_while_the_manifest_is_in_flight(stack: ExitStack) -> None:
    """A checkpoint is timed out though its last acknowledgement is there, and completes anyway."""

    def make(real: Any) -> Any:
        def checkpointing(state: Any) -> Any:
            flight = state.in_flight
            late = flight and state.now_ms - flight.triggered_ms >= state.settings.timeout_ms
            if late and flight.storing:
                aborted, effects = coordinator.aborted(state, "late")
                return replace(aborted, in_flight=flight), effects
            return real(state)

        return checkpointing

    _put(stack, coordinator, "_checkpointing", make)


@mutant("L14")
def commit_before_complete(stack: ExitStack) -> None:
    """A transaction is committed as soon as it is flushed."""

    def make(real: Any) -> Any:
        def step(state: Any, event: Any) -> Any:
            state, effects = real(state, event)
            if isinstance(event, tx.Prepared):
                slots = list(state.slots)
                slot = slots[event.slot]
                slots[event.slot] = replace(slot, phase=tx.Phase.COMMITTING)
                state = replace(state, slots=tuple(slots))
                effects = (*effects, tx.Commit(tx.CommitPermit(event.slot, slot.checkpoint)))
            return state, effects

        return step

    _put(stack, tx, "step", make)


@mutant("L16")
def init_before_commit_on_restore(stack: ExitStack) -> None:
    """A recovery initialises every id before it commits, and so aborts what is complete."""

    def make(real: Any) -> Any:
        def recovery(self: SimulatedLeader, world: World, found: Any) -> None:
            if found.to_fence == ():
                real(self, world, found)
            else:
                waiting = found.to_commit
                real(self, world, replace(found, to_commit=()))
                left = self.tasks[-1]
                self.tasks = (*self.tasks[:-1], replace(left, to_commit=waiting))

        return recovery

    _put(stack, SimulatedLeader, "_recovery", make)


@mutant("L7")
def held_record_applied_early(stack: ExitStack) -> None:
    """Records of a channel that has met its barrier are processed before the others have."""

    def make(real: Any) -> Any:
        def frame(self: SimulatedWorker, world: World, channel: Any, found: Any) -> bool:
            if found.record is not None:
                self._set(held=self._run().held - {channel})
            return bool(real(self, world, channel, found))

        return frame

    _put(stack, SimulatedWorker, "_frame", make)


@mutant("L10")
def zombie_frames_accepted(stack: ExitStack) -> None:
    """Frames of an older attempt are processed."""
    _put(stack, worker_module, "accepts", lambda _: lambda frame, attempt: True)


@mutant("L14")
def transaction_aborted_with_its_checkpoint(stack: ExitStack) -> None:
    """Abort(n) gives up the transaction of n, though its records will not come again."""

    def make(real: Any) -> Any:
        def aborted(state: Any, checkpoint: Any) -> Any:
            state = real(state, checkpoint)
            pools = tuple((uid, _without(pool, checkpoint)) for uid, pool in state.sinks)
            return replace(state, sinks=pools)

        return aborted

    def _without(pool: tx.Sink, checkpoint: int) -> tx.Sink:
        slots = tuple(
            tx.Slot() if slot.phase is tx.Phase.PREPARED and slot.checkpoint == checkpoint else slot
            for slot in pool.slots
        )
        return replace(pool, slots=slots)

    _put(stack, task, "_aborted", make)


@mutant("L17")
def producer_reused_while_it_is_listed(stack: ExitStack) -> None:
    """A producer begins again as soon as its commit is proven (decision 0005)."""

    def make(real: Any) -> Any:
        def committed(state: Any, slot: int, definite: bool) -> Any:
            state, effects = real(state, slot, definite)
            if state.slots[slot].phase is tx.Phase.PROVEN:
                slots = list(state.slots)
                slots[slot] = tx.Slot(tx.Phase.WARM)
                state = replace(state, slots=tuple(slots))
            return state, effects

        return committed

    _put(stack, tx, "_committed", make)


@mutant("L1, L16")
def recovery_without_reading_restore_back(stack: ExitStack) -> None:
    """A coordinator recovers as soon as it has written Restore (decision 0006)."""

    def make(real: Any) -> Any:
        def restore_begun(state: Any, reason: str, checkpoint: Any = None) -> Any:
            state, effects = real(state, reason, checkpoint)
            for effect in effects:
                found = getattr(effect, "decision", None)
                if isinstance(found, Restore):
                    asked = Recover(found.attempt, found.checkpoint, found.manifest)
                    return replace(state, confirmed=True), (*effects, asked)
            return state, effects

        return restore_begun

    _put(stack, attempts, "restore_begun", make)
    _put(stack, coordinator, "restore_begun", lambda _: attempts.restore_begun)


@mutant("L2")
def complete_without_all_acknowledgements(stack: ExitStack) -> None:
    """The first acknowledgement is taken for the last."""

    def make(real: Any) -> Any:
        def acknowledged(state: Any, report: Any) -> Any:
            state, effects = real(state, report)
            flight = state.in_flight
            if flight is not None and flight.snapshots and not flight.storing:
                flight = replace(flight, storing=True)
                state = replace(state, in_flight=flight)
                effects = (StoreManifest(flight.checkpoint, flight.snapshots),)
            return state, effects

        return acknowledged

    _put(stack, coordinator, "acknowledged", make)


@mutant("L16")
def transactional_ids_shared_by_attempts(stack: ExitStack) -> None:
    """Attempts use the same ids: a sleeper's initialisation ends a live transaction (0007)."""

    def make(real: Any) -> Any:
        def complete_read(state: Any, checkpoint: Any) -> Any:
            state, effects = real(state, checkpoint)
            return state, tuple(e for e in effects if not isinstance(e, Sweep))

        return complete_read

    stack.enter_context(patch.object(World, "shared_ids", new=True))
    _put(stack, coordinator, "complete_read", make)  # a sweep would end live ones at once


@mutant("L17")
def producer_kept_after_an_indefinite_commit(stack: ExitStack) -> None:
    """A commit without an answer counts as one with: its late copy ends the next transaction."""

    def make(real: Any) -> Any:
        def committed(state: Any, slot: int, definite: bool) -> Any:
            return real(state, slot, True)

        return committed

    _put(stack, tx, "_committed", make)


@mutant("L19, L1")
def objects_given_up_before_complete_is_read_back(stack: ExitStack) -> None:
    """A coordinator deletes old objects on its own word, which may be void."""

    def make(real: Any) -> Any:
        def stored(state: Any, checkpoint: Any, manifest: str) -> Any:
            state, effects = real(state, checkpoint, manifest)
            _, more = coordinator.complete_read(state, checkpoint)
            return state, (*effects, *more)

        return stored

    _put(stack, coordinator, "manifest_stored", make)


@mutant("L15")
def ambiguous_taken_for_committed(stack: ExitStack) -> None:
    """A restore goes on over transactions that Kafka has lost."""
    _put(stack, restore, "verdict", lambda _: lambda *args, **kwargs: restore.Proceed())


@mutant("L7")
def what_is_held_stays_held_after_an_abort(stack: ExitStack) -> None:
    """Abort(n) does not end the alignment for n."""
    from penstock.barrier import alignment

    _put(stack, alignment, "_aborted", lambda _: lambda state, checkpoint: (state, ()))


@mutant("L11")
def a_worker_given_up_does_not_offer_itself_again(stack: ExitStack) -> None:
    """A worker that slept past its heartbeats is never given work again."""

    def make(real: Any) -> Any:
        def beat(self: SimulatedWorker, world: World) -> None:
            if self.running is not None:
                real(self, world)

        return beat

    _put(stack, SimulatedWorker, "beat", make)
