"""What the decision log says, folded record by record (L1, L2, L3).

Coordinator and workers fold the same log with the same function, so both see the same truth.

Invariants (tests cite them):
- H1 (L1) a record of a term lesser than the greatest Term record before it changes nothing.
- H2 (L2) a checkpoint is in ``completed`` exactly when a non-void Complete of it was read.
- H3 attempts and checkpoint ids never go back, and only the checkpoint in flight completes; a
  record that says otherwise is a ProtocolViolation.
- H4 (L14) a Restore ends the line of what came after its checkpoint: recovery fences, and so
  aborts, what only those checkpoints held, so they are never restored any more. An Import ends the
  line of everything before it.
"""

import msgspec

from penstock.control import (
    Abort,
    AnyDecision,
    Complete,
    Deploy,
    Import,
    Restore,
    Stop,
    Summary,
    TermBegan,
    Trigger,
)
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, CheckpointId, Term

REMEMBERED = 64
"""Complete checkpoints that a history remembers; more than any retention keeps."""


class History(msgspec.Struct, frozen=True):
    """Everything the decision log has decided so far."""

    term: Term = Term(-1)
    leader: str = ""
    attempt: Attempt = Attempt(0)
    """Greatest attempt that was restored or deployed."""
    deploy: Deploy | None = None
    """The deployment of ``attempt``; None between its Restore and Deploy, and before the first."""
    completed: tuple[tuple[CheckpointId, str], ...] = ()
    """(checkpoint, manifest) of the newest complete checkpoints, oldest first."""
    in_flight: CheckpointId | None = None
    last_checkpoint: CheckpointId = CheckpointId(0)
    """Greatest id ever triggered."""
    stopping: CheckpointId | None = None
    """The checkpoint of the running attempt after which the application stops, when triggered."""
    stopped: bool = False
    """The last deployment was stopped on purpose."""
    sinks: dict[str, tuple[int, int]] = {}
    """Per sink operator the greatest (parallelism, pool) ever deployed (L16)."""
    parallelism: dict[str, int] = {}
    imported: str = ""
    """The savepoint that was imported last."""


def applied(state: History, offset: int, decision: AnyDecision) -> tuple[History, bool]:
    """The history after one record, and whether the record counts (False: void by L1)."""
    if isinstance(decision, TermBegan):
        began = Term(offset)
        return msgspec.structs.replace(state, term=began, leader=decision.leader), True
    if decision.term < state.term:
        return state, False
    # A reader that begins at a Summary has not seen the Term record of its writer.
    state = _with(state, term=decision.term)
    match decision:
        case Trigger():
            return _triggered(state, decision), True
        case Complete():
            return _completed(state, decision), True
        case Import():
            return _imported(state, decision), True
        case Abort():
            return _with(state, in_flight=None, stopping=None), True
        case Restore():
            return _restored(state, decision), True
        case Deploy():
            return _deployed(state, decision), True
        case Stop():
            return _with(state, stopped=True, stopping=None, in_flight=None), True
        case Summary():
            return _summed(state, decision), True
    raise AssertionError(decision)  # pragma: no cover - the union is closed


def completed_at(state: History, checkpoint: CheckpointId | None) -> str | None:
    """The manifest of a complete checkpoint, None when it is not known to be complete."""
    return next((manifest for n, manifest in state.completed if n == checkpoint), None)


def retained(state: History, count: int) -> tuple[tuple[CheckpointId, str], ...]:
    """The newest ``count`` complete checkpoints, oldest first."""
    return state.completed[-count:]


def summary(state: History, count: int) -> Summary:
    """A record that stands for the whole log before it; made while no checkpoint is in flight."""
    if state.in_flight is not None:
        raise ValueError(f"checkpoint {state.in_flight} is in flight: a summary would hide it (L3)")
    return Summary(
        term=state.term,
        attempt=state.attempt,
        next_checkpoint=CheckpointId(state.last_checkpoint + 1),
        retained=retained(state, count),
        sinks=state.sinks,
        parallelism=state.parallelism,
        deploy=None if state.stopped else state.deploy,
        imported=state.imported,
    )


def _with(state: History, **changes: object) -> History:
    return msgspec.structs.replace(state, **changes)


def _triggered(state: History, trigger: Trigger) -> History:
    if trigger.checkpoint <= state.last_checkpoint:
        raise _went_back(f"Trigger({trigger.checkpoint})", f"checkpoint {state.last_checkpoint}")
    return _with(
        state,
        in_flight=trigger.checkpoint,
        last_checkpoint=trigger.checkpoint,
        stopping=trigger.checkpoint if trigger.stops else None,
    )


def _completed(state: History, complete: Complete) -> History:
    n = complete.checkpoint
    if n <= state.last_checkpoint and state.in_flight != n:
        raise _went_back(f"Complete({n})", f"checkpoint {n}, which is not in flight")
    completed = (*state.completed, (n, complete.manifest))[-REMEMBERED:]
    last = max(state.last_checkpoint, n)
    return _with(state, completed=completed, in_flight=None, last_checkpoint=last)


def _imported(state: History, found: Import) -> History:
    n = found.checkpoint
    if n <= state.last_checkpoint:
        raise _went_back(f"Import({n})", f"checkpoint {state.last_checkpoint}")
    return _with(
        state,
        completed=((n, found.manifest),),
        last_checkpoint=n,
        imported=found.savepoint,
    )


def _restored(state: History, restore: Restore) -> History:
    if restore.attempt <= state.attempt:
        raise _went_back(f"Restore of attempt {restore.attempt}", f"attempt {state.attempt}")
    lineage = restore.checkpoint or 0
    return _with(
        state,
        attempt=restore.attempt,
        deploy=None,
        completed=tuple(found for found in state.completed if found[0] <= lineage),
        in_flight=None,
        stopping=None,
        stopped=False,
    )


def _went_back(record: str, after: str) -> ProtocolViolation:
    return ProtocolViolation(
        f"the decision log holds {record} after {after}: attempts and checkpoints never go back "
        "(H3). Something else than a coordinator writes to the topic, or it was truncated"
    )


def _deployed(state: History, deploy: Deploy) -> History:
    if deploy.attempt < state.attempt:
        raise _went_back(f"Deploy of attempt {deploy.attempt}", f"attempt {state.attempt}")
    sinks = dict(state.sinks)
    for service in deploy.services:
        for stage in service.stages:
            for sink in stage.sinks:
                parallelism, pool = sinks.get(sink.uid, (0, 0))
                sinks[sink.uid] = (
                    max(parallelism, deploy.parallelism[service.name]),
                    max(pool, deploy.pool),
                )
    return _with(
        state,
        attempt=deploy.attempt,
        deploy=deploy,
        sinks=sinks,
        parallelism=deploy.parallelism,
        in_flight=None,
        stopping=None,
        stopped=False,
    )


def _summed(state: History, found: Summary) -> History:
    return _with(
        state,
        attempt=found.attempt,
        deploy=found.deploy,
        completed=found.retained,
        last_checkpoint=CheckpointId(found.next_checkpoint - 1),
        sinks=found.sinks,
        parallelism=found.parallelism,
        imported=found.imported,
    )
