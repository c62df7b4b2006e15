"""Savepoints that somebody waits for: when to trigger, what to keep meanwhile.

A part of the coordinator's machine; its invariants are listed there. Making the savepoint out of
its checkpoint is the work of whoever asked: the coordinator only keeps the checkpoint for it.
"""

import msgspec

from penstock.checkpoint import history as hist
from penstock.checkpoint.leadership import Coordinator, Say, Step, Wanted, replaced
from penstock.control import SavepointAsked
from penstock.ids import CheckpointId

Made = tuple[CheckpointId, str]


def asked(state: Coordinator, report: SavepointAsked) -> Step:
    """Somebody wants a savepoint, still or for the first time."""
    known = state.wanted.get(report.request)
    if known is not None:
        known = msgspec.structs.replace(known, seen_ms=state.now_ms)
        return _with(state, known), ()
    made_of = None
    if report.checkpoint is not None:
        # Asked of a coordinator before us: what is complete is only to be kept.
        manifest = hist.completed_at(state.history, report.checkpoint)
        if manifest is None:
            return state, ()
        made_of = (report.checkpoint, manifest)
    wanted = Wanted(report.request, report.stop, report.drain, state.now_ms, made_of)
    how = " and stops with it" if report.stop or report.drain else ""
    said = () if made_of else (Say(f"takes savepoint {report.request}{how}"),)
    return _with(state, wanted), said


def released(state: Coordinator, request: str) -> Coordinator:
    """The savepoint is made, or no longer wanted."""
    left = {name: wanted for name, wanted in state.wanted.items() if name != request}
    return replaced(state, wanted=left)


def forgotten(state: Coordinator) -> Coordinator:
    """Drop those that nobody asked for again: whoever wanted them is gone."""
    limit = state.now_ms - state.settings.request_timeout_ms
    if all(wanted.seen_ms >= limit for wanted in state.wanted.values()):
        return state
    left = {name: wanted for name, wanted in state.wanted.items() if wanted.seen_ms >= limit}
    return replaced(state, wanted=left)


def due(state: Coordinator) -> Wanted | None:
    """The oldest one that no checkpoint was completed for."""
    return next((wanted for wanted in state.wanted.values() if wanted.made_of is None), None)


def complete(state: Coordinator, request: str, made_of: Made) -> Coordinator:
    """The checkpoint of ``request`` is complete."""
    wanted = state.wanted.get(request)
    if wanted is None:
        return state
    return _with(state, msgspec.structs.replace(wanted, made_of=made_of))


def pinned(state: Coordinator, recent: tuple[Made, ...]) -> tuple[Made, ...]:
    """Checkpoints that are kept only because a savepoint is being made of them (C10)."""
    made = {wanted.made_of for wanted in state.wanted.values() if wanted.made_of is not None}
    return tuple(sorted(made - set(recent)))


def _with(state: Coordinator, wanted: Wanted) -> Coordinator:
    return replaced(state, wanted={**state.wanted, wanted.request: wanted})
