"""Tier 4: seeded worlds with a crash, a pause or a late request between any two effects (L1-L20).

PENSTOCK_SEEDS=N runs N of them (300 in `make check`), from PENSTOCK_SEED on.
"""

import os
from collections import Counter

import pytest
from penstock import control
from penstock.checkpoint import restore
from penstock.sink import transaction as tx
from penstock.task import subtask as task
from penstock.testing import chaos
from penstock.testing.surroundings import Mark
from penstock.testing.world import World

from tests.simulation.invariants import at_the_end, observe

COUNT = int(os.environ.get("PENSTOCK_SEEDS", "300"))
FIRST = int(os.environ.get("PENSTOCK_SEED", "0"))


def noted(mark: Mark) -> str | None:
    """The named situations that a run of seeds must have been in, so that green means something."""
    match mark.what, mark.event:
        case "verdict", (_, restore.FallBack()):
            return "fell back to an older checkpoint"
        case "verdict", (_, restore.Refuse()):
            return "refused to lose output"
        case "verdict", (transactions, restore.Proceed()) if transactions:
            return "recovered transactions of the dead"
        case "decision", control.Import() if mark.effects == (True,):
            return "began from a savepoint"
        case "decision", _ if mark.effects == (False,):
            return "a paused coordinator wrote a void decision"
        case "subtask", task.Superseded():
            return "a subtask of an old attempt woke up"
        case "subtask", task.CheckpointAborted():
            return "a checkpoint was aborted and the attempt went on"
        case "subtask", _ if task.OnSink("out", tx.Renew(0)) in mark.effects:
            return "a producer was thrown away"
        case "ended", False:
            return "a woken subtask aborted its own transaction"
    return None


def test_seeds() -> None:
    seen: Counter[str] = Counter()
    checkpoints = attempts = 0

    def watched(world: World, mark: Mark) -> None:
        observe(world, mark)
        situation = noted(mark)
        if situation is not None:
            seen[situation] += 1

    for seed in range(FIRST, FIRST + COUNT):
        settled = chaos.run(seed, watched, at_the_end)
        checkpoints += settled.checkpoints
        attempts += settled.attempts
    print(f"{COUNT} seeds, {checkpoints} checkpoints, {attempts} attempts, {dict(seen)}")
    if COUNT >= 300 and FIRST == 0:
        assert set(seen) == {
            "fell back to an older checkpoint",
            "refused to lose output",
            "recovered transactions of the dead",
            "a paused coordinator wrote a void decision",
            "a subtask of an old attempt woke up",
            "a checkpoint was aborted and the attempt went on",
            "a producer was thrown away",
            "a woken subtask aborted its own transaction",
            "began from a savepoint",
        }


def test_a_seed_gives_the_same_run_again() -> None:
    assert chaos.run(7) == chaos.run(7)


def test_a_failing_seed_says_how_to_run_it_again() -> None:
    from tests.simulation.mutants import MUTANTS

    with (
        MUTANTS["commit before complete"].patched(),
        pytest.raises(chaos.Failed, match="with faults") as caught,
    ):
        chaos.run(0, observe, at_the_end)
    assert "PENSTOCK_SEED=0" in str(caught.value)
