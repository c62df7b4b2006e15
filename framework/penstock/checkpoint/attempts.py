"""How an attempt ends and the next one begins: abort, delay, restore, deploy.

A part of the coordinator's machine; its invariants are listed there.
"""

import msgspec

from penstock.checkpoint import history as hist
from penstock.checkpoint.leadership import (
    Coordinator,
    Exit,
    Measure,
    Measured,
    Phase,
    Recover,
    Recovered,
    RecoveryFailed,
    Say,
    Step,
    Worker,
    appended,
    entered,
    replaced,
)
from penstock.control import Abort, Deploy, Import, Restore, Stop
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, CheckpointId, SubtaskId


def aborted(state: Coordinator, reason: str) -> Step:
    """The checkpoint in flight, if any, will never complete."""
    flight = state.in_flight
    if flight is None:
        return state, ()
    abort = Abort(
        term=state.term,
        attempt=state.history.attempt,
        checkpoint=flight.checkpoint,
        reason=reason,
    )
    state = replaced(state, in_flight=None, last_settled_ms=state.now_ms)
    return appended(state, abort)


def failed(state: Coordinator, reason: str, *, lost: bool = False) -> Step:
    """The attempt is over. A manifest in flight is waited for: its checkpoint may complete (C2).

    ``lost``: a process is gone, which nothing in the attempt need have caused; whoever starts it
    again sets the pace.
    """
    if state.in_flight is not None and state.in_flight.storing:
        return replaced(state, restore_after=reason, restore_lost=lost), ()
    state, effects = aborted(state, reason)
    if not lost:
        state = replaced(state, failed_attempts=state.failed_attempts + 1)
    delay = 0 if lost else _delay_ms(state)
    if delay == 0:
        state, more = restore_begun(state, reason)
        return state, (*effects, *more)
    state = entered(state, Phase.BACKING_OFF, due_ms=state.now_ms + delay, reason=reason)
    return state, (*effects, Say(f"restart in {delay} ms: {reason}"))


def _delay_ms(state: Coordinator) -> int:
    """None at first; then exponential, so that an attempt that is poisoned does not spin."""
    if state.failed_attempts <= 1:
        return 0
    if state.stop_asked:
        return state.settings.restart_initial_ms  # what is complete is finished, then it stops
    doubled = state.settings.restart_initial_ms << min(state.failed_attempts - 2, 20)
    return min(doubled, state.settings.restart_max_ms)


def restore_begun(state: Coordinator, reason: str, checkpoint: CheckpointId | None = None) -> Step:
    """Decide the next attempt. Its recovery begins when Restore is read back (`restore_read`)."""
    attempt = Attempt(state.history.attempt + 1)
    newest = state.history.completed[-1][0] if state.history.completed else None
    chosen = checkpoint if checkpoint is not None else newest
    manifest = hist.completed_at(state.history, chosen)
    if chosen is not None and manifest is None:
        unknown = f"checkpoint {chosen} cannot be restored: the decision log has no manifest of it"
        return entered(state, Phase.ENDED), (Exit(unknown),)
    restore = Restore(
        term=state.term, attempt=attempt, checkpoint=chosen, manifest=manifest, reason=reason
    )
    told = state.phase is Phase.BACKING_OFF  # why, when the delay began
    state = entered(
        state,
        Phase.RESTORING,
        restoring=chosen,
        confirmed=False,
        in_flight=None,
        restore_after=None,
        exhausted=frozenset(),
    )
    state, effects = appended(state, restore)
    origin = "from nothing" if chosen is None else f"from checkpoint {chosen}"
    said = Say(f"attempt {attempt} {origin}" + ("" if told else f": {reason}"))
    return state, (*effects, said)


def restore_read(state: Coordinator, restore: Restore) -> Step:
    """Our Restore stands in the log before any greater term: older attempts are over (C5, 0006).

    Written is not enough: a leader that slept would fence the attempt that another one runs.
    """
    ours = restore.term == state.term and restore.attempt == state.history.attempt
    if state.phase is not Phase.RESTORING or state.confirmed or not ours:
        return state, ()
    kept = [n for n, _ in hist.retained(state.history, state.settings.retained)]
    older = kept[-2] if len(kept) > 1 else None
    begins_anew = importing(state) is not None
    recover = Recover(restore.attempt, restore.checkpoint, restore.manifest, older, begins_anew)
    return replaced(state, confirmed=True), (recover,)


def recovered(state: Coordinator, event: Recovered) -> Step:
    """Nothing of older attempts can act any more: deploy when the workers are there."""
    if state.phase is not Phase.RESTORING or event.attempt != state.history.attempt:
        return state, ()
    if not state.confirmed:
        raise ProtocolViolation(f"attempt {event.attempt} recovered before its Restore was read")
    state = entered(state, Phase.WAITING)
    return stopped(state) if state.stop_asked else measured_if_complete(state)


def stopped(state: Coordinator) -> Step:
    """Stop where nothing runs and every transaction is decided."""
    stop = Stop(term=state.term, attempt=state.history.attempt, checkpoint=state.restoring)
    state, effects = appended(state, stop)
    return entered(state, Phase.ENDED), (*effects, Exit())


def recovery_failed(state: Coordinator, event: RecoveryFailed) -> Step:
    """Try again, fall back to an older checkpoint, or end when only a person can help."""
    active = state.phase in (Phase.RESTORING, Phase.MEASURING)
    if not active or event.attempt != state.history.attempt:
        return state, ()
    if event.fall_back is not None:
        return restore_begun(state, event.reason, event.fall_back)
    if event.fatal:
        return entered(state, Phase.ENDED), (Exit(event.reason),)
    return failed(state, event.reason)


def measured_if_complete(state: Coordinator) -> Step:
    """Measure the edges once every subtask has a worker: only then the graph is known."""
    if assigned(state.settings.services, state.workers) is None:
        return state, ()
    services = tuple(state.services[name] for name in sorted(state.settings.services))
    asked = Measure(state.history.attempt, services, importing(state))
    return entered(state, Phase.MEASURING), (asked,)


def importing(state: Coordinator) -> CheckpointId | None:
    """The checkpoint that the savepoint of the settings is to become; None when it was imported."""
    settings = state.settings
    if settings.savepoint in ("", state.history.imported):
        return None
    return CheckpointId(max(state.history.last_checkpoint, settings.savepoint_checkpoint) + 1)


def deployed(state: Coordinator, event: Measured) -> Step:
    """Deploy; a worker that left meanwhile is waited for again."""
    if state.phase is not Phase.MEASURING or event.attempt != state.history.attempt:
        return state, ()
    assignment = assigned(state.settings.services, state.workers)
    if assignment is None:
        return entered(state, Phase.WAITING), ()
    state, effects = _imported(state, event.imported)
    deploy = Deploy(
        term=state.term,
        attempt=state.history.attempt,
        checkpoint=state.restoring,
        manifest=hist.completed_at(state.history, state.restoring),
        services=tuple(state.services[name] for name in sorted(state.settings.services)),
        parallelism=state.settings.services,
        assignment=assignment,
        edge_starts=event.edge_starts,
        pool=state.settings.pool,
        mode=state.settings.mode,
    )
    workers = {
        name: msgspec.structs.replace(worker, ready=False) for name, worker in state.workers.items()
    }
    state, more = appended(entered(replaced(state, workers=workers), Phase.STARTING), deploy)
    return state, (*effects, *more)


def _imported(state: Coordinator, manifest: str | None) -> Step:
    """The savepoint became a checkpoint, and its manifest is durable (C9)."""
    checkpoint = importing(state)
    if checkpoint is None or manifest is None:
        return state, ()
    found = Import(
        term=state.term,
        attempt=state.history.attempt,
        checkpoint=checkpoint,
        manifest=manifest,
        savepoint=state.settings.savepoint,
    )
    state, effects = appended(replaced(state, restoring=checkpoint), found)
    return state, (*effects, Say(f"checkpoint {checkpoint} is the savepoint's state"))


def assigned(services: dict[str, int], workers: dict[str, Worker]) -> dict[str, str] | None:
    """``<service>/<index>`` -> worker, or None while workers are missing.

    A slot that a worker asks for is kept for it; of two that ask for one, the last heard of has it.
    """
    result: dict[str, str] = {}
    for service in sorted(services):
        offers = {name: w for name, w in sorted(workers.items()) if w.service == service}
        newest_last = sorted(offers, key=lambda name: (offers[name].seen_ms, name))
        wanted = {offers[name].slot: name for name in newest_last if offers[name].slot is not None}
        free = [name for name, w in offers.items() if w.slot is None]
        for index in range(services[service]):
            name = wanted.get(index) or (free.pop(0) if free else None)
            if name is None:
                return None
            result[f"{service}/{index}"] = name
    return result


def expected_subtasks(deploy: Deploy) -> frozenset[SubtaskId]:
    """Every subtask of a deployment; a checkpoint needs an acknowledgement of each."""
    return frozenset(
        SubtaskId(stage.name, index)
        for service in deploy.services
        for stage in service.stages
        for index in range(deploy.parallelism[service.name])
    )
