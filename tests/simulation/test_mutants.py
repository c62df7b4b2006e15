"""Every seeded protocol bug is caught, and this table says by which tier, and by which invariant.

`output` are seeds that look at nothing but what a user sees: records doubled or lost, snapshots
that do not add up, transactions left open, an application that does not get on.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from penstock.testing import chaos
from penstock.testing.surroundings import Mark
from penstock.testing.world import Broken, Plan, World

from tests.simulation import invariants
from tests.simulation.mutants import MUTANTS
from tests.simulation.search import search, started
from tests.simulation.small_worlds import SMALL_WORLDS


class Search(NamedTuple):
    """Every schedule of a small world, until one is broken."""

    world: str

    def __call__(self) -> None:
        small = SMALL_WORLDS[self.world]
        search(started(small.plan), small.faults, most=20_000)


class Seeds(NamedTuple):
    """Seeds from ``first`` on, until one is broken; a later change of the chaos may move it."""

    first: int = 0
    options: Mapping[str, Any] = MappingProxyType({})
    observer: Any = invariants.observe

    def __call__(self) -> None:
        for seed in range(self.first, self.first + 400):
            chaos.run(seed, self.observer, invariants.at_the_end, **self.options)


def outer_invariants(world: World, mark: Mark) -> None:
    for invariant in invariants.INVARIANTS.get(mark.what, ()):
        if invariant.number in ("X1", "X3", "R1", "R2") and not invariant.holds(world, mark):
            raise Broken(f"{invariant.number} {invariant.sentence}")


def output(first: int = 0, options: Mapping[str, Any] = MappingProxyType({})) -> Seeds:
    """Seeds that look at the output only."""
    return Seeds(first, options, outer_invariants)


def long_run(pairs: int) -> Plan:
    return Plan(
        sources=(("a", "b") * pairs,),
        parallelism={"src": 1, "cnt": 1},
        edge_partitions=1,
        tolerable_failures=0,
        interval_ms=0,
        checkpoints=8,
    )


REUSE = {
    "plan": long_run(pairs=40),
    "chances": chaos.Chances(fault=0.05, only=("indefinite",)),
}
"""A world in which producers come round again while copies of lost commits are on their way."""

SLEEPERS = {
    "plan": long_run(pairs=15),
    "chances": chaos.Chances(fault=0.06, only=("pause", "wake", "suspect", "lead", "crash")),
}
"""A world in which processes sleep through whole attempts and wake."""

CAUGHT: list[tuple[str, Any, str]] = [
    ("stale acknowledgement accepted", Search("a checkpoint times out"), "C3"),
    ("abort while the manifest is in flight", Search("a checkpoint times out"), "C2"),
    ("abort while the manifest is in flight", Seeds(86), "C2"),
    ("commit before complete", Search("nothing fails"), "S2"),
    ("commit before complete", output(0), "X1"),
    ("init before commit on restore", Seeds(5), "X4"),
    ("held record applied early", Search("alignment"), "X3"),
    ("held record applied early", output(5), "X3"),
    ("zombie frames accepted", output(26), "X3|barrier"),
    ("transaction aborted with its checkpoint", Seeds(5), "not settled"),
    ("producer reused while it is listed", Search("nothing fails"), "S3"),
    ("producer reused while it is listed", Seeds(5), "S3"),
    ("recovery without reading restore back", Search("two coordinators"), "C5"),
    ("complete without all acknowledgements", Search("nothing fails"), "C1"),
    ("complete without all acknowledgements", output(0), "X3"),
    ("transactional ids shared by attempts", output(105, SLEEPERS), "the broker lost nothing"),
    ("producer kept after an indefinite commit", Seeds(65, REUSE), "S3"),
    ("objects given up before complete is read back", Search("nothing fails"), "C7"),
    ("ambiguous taken for committed", output(10), "R1"),
    ("what is held stays held after an abort", Search("alignment and a timeout"), "B3"),
    ("a worker given up does not offer itself again", output(2), "not settled"),
    ("a savepoint is made of a checkpoint that is not kept", Seeds(0), "C10"),
    ("an import forgets what was complete", Seeds(24), "X1|X4"),
]


@pytest.mark.parametrize(("name", "tier", "by"), CAUGHT, ids=lambda value: str(value)[:60])
def test_a_mutant_is_caught(name: str, tier: Any, by: str) -> None:
    with MUTANTS[name].patched(), pytest.raises(AssertionError, match=by):
        tier()


def test_every_mutant_is_caught_by_some_tier() -> None:
    assert {name for name, _, _ in CAUGHT} == set(MUTANTS)
