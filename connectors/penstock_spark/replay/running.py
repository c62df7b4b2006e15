"""One stage of a replay in one task of Spark: the chain, its tables, and what is under way."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from penstock.record import MIN_WATERMARK
from penstock.snapshot.state import SubtaskState

from penstock_spark.replay.chain import ReplayChain, tracks
from penstock_spark.replay.node import Origins
from penstock_spark.replay.places import Places
from penstock_spark.replay.rows import Outbox
from penstock_spark.replay.services import Recipe

Batches = Iterator[pa.RecordBatch]


class Common(NamedTuple):
    """What every task of a replay knows; picklable."""

    recipe: Recipe
    places: Places
    now_ms: int
    """The clock of the replay, which stands still."""
    partitions: dict[str, int]
    """Of each source topic."""


class RunningStage:
    """One stage in one task."""

    def __init__(self, common: Common, name: str, final_ms: int = MIN_WATERMARK) -> None:
        plan = common.recipe.plan()
        stage = plan.stage(name)
        has_outputs = bool(stage.edges or stage.sinks)
        self.plan, self.stage, self.common = plan, stage, common
        self.origins = Origins()
        self.clocks: Any = ()
        """Of the records that are pushed now, an array."""
        self.places: Any = ()
        """Of the records that are pushed now, an array."""
        self.partitions = common.partitions.get(stage.live.topic, stage.live.partitions)
        self.state = SubtaskState("replay", range(self.partitions))
        self.outbox: Outbox | None = None
        self._tracks = tracks(stage, has_outputs=has_outputs)
        if has_outputs:
            self.outbox = Outbox(
                plan, self.origins, knows_rows=self._tracks, bundles=not stage.is_keyed
            )
        self.chain = ReplayChain(
            stage, self.state, self.outbox, self.origins, self.arrived, final_ms
        )
        self.chain.restored()
        for node in self.chain.nodes:
            node.context.now_ms = common.now_ms
        self.chain.open(common.now_ms)

    def arrived(self, times: list[int]) -> list[Any]:
        """A batch enters the chain: its times as the chain shall have them."""
        if self._tracks:
            return self.origins.arrived(times, self.clocks.tolist(), self.places.tolist())
        if self.outbox is None:
            return times
        self.origins.times = times
        self.origins.clocks = self.clocks
        self.origins.places = self.places
        return list(range(len(times)))

    def written(self) -> Batches:
        """The rows that came out since this was asked last."""
        return iter(()) if self.outbox is None else self.outbox.take()
