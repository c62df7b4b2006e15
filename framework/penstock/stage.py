"""A stage made ready to run: input decoding, the fused operators, outputs.

The runtime makes one per subtask through `Service.build`, then `StageChain.restored` and
`StageChain.open`; from then on it pushes batches, watermarks and the clock.
"""

from collections.abc import Mapping
from operator import length_hint
from typing import Any

from penstock.failure import ConfigurationError
from penstock.operator.folding import AGGREGATED, REDUCED, aggregating, reducing
from penstock.operator.keyed import ProcessNode
from penstock.operator.stateless import fan_out, filtering, flattening, keying, mapping
from penstock.operator.timers import Domain
from penstock.plan import Stage, Step
from penstock.record import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    EdgePort,
    OperatorFailed,
    Push,
    SinkPort,
    described,
)
from penstock.serde import Serde, encode_keys, type_name
from penstock.snapshot.state import SubtaskState
from penstock.source.input import SourceInput

_SELF_DESCRIBING = frozenset({str, int, float, bool, type(None), list, dict, bytes})


class StageChain:
    """The running operators of one subtask.

    Args:
        stage: what to run.
        state: the subtask's state; all its tables exist when the chain is made.
        edges: by name, where edge records go.
        sinks: by uid, where sink records go; looked up for every batch, so that the runtime may put
            another producer in place at a barrier.
    """

    push: Push
    """``push(bucket, keys, values, times)``: decoded columns. Raises OperatorFailed."""
    node_class: type[ProcessNode] = ProcessNode
    """What runs the user's processes."""

    def __init__(
        self,
        stage: Stage,
        state: SubtaskState,
        edges: Mapping[str, EdgePort],
        sinks: Mapping[str, SinkPort],
    ) -> None:
        self.state = state
        self.watermark = MIN_WATERMARK
        self.resumable_watermark = MIN_WATERMARK
        """The watermark without the one that ends all time: what a snapshot keeps."""
        self.edge_key = Any if stage.root.key is None else stage.root.key
        """Type of the input edge's keys."""
        self.edge_value = stage.root.value
        """Type of the input edge's values."""
        self._stage = stage
        self._edges = edges
        self._sinks = sinks
        self._nodes: list[ProcessNode] = []
        self._idle = False
        self.push = self._compiled(stage.root)
        self._nodes.reverse()
        self._source: SourceInput | None = None
        if not stage.edge:
            root = stage.root
            key = stage.source_key
            self._source = SourceInput(
                root.uid,
                Serde(root.uid, root.value, stage.serde),
                None if key is None else Serde(root.uid, key, _key_serde(key)),
                stage.timestamp,
                stage.watermark,
                state.buckets,
                self.push,
            )

    def push_source(
        self, partition: int, keys: list[Any], raws: list[Any], times: list[int]
    ) -> None:
        """One run of raw records of a source partition. Raises OperatorFailed."""
        assert self._source is not None, "only a source stage takes raw records"
        self._source.push(partition, keys, raws, times)

    def source_reached_end(self, partition: int) -> None:
        """Everything that a source partition holds was read: from now on it may become idle."""
        if self._source is not None and self._source.watermarks is not None:
            self._source.watermarks.reached_end(partition)

    @property
    def takes_source_keys(self) -> bool:
        """Whether the source declares a key type: else the records' keys need not be read."""
        return self._stage.source_key is not None

    def on_watermark(self, watermark_ms: int) -> None:
        """Event time has reached ``watermark_ms``: timers fire, then the edges are told."""
        if watermark_ms <= self.watermark:
            return
        self.watermark = watermark_ms
        if watermark_ms < MAX_WATERMARK:
            self.resumable_watermark = watermark_ms
        for node in self._nodes:
            node.on_watermark(watermark_ms)
        for edge in self._edges.values():
            edge.watermark(watermark_ms)

    def on_processing_time(self, now_ms: int) -> None:
        """The clock shows ``now_ms``: processing timers fire. Call it every turn of the loop."""
        for node in self._nodes:
            node.on_processing_time(now_ms)

    def on_drain(self, now_ms: int) -> None:
        """Nothing comes any more: every processing timer fires, however late it is due."""
        for node in self._nodes:
            node.on_drain(now_ms)

    @property
    def next_timer_ms(self) -> int | None:
        """When a processing timer is due next: do not wait for input beyond it."""
        dues = [
            due
            for node in self._nodes
            if node.timers is not None
            and (due := node.timers.next_ms(Domain.PROCESSING)) is not None
        ]
        return min(dues) if dues else None

    def source_watermark(self, now_ms: int) -> int | None:
        """The watermark of a source stage, when it moved; give it to `on_watermark`."""
        if self._source is None or self._source.watermarks is None:
            return None
        marks = self._source.watermarks
        watermark = marks.advance(now_ms)
        self.on_idle(marks.is_idle)
        return watermark

    def on_idle(self, is_idle: bool) -> None:
        """The whole input is idle, or active again: tell the edges when that changed."""
        if is_idle != self._idle:
            self._idle = is_idle
            for edge in self._edges.values():
                edge.idle(is_idle)

    def restored(self, watermark_ms: int = MIN_WATERMARK) -> None:
        """State is loaded: timers are made ready, and event time goes on from ``watermark_ms``."""
        self.watermark = self.resumable_watermark = watermark_ms
        if self._source is not None and self._source.watermarks is not None:
            self._source.watermarks.restored(watermark_ms)
        for node in self._nodes:
            node.restored()
            node.context.watermark = watermark_ms

    def open(self, now_ms: int = 0) -> None:
        """Call the user's ``open`` methods; records may come after this."""
        for node in self._nodes:
            node.context.now_ms = now_ms
            node.open()

    def _compiled(self, step: Step) -> Push:
        """The push of a step, with everything that follows it inside."""
        if step.kind == "sink":
            return self._sinking(step)
        if step.kind == "edge":
            return self._sending(step)
        follow = fan_out([self._compiled(follower) for follower in step.followers])
        match step.kind:
            case "input":
                return follow
            case "map":
                return mapping(step.uid, step.call, follow)
            case "filter":
                return filtering(step.uid, step.call, follow)
            case "flat_map":
                return flattening(step.uid, step.call, follow)
            case "key_by":
                return keying(step.uid, step.call, follow)
            case "reduce":
                table = self.state.table(step.uid, REDUCED, "reducing", step.key, step.value)
                return reducing(step.uid, step.call, self.state, table, follow)
            case "aggregate":
                kind = step.call.accumulator
                table = self.state.table(step.uid, AGGREGATED, "aggregating", step.key, kind)
                return aggregating(step.uid, step.call, self.state, table, follow)
            case _:
                return self._process(step, follow)

    def _process(self, step: Step, follow: Push) -> Push:
        sides = {
            tag: fan_out([self._compiled(follower) for follower in followers])
            for tag, followers in step.sides.items()
        }
        try:
            instance = step.call()
        except Exception as error:
            raise ConfigurationError(
                f"operator {step.uid!r}: its process could not be made: {described(error)}"
            ) from error
        node = self.node_class(step.uid, instance, self.state, step.key, follow, sides)
        self._nodes.append(node)
        return node.push

    def _sinking(self, step: Step) -> Push:
        serde = Serde(step.uid, Any, step.serde)
        sinks, uid, key_of = self._sinks, step.uid, step.key_of

        def push(_: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
            if key_of is not None:
                keys = _located(uid, key_of, values)
            raw_keys: list[bytes | None] = (
                [None] * len(values) if keys is None else encode_keys(uid, keys)
            )
            sinks[uid].write(raw_keys, serde.encode_all(values), times)

        return push

    def _sending(self, step: Step) -> Push:
        edge, uid, key_of = self._edges[step.topic], step.uid, step.key_of
        checks = step.checks_types
        unkeyed = step.key is None

        def push(_: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
            if key_of is not None:
                keys = _located(uid, key_of, values)
            elif unkeyed:
                keys = None
            if checks and type(values[0]) not in _SELF_DESCRIBING:
                raise ConfigurationError(_untyped(step, values[0]))
            edge.write(keys, values, times)

        return push


def _located(uid: str, f: Any, values: list[Any]) -> list[Any]:
    left = iter(values)
    try:
        return list(map(f, left))
    except Exception as error:
        index = len(values) - length_hint(left) - 1
        raise OperatorFailed(uid, index, f"key: {described(error)}") from error


def _untyped(step: Step, value: Any) -> str:
    name = type_name(type(value))
    return (
        f"edge {step.topic!r}: step {step.uid!r} sends a {name} over an edge, but the type of the "
        f"stream is not known, so it would not come back as one; declare it on the step before: "
        f"returns={name}, or annotate what its function returns"
    )


def _key_serde(kind: Any) -> str:
    return {str: "string", bytes: "bytes"}.get(kind, "json")
