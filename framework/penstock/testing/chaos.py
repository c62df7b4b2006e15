"""Seeded worlds: one number gives an application, a history of faults, and its verdict.

A run has two parts: chaos, in which processes die, sleep and wake, requests arrive late, the store
goes down and the broker gives up transactions; then `settle`, in which nothing fails any more and
everything must get on, end and have its output exactly once.
"""

import random
from collections.abc import Callable

import msgspec

from penstock.testing.world import (
    Action,
    Observer,
    Plan,
    Settled,
    World,
    is_running,
    settle,
)

KEYS = "abcd"


class Failed(AssertionError):
    """A seed that broke something, with the way to see it again."""


class Chances(msgspec.Struct, frozen=True):
    """How often faults happen, as weights against one action of the application."""

    fault: float = 0.012
    only: tuple[str, ...] = ()
    """Kinds of faults, when not all."""
    broker_loses: bool = False
    """The broker may give up transactions that are open: then output may be lost, but never twice,
    and never in silence."""


def plan_of(chance: random.Random) -> Plan:
    """A small application."""
    partitions = chance.randint(1, 3)
    return Plan(
        sources=tuple(
            tuple(chance.choice(KEYS) for _ in range(chance.randint(3, 20)))
            for _ in range(partitions)
        ),
        parallelism={
            "src": chance.randint(1, min(2, partitions)),
            "cnt": chance.randint(1, 2),
        },
        edge_partitions=chance.randint(2, 3),
        echo=chance.random() < 0.5,
        tolerable_failures=chance.choice([0, 1, 3]),
        retained=chance.choice([1, 2, 2, 3]),
        interval_ms=chance.choice([0, 10]),
        checkpoints=chance.randint(3, 9),
    )


def run(
    seed: int,
    observer: Observer | None = None,
    at_the_end: Callable[[World, str], None] | None = None,
    *,
    plan: Plan | None = None,
    chances: Chances | None = None,
    make: Callable[[Plan, Observer | None], World] = World,
) -> Settled:
    """Run one seed; raises Failed, which says how to run it again."""
    chance = random.Random(seed)
    plan = plan or plan_of(chance)
    world = make(plan, observer)
    history: list[Action] = []
    limits = chances or Chances(broker_loses=chance.random() < 0.25)
    try:
        _started(world, chance)
        for _ in range(chance.randint(100, 700)):
            if world.ended() is not None:
                break
            action = _chosen(world, chance, limits)
            history.append(action)
            world.perform(action)
        settled = settle(world, chance)
        if at_the_end is not None:
            at_the_end(world, settled.outcome)
    except Exception as error:
        faults = [action[1:] for action in history if action[0] == "fault"]
        raise Failed(
            f"seed {seed}: {error}\n  {plan}\n  after {len(history)} actions with faults {faults}"
            f"\n  run it again: PENSTOCK_SEED={seed} make check, or "
            f"penstock.testing.chaos.run({seed})"
        ) from error
    return settled


def _started(world: World, chance: random.Random) -> None:
    """Most of the worlds are running before the first fault."""
    if chance.random() < 0.3:
        return
    while not is_running(world):
        actions = world.actions()
        world.perform(chance.choice(actions) if actions else ("fault", "clock", 10))


def _chosen(world: World, chance: random.Random, limits: Chances) -> Action:
    # An outage hurts between Complete and the commits; that moment is short, so help it.
    hurts = limits.broker_loses and len(world.truth.completed) > 1 and world.undecided()
    if chance.random() < (0.1 if hurts else limits.fault):
        faults = possible_faults(world, broker_loses=limits.broker_loses)
        if limits.only:
            faults = [fault for fault in faults if fault[0] in limits.only]
        fault = chance.choice(faults)
        return fault if fault == ("lead",) else ("fault", *fault)
    if chance.random() < 0.03:
        return ("fault", "clock", 10)
    names = [*world.workers, *world.leaders, ""]
    first = chance.randrange(len(names))
    for name in names[first:] + names[:first]:
        actions = world.actions_of(name)
        chosen = chance.choice(actions) if actions else None
        if chosen is not None and (chosen[0] != "late" or chance.random() < 0.1):
            return chosen
    return ("fault", "clock", 10)


def possible_faults(world: World, *, broker_loses: bool = False) -> list[Action]:
    """What may go wrong now; what costs a whole restore is rarer than what only delays."""
    workers = [(w.name, w.paused) for w in world.workers.values() if w.alive]
    alive = workers + [(p.name, p.paused) for p in world.leaders.values() if p.alive]
    found: list[Action] = [("indefinite",)] * 4 + [("lead",)]
    found += [("store", not world.store_down)] * (5 if world.store_down else 1)
    found += [("crash", name) for name, paused in alive if not paused]
    found += [("pause", name) for name, paused in alive if not paused]
    found += [("wake", name) for name, paused in alive if paused] * 3
    found += [("suspect", w.name) for w in world.workers.values() if w.alive and w.paused]
    found += [("clock", 450)]
    if world.spawned % 3 == 0:
        found += [("rescale", "cnt", n) for n in range(1, world.plan.edge_partitions + 1)]
        found += [("import", f"savepoint-{world.spawned}")]
    found += [("savepoint", f"request-{world.spawned}")]
    if broker_loses:
        undecided = world.undecided()
        found += [("forget", name) for name in undecided] + [("forget",)] * (30 if undecided else 1)
    return found
