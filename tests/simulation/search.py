"""Exhaustive search: every schedule of a small world, breadth first: a trace is the shortest."""

import gc
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.testing.world import Action, Broken, Plan, World

from tests.simulation.invariants import observe

Faults = tuple[str, ...]
"""The faults that may still happen, each once."""


class Found(NamedTuple):
    worlds: int
    schedules: int
    """Worlds in which nothing can happen any more."""


class Counterexample(AssertionError):
    def __init__(self, error: BaseException, trace: list[Action]) -> None:
        steps = "\n".join(f"  {i + 1:3} {' '.join(map(str, a))}" for i, a in enumerate(trace))
        super().__init__(f"{error}\nshortest schedule, {len(trace)} actions:\n{steps}")
        self.trace = trace


def started(plan: Plan, make: Callable[..., World] = World) -> World:
    """The world at the moment in which all subtasks run and nothing was read yet."""
    world = make(plan, observe)
    for service, count in plan.parallelism.items():
        for _ in range(count):
            world.perform(("spawn", service))
    world.perform(("lead",))
    later = (("source",), ("tick",))
    while actions := [action for action in world.actions() if action[1:2] not in later]:
        world.perform(actions[0])
    return world


def search(
    world: World,
    faults: Faults = (),
    *,
    most: int = 1_000_000,
    at_the_end: Callable[[World], None] | None = None,
) -> Found:
    """Visit every world that can follow; raises Counterexample."""
    seen = {(world.key(), faults)}
    came: dict[int, tuple[int, Action]] = {}
    queue: deque[tuple[int, World, Faults]] = deque([(0, world, faults)])
    gc.disable()  # nothing here is garbage in cycles, and there is much of it
    try:
        return _visit(queue, seen, came, most, at_the_end)
    finally:
        gc.enable()


def _visit(
    queue: deque[tuple[int, World, Faults]],
    seen: set[tuple[int, Faults]],
    came: dict[int, tuple[int, Action]],
    most: int,
    at_the_end: Callable[[World], None] | None,
) -> Found:
    number = ends = 0
    while queue and number < most:
        at, world, left = queue.popleft()
        steps = [(action, left) for action in world.actions()]
        if not steps:
            ends += 1
            _guarded(lambda w=world: at_the_end(w) if at_the_end else None, came, at, ())
        steps += [(fault, left[:i] + left[i + 1 :]) for i, kind in enumerate(left)
                  for fault in fault_actions(world, kind)]  # fmt: skip
        for action, remaining in steps:
            after = world.fork()
            _guarded(lambda w=after, a=action: w.perform(a), came, at, action)
            known = (after.key(), remaining)
            if known not in seen:
                seen.add(known)
                number += 1
                came[number] = (at, action)
                queue.append((number, after, remaining))
    return Found(len(seen), ends)


def fault_actions(world: World, kind: str) -> list[Action]:
    """The ways in which a kind of fault can happen now."""
    match kind:
        case "crash worker":
            return [("fault", "crash", w.name) for w in world.workers.values() if w.alive]
        case "crash leader":
            return [("fault", "crash", leader.name) for leader in world.leading()]
        case "zombie leader":
            return [("fault", "pause", leader.name) for leader in world.leading()]
        case "zombie worker":
            return [("fault", "pause", w.name) for w in world.workers.values() if w.alive]
        case "suspect":
            return [("fault", "suspect", w.name) for w in world.workers.values() if w.paused]
        case "wake":
            names = [*world.workers.values(), *world.leaders.values()]
            return [("fault", "wake", p.name) for p in names if p.paused]
        case "timeout":
            return [("fault", "clock", world.plan.timeout_ms)] if _in_flight(world) else []
        case "second leader":
            return [("lead",)]
        case "lost answer":
            return [("fault", "indefinite")]
        case "store":
            return [("fault", "store", True)]
        case "store again":
            return [("fault", "store", False)] if world.store_down else []
    raise ValueError(kind)


def _in_flight(world: World) -> bool:
    return any(
        leader.state is not None and leader.state.in_flight is not None
        for leader in world.leading()
    )


def _guarded(
    call: Callable[[], Any], came: dict[int, tuple[int, Action]], at: int, action: Action
) -> None:
    try:
        call()
    except Exception as error:
        trace = [action] if action else []
        while at in came:
            at, before = came[at]
            trace.append(before)
        raise Counterexample(error, trace[::-1]) from error


__all__ = ["Broken", "Counterexample", "Found", "fault_actions", "search", "started"]
