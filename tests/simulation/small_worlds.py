"""The small worlds that are searched: 2-3 subtasks, one or two checkpoints, a fault or two."""

from typing import Any, NamedTuple

from penstock.testing.world import Plan


class SmallWorld(NamedTuple):
    plan: Plan
    faults: tuple[str, ...] = ()
    most: int = 4_000
    """Worlds visited in `make check`; all of them with PENSTOCK_WORLDS=all."""


def plan(**changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "sources": (("a",),),
        "parallelism": {"src": 1, "cnt": 1},
        "edge_partitions": 1,
        "eager": True,
        "interval_ms": 0,
        "checkpoints": 1,
        "timeout_ms": 1000,
        "heartbeat_timeout_ms": 10**9,
    }
    return Plan(**(settings | changes))


TWO_SOURCES = {"sources": (("a",), ("a",)), "parallelism": {"src": 2, "cnt": 1}}
TWO_EPOCHS = {"sources": (("a", "a"),), "checkpoints": 2}

SMALL_WORLDS = {
    "nothing fails": SmallWorld(plan(**TWO_EPOCHS), most=10_000),
    "alignment": SmallWorld(plan(**TWO_SOURCES), most=10_000),
    "alignment and a timeout": SmallWorld(plan(**TWO_SOURCES, checkpoints=2), ("timeout",)),
    "a worker dies": SmallWorld(plan(), ("crash worker",)),
    "the coordinator dies": SmallWorld(plan(), ("crash leader",), most=10_000),
    "a checkpoint times out": SmallWorld(plan(checkpoints=2), ("timeout",)),
    "the store fails": SmallWorld(plan(checkpoints=2), ("store", "store again")),
    "an answer is lost": SmallWorld(plan(**TWO_EPOCHS), ("lost answer",)),
    "the coordinator sleeps and wakes": SmallWorld(plan(), ("zombie leader", "wake")),
    "a worker sleeps and wakes": SmallWorld(plan(), ("zombie worker", "suspect", "wake")),
    "two coordinators": SmallWorld(plan(), ("second leader",)),
}
