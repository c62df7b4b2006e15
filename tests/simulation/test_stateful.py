"""Tier 3: hypothesis looks for histories of larger graphs, and `settle` runs each to its end.

Parallelism 1-3 on both sides of an edge, rescaling at a restore, any fault at any time (L4-L7,
L10-L17, L20). Without the settling half of the bugs are not seen: nothing is lost before the end.
"""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from penstock.testing import chaos
from penstock.testing.world import Plan, World, settle

from tests.simulation.invariants import at_the_end, observe

KEYS = st.sampled_from("abc")


class Application(RuleBasedStateMachine):
    """An application, what it does next, and what goes wrong."""

    world: World

    @initialize(
        sources=st.lists(st.lists(KEYS, min_size=1, max_size=6), min_size=1, max_size=3),
        edge_partitions=st.integers(1, 3),
        echo=st.booleans(),
        tolerable=st.integers(0, 2),
        data=st.data(),
    )
    def begins(
        self,
        sources: list[list[str]],
        edge_partitions: int,
        echo: bool,
        tolerable: int,
        data: st.DataObject,
    ) -> None:
        plan = Plan(
            sources=tuple(tuple(keys) for keys in sources),
            parallelism={
                "src": data.draw(st.integers(1, len(sources))),
                "cnt": data.draw(st.integers(1, edge_partitions)),
            },
            edge_partitions=edge_partitions,
            echo=echo,
            eager=True,
            tolerable_failures=tolerable,
            interval_ms=0,
            checkpoints=4,
        )
        self.world = World(plan, observe)

    @rule(choices=st.lists(st.integers(0, 1000), min_size=5, max_size=40))
    def goes_on(self, choices: list[int]) -> None:
        for choice in choices:
            actions = self.world.actions()
            if not actions:
                self.world.tick(10)
                return
            self.world.perform(actions[choice % len(actions)])

    @rule(choice=st.integers(0, 1000))
    def fails(self, choice: int) -> None:
        faults = chaos.possible_faults(self.world)
        fault = faults[choice % len(faults)]
        self.world.perform(fault if fault == ("lead",) else ("fault", *fault))

    @precondition(lambda self: self.world.truth.completed)
    @rule(data=st.data())
    def is_rescaled(self, data: st.DataObject) -> None:
        service = data.draw(st.sampled_from(["src", "cnt"]))
        most = len(self.world.sources) if service == "src" else self.world.plan.edge_partitions
        self.world.perform(("fault", "rescale", service, data.draw(st.integers(1, most))))

    @rule(seed=st.integers(0, 1000))
    def settles(self, seed: int) -> None:
        """Exactly once, whatever happened: on a copy, so that the history can go on."""
        fork = self.world.fork()
        at_the_end(fork, settle(fork, random.Random(seed)).outcome)

    @invariant()
    def is_seen_once(self) -> None:
        if hasattr(self, "world"):
            found = [value[:2] for value in self.world.output()]
            assert len(found) == len(set(found))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            at_the_end(self.world, settle(self.world, random.Random(0)).outcome)


TestApplication = Application.TestCase
TestApplication.settings = settings(
    max_examples=40,
    stateful_step_count=14,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
