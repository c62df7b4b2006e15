"""Changes of a savepoint that is there: steps and states removed, renamed, filtered, rewritten."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

import msgspec
from penstock.failure import ConfigurationError
from penstock.runtime.ports import SnapshotStore
from penstock.savepoint.layout import state_entry
from penstock.savepoint.manifest import POSITIONS, WatermarkEntry
from penstock.savepoint.reading import Savepoint
from penstock.schema import schema_of
from pyspark.sql import Column, DataFrame, SparkSession

from penstock_spark.writing.declared import Graph
from penstock_spark.writing.draft import (
    Content,
    Filtered,
    Framed,
    Kept,
    OperatorDraft,
    SavepointDraft,
    StateDraft,
    checked,
)
from penstock_spark.writing.rows import KEY


class Modifications:
    """What can be done to operators and states that a writer has already.

    Every method gives a new writer and leaves this one as it was; nothing runs before ``write``.
    All raise ConfigurationError, with the nearest name, for what is not there.
    """

    def __init__(
        self,
        spark: SparkSession,
        draft: SavepointDraft,
        *,
        graph: Graph,
        base: tuple[Savepoint, SnapshotStore] | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self._spark = spark
        self._draft = draft
        self._graph = graph
        self._base = base
        self._env = env

    def remove_operator(self, uid: str) -> Self:
        """Leave an operator out, with all its state; of a source, its positions."""
        draft = self._draft
        kept = tuple(source for source in draft.sources if source.uid != uid)
        return self._with(replace(draft.with_operator(draft.operator(uid), None), sources=kept))

    def rename_operator(self, uid: str, to: str) -> Self:
        """Give an operator, or a source, another uid; its files are copied as they are.

        Two may swap their uids: as long as both are called alike, a uid means the one that was not
        renamed.
        """
        draft = self._draft
        old = draft.operator(uid)
        states = old.states
        sources = draft.sources
        if old.entry.kind == "source":
            states = tuple(replace(state, content=None) for state in states)
            sources = tuple(
                msgspec.structs.replace(source, uid=to) if source.uid == uid else source
                for source in sources
            )
        entry = msgspec.structs.replace(old.entry, uid=checked(f"uid {to!r}", to))
        new = replace(old, entry=entry, states=states, is_renamed=True)
        return self._with(replace(draft.with_operator(old, new), sources=sources))

    def remove_state(self, uid: str, state: str) -> Self:
        """Leave a state of an operator out."""
        operator = self._draft.operator(uid)
        return self._with_state(operator, self._own_state(operator, state), None)

    def rename_state(self, uid: str, state: str, to: str) -> Self:
        """Give a state of an operator another name; swaps are possible as with operators."""
        operator = self._draft.operator(uid)
        old = self._own_state(operator, state)
        entry = msgspec.structs.replace(old.entry, name=to)
        return self._with_state(operator, old, replace(old, entry=entry, is_renamed=True))

    def filter_state(self, uid: str, state: str, condition: Column | str) -> Self:
        """Keep only the rows for which ``condition`` holds, a Column or SQL on the state's columns.

        A list or map may lose elements; a key without rows has no state any more.
        """
        operator = self._draft.operator(uid)
        old = self._own_state(operator, state)
        frame = self._frame(old)
        return self._with_state(
            operator, old, replace(old, content=_derived(old, lambda: frame().filter(condition)))
        )

    def map_state(
        self,
        uid: str,
        state: str,
        function: Callable[[DataFrame], DataFrame],
        *,
        value_type: Any = None,
        key_type: Any = None,
    ) -> Self:
        """Make the rows of a state anew: ``function`` takes its DataFrame and gives one.

        Keys are taken from the column ``key_value`` and placed anew, so that it may be changed; the
        columns ``key`` and ``key_group`` need not be kept up. Two rows for one key are an error.

        Args:
            uid: the operator.
            state: one of its states.
            function: gives the columns of the state as it is to be.
            value_type: what the state has now, when its type changes: of a list its element, of a
                map ``dict[K, V]``.
            key_type: the type of the keys, when it changes.
        """
        operator = self._draft.operator(uid)
        old = self._own_state(operator, state)
        value = old.entry.value if value_type is None else schema_of(value_type)
        key = old.entry.key if key_type is None else schema_of(key_type)
        frame = self._frame(old)
        content = Framed(
            lambda: function(frame()),
            key=old.content.key if isinstance(old.content, Framed) else KEY,
            has_keys=False,
        )
        entry = state_entry(old.entry.name, old.entry.kind, key, value)
        return self._with_state(operator, old, replace(old, entry=entry, content=content))

    def with_max_parallelism(self, max_parallelism: int) -> Self:
        """Another number of key groups: every key is placed anew, all keyed state rewritten.

        Keys that source partitions own stay with them. The event time of a stage that reads an edge
        becomes the least that any of its buckets had, for its keys move between them.
        """
        draft = self._draft
        if not 1 <= max_parallelism <= 32768:
            raise ConfigurationError(f"max_parallelism {max_parallelism} is not in 1-32768")
        of_sources = {source.stage for source in draft.sources}
        marks: dict[str, WatermarkEntry] = {}
        kept: list[WatermarkEntry] = []
        for mark in draft.watermarks:
            if mark.stage in of_sources or max_parallelism == draft.max_parallelism:
                kept.append(mark)
                continue
            least = marks.get(mark.stage, mark).watermark_ms
            marks[mark.stage] = WatermarkEntry(
                stage=mark.stage,
                low=0,
                high=mark.partitions,
                partitions=mark.partitions,
                watermark_ms=min(least, mark.watermark_ms),
            )
        watermarks = (*kept, *marks.values())
        return self._with(replace(draft, max_parallelism=max_parallelism, watermarks=watermarks))

    def _with(self, draft: SavepointDraft) -> Self:
        return type(self)(self._spark, draft, graph=self._graph, base=self._base, env=self._env)

    def _with_state(
        self, operator: OperatorDraft, old: StateDraft | None, new: StateDraft | None
    ) -> Self:
        return self._with(self._draft.with_operator(operator, operator.with_state(old, new)))

    def _own_state(self, operator: OperatorDraft, name: str) -> StateDraft:
        """A state whose rows are known. Raises ConfigurationError."""
        state = operator.state(name)
        if state.entry.kind == POSITIONS:
            raise ConfigurationError(
                f"the positions of source {operator.name!r} are no state; use "
                "with_source_positions, or remove_operator"
            )
        if state.content is None:
            raise ConfigurationError(
                f"state {name!r} of operator {operator.name!r} is what its bootstrap leaves; "
                "change the bootstrap, or the DataFrame that it reads"
            )
        return state

    def _frame(self, state: StateDraft) -> Callable[[], DataFrame]:
        match state.content:
            case Kept() as kept:
                return partial(self._kept, kept)
            case Filtered(frame) | Framed(frame=frame):
                return frame
        raise AssertionError("the rows of a bootstrap are not known before")

    def _kept(self, kept: Kept) -> DataFrame:
        """The rows of a state of the savepoint that is modified."""
        assert self._base is not None, "kept files are of a savepoint"
        reader = self._spark.read.format("penstock").option("operatorUid", kept.operator)
        return reader.option("stateName", kept.state).load(self._base[0].url)


def _derived(old: StateDraft, frame: Callable[[], DataFrame]) -> Content:
    """The content of a state of which rows were left out."""
    if isinstance(old.content, Framed):
        return replace(old.content, frame=frame)
    return Filtered(frame)
