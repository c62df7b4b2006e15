"""What a new subtask takes from a checkpoint, at any parallelism (L20). Pure."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock.control import ChunkRef, SubtaskSnapshot
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.graph import EdgeInputSpec, ServiceSpec, SourceSpec, StageSpec, StateSpec
from penstock.ids import owned_partitions
from penstock.record import MIN_WATERMARK
from penstock.schema import difference, key_difference
from penstock.snapshot.manifest import KEY_HASH, Manifest, places_alike
from penstock.snapshot.objects import older_checkpoint


class Restored(NamedTuple):
    """One subtask's share of a checkpoint."""

    chain: tuple[ChunkRef, ...]
    """Oldest first, each narrowed to the subtask's buckets."""
    positions: dict[str, dict[int, int]]
    """Source topic -> partition -> next offset."""
    operator_state: dict[str, dict[str, list[bytes]]]
    watermark: int


def assign(
    manifest: Manifest, stage: StageSpec, index: int, parallelism: int, *, partitions: int
) -> Restored:
    """The share of subtask ``index`` of ``parallelism`` of ``stage``, whose input has
    ``partitions``.

    Nothing for a stage that the checkpoint does not know. Raises ConfigurationError for a changed
    partition count or topic, and for a changed state type; CorruptedObject for a hole.
    """
    old = sorted(
        (part for part in manifest.subtasks if part.subtask.stage == stage.name),
        key=lambda part: part.subtask.index,
    )
    if not old:
        return Restored((), {}, {}, MIN_WATERMARK)
    _check_partitions(manifest, stage, old, partitions)
    _check_types(manifest, stage)
    owned = owned_partitions(partitions, parallelism, index)
    chain: list[ChunkRef] = []
    positions: dict[str, dict[int, int]] = {}
    watermarks: list[int] = []
    for part in old:
        if part.buckets[0] < owned.stop and owned.start < part.buckets[1]:
            watermarks.append(part.watermark)
        for ref in part.chain:
            low, high = max(ref.low, owned.start), min(ref.high, owned.stop)
            if low < high:
                chain.append(msgspec.structs.replace(ref, low=low, high=high))
        for topic, offsets in part.positions.items():
            mine = {p: offset for p, offset in offsets.items() if p in owned}
            positions.setdefault(topic, {}).update(mine)
    if isinstance(stage.input, SourceSpec):
        _check_topic(stage.input, positions)
    return Restored(
        tuple(chain),
        positions,
        _share(stage, old, index, parallelism),
        min(watermarks, default=MIN_WATERMARK),
    )


def check_graph(
    manifest: Manifest, services: Iterable[ServiceSpec], *, allow_dropped: bool = False
) -> None:
    """Refuse a graph that cannot take the whole checkpoint.

    Raises ConfigurationError for another hash or number of key groups, and for operator state that
    nobody takes, unless ``allow_dropped``.
    """
    specs = tuple(services)
    if not places_alike(manifest.key_hash, manifest.max_parallelism):
        raise ConfigurationError(
            f"checkpoint {manifest.checkpoint} places keys by {manifest.key_hash!r}, this "
            "penstock by "
            f"{KEY_HASH!r}; run the version that wrote it"
        )
    for spec in specs:
        if spec.max_parallelism != manifest.max_parallelism:
            raise ConfigurationError(
                f"checkpoint {manifest.checkpoint} has {manifest.max_parallelism} key groups, "
                "service "
                f"{spec.name!r} says max_parallelism={spec.max_parallelism}; it cannot change: "
                "set it "
                "back"
            )
    dropped = [] if allow_dropped else unclaimed(manifest, specs)
    if dropped:
        raise ConfigurationError(
            f"checkpoint {manifest.checkpoint} holds state that nobody takes: "
            f"{', '.join(dropped)}; "
            "bring the operators back under these uids and stages, or drop the state with "
            "--allow-non-restored-state"
        )


def unclaimed(manifest: Manifest, services: Iterable[ServiceSpec]) -> list[str]:
    """State of the checkpoint without an operator: ``stage: operator.state`` each."""
    taken = {
        (stage.name, operator.uid, state.name)
        for service in services
        for stage in service.stages
        for operator in stage.operators
        for state in operator.states
    }
    return [
        f"{stage.name}: {operator.uid}.{state.name}"
        for service in manifest.services
        for stage in service.stages
        for operator in stage.operators
        for state in operator.states
        if (stage.name, operator.uid, state.name) not in taken
    ]


def _old_stage(manifest: Manifest, name: str) -> StageSpec | None:
    for service in manifest.services:
        for stage in service.stages:
            if stage.name == name:
                return stage
    return None


def _check_partitions(
    manifest: Manifest, stage: StageSpec, old: list[SubtaskSnapshot], partitions: int
) -> None:
    had = 0
    for part in old:
        if part.buckets[0] != had:
            raise CorruptedObject(
                f"checkpoint {manifest.checkpoint}: no subtask of {stage.name} has partition {had} "
                f"({part.subtask} begins at {part.buckets[0]}); "
                f"{older_checkpoint(manifest.app)}"
            )
        had = part.buckets[1]
    if had == partitions:
        return
    if isinstance(stage.input, EdgeInputSpec):
        what, remedy = f"edge {stage.input.uid!r}", f"set partitions={had} on both ends again"
    elif stage.input.partitioned or partitions < had:
        what = f"topic {stage.input.topic!r}"
        remedy = "keys would move between partitions: read a topic with the old count"
    else:
        return  # A source without keyed state may grow: its new partitions have no state.
    raise ConfigurationError(
        f"{what} has {partitions} partitions, checkpoint {manifest.checkpoint} was taken with "
        f"{had}; "
        f"{remedy}, or start without the checkpoint"
    )


def _check_topic(source: SourceSpec, positions: dict[str, dict[int, int]]) -> None:
    others = sorted(topic for topic, offsets in positions.items() if offsets)
    if others and source.topic not in others:
        raise ConfigurationError(
            f"source {source.uid!r} reads topic {source.topic!r}, but the checkpoint has "
            "positions of "
            f"{', '.join(map(repr, others))}; name the old topic, or give the source a new uid"
        )


def _check_types(manifest: Manifest, stage: StageSpec) -> None:
    before = _old_stage(manifest, stage.name)
    if before is None:
        return
    had: dict[tuple[str, str], StateSpec] = {
        (operator.uid, state.name): state
        for operator in before.operators
        for state in operator.states
    }
    for operator in stage.operators:
        for state in operator.states:
            old = had.get((operator.uid, state.name))
            changed = None if old is None else _change(old, state)
            if changed is not None:
                raise ConfigurationError(
                    f"state {state.name!r} of operator {operator.uid!r} in stage {stage.name!r} "
                    f"does not fit checkpoint {manifest.checkpoint}: {changed}; keep the type, or "
                    "give the state a new name"
                )


def _change(old: StateSpec, new: StateSpec) -> str | None:
    """Why the state as declared cannot take the old one; None when it can."""
    if old.kind != new.kind:
        return f"it was {old.kind} of {old.type}, is {new.kind} of {new.type}"
    if old.value is None or new.value is None:
        return None if old.type == new.type else f"it was of {old.type}, is of {new.type}"
    keys = None if old.key is None or new.key is None else key_difference(old.key, new.key)
    return keys or difference(old.value, new.value)


def _share(
    stage: StageSpec, old: list[SubtaskSnapshot], index: int, parallelism: int
) -> dict[str, dict[str, list[bytes]]]:
    kinds = {(op.uid, state.name): state.kind for op in stage.operators for state in op.states}
    whole: dict[tuple[str, str], list[bytes]] = {}
    for part in old:
        for operator, states in part.operator_state.items():
            for name, elements in states.items():
                if kinds.get((operator, name)) == "operator_broadcast":
                    whole.setdefault((operator, name), elements)
                else:
                    whole[operator, name] = whole.get((operator, name), []) + elements
    shares: dict[str, dict[str, list[bytes]]] = {}
    for (operator, name), elements in whole.items():
        mine = slice(None)
        if kinds.get((operator, name)) not in ("operator_union", "operator_broadcast"):
            owned = owned_partitions(len(elements), parallelism, index)
            mine = slice(owned.start, owned.stop)
        shares.setdefault(operator, {})[name] = elements[mine]
    return shares
