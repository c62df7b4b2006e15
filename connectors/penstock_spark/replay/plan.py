"""How services are replayed: their stages, cut where records change hands by key. Pure.

A live stage reads a source or an edge. Here it is the same, with one difference: where the source
is partitioned by the key, a live stage decodes and keeps state in one; a replay cuts it at the
``key_by``, so that every stage with keyed state reads records by key.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock.api import Service
from penstock.application import union_specs
from penstock.failure import ConfigurationError
from penstock.graph import ServiceSpec
from penstock.operator.process import KeyedProcess
from penstock.operator.state import declared
from penstock.plan import Stage, Step

Mode = Literal["replay", "bootstrap"]
KEYED = frozenset({"keyed_process", "reduce", "aggregate"})
_MANY = frozenset({"flat_map", "process", "keyed_process"})
"""Steps that may give several records for one."""


@dataclass(frozen=True, kw_only=True)
class ReplayStage:
    """A stage as it is replayed."""

    name: str
    """Unique in the plan; of a cut stage the live name and the step behind it."""
    live: Stage
    """The stage as it runs live."""
    service: str
    root: Step
    """What follows the input: a copy without what nobody needs."""
    reads: str | None
    """An edge; None: the live stage's source."""
    is_partitioned: bool
    """Source partitions own the keys, and not key groups."""
    sources: frozenset[str] = frozenset()
    """The stages at the beginning of everything that comes here."""
    has_event_time: bool = False
    """Every one of these makes watermarks, and timers fire."""

    @property
    def is_keyed(self) -> bool:
        """It holds state by key: its records come by key group, in their order."""
        return any(step.kind in KEYED for step in self.root.walk())

    @property
    def states(self) -> set[tuple[str, str]]:
        """(operator, state) of what it keeps by key."""
        here = {step.uid for step in self.root.walk() if step.kind in KEYED}
        return {
            (operator.uid, state.name)
            for operator in self.live.spec().operators
            if operator.uid in here
            for state in operator.states
        }

    @property
    def edges(self) -> tuple[Step, ...]:
        """What it writes for others."""
        return tuple(step for step in self.root.walk() if step.kind == "edge")

    @property
    def sinks(self) -> tuple[Step, ...]:
        """What it writes to topics."""
        return tuple(step for step in self.root.walk() if step.kind == "sink")

    @property
    def may_multiply(self) -> bool:
        """One record may become several on one edge."""
        return any(step.kind in _MANY for step in self.root.walk())

    @property
    def has_process(self) -> bool:
        """A user's process looks at the records one by one, with their time."""
        return any(step.kind in ("process", "keyed_process") for step in self.root.walk())

    @property
    def fires(self) -> bool:
        """It has event timers that may fire."""
        return self.has_event_time and any(
            step.kind == "keyed_process"
            and step.owner is not None
            and getattr(step.owner, "on_timer", None) is not KeyedProcess.on_timer
            for step in self.root.walk()
        )


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """All stages, each behind those that it reads."""

    app: str
    max_parallelism: int
    stages: tuple[ReplayStage, ...]
    specs: tuple[ServiceSpec, ...]
    """The services."""

    @property
    def sources(self) -> tuple[ReplayStage, ...]:
        """The stages that read topics."""
        return tuple(stage for stage in self.stages if stage.reads is None)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read, each once."""
        return tuple(dict.fromkeys(stage.live.topic for stage in self.sources))

    @property
    def edges(self) -> tuple[str, ...]:
        """The edges that somebody reads."""
        return tuple(dict.fromkeys(stage.reads for stage in self.stages if stage.reads))

    @property
    def sinks(self) -> tuple[str, ...]:
        """The sinks whose records are wanted."""
        return tuple(step.uid for stage in self.stages for step in stage.sinks)

    @property
    def by_clock(self) -> bool:
        """Records of different partitions are put in order by how far event time had come."""
        return any(
            stage.has_event_time or (stage.is_keyed and len(stage.sources) > 1)
            for stage in self.stages
        )

    def stage(self, name: str) -> ReplayStage:
        """The stage of this name."""
        return next(stage for stage in self.stages if stage.name == name)

    def readers(self, edge: str) -> list[ReplayStage]:
        """Who reads an edge."""
        return [stage for stage in self.stages if stage.reads == edge]

    def writers(self, edge: str) -> list[ReplayStage]:
        """Who writes an edge."""
        return [s for s in self.stages if any(step.topic == edge for step in s.edges)]


def planned(services: Sequence[Service], mode: Mode, *, with_outputs: bool) -> ReplayPlan:
    """The plan for these services of one application.

    Raises ConfigurationError naming the step or stage that cannot be replayed exactly.
    """
    app = union_specs((service.spec() for service in services), open_edges=True)
    stages: list[ReplayStage] = []
    for service in services:
        for stage in service.stages():
            _check(stage)
            stages += _Cut(service.name, stage).stages()
    stages = _needed(stages, with_outputs=with_outputs)
    if not any(stage.is_keyed for stage in stages) and not with_outputs:
        names = ", ".join(repr(service.name) for service in services)
        raise ConfigurationError(
            f"service {names} keeps no state by key: there is nothing to replay into; start it "
            "without a savepoint"
        )
    ordered = _traced(_ordered(stages), mode)
    return ReplayPlan(
        app=app.app,
        max_parallelism=services[0].max_parallelism,
        stages=ordered,
        specs=app.services,
    )


def _check(stage: Stage) -> None:
    for step in stage.root.walk():
        if step.owner is None:
            continue
        _, of_subtask = declared(step.owner)
        if of_subtask:
            raise ConfigurationError(
                f"step {step.uid!r} of stage {stage.name!r} keeps {', '.join(sorted(of_subtask))}, "
                "state of a subtask: what is in it depends on which subtask had which records, "
                "and a replay has no subtasks; keep that state by key, or take a savepoint of the "
                "running service"
            )


class _Cut:
    """The stages that one live stage becomes."""

    def __init__(self, service: str, live: Stage) -> None:
        self._service = service
        self._live = live
        self._found: list[ReplayStage] = []

    def stages(self) -> list[ReplayStage]:
        """The stage itself first."""
        root, live = self._live.root, self._live
        reads = live.edge or None
        if reads is None and live.source_key is not None:
            keyed = self._keyed(root, f"{live.name}/{root.uid}")
            self._add(live.name, replace(root, followers=[keyed]), reads)
        else:
            self._add(live.name, self._copy(root), reads)
        return self._found[::-1]

    def _add(self, name: str, root: Step, reads: str | None) -> None:
        self._found.append(
            ReplayStage(
                name=name,
                live=self._live,
                service=self._service,
                root=root,
                reads=reads,
                is_partitioned=self._live.partitioned,
            )
        )

    def _copy(self, step: Step) -> Step:
        return replace(
            step,
            followers=[self._follow(follower) for follower in step.followers],
            sides={
                tag: [self._follow(follower) for follower in followers]
                for tag, followers in step.sides.items()
            },
        )

    def _follow(self, step: Step) -> Step:
        if step.kind != "key_by":
            return self._copy(step)
        return self._keyed(step, f"{self._live.name}/{step.uid}")

    def _keyed(self, step: Step, edge: str) -> Step:
        """The edge to a stage of its own for everything behind ``step``, which gives the keys."""
        root = Step(kind="input", uid=step.uid, key=step.key, value=step.value)
        root.followers = step.followers
        self._add(edge, self._copy(root), edge)
        return Step(
            kind="edge",
            uid=step.uid,
            key=step.key,
            value=step.value,
            topic=edge,
            key_of=step.call,
            checks_types=step.value is Any,
        )


def _needed(stages: list[ReplayStage], *, with_outputs: bool) -> list[ReplayStage]:
    """The stages without the branches behind which there is neither state nor a wanted output."""
    read = {stage.reads for stage in stages}
    missing = [s for s in stages if s.reads is not None and not _written(s.reads, stages)]
    if missing:
        raise ConfigurationError(
            f"stage {missing[0].name!r} reads edge {missing[0].reads!r}, which none of the "
            "replayed services writes; replay the service that writes it together with this one"
        )
    kinds = {*KEYED, "sink"} if with_outputs else KEYED

    def pruned(step: Step) -> Step | None:
        followers = list(_present(map(pruned, step.followers)))
        sides = {tag: list(_present(map(pruned, side))) for tag, side in step.sides.items()}
        leads = any(followers) or any(sides.values())
        wanted = step.kind in kinds or (step.kind == "edge" and step.topic in read)
        # the tags stay: a process may emit to a side output whose records nobody needs here
        return replace(step, followers=followers, sides=sides) if wanted or leads else None

    while True:
        kept = []
        for stage in stages:
            root = pruned(stage.root)
            if root is not None:
                kept.append(replace(stage, root=root))
        stages = kept
        now = {stage.reads for stage in stages}
        if now == read:
            return stages
        read = now


def _present(steps: Iterable[Step | None]) -> Iterator[Step]:
    return (step for step in steps if step is not None)


def _written(edge: str, stages: list[ReplayStage]) -> bool:
    return any(step.topic == edge for stage in stages for step in stage.edges)


def _ordered(stages: list[ReplayStage]) -> list[ReplayStage]:
    ordered: list[ReplayStage] = []
    left = list(stages)
    while left:
        names = {stage.name for stage in ordered}
        ready = [
            stage
            for stage in left
            if stage.reads is None
            or all(
                other.name in names
                for other in stages
                if any(step.topic == stage.reads for step in other.edges)
            )
        ]
        if not ready:
            raise ConfigurationError(
                f"stage {left[0].name!r} reads what comes of its own output (edge "
                f"{left[0].reads!r}): the order of its records is not given by the topics; replay "
                "services without such a loop"
            )
        ordered += ready
        left = [stage for stage in left if stage not in ready]
    return ordered


def _traced(ordered: list[ReplayStage], mode: Mode) -> tuple[ReplayStage, ...]:
    """The stages with where their records come from."""
    traced: list[ReplayStage] = []
    for stage in ordered:
        if stage.reads is None:
            sources = frozenset({stage.name})
        else:
            writers = [s for s in traced if any(e.topic == stage.reads for e in s.edges)]
            sources = frozenset().union(*(writer.sources for writer in writers))
        policies = [s.live.watermark for s in (*traced, stage) if s.name in sources]
        traced.append(
            replace(
                stage,
                sources=sources,
                has_event_time=mode == "replay" and all(p is not None for p in policies),
            )
        )
    return tuple(traced)
