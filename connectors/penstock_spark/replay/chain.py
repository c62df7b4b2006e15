"""A stage made ready for a replay: the live chain, with processes that know their records' origin.

Where no result is wanted and no event time passes, the chain is the live one altogether.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from penstock.operator.keyed import ProcessNode
from penstock.operator.stateless import fan_out
from penstock.plan import Step
from penstock.record import MIN_WATERMARK, EdgePort, Push, SinkPort
from penstock.snapshot.chunk import Section
from penstock.snapshot.state import SubtaskState
from penstock.stage import StageChain

from penstock_spark.replay.node import Origins, ReplayNode
from penstock_spark.replay.plan import ReplayStage
from penstock_spark.replay.rows import Outbox

Arrived = Callable[[list[int]], list[Any]]
"""Takes the event times of a batch, gives what is pushed as its times."""


class ReplayChain(StageChain):
    """The running operators of one stage of a replay.

    Args:
        stage: what to run.
        state: where its tables are.
        outbox: where its results go; None: nobody wants them.
        origins: of the records under way.
        arrived: called with the times of each batch that enters.
        final_ms: the watermark at the end of the replay.
    """

    def __init__(
        self,
        stage: ReplayStage,
        state: SubtaskState,
        outbox: Outbox | None,
        origins: Origins,
        arrived: Arrived,
        final_ms: int = MIN_WATERMARK,
    ) -> None:
        self._replayed = stage
        self._origins = origins
        self._arrived = arrived
        self._final_ms = final_ms
        if tracks(stage, has_outputs=outbox is not None):
            self.node_class = ReplayNode
        edges: Mapping[str, EdgePort] = {}
        sinks: Mapping[str, SinkPort] = {}
        if outbox is not None:
            edges = {s.topic: outbox.edge(s.uid, s.topic, _key(s)) for s in stage.edges}
            sinks = {s.uid: outbox.sink(s.uid) for s in stage.sinks}
        live = replace(stage.live, root=stage.root, watermark=None)
        if stage.reads is not None:
            live = replace(live, topic="", edge=stage.reads)
        super().__init__(live, state, edges, sinks)

    @property
    def nodes(self) -> list[ProcessNode]:
        """The processes, in the order of the stream."""
        return self._nodes

    def begin(self, watermark_ms: int = MIN_WATERMARK) -> None:
        """Other keys come: their event time goes on from ``watermark_ms``."""
        self.watermark = watermark_ms
        for node in self._nodes:
            if isinstance(node, ReplayNode):
                node.begin(watermark_ms)

    def emptied(self, least_order: int) -> None:
        """The tables are empty: no timer waits, and the next one has at least this number."""
        for node in self._nodes:
            timers = node.timers
            before = least_order if timers is None else max(least_order, timers.order)
            node.restored()
            if timers is not None:
                # the registrations of all key groups of a bucket have different numbers
                timers._order = before  # noqa: SLF001  (its friend)

    def load(self, state: tuple[str, str], bucket: int, entries: bytes, count: int) -> None:
        """Bring state in that was there before, as msgpack of key -> value."""
        operator, name = state
        table = next(t for t in self.state.tables() if (t.operator, t.name) == (operator, name))
        before = len(table.bucket(bucket))
        section = Section(operator, name, bucket, count, entries, b"")
        table.apply(section, f"the savepoint's {operator}.{name}")
        if table.kind == "timers":
            node = next(node for node in self._nodes if node.uid == operator)
            assert node.timers is not None, "it has a table of timers"
            node.timers.added(bucket, islice(table.bucket(bucket).items(), before, None))

    def _compiled(self, step: Step) -> Push:
        if step.kind != "input":
            return super()._compiled(step)
        follow = fan_out([self._compiled(follower) for follower in step.followers])

        def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
            follow(bucket, keys, values, self._arrived(times))

        return push

    def _process(self, step: Step, follow: Push) -> Push:
        push = super()._process(step, follow)
        node = self._nodes[-1]
        if isinstance(node, ReplayNode):
            node.origins = self._origins
            node.has_event_time = self._replayed.has_event_time
            node.final_ms = self._final_ms
        return push


def tracks(stage: ReplayStage, *, has_outputs: bool) -> bool:
    """Whether its processes must know the origin of each record."""
    return stage.has_process and (has_outputs or stage.has_event_time)


def _key(step: Step) -> Any:
    return Any if step.key is None else step.key
