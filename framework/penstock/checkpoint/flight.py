"""The checkpoint in flight: trigger, acknowledgements, manifest, Complete or Abort.

A part of the coordinator's machine; its invariants are listed there.
"""

import msgspec

from penstock.checkpoint import savepoint
from penstock.checkpoint.attempts import aborted, expected_subtasks, failed
from penstock.checkpoint.leadership import (
    Coordinator,
    InFlight,
    Phase,
    Retain,
    Say,
    Step,
    StoreManifest,
    Sweep,
    appended,
    entered,
    replaced,
)
from penstock.control import Acknowledge, Complete, Stop, Trigger
from penstock.ids import CheckpointId


def triggered(state: Coordinator) -> Step:
    """Sources are to take the next barrier; the last one when a stop was asked for."""
    request = savepoint.due(state)
    drain = request is not None and request.drain
    stop = state.stop_asked or drain or (request is not None and request.stop)
    deploy = state.history.deploy
    if deploy is None:
        return state, ()
    checkpoint = CheckpointId(state.history.last_checkpoint + 1)
    trigger = Trigger(
        term=state.term,
        attempt=deploy.attempt,
        checkpoint=checkpoint,
        kind="drain" if drain else "stop" if stop else "checkpoint",
        at_ms=state.now_ms,
        savepoint="" if request is None else request.request,
    )
    flight = InFlight(
        checkpoint,
        state.now_ms,
        expected_subtasks(deploy),
        stop=stop,
        savepoint=trigger.savepoint,
    )
    state = replaced(state, in_flight=flight, last_triggered_ms=state.now_ms)
    return appended(state, trigger)


def acknowledged(state: Coordinator, report: Acknowledge) -> Step:
    """One subtask's part is durable; with the last one the manifest is stored (C1)."""
    flight = state.in_flight
    subtask = report.snapshot.subtask
    if (
        flight is None
        or flight.storing
        or report.attempt != state.history.attempt
        or report.checkpoint != flight.checkpoint
        or subtask not in flight.missing
    ):
        return state, ()
    missing = flight.missing - {subtask}
    snapshots = (*flight.snapshots, report.snapshot)
    storing = not missing
    flight = msgspec.structs.replace(flight, missing=missing, snapshots=snapshots, storing=storing)
    state = replaced(state, in_flight=flight)
    return state, (StoreManifest(flight.checkpoint, snapshots),) if storing else ()


def manifest_stored(state: Coordinator, checkpoint: CheckpointId, manifest: str) -> Step:
    """The checkpoint is complete."""
    flight = state.in_flight
    if flight is None or flight.checkpoint != checkpoint or not flight.storing:
        return state, ()
    complete = Complete(
        term=state.term, attempt=state.history.attempt, checkpoint=checkpoint, manifest=manifest
    )
    state, effects = appended(state, complete)
    steady = state.now_ms - state.since_ms >= state.settings.steady_ms
    state = replaced(
        state,
        in_flight=None,
        failures=0,
        failed_attempts=0 if steady else state.failed_attempts,
        last_settled_ms=state.now_ms,
        stop_asked=state.stop_asked or flight.stop,
    )
    state = savepoint.complete(state, flight.savepoint, (checkpoint, manifest))
    if state.restore_after is not None:
        waiting, lost = state.restore_after, state.restore_lost
        state, more = failed(replaced(state, restore_after=None), waiting, lost=lost)
        return state, (*effects, *more)
    if flight.stop:
        stop = Stop(term=state.term, attempt=state.history.attempt, checkpoint=checkpoint)
        state, more = appended(state, stop)
        return entered(state, Phase.STOPPING), (*effects, *more)
    return state, effects


def complete_read(state: Coordinator, checkpoint: CheckpointId) -> Step:
    """Our Complete stands in the log: what only older checkpoints need may go (C7)."""
    upto = [found for found in state.history.completed if found[0] <= checkpoint]
    newer = [found for found in state.history.completed if found[0] > checkpoint]
    recent = (*upto[-state.settings.retained :], *newer)
    retain = Retain((*savepoint.pinned(state, recent), *recent))
    deploy = state.history.deploy
    early = state.now_ms - state.swept_ms < state.settings.sweep_interval_ms
    early = early and state.phase is not Phase.STOPPING  # nobody sweeps after a stop
    if deploy is None or early:  # before its recovery, older attempts still hold what is complete
        return state, (retain,)
    return replaced(state, swept_ms=state.now_ms), (retain, Sweep(deploy.attempt))


def manifest_failed(state: Coordinator, checkpoint: CheckpointId, reason: str) -> Step:
    """The checkpoint fails; a restore that waited for it begins (C2)."""
    flight = state.in_flight
    if flight is None or flight.checkpoint != checkpoint or not flight.storing:
        return state, ()
    waiting = state.restore_after
    if waiting is not None:
        state, effects = aborted(replaced(state, restore_after=None), reason)
        state, more = failed(state, waiting, lost=state.restore_lost)
        return state, (*effects, *more)
    return checkpoint_failed(state, f"the manifest was not stored: {reason}")


def checkpoint_failed(state: Coordinator, reason: str) -> Step:
    """Count it; one failure more than is tolerated ends the attempt."""
    flight = state.in_flight
    state, effects = aborted(state, reason)
    if flight is not None:
        effects += (Say(f"checkpoint {flight.checkpoint} failed: {reason}"),)
    state = replaced(state, failures=state.failures + 1)
    if state.failures > state.settings.tolerable_failures:
        tolerated = state.settings.tolerable_failures
        state, more = failed(
            state,
            f"{state.failures} checkpoints failed in a row, {tolerated} are tolerated: {reason}",
        )
        return state, (*effects, *more)
    return state, effects
