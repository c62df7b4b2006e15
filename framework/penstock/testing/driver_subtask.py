"""One subtask of a test driver: the real chain, state and edge ends, with lists for Kafka."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.api import Service
from penstock.control import ChunkRef
from penstock.edge.frame import Frame, Kind
from penstock.edge.routing import partition_of
from penstock.edge.writer import Send
from penstock.failure import PenstockError
from penstock.ids import Attempt, ChannelId, CheckpointId, SubtaskId, owned_partitions
from penstock.operator.watermark import WatermarkMerger
from penstock.plan import Stage, edge_input
from penstock.snapshot.assign import Restored
from penstock.snapshot.chunk import decode_chunk
from penstock.snapshot.state import SubtaskState


class Output(NamedTuple):
    """A record that a sink wrote."""

    key: bytes | None
    value: Any
    timestamp: int


class CollectingSink:
    """A sink that keeps what it gets, in the order of the whole application."""

    def __init__(self, order: Callable[[], int]) -> None:
        self.written: list[tuple[int, Output]] = []
        self._order = order

    def write(
        self, keys: list[bytes | None], values: list[bytes | None], times: list[int] | None
    ) -> None:
        """Keep a batch."""
        for key, value, time in zip(keys, values, times or [0] * len(values), strict=True):
            self.written.append((self._order(), Output(key, value, time)))


class DrivenSubtask:
    """One subtask of a stage."""

    def __init__(
        self,
        service: Service,
        stage: Stage,
        index: int,
        parallelism: int,
        *,
        app: str,
        attempt: Attempt,
        partitions: int,
        upstream: dict[str, int],
        upstreams: int,
        send: Send,
        order: Callable[[], int],
    ) -> None:
        self.id = SubtaskId(stage.name, index)
        self.partitions = partitions
        self.source = None if stage.edge else stage.root.uid
        self._stage = stage
        self._max_parallelism = service.max_parallelism
        owned = owned_partitions(partitions, parallelism, index)
        self.state = SubtaskState(f"{app}/{attempt}/{stage.name}-{index}", owned)
        self._writers = {
            edge: service.edge_writer(stage.name, edge, attempt, number, send)
            for edge, number in upstream.items()
        }
        self.sinks = {sink.uid: CollectingSink(order) for sink in stage.spec().sinks}
        self.chain = service.build(
            stage.name, state=self.state, edges=self._writers, sinks=self.sinks
        )
        self.chain.restored()
        for partition in owned:
            self.chain.source_reached_end(partition)
        self._input = edge_input(service.stage(stage.name), attempt, upstreams, owned)
        self._channels = {(c.partition, c.upstream): c for c in self._input.channels()}
        self._watermarks: WatermarkMerger[ChannelId] = WatermarkMerger(self._channels.values())
        self._barriers: set[ChannelId] = set()
        self._read: dict[int, int] = {}
        self._positions: dict[int, int] = dict.fromkeys(owned, 0)

    def restore(self, share: Restored, data: Callable[[ChunkRef], bytes]) -> None:
        """Start from a share of a checkpoint."""
        self.state.restore((ref, data(ref)) for ref in share.chain)
        self.state.restore_cells(share.operator_state)
        self.chain.restored(share.watermark)
        self._watermarks.current = share.watermark
        self._positions.update(share.positions.get(self._stage.topic, {}))

    def take(self, partition: int, key: Any, value: Any, time: int) -> None:
        """One record of a source partition."""
        raw_key = None if key is None else _raw(key, "string" if isinstance(key, str) else "json")
        raw = value if value is None else _raw(value, self._stage.serde)
        self.chain.push_source(partition, [raw_key], [raw], [time])
        self.chain.source_reached_end(partition)
        self._positions[partition] += 1

    def partition_for(self, key: Any, value: Any, turn: int, partitions: int) -> int:
        """Where a record goes for which no partition was named."""
        if not self._stage.partitioned:
            return turn % partitions
        if key is None:
            keying = next((s for s in self._stage.root.walk() if s.kind == "key_by"), None)
            if keying is None or isinstance(value, bytes):
                return turn % partitions
            key = keying.call(value)
        return partition_of(key, partitions, self._max_parallelism)

    def positions(self) -> dict[str, dict[int, int]]:
        """The next offset of each source partition."""
        return {} if self.source is None else {self._stage.topic: dict(self._positions)}

    def clock(self, now_ms: int) -> None:
        """The clock shows ``now_ms``."""
        self.chain.on_processing_time(now_ms)
        watermark = self.chain.source_watermark(now_ms)
        if watermark is not None:
            self.chain.on_watermark(watermark)

    def flush(self) -> None:
        """Send what waits in the edges."""
        for writer in self._writers.values():
            writer.flush()

    def reads(self, edge: str, partition: int) -> bool:
        """Whether a frame is for this subtask."""
        return edge == self._stage.edge and partition in self.state.buckets

    def receive(self, partition: int, data: bytes) -> None:
        """A frame of the input edge."""
        offset = self._read.get(partition, 0)
        self._read[partition] = offset + 1
        frame = self._input.accept(partition, offset, data)
        if frame is None:
            return
        if frame.kind is Kind.DATA:
            for bucket, keys, values, times in self._input.groups(frame):
                self.chain.push(bucket, keys, values, times)
        else:
            self._control(frame)

    def barrier(self, checkpoint: CheckpointId) -> None:
        """The barrier passes: nothing of the next checkpoint was processed yet."""
        for writer in self._writers.values():
            writer.barrier(checkpoint)
        self.state.freeze(checkpoint)

    def compare(self, chunks: Iterable[tuple[ChunkRef, bytes]]) -> None:
        """Load the chain beside the live state; raises PenstockError where they differ."""
        twins = {(t.operator, t.name): t.twin() for t in self.state.tables()}
        for ref, data in chunks:
            low, high = (
                max(ref.low, self.state.buckets.start),
                min(ref.high, self.state.buckets.stop),
            )
            for section in decode_chunk(ref.key, data):
                twin = twins.get((section.operator, section.state))
                if twin is not None and low <= section.bucket < high:
                    twin.apply(section, ref.key)
        for table in self.state.tables():
            twin = twins[table.operator, table.name]
            for bucket in table.buckets.keys() | twin.buckets.keys():
                live, stored = table.bucket(bucket), twin.bucket(bucket)
                for key in live.keys() | stored.keys():
                    if _encoded(live.get(key)) != _encoded(stored.get(key)):
                        raise PenstockError(
                            f"state {table.name!r} of operator {table.operator!r}, key {key!r}: "
                            "the "
                            f"snapshot has {stored.get(key)!r:.200}, the live state "
                            f"{live.get(key)!r:.200}; state that is changed in place must be set "
                            "again: "
                            "self.state.set(value)"
                        )

    def _control(self, frame: Frame) -> None:
        channel = self._channels[frame.partition, frame.upstream]
        if frame.kind is Kind.BARRIER:
            self._barriers.add(channel)
            if len(self._barriers) == len(self._channels):
                self._barriers.clear()
                self.barrier(CheckpointId(frame.value))
        elif frame.kind is Kind.WATERMARK:
            self._event_time(self._watermarks.advanced(channel, frame.value))
        elif frame.kind is Kind.STATUS:
            self._event_time(self._watermarks.idle(channel, bool(frame.value)))
            self.chain.on_idle(self._watermarks.is_idle)

    def _event_time(self, watermark_ms: int | None) -> None:
        if watermark_ms is not None:
            self.chain.on_watermark(watermark_ms)


def _raw(value: Any, form: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if form == "msgpack":
        return msgspec.msgpack.encode(value)
    if form == "string" and isinstance(value, str):
        return value.encode()
    return msgspec.json.encode(value)


def _encoded(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)
