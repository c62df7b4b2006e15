"""The coordinator of one term, from its Term record to its end.

It decides by appending to the decision log; everything else it does follows from what it appended.
All times come in as events, milliseconds of any clock that does not go back. Its values are in
`leadership`, the checkpoint in flight in `flight`, the change of attempts in `attempts`.

Invariants (tests cite them):
- C1 (L2) Complete(n) is appended only after the manifest of n is durable, and the manifest is
  stored only after every subtask of the attempt acknowledged n.
- C2 (L3) after the last acknowledgement n is never timed out; it ends by ManifestStored or
  ManifestFailed.
- C3 (L11) reports of another attempt change nothing about checkpoints.
- C4 at most one checkpoint is in flight; ids increase.
- C5 (L16) Deploy(a) is appended only after Restore(a) and Recovered(a), and recovery begins only
  when Restore(a) was read back from the log: then it is not void, and no older attempt goes on.
- C6 (L1) a coordinator that reads a greater term than its own appends nothing more.
- C7 (L19, L1) objects and edge records are given up (Retain) only when the Complete that allows it
  was read back.
- C8 (L14) a graceful stop ends only when every transaction of its checkpoint was committed, by its
  subtask or by a recovery.
- C9 (L2) Import is appended only after the manifest that the savepoint became is durable, and after
  the recovery decided every transaction of the line that it ends.
- C10 (L19) a checkpoint that a savepoint is being made of is retained until that is done, or until
  nobody asks for it any more.
- C11 sources that came to their end stop the application: once all have, and not before.
"""

import msgspec

from penstock.checkpoint import history as hist
from penstock.checkpoint import savepoint
from penstock.checkpoint.attempts import (
    aborted,
    assigned,
    deployed,
    expected_subtasks,
    failed,
    importing,
    measured_if_complete,
    recovered,
    recovery_failed,
    restore_begun,
    restore_read,
    stopped,
)
from penstock.checkpoint.flight import (
    acknowledged,
    checkpoint_failed,
    complete_read,
    manifest_failed,
    manifest_stored,
    triggered,
)
from penstock.checkpoint.leadership import (
    Append,
    Coordinator,
    DecisionRead,
    Effect,
    Event,
    Exit,
    InFlight,
    ManifestFailed,
    ManifestStored,
    Measure,
    Measured,
    Phase,
    Recover,
    Recovered,
    RecoveryFailed,
    Reported,
    Retain,
    Say,
    Settings,
    Step,
    StopAsked,
    StoreManifest,
    Sweep,
    Ticked,
    Worker,
    appended,
    entered,
    replaced,
)
from penstock.control import (
    Abort,
    Acknowledge,
    AnyDecision,
    AnyReport,
    Complete,
    Decline,
    Deploy,
    Exhausted,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Ready,
    Restore,
    SavepointAsked,
    SavepointReleased,
    TermBegan,
)
from penstock.graph import SourceSpec
from penstock.ids import Attempt, Term

__all__ = [
    "Append",
    "Coordinator",
    "DecisionRead",
    "Effect",
    "Event",
    "Exit",
    "InFlight",
    "ManifestFailed",
    "ManifestStored",
    "Measure",
    "Measured",
    "Phase",
    "Recover",
    "Recovered",
    "RecoveryFailed",
    "Reported",
    "Retain",
    "Say",
    "Settings",
    "Step",
    "StopAsked",
    "StoreManifest",
    "Sweep",
    "Ticked",
    "Worker",
    "assigned",
    "coordinator",
    "expected_subtasks",
    "step",
]


def coordinator(settings: Settings, term: Term, history: hist.History, now_ms: int) -> Step:
    """Begin leading: ``history`` is the log up to and with our own Term record."""
    state = Coordinator(
        settings=settings,
        term=term,
        history=history,
        phase=Phase.RESUMING,
        now_ms=now_ms,
        since_ms=now_ms,
    )
    effects: tuple[Effect, ...] = ()
    if history.in_flight is not None:
        abort = Abort(
            term=term,
            attempt=history.attempt,
            checkpoint=history.in_flight,
            reason="a new coordinator leads",
        )
        state, effects = appended(state, abort)
    deploy = history.deploy
    pending = importing(state) is not None
    if (
        deploy is not None
        and not pending
        and history.stopping is not None
        and history.in_flight is None
    ):
        # The stop's checkpoint is complete, its Stop was not written: sources have stopped (C8).
        began, more = restore_begun(replaced(state, stop_asked=True), "finish the stop")
        return began, (*effects, *more)
    unchanged = (
        deploy is not None
        and deploy.parallelism == settings.services
        and (deploy.pool, deploy.mode) == (settings.pool, settings.mode)
    )
    if deploy is not None and unchanged and not history.stopped and not pending:
        services = {service.name: service for service in deploy.services}
        return replaced(state, services=services), effects
    began, more = restore_begun(state, "start")
    return began, (*effects, *more)


def step(state: Coordinator, event: Event) -> Step:
    """One step. An ended coordinator does nothing (C6)."""
    if state.phase is Phase.ENDED:
        return state, ()
    match event:
        case Ticked(now_ms):
            return _ticked(replaced(state, now_ms=max(now_ms, state.now_ms)))
        case Reported(report, now_ms):
            return _reported(replaced(state, now_ms=max(now_ms, state.now_ms)), report)
        case DecisionRead(offset, decision):
            return _read(state, offset, decision)
        case ManifestStored(checkpoint, manifest, now_ms):
            return manifest_stored(
                replaced(state, now_ms=max(now_ms, state.now_ms)), checkpoint, manifest
            )
        case ManifestFailed(checkpoint, reason, now_ms):
            state = replaced(state, now_ms=max(now_ms, state.now_ms))
            return manifest_failed(state, checkpoint, reason)
        case Measured():
            return deployed(state, event)
        case Recovered():
            return recovered(state, event)
        case RecoveryFailed():
            return recovery_failed(state, event)
        case StopAsked():
            return _stop_asked(replaced(state, stop_asked=True))


def _read(state: Coordinator, offset: int, decision: AnyDecision) -> Step:
    if offset > state.term and isinstance(decision, TermBegan):
        said = Exit(f"another coordinator leads since offset {offset} of the decision log")
        return entered(state, Phase.ENDED), (said,)
    match decision:
        case Restore():
            return restore_read(state, decision)
        case Complete() if decision.term == state.term:
            return complete_read(state, decision.checkpoint)
    return state, ()


# -- time


def _ticked(state: Coordinator) -> Step:
    state, effects = _lost_heartbeats(savepoint.forgotten(state))
    if effects:
        return state, effects
    in_phase_ms = state.now_ms - state.since_ms
    match state.phase:
        case Phase.RESUMING if in_phase_ms >= state.settings.resume_grace_ms:
            return restore_begun(state, "workers of the running attempt did not answer")
        case Phase.BACKING_OFF if state.now_ms >= state.due_ms:
            return restore_begun(state, state.reason)
        case Phase.STARTING if in_phase_ms >= 6 * state.settings.heartbeat_timeout_ms:
            return _still_starting(state)
        case Phase.RUNNING:
            return _checkpointing(state)
    return state, ()


def _still_starting(state: Coordinator) -> Step:
    """A restore takes as long as its state is large: only who has not begun it is late."""
    deploy = state.history.deploy
    if deploy is None or not (late := _not_in(state, deploy)):
        return state, ()
    return failed(state, f"{', '.join(late)} did not begin attempt {deploy.attempt} in time")


def _not_in(state: Coordinator, deploy: Deploy) -> list[str]:
    """The assigned workers that have not said that they run the attempt."""
    workers = state.workers
    return [
        name
        for name in sorted(set(deploy.assignment.values()))
        if name not in workers or workers[name].attempt != deploy.attempt
    ]


def _checkpointing(state: Coordinator) -> Step:
    settings, flight = state.settings, state.in_flight
    if flight is not None:
        late = state.now_ms - flight.triggered_ms >= settings.timeout_ms
        if late and not flight.storing:
            return checkpoint_failed(state, f"not complete within {settings.timeout_ms} ms")
        return state, ()
    if state.stop_asked or savepoint.due(state) is not None:
        return triggered(state)
    next_ms = max(
        state.last_triggered_ms + settings.interval_ms,
        state.last_settled_ms + settings.min_pause_ms,
        state.since_ms,
    )
    if state.now_ms >= next_ms:
        return triggered(state)
    return state, ()


def _lost_heartbeats(state: Coordinator) -> Step:
    limit = state.now_ms - state.settings.heartbeat_timeout_ms
    gone = [name for name, worker in state.workers.items() if worker.seen_ms < limit]
    if not gone:
        return state, ()
    effects: tuple[Effect, ...] = ()
    for name in gone:
        state, more = _left(state, name, "no heartbeat")
        effects += more
    return state, effects


# -- workers


def _reported(state: Coordinator, report: AnyReport) -> Step:
    match report:
        case Join():
            return _joined(state, report)
        case Leave():
            return _left(state, report.worker, report.reason)
        case SavepointAsked():
            return savepoint.asked(state, report)
        case SavepointReleased(request=request):
            return savepoint.released(state, request), ()
    known = state.workers.get(report.worker)
    if known is None:
        return state, ()
    state = _seen(state, report.worker, known)
    match report:
        case Heartbeat(attempt=attempt):
            return _seen_in(state, report.worker, attempt), ()
        case Ready(attempt=attempt):
            return _ready(state, report.worker, attempt)
        case Acknowledge():
            return acknowledged(state, report)
        case Decline():
            flight = state.in_flight
            if (
                flight is None
                or flight.storing
                or report.attempt != state.history.attempt
                or report.checkpoint != flight.checkpoint
            ):
                return state, ()
            return checkpoint_failed(state, f"{report.subtask} declined: {report.reason}")
        case Failed():
            return _worker_failed(state, report)
        case Exhausted():
            return _exhausted(state, report)
        case Finished():
            return _finished(state, report)


def _exhausted(state: Coordinator, report: Exhausted) -> Step:
    """Stop when every source of the attempt came to its end (C11)."""
    deploy = state.history.deploy
    if deploy is None or report.attempt != deploy.attempt or state.phase is not Phase.RUNNING:
        return state, ()
    state = replaced(state, exhausted=state.exhausted | {report.worker})
    reading = {
        deploy.assignment[f"{service.name}/{index}"]
        for service in deploy.services
        if any(isinstance(stage.input, SourceSpec) for stage in service.stages)
        for index in range(deploy.parallelism[service.name])
    }
    if state.stop_asked or not reading <= state.exhausted:
        return state, ()
    said = Say("every source came to the end that it was given: stopping")
    return replaced(state, stop_asked=True), (said,)


def _seen(state: Coordinator, name: str, worker: Worker, **changes: object) -> Coordinator:
    worker = msgspec.structs.replace(worker, seen_ms=state.now_ms, **changes)
    return replaced(state, workers={**state.workers, name: worker})


def _seen_in(state: Coordinator, name: str, attempt: Attempt) -> Coordinator:
    return _seen(state, name, state.workers[name], attempt=attempt)


def _joined(state: Coordinator, join: Join) -> Step:
    if join.service.name not in state.settings.services:
        expected = ", ".join(sorted(state.settings.services))
        said = f"worker {join.worker} offers service {join.service.name!r}, expected: {expected}"
        return state, (Say(said),)
    restarted = _is_active(state, join.worker) and join.attempt != state.history.attempt
    worker = Worker(join.service.name, join.slot, state.now_ms, join.attempt)
    running = state.phase in (Phase.RESUMING, Phase.RUNNING)
    if running and join.attempt == state.history.attempt:
        worker = msgspec.structs.replace(worker, ready=True)
    state = replaced(
        state,
        workers={**state.workers, join.worker: worker},
        services={**state.services, join.service.name: join.service},
    )
    if state.phase is Phase.WAITING:
        return measured_if_complete(state)
    if restarted:
        gone = f"worker {join.worker} does not run attempt {state.history.attempt}"
        return failed(state, gone, lost=True)
    if state.phase is Phase.RESUMING:
        return _resumed(state)
    return state, ()


def _is_active(state: Coordinator, name: str) -> bool:
    """Whether the attempt stands on this worker. While STARTING a worker may join once more."""
    deploy = state.history.deploy
    phases = (Phase.RESUMING, Phase.RUNNING, Phase.STOPPING)
    return deploy is not None and name in deploy.assignment.values() and state.phase in phases


def _resumed(state: Coordinator) -> Step:
    deploy = state.history.deploy
    if deploy is None or _not_in(state, deploy):
        return state, ()
    said = Say(f"attempt {deploy.attempt} goes on under a new coordinator")
    return entered(state, Phase.RUNNING), (said,)


def _left(state: Coordinator, name: str, reason: str) -> Step:
    if name not in state.workers:
        assigned = state.history.deploy.assignment.values() if state.history.deploy else ()
        if name in assigned and state.phase is Phase.RESUMING:
            return restore_begun(state, f"worker {name} is gone: {reason}")
        return state, ()
    if state.phase is Phase.STOPPING and state.workers[name].finished:
        return state, ()
    workers = {key: worker for key, worker in state.workers.items() if key != name}
    state = replaced(state, workers=workers)
    deploy = state.history.deploy
    if _is_active(state, name) or (
        state.phase is Phase.STARTING and deploy is not None and name in deploy.assignment.values()
    ):
        # In a graceful stop too: recovery commits what it left behind (C8).
        return failed(state, f"worker {name} is gone: {reason}", lost=True)
    return state, ()


def _ready(state: Coordinator, name: str, attempt: Attempt) -> Step:
    if attempt != state.history.attempt or state.phase is not Phase.STARTING:
        return state, ()
    state = _seen(state, name, state.workers[name], attempt=attempt, ready=True)
    deploy = state.history.deploy
    if deploy is None:
        return state, ()
    assigned = set(deploy.assignment.values())
    if all(name in state.workers and state.workers[name].ready for name in assigned):
        return entered(state, Phase.RUNNING), (Say(f"attempt {attempt} runs"),)
    return state, ()


def _worker_failed(state: Coordinator, report: Failed) -> Step:
    if report.attempt != state.history.attempt:
        return state, ()
    if report.fatal:
        # A manifest in flight is left to the next leader, which aborts its checkpoint (C2, L3).
        storing = state.in_flight is not None and state.in_flight.storing
        state, effects = (state, ()) if storing else aborted(state, report.reason)
        return entered(state, Phase.ENDED), (*effects, Exit(report.reason))
    if state.phase in (Phase.STARTING, Phase.RUNNING, Phase.RESUMING, Phase.STOPPING):
        return failed(state, report.reason)
    return state, ()


# -- stop


def _stop_asked(state: Coordinator) -> Step:
    """Where nothing runs, stop at once; but a recovery is finished first (C8)."""
    match state.phase:
        case Phase.RUNNING:
            return _checkpointing(state)
        case Phase.WAITING | Phase.MEASURING:
            return stopped(state)
        case Phase.BACKING_OFF:
            return restore_begun(state, "finish what is complete, then stop")
    return state, ()


def _finished(state: Coordinator, report: Finished) -> Step:
    deploy = state.history.deploy
    if deploy is None or report.attempt != state.history.attempt:
        return state, ()
    state = _seen(state, report.worker, state.workers[report.worker], finished=True)
    assigned = set(deploy.assignment.values())
    everybody = all(n in state.workers and state.workers[n].finished for n in assigned)
    if state.phase is not Phase.STOPPING or not everybody:
        return state, ()
    return entered(state, Phase.ENDED), (Exit(),)
