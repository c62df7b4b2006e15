"""A savepoint becomes a checkpoint of another application: chunks of its own and a manifest (L22).

Nothing of the savepoint is needed afterwards, and no transaction comes along (L23). Operators are
found by uid wherever they stand now; keys go to the buckets that the edges have now (L20).
"""

from collections.abc import Callable, Iterator

import msgspec

from penstock.control import ChunkRef, Deploy, SubtaskSnapshot
from penstock.graph import EdgeInputSpec, ServiceSpec, StageSpec
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term
from penstock.savepoint.claiming import Claim, Claims, claims
from penstock.savepoint.manifest import KEYED_KINDS
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.verifying import VerifiedState
from penstock.savepoint.watermarks import Range, of_edge, of_source
from penstock.snapshot import manifest as manifests
from penstock.snapshot.chunk import OBJECT_BYTES, Chunk, Section, section_bytes
from penstock.snapshot.table import PIECE_BYTES

Put = Callable[[str, bytes], None]
FLUSH_ENTRIES = 32 * 1024
"""Entries that are collected before they are encoded, bucket by bucket."""
_encode = msgspec.msgpack.Encoder().encode


def imported(
    savepoint: Savepoint,
    services: tuple[ServiceSpec, ...],
    app: str,
    *,
    prefix: str,
    checkpoint: CheckpointId,
    term: Term,
    attempt: Attempt,
    put: Put,
    partitions: Callable[[str], int],
    allow_dropped: bool = False,
    mode: str = "EXACTLY_ONCE",
) -> manifests.Manifest:
    """Write the savepoint's state as chunks of ``app``; the manifest of a checkpoint that has it.

    Args:
        savepoint: where from.
        services: the graph that is to run.
        app: its application, whose objects the chunks become.
        prefix: of the chunks' names; under it nobody else writes, ever.
        checkpoint: the number of the checkpoint that is made.
        term: of the leader that makes it.
        attempt: that it is made for.
        put: writes one object durably.
        partitions: counts those of a source topic.
        allow_dropped: state and positions that nobody takes are left out, not refused.
        mode: of the checkpoints to come.

    Raises ConfigurationError when the graph cannot take the savepoint (see `claiming.claims`) or
    rows have a namespace; CorruptedObject naming the file that is not what it should be.
    """
    found = claims(
        savepoint.manifest,
        services,
        partitions,
        where=savepoint.url,
        allow_dropped=allow_dropped,
    )
    parts: list[SubtaskSnapshot] = []
    for service in services:
        for stage in service.stages:
            if found.old_stages(stage.name):
                parts += _StageImport(savepoint, found, stage, prefix, put, partitions).parts()
    deploy = Deploy(
        attempt=attempt,
        checkpoint=None,
        manifest=None,
        services=services,
        parallelism={service.name: 1 for service in services},
        assignment={},
        edge_starts={},
        pool=0,
        mode=mode,
    )
    return manifests.build(app, term, checkpoint, deploy, tuple(parts))


class _StageImport:
    """What one stage of the new graph takes, as the snapshots of subtasks that never were.

    One for all buckets, or several where their event time differs.
    """

    def __init__(
        self,
        savepoint: Savepoint,
        found: Claims,
        stage: StageSpec,
        prefix: str,
        put: Put,
        partitions: Callable[[str], int],
    ) -> None:
        self._savepoint = savepoint
        self._claims = found
        self._stage = stage
        self._max_parallelism = savepoint.manifest.max_parallelism
        if isinstance(stage.input, EdgeInputSpec):
            self._partitions = stage.input.partitions
        else:
            self._partitions = partitions(stage.input.topic)
        self._chunks = _Chunks(f"{prefix}/{stage.name}", put)

    def parts(self) -> list[SubtaskSnapshot]:
        """The snapshots; every object that they name is durable."""
        mine = [claim for claim in self._claims.states if claim.stage == self._stage.name]
        cells: dict[str, dict[str, list[bytes]]] = {}
        for claim in mine:
            if claim.state.kind in KEYED_KINDS:
                self._keyed(claim)
            else:
                found = self._cells(claim)
                cells.setdefault(claim.operator.uid, {})[claim.state.name] = found
        chain = self._chunks.close()
        positions = self._positions()
        return [
            SubtaskSnapshot(
                subtask=SubtaskId(self._stage.name, index),
                buckets=(low, high),
                positions={
                    topic: {p: offset for p, offset in offsets.items() if low <= p < high}
                    for topic, offsets in positions.items()
                },
                edge_positions={},
                watermark=watermark,
                chain=tuple(_narrowed(chain, low, high)),
                operator_state=cells if index == 0 else {},
                transactions=(),
            )
            for index, (low, high, watermark) in enumerate(self._watermarks(positions))
        ]

    def _keyed(self, claim: Claim) -> None:
        """The entries of a keyed state, in the buckets that their keys have now."""
        state = VerifiedState(self._savepoint, claim.operator.uid, claim.state.name)
        waiting: dict[int, dict[object, object]] = {}
        count = 0
        for partition, group, key, value in state.entries():
            if partition is not None:
                bucket = partition
            else:
                assert group is not None, "keyed state has key groups"
                bucket = group * self._partitions // self._max_parallelism
            waiting.setdefault(bucket, {})[key] = value
            count += 1
            if count >= FLUSH_ENTRIES:
                self._flush(claim, waiting)
                count = 0
        self._flush(claim, waiting)

    def _flush(self, claim: Claim, waiting: dict[int, dict[object, object]]) -> None:
        for bucket, entries in waiting.items():
            self._encode(claim, bucket, list(entries.items()))
        waiting.clear()

    def _encode(self, claim: Claim, bucket: int, pairs: list[tuple[object, object]]) -> None:
        data = _encode(dict(pairs))
        if len(data) > PIECE_BYTES and len(pairs) > 1:
            half = len(pairs) // 2
            self._encode(claim, bucket, pairs[:half])
            self._encode(claim, bucket, pairs[half:])
            return
        uid, name = claim.operator.uid, claim.state.name
        self._chunks.take(Section(uid, name, bucket, len(pairs), data, b""))

    def _cells(self, claim: Claim) -> list[bytes]:
        """The elements of a state of subtasks, those of the first subtask first."""
        state = VerifiedState(self._savepoint, claim.operator.uid, claim.state.name)
        found: list[bytes] = []
        for _, _, _, elements in state.entries():
            found += state.layout.encoded_cells(elements)
        return found

    def _positions(self) -> dict[str, dict[int, int]]:
        return {
            claim.source.topic: dict(claim.source.positions)
            for claim in self._claims.sources
            if claim.stage == self._stage.name
        }

    def _watermarks(self, positions: dict[str, dict[int, int]]) -> list[Range]:
        """The ranges of buckets, each with its event time."""
        old = self._claims.old_stages(self._stage.name)
        if self._stage.name in old:
            old = {self._stage.name}
        if isinstance(self._stage.input, EdgeInputSpec):
            return of_edge(self._savepoint.manifest, old, self._partitions)
        read = max((p + 1 for offsets in positions.values() for p in offsets), default=0)
        return of_source(self._savepoint.manifest, old, self._partitions, read)


class _Chunks:
    """The chunks of a stage, written as soon as they are full."""

    def __init__(self, prefix: str, put: Put) -> None:
        self._prefix = prefix
        self._put = put
        self._sections: list[Section] = []
        self._size = 0
        self._refs: list[ChunkRef] = []

    def take(self, section: Section) -> None:
        """One more section."""
        size = section_bytes(section)
        if self._sections and self._size + size > OBJECT_BYTES:
            self._write()
        self._sections.append(section)
        self._size += size

    def close(self) -> list[ChunkRef]:
        """References to all of them, in order."""
        if self._sections:
            self._write()
        return self._refs

    def _write(self) -> None:
        buckets = [section.bucket for section in self._sections]
        name = f"{self._prefix}/{len(self._refs)}.chunk"
        chunk = Chunk(name, self._sections, range(min(buckets), max(buckets) + 1), base=True)
        chunk.inline = False
        self._put(name, chunk.data)
        self._refs.append(chunk.ref)
        self._sections, self._size = [], 0


def _narrowed(chain: list[ChunkRef], low: int, high: int) -> Iterator[ChunkRef]:
    """The references that have a bucket in [low, high), narrowed to it."""
    for ref in chain:
        first, stop = max(ref.low, low), min(ref.high, high)
        if first < stop:
            yield msgspec.structs.replace(ref, low=first, high=stop)
