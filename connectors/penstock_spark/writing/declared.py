"""What services say of the steps whose state a savepoint has: types, owners, stages."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from penstock.api import Service
from penstock.application import load_all
from penstock.failure import ConfigurationError
from penstock.graph import EdgeInputSpec, ServiceSpec, SourceSpec, StageSpec, StateSpec
from penstock.savepoint.claiming import claims
from penstock.savepoint.manifest import Ownership, SavepointManifest

from penstock_spark.writing.draft import unknown


class Declared(NamedTuple):
    """A step of a service."""

    kind: str
    service: str
    stage: str
    ownership: Ownership
    """Of keyed state, should it have any."""
    partitions: int | None
    """Of its stage's input; of a topic only Kafka knows."""
    source: str | None
    """uid of the source that its stage reads; None: an edge."""
    states: dict[str, StateSpec]
    key_type: Any
    """The class of its keys; None when it has none."""


class Graph:
    """The steps of services, by uid.

    Args:
        services: `penstock.Service` objects, or files that define them.

    Raises ConfigurationError when they cannot run together.
    """

    def __init__(self, services: Iterable[Service | str | Path]) -> None:
        found: list[Service] = []
        for service in services:
            found += [service] if isinstance(service, Service) else load_all(service)
        self.specs: tuple[ServiceSpec, ...] = tuple(service.spec() for service in found)
        self._steps: dict[str, Declared] = {}
        self._sources: dict[str, StageSpec] = {}
        for service, spec in zip(found, self.specs, strict=True):
            for stage in spec.stages:
                if isinstance(stage.input, SourceSpec):
                    self._sources[stage.input.uid] = stage
                keys = {step.uid: step.key for step in service.stage(stage.name).root.walk()}
                self._take(spec, stage, keys)

    def __bool__(self) -> bool:
        return bool(self.specs)

    @property
    def max_parallelism(self) -> int | None:
        """Of the services; None without any."""
        return self.specs[0].max_parallelism if self.specs else None

    def step(self, uid: str) -> Declared | None:
        """The step with state of this uid; None without services.

        Raises ConfigurationError naming the nearest when they have none.
        """
        if not self.specs:
            return None
        if uid not in self._steps:
            unknown("the services have no step with state of the uid", uid, list(self._steps))
        return self._steps[uid]

    def source(self, uid: str, topic: str) -> tuple[str, str] | None:
        """Service and stage of a source; None without services. Raises ConfigurationError."""
        if not self.specs:
            return None
        if uid not in self._sources:
            unknown("the services have no source", uid, list(self._sources))
        stage = self._sources[uid]
        found = stage.input.topic if isinstance(stage.input, SourceSpec) else None
        if found != topic:
            raise ConfigurationError(
                f"source {uid!r} reads topic {found!r}, not {topic!r}; name its topic"
            )
        owner = next(spec for spec in self.specs if stage in spec.stages)
        return owner.name, stage.name

    def check(self, manifest: SavepointManifest, url: str) -> None:
        """Raise ConfigurationError unless the services could start from this savepoint."""
        if self.specs:
            claims(manifest, self.specs, _counts(manifest, self.specs), where=url)

    def _take(self, spec: ServiceSpec, stage: StageSpec, keys: dict[str, Any]) -> None:
        entry = stage.input
        is_edge = isinstance(entry, EdgeInputSpec)
        for operator in stage.operators:
            if operator.states:
                self._steps[operator.uid] = Declared(
                    kind=operator.kind,
                    service=spec.name,
                    stage=stage.name,
                    ownership="key_group" if is_edge else "partition",
                    partitions=entry.partitions if isinstance(entry, EdgeInputSpec) else None,
                    source=None if is_edge else entry.uid,
                    states={state.name: state for state in operator.states},
                    key_type=keys[operator.uid],
                )


def _counts(manifest: SavepointManifest, specs: tuple[ServiceSpec, ...]) -> Callable[[str], int]:
    """How many partitions the savepoint says that a topic has; Kafka is not asked."""
    counts = {source.topic: len(source.positions) for source in manifest.sources}
    owned = {operator.uid: operator.partitions for operator in manifest.operators}
    for spec in specs:
        for stage in spec.stages:
            if isinstance(stage.input, SourceSpec):
                for operator in stage.operators:
                    if operator.uid in owned:
                        counts.setdefault(stage.input.topic, owned[operator.uid])
    return lambda topic: counts.get(topic, 0)
