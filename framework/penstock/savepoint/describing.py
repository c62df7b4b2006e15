"""What a checkpoint holds, as a savepoint says it: operators, sources and watermarks."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.control import ChunkRef, SubtaskSnapshot
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.graph import (
    EdgeInputSpec,
    OperatorSpec,
    ServiceSpec,
    SourceSpec,
    StageSpec,
    StateSpec,
)
from penstock.savepoint.layout import narrowed, state_entry
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    POSITIONS,
    OperatorEntry,
    Ownership,
    SourceEntry,
    StateEntry,
    StateKind,
    WatermarkEntry,
)
from penstock.savepoint.merging import Chain
from penstock.schema import ANY, Schema
from penstock.snapshot.manifest import Manifest

Read = Callable[[ChunkRef], bytes]


class Description(NamedTuple):
    """A checkpoint without its state."""

    stages: tuple[str, ...]
    operators: tuple[OperatorEntry, ...]
    sources: tuple[SourceEntry, ...]
    watermarks: tuple[WatermarkEntry, ...]
    subtasks: tuple[SubtaskSnapshot, ...]

    def parts(self, stage: str) -> list[SubtaskSnapshot]:
        """The snapshots of a stage, by the buckets that they own."""
        return _parts(self.subtasks, stage)


def described(manifest: Manifest, read: Read) -> Description:
    """The description of a checkpoint; ``read`` is asked for chunks when a key has no type.

    Raises ConfigurationError for state without a schema, CorruptedObject for a hole.
    """
    stages: list[str] = []
    operators: list[OperatorEntry] = []
    sources: list[SourceEntry] = []
    watermarks: list[WatermarkEntry] = []
    for service in manifest.services:
        for stage in service.stages:
            reading = _StageReading(manifest, service, stage, read)
            stages.append(stage.name)
            operators += reading.operators()
            sources += reading.sources()
            watermarks += reading.watermarks()
    return Description(
        tuple(stages), tuple(operators), tuple(sources), tuple(watermarks), manifest.subtasks
    )


class _StageReading:
    """One stage of the checkpoint."""

    def __init__(
        self, manifest: Manifest, service: ServiceSpec, stage: StageSpec, read: Read
    ) -> None:
        self._manifest = manifest
        self._service = service
        self._stage = stage
        self._read = read
        self._parts = _parts(manifest.subtasks, stage.name)
        self._partitions = 0
        for part in self._parts:
            if part.buckets[0] != self._partitions:
                raise CorruptedObject(
                    f"checkpoint {manifest.checkpoint}: no subtask of {stage.name} has partition "
                    f"{self._partitions} ({part.subtask} begins at {part.buckets[0]}); convert an "
                    "older checkpoint"
                )
            self._partitions = part.buckets[1]
        self._keys = self._key_types()

    def operators(self) -> list[OperatorEntry]:
        """Source and operators, in the order of the chain."""
        found = []
        entry = self._stage.input
        if isinstance(entry, SourceSpec):
            positions = StateEntry(name=POSITIONS, kind="positions", value=Schema("int"))
            found.append(self._operator(entry.uid, "source", "none", (positions,)))
        for operator in self._stage.operators:
            states = tuple(self._state(operator, state) for state in operator.states)
            keyed = any(state.kind in KEYED_KINDS for state in states)
            owner: Ownership = "key_group" if isinstance(entry, EdgeInputSpec) else "partition"
            found.append(
                self._operator(operator.uid, operator.kind, owner if keyed else "none", states)
            )
        return found

    def sources(self) -> list[SourceEntry]:
        """Where the stage's source stands."""
        entry = self._stage.input
        if not isinstance(entry, SourceSpec):
            return []
        positions: dict[int, int] = {}
        for part in self._parts:
            positions.update(part.positions.get(entry.topic, {}))
        return [
            SourceEntry(
                uid=entry.uid,
                stage=self._stage.name,
                topic=entry.topic,
                positions=dict(sorted(positions.items())),
            )
        ]

    def watermarks(self) -> list[WatermarkEntry]:
        """Event time of each subtask's buckets."""
        return [
            WatermarkEntry(
                stage=self._stage.name,
                low=part.buckets[0],
                high=part.buckets[1],
                partitions=self._partitions,
                watermark_ms=part.watermark,
            )
            for part in self._parts
        ]

    def _operator(
        self, uid: str, kind: str, ownership: Ownership, states: tuple[StateEntry, ...]
    ) -> OperatorEntry:
        return OperatorEntry(
            uid=uid,
            kind=kind,
            service=self._service.name,
            stage=self._stage.name,
            parallelism=self._manifest.parallelism.get(self._service.name, len(self._parts)),
            ownership=ownership,
            partitions=self._partitions,
            states=states,
        )

    def _state(self, operator: OperatorSpec, state: StateSpec) -> StateEntry:
        keyed = state.kind in KEYED_KINDS
        if state.value is None or (keyed and state.key is None):
            raise ConfigurationError(
                f"checkpoint {self._manifest.checkpoint} keeps state {state.name!r} of operator "
                f"{operator.uid!r} without its schema: an older penstock took it; run the "
                "application with this version until its next checkpoint, and make the savepoint "
                "of that"
            )
        kind: StateKind = state.kind  # type: ignore[assignment]  # the manifest's loader checks it
        key = self._keys.get((operator.uid, state.name), state.key)
        return state_entry(state.name, kind, key, state.value)

    def _key_types(self) -> dict[tuple[str, str], Schema]:
        """The type of keys that were declared without one, by looking at all of them."""
        states = [
            (operator.uid, state)
            for operator in self._stage.operators
            for state in operator.states
            if state.key == ANY
        ]
        kinds: dict[tuple[str, str], set[Schema]] = {(uid, s.name): set() for uid, s in states}
        for part in self._parts if states else ():
            chain = Chain(part, self._read)
            for uid, state in states:
                for keys in chain.undeclared_keys(uid, state.name):
                    if state.kind == "timers":
                        keys = [key for _, _, key in keys]
                    if keys:
                        kinds[uid, state.name].add(narrowed(ANY, keys))
        return {state: found.pop() if len(found) == 1 else ANY for state, found in kinds.items()}


def _parts(subtasks: tuple[SubtaskSnapshot, ...], stage: str) -> list[SubtaskSnapshot]:
    mine = [part for part in subtasks if part.subtask.stage == stage]
    return sorted(mine, key=lambda part: part.subtask.index)
