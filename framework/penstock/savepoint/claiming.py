"""Which operator of a graph takes which state of a savepoint: by uid alone.

An operator may have moved to another stage or service since; what it may not do is change what its
state is made of, or who owns its keys.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.failure import ConfigurationError
from penstock.graph import (
    EdgeInputSpec,
    OperatorSpec,
    ServiceSpec,
    SourceSpec,
    StageSpec,
    StateSpec,
)
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    POSITIONS,
    OperatorEntry,
    SavepointManifest,
    SourceEntry,
    StateEntry,
)
from penstock.schema import difference, key_difference


class Claim(NamedTuple):
    """A state of the savepoint, and the stage that takes it."""

    operator: OperatorEntry
    state: StateEntry
    stage: str


class SourceClaim(NamedTuple):
    """A source of the savepoint, and the stage that reads on from its positions."""

    source: SourceEntry
    stage: str


class Claims(NamedTuple):
    """Everything of a savepoint that a graph takes."""

    states: tuple[Claim, ...]
    sources: tuple[SourceClaim, ...]

    def old_stages(self, stage: str) -> set[str]:
        """The stages of the savepoint from which something goes to ``stage``."""
        found = {claim.operator.stage for claim in self.states if claim.stage == stage}
        return found | {claim.source.stage for claim in self.sources if claim.stage == stage}


def claims(
    manifest: SavepointManifest,
    services: Iterable[ServiceSpec],
    partitions: Callable[[str], int],
    *,
    where: str,
    allow_dropped: bool = False,
) -> Claims:
    """Who takes what of the savepoint at ``where``; ``partitions`` counts those of a topic.

    Raises ConfigurationError when the graph cannot take it: another number of key groups, state or
    positions that nobody takes (unless ``allow_dropped``), a changed kind, type, owner or topic.
    """
    graph = _Graph(services, partitions, where)
    graph.check_key_groups(manifest.max_parallelism)
    dropped: list[str] = []
    states: list[Claim] = []
    for operator in manifest.operators:
        for state in operator.states:
            if state.kind == POSITIONS:
                continue  # a readable copy of manifest.sources
            taker = graph.taker(operator, state)
            if isinstance(taker, str):
                dropped.append(taker)
            else:
                states.append(Claim(operator, state, taker.stage.name))
    sources: list[SourceClaim] = []
    for source in manifest.sources:
        stage = graph.reader(source)
        if stage is None:
            near = _nearest(source.uid, graph.sources)
            dropped.append(f"the positions of source {source.uid!r}{near}")
        else:
            sources.append(SourceClaim(source, stage.name))
    if dropped and not allow_dropped:
        raise ConfigurationError(
            f"savepoint {where} holds state that nobody takes: {', '.join(dropped)}; bring the "
            "steps back under these uids, or drop the state with --allow-non-restored-state"
        )
    return Claims(tuple(states), tuple(sources))


class _Taker(NamedTuple):
    """An operator of the graph, and where it stands."""

    stage: StageSpec
    operator: OperatorSpec


class _Graph:
    """The graph that starts from the savepoint, by uid."""

    def __init__(
        self, services: Iterable[ServiceSpec], partitions: Callable[[str], int], where: str
    ) -> None:
        self._services = tuple(services)
        self._partitions = partitions
        self._where = where
        self.operators: dict[str, _Taker] = {}
        self.sources: dict[str, StageSpec] = {}
        for service in self._services:
            for stage in service.stages:
                for operator in stage.operators:
                    self.operators[operator.uid] = _Taker(stage, operator)
                if isinstance(stage.input, SourceSpec):
                    self.sources[stage.input.uid] = stage

    def check_key_groups(self, max_parallelism: int) -> None:
        """Key groups cannot change on the way: every key would have to be hashed anew."""
        for service in self._services:
            if service.max_parallelism != max_parallelism:
                raise ConfigurationError(
                    f"savepoint {self._where} has {max_parallelism} key groups, service "
                    f"{service.name!r} says max_parallelism={service.max_parallelism}; set it to "
                    f"{max_parallelism}, or rewrite the savepoint with Spark "
                    "(SavepointWriter.with_max_parallelism)"
                )

    def taker(self, operator: OperatorEntry, state: StateEntry) -> _Taker | str:
        """Who takes a state; what is said to people when nobody does."""
        taker = self.operators.get(operator.uid)
        named = f"{operator.uid}.{state.name}"
        if taker is None:
            stateful = [uid for uid, other in self.operators.items() if other.operator.states]
            return f"{named}{_nearest(operator.uid, stateful)}"
        declared = {spec.name: spec for spec in taker.operator.states}
        spec = declared.get(state.name)
        if spec is None:
            return f"{named}{_nearest(state.name, declared)}"
        self._check_type(operator, state, spec)
        if state.kind in KEYED_KINDS:
            self._check_owner(operator, state, taker.stage)
        return taker

    def reader(self, source: SourceEntry) -> StageSpec | None:
        """The stage that reads on from a source's positions; None when nobody does."""
        stage = self.sources.get(source.uid)
        if stage is None or not isinstance(stage.input, SourceSpec):
            return None
        if stage.input.topic != source.topic:
            raise ConfigurationError(
                f"source {source.uid!r} reads topic {stage.input.topic!r}, savepoint "
                f"{self._where} has its positions in topic {source.topic!r}; name the old topic, "
                "or give the source a new uid"
            )
        count = self._partitions(source.topic)
        beyond = max(source.positions, default=-1)
        if beyond >= count:
            raise ConfigurationError(
                f"topic {source.topic!r} has {count} partitions, savepoint {self._where} has a "
                f"position of partition {beyond}: it is not the topic that source {source.uid!r} "
                "read; restore into a cluster that has the same source topics"
            )
        return stage

    def _check_type(self, operator: OperatorEntry, state: StateEntry, spec: StateSpec) -> None:
        if spec.kind != state.kind:
            changed: str | None = f"it was {state.kind} state, is {spec.kind} state"
        elif spec.value is None:
            changed = "the service does not say its type; run it with this version of penstock"
        else:
            keys = None
            if state.key is not None and spec.key is not None:
                keys = key_difference(state.key, spec.key)
            changed = keys or difference(state.value, spec.value)
        if changed is not None:
            raise ConfigurationError(
                f"state {state.name!r} of operator {operator.uid!r} does not fit savepoint "
                f"{self._where}: {changed}; keep the type, give the state a new name, or rewrite "
                "the savepoint with Spark"
            )

    def _check_owner(self, operator: OperatorEntry, state: StateEntry, stage: StageSpec) -> None:
        """The owner of a key is found again only by the same rule."""
        named = f"state {state.name!r} of operator {operator.uid!r}"
        if operator.ownership == "key_group":
            if isinstance(stage.input, EdgeInputSpec):
                return
            raise ConfigurationError(
                f"{named} is owned by key groups in savepoint {self._where}, but stage "
                f"{stage.name!r} takes keys as source {stage.input.uid!r} has partitioned them; "
                "put key_by() without partitioned=True before it"
            )
        if not isinstance(stage.input, SourceSpec) or operator.ownership == "none":
            raise ConfigurationError(
                f"{named} is owned by the partitions of a source in savepoint {self._where}, but "
                f"stage {stage.name!r} reads edge {stage.input.uid!r}; let it read the source with "
                "partitioned=True, or rewrite the savepoint with Spark"
            )
        count = self._partitions(stage.input.topic)
        if count != operator.partitions:
            raise ConfigurationError(
                f"topic {stage.input.topic!r} has {count} partitions, {named} in savepoint "
                f"{self._where} is owned by {operator.partitions}: keys would move between them; "
                "read a topic with the old count, or rewrite the savepoint with Spark"
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" (is it {near[0]!r} now?)" if near else ""
