"""The services of a replay, on their way to Spark's Python workers."""

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from penstock.api import Service
from penstock.application import load_all

from penstock_spark.replay.plan import Mode, ReplayPlan, planned
from penstock_spark.shipping import landed, shipped

Given = Service | str | PathLike[str]


class Recipe(NamedTuple):
    """What makes the same plan in every process; picklable."""

    services: bytes
    """With the user's code: a worker needs no file of the services."""
    mode: Mode
    with_outputs: bool

    def plan(self) -> ReplayPlan:
        """The plan, made once in a process."""
        return _plan(self)


def recipe(given: Given | Sequence[Given], mode: Mode, *, with_outputs: bool) -> Recipe:
    """The recipe of a replay of these services: files, or objects.

    Raises ConfigurationError for what cannot travel.
    """
    services = [given] if isinstance(given, Service | str | PathLike) else list(given)
    found: list[Service] = []
    for service in services:
        found += [service] if isinstance(service, Service) else load_all(Path(service))
    return Recipe(shipped(found), mode, with_outputs)


@lru_cache(maxsize=8)
def _plan(made: Recipe) -> ReplayPlan:
    return planned(landed(made.services), made.mode, with_outputs=made.with_outputs)
