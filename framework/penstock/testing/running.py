"""One simulated subtask in one attempt, as a value: its machines, its state, what it has to do."""

from typing import Any, NamedTuple

import msgspec

from penstock import control
from penstock.barrier import alignment as barrier
from penstock.graph import EdgeInputSpec, SourceSpec, StageSpec
from penstock.ids import Attempt, ChannelId, CheckpointId, SubtaskId, owned_partitions
from penstock.sink import transaction as tx
from penstock.task import subtask as task
from penstock.testing.surroundings import APP, Record, Surroundings


class Frame(NamedTuple):
    """What travels on an edge: a record, or barrier ``checkpoint``."""

    attempt: int
    upstream: int
    sequence: int
    checkpoint: int | None
    record: Record | None


class Producer(NamedTuple):
    """A transactional producer of one slot; ``identity`` None until it is initialised."""

    name: str
    identity: tuple[int, int] | None = None
    records: int = 0

    def committable(self, topic: str, checkpoint: CheckpointId) -> control.Committable:
        """What a snapshot lists of its transaction."""
        producer_id, epoch = self.identity or (-1, -1)
        return control.Committable(
            transactional_id=self.name,
            producer_id=producer_id,
            producer_epoch=epoch,
            checkpoint=checkpoint,
            topic=topic,
            partitions=(0,),
            records=self.records,
        )


class Part(NamedTuple):
    """What a snapshot holds, as it stood at the barrier."""

    positions: dict[int, int]
    edge_positions: dict[int, int]
    tables: dict[int, dict[str, int]]


def accepts(frame: Frame, attempt: Attempt) -> bool:
    """Whether a frame is of the attempt that reads it (L10)."""
    return frame.attempt == attempt


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """One subtask in one attempt."""

    deploy: control.Deploy
    subtask: SubtaskId
    stage: StageSpec
    machine: task.Subtask
    alignment: barrier.Alignment | None
    positions: dict[int, int]
    """Source partition -> next offset."""
    edge_positions: dict[int, int]
    """Edge partition -> offset of the next frame to read."""
    tables: dict[int, dict[str, int]]
    """Bucket -> key -> count: the keyed state."""
    producers: dict[str, Producer] = {}
    """By ``<sink>!<slot>``."""
    todo: tuple[Any, ...] = ()
    """Effects of the loop, in order."""
    tasks: tuple[Any, ...] = ()
    """Background work, in no order."""
    held: frozenset[ChannelId] = frozenset()
    held_frames: tuple[tuple[ChannelId, Frame], ...] = ()
    replay: tuple[tuple[ChannelId, Frame], ...] = ()
    received: dict[str, int] = {}
    """Channel -> next sequence number."""
    sent: dict[int, int] = {}
    frozen: dict[int, Part] = {}
    chunks: dict[int, str] = {}
    draining: CheckpointId | None = None

    @property
    def reads_source(self) -> bool:
        """Whether the stage reads a topic of the user, not an edge."""
        return isinstance(self.stage.input, SourceSpec)

    @property
    def edge_topic(self) -> str:
        """The topic of the edge that the stage reads."""
        return f"{APP}.edge.{self.stage.input.uid}"

    def snapshot(
        self, checkpoint: CheckpointId, transactions: tuple[control.Committable, ...]
    ) -> control.SubtaskSnapshot:
        """The subtask's part of a checkpoint, as it was frozen and stored."""
        part, key = self.frozen[checkpoint], self.chunks[checkpoint]
        buckets = sorted(part.tables)
        return control.SubtaskSnapshot(
            subtask=self.subtask,
            buckets=(buckets[0], buckets[-1] + 1) if buckets else (0, 0),
            positions={"in": part.positions} if self.reads_source else {},
            edge_positions=part.edge_positions,
            watermark=0,
            chain=(control.ChunkRef(key=key, size=0, sha256="", low=0, high=0, base=True),),
            operator_state={},
            transactions=transactions,
        )

    def can_take(self, frame: Frame) -> bool:
        """Whether a frame can be processed now."""
        return frame.record is None or self.has_transactions

    @property
    def has_transactions(self) -> bool:
        """Whether every sink has an open transaction, or asking for one leads somewhere."""
        on_their_way = (tx.Phase.OPENING, tx.Phase.COMMITTING, tx.Phase.COLD)
        return all(
            tx.open_slot(pool) is not None
            or any(s.phase is tx.Phase.WARM for s in pool.slots)
            or not any(s.phase in on_their_way for s in pool.slots)
            for _, pool in self.machine.sinks
        )


def restored(
    world: Surroundings, deploy: control.Deploy, stage: StageSpec, index: int
) -> tuple[Running, tuple[task.Effect, ...]]:
    """The subtask as the deployment's checkpoint left it, at any parallelism (L12, L20)."""
    service = next(s for s in deploy.services if stage in s.stages)
    parallelism = deploy.parallelism[service.name]
    from_edge = isinstance(stage.input, EdgeInputSpec)
    count = stage.input.partitions if isinstance(stage.input, EdgeInputSpec) else len(world.sources)
    owned = owned_partitions(count, parallelism, index)
    parts = [
        world.chunk(ref.key, deploy.attempt)
        for snapshot in world.manifest(deploy.manifest, deploy.attempt)
        for ref in snapshot.chain
        if snapshot.subtask.stage == stage.name
    ]
    positions = {p: at for part in parts for p, at in part.positions.items()}
    tables = {p: table for part in parts for p, table in part.tables.items()}
    machine, effects = task.subtask(
        deploy.attempt, deploy.checkpoint, tuple(s.uid for s in stage.sinks), deploy.pool
    )
    upstreams = world.upstreams(deploy)
    channels = frozenset(
        ChannelId(stage.input.uid, p, upstream) for p in owned for upstream in range(upstreams)
    )
    running = Running(
        deploy=deploy,
        subtask=SubtaskId(stage.name, index),
        stage=stage,
        machine=machine,
        alignment=barrier.alignment(channels, deploy.checkpoint) if from_edge else None,
        positions={} if from_edge else {p: positions.get(p, 0) for p in owned},
        edge_positions={p: deploy.edge_starts[stage.input.uid][p] for p in owned}
        if from_edge
        else {},
        tables={p: tables.get(p, {}) for p in owned},
    )
    return running, effects
