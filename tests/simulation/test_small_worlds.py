"""Tier 2: every schedule of small worlds, and from each end of a schedule a run to the very end.

L1-L7, L9-L17, L19, L20: the invariants looked at after every step name theirs.
"""

import os
import random

import pytest
from penstock.testing.world import World, settle

from tests.simulation.invariants import at_the_end, observe
from tests.simulation.search import search, started
from tests.simulation.small_worlds import SMALL_WORLDS

ALL = os.environ.get("PENSTOCK_WORLDS") == "all"
"""Visit every world there is: minutes, for a night."""


@pytest.mark.parametrize("name", SMALL_WORLDS)
@pytest.mark.timeout(3600 if ALL else 120)
def test_every_schedule(name: str) -> None:
    small = SMALL_WORLDS[name]
    most = 10_000_000 if ALL else small.most
    settles = Settles(most // 100)
    found = search(started(small.plan), small.faults, most=most, at_the_end=settles)
    print(f"{name}: {found.worlds} worlds, {found.schedules} ends of schedules")
    assert found.worlds > 1000


class Settles:
    """Exactly once at the very end, whatever the schedule was (L12-L16)."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, world: World) -> None:
        if self.left > 0:
            self.left -= 1
            fork = world.fork()
            at_the_end(fork, settle(fork, random.Random(self.left)).outcome)


def test_search_prints_the_shortest_schedule() -> None:
    from tests.simulation.mutants import MUTANTS
    from tests.simulation.search import Counterexample

    small = SMALL_WORLDS["nothing fails"]
    with (
        MUTANTS["commit before complete"].patched(),
        pytest.raises(Counterexample, match=r"shortest schedule, \d actions") as caught,
    ):
        search(started(small.plan), most=4000)
    assert ("src-1", "source", 0) in caught.value.trace


def test_a_world_and_its_fork_do_not_touch_each_other() -> None:
    world = started(SMALL_WORLDS["nothing fails"].plan)
    key = world.key()
    fork = world.fork()
    assert fork.key() == key
    settle(fork, random.Random(1))
    assert world.key() == key
    assert fork.key() != key
    assert world.observer is observe
