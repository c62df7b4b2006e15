"""The state that a replay goes on from: entries of a savepoint as rows before all records.

They go the way of the records, to the task that has their key group, and stand there at place 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from penstock.record import MIN_WATERMARK
from penstock.savepoint.claiming import claims
from penstock.savepoint.layout import Entry
from penstock.savepoint.manifest import KEYED_KINDS, FileEntry, SavepointManifest
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.store import SavepointStore
from penstock.savepoint.verifying import VerifiedState

from penstock_spark.replay.places import STATE
from penstock_spark.replay.plan import ReplayPlan, ReplayStage
from penstock_spark.replay.rows import AT, bundled
from penstock_spark.replay.running import Batches
from penstock_spark.scan import opened

BEFORE_CLOCKS = MIN_WATERMARK - 1
_AT_ONCE = 10_000
_encode = msgspec.msgpack.Encoder().encode


class Part(NamedTuple):
    """Files of one state that one task reads: no key has rows in two parts."""

    operator: str
    state: str
    files: tuple[FileEntry, ...]


class Begun(NamedTuple):
    """A savepoint that a replay goes on from."""

    url: str
    manifest: SavepointManifest
    positions: Mapping[str, Mapping[int, int]]
    """Topic -> partition -> NEXT offset."""
    watermarks: Mapping[str, int]
    """Of each live stage."""

    def check(self, plan: ReplayPlan, partitions: Mapping[str, int]) -> None:
        """Raise ConfigurationError unless the services of the plan take all of it."""
        claims(self.manifest, plan.specs, partitions.__getitem__, where=self.url)

    def parts(self, stage: ReplayStage) -> list[Part]:
        """What there is of the states of a stage."""
        found = []
        for operator, state in sorted(stage.states):
            files = _files(self.manifest, operator, state)
            found += [Part(operator, state, group) for group in _apart(files)]
        return found


def begun(store: SavepointStore, plan: ReplayPlan) -> Begun:
    """The savepoint in ``store``. Raises CorruptedObject when there is none."""
    manifest = Savepoint.open(store).manifest
    positions = {source.topic: dict(source.positions) for source in manifest.sources}
    watermarks: dict[str, int] = {}
    for stage in plan.stages:
        uids = {spec.uid for spec in stage.live.spec().operators} | {stage.live.root.uid}
        old = {operator.stage for operator in manifest.operators if operator.uid in uids}
        marks = [mark.watermark_ms for mark in manifest.watermarks if mark.stage in old]
        watermarks[stage.live.name] = min(marks, default=MIN_WATERMARK)
    return Begun(store.url, manifest, positions, watermarks)


class StateTask:
    """The function that Spark calls to read a part of a savepoint.

    Args:
        url: of the savepoint.
        edge: number of the edge by which the stage's records come, too.
        states: of the stage, in the order of their numbers.
        parts: what the numbers in the batches stand for.
    """

    def __init__(
        self,
        url: str,
        edge: int,
        states: Sequence[tuple[str, str]],
        parts: Sequence[Part],
    ) -> None:
        self._url = url
        self._edge = edge
        self._states = tuple(states)
        self._parts = tuple(parts)

    def __call__(self, batches: Batches) -> Batches:
        """The entries as rows."""
        store = opened(self._url)
        manifest = Savepoint.open(store).manifest
        for batch in batches:
            for number in batch.column(0).to_pylist():
                part = self._parts[number]
                only = msgspec.structs.replace(manifest, files=part.files)
                state = VerifiedState(Savepoint(store, only), part.operator, part.state)
                numbered = self._states.index((part.operator, part.state))
                is_timers = state.layout.state.kind == "timers"
                entries = state.entries()
                while some := list(islice(entries, _AT_ONCE)):
                    yield self._rows(some, numbered, is_timers=is_timers)

    def _rows(self, entries: Sequence[Entry], state: int, *, is_timers: bool) -> pa.RecordBatch:
        keys = [key[2] if is_timers else key for _, _, key, _ in entries]
        at = np.zeros(len(entries), AT)
        at["clock"], at["place"], at["number"] = BEFORE_CLOCKS, STATE, state
        return bundled(
            self._edge,
            np.array([group for _, group, _, _ in entries]),
            np.array([owner or 0 for owner, _, _, _ in entries]),
            at,
            list(map(_encode, keys)),
            [_encode(key) + _encode(value) for _, _, key, value in entries],
            bundles=False,
        )


def entries_of(rows: Sequence[bytes]) -> bytes:
    """The entries of some rows as one msgpack map, as a chunk of a checkpoint has them."""
    return b"\xdf" + len(rows).to_bytes(4, "big") + b"".join(rows)


def _files(manifest: SavepointManifest, operator: str, state: str) -> list[FileEntry]:
    kinds = {s.name: s.kind for o in manifest.operators if o.uid == operator for s in o.states}
    if kinds.get(state) not in KEYED_KINDS:
        return []
    found = [f for f in manifest.files if (f.operator, f.state) == (operator, state)]
    return sorted(found, key=_lower)


def _apart(files: Sequence[FileEntry]) -> Iterator[tuple[FileEntry, ...]]:
    """Files one by one; together where the rows of one key go on in the next."""
    group: list[FileEntry] = []
    for file in files:
        if group and group[-1].upper != file.lower:
            yield tuple(group)
            group = []
        group.append(file)
    if group:
        yield tuple(group)


def _lower(file: FileEntry) -> Any:
    lower = file.lower
    return (lower["key_group"], lower.get("partition", 0), bytes.fromhex(str(lower["key"])))
