"""What is added to a savepoint: operators, states, source positions, event time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from penstock.annotation import owner_class
from penstock.failure import ConfigurationError
from penstock.operator.process import KeyedProcess
from penstock.savepoint.manifest import (
    KEYED_KINDS,
    POSITIONS,
    OperatorEntry,
    SourceEntry,
    StateEntry,
    StateKind,
    WatermarkEntry,
)
from penstock.schema import Schema
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so

from penstock_spark.writing.declared import Declared
from penstock_spark.writing.describing import Place, agree, key_of, state_of, states_of, values_of
from penstock_spark.writing.draft import Framed, OperatorDraft, StateDraft, checked
from penstock_spark.writing.jobs import Bootstrap
from penstock_spark.writing.modify import Modifications
from penstock_spark.writing.rows import KEY


class Additions(Modifications):
    """What can be added to a writer; see `SavepointWriter`."""

    def with_operator(
        self,
        uid: str,
        rows: DataFrame,
        *,
        bootstrap: Callable[[], KeyedProcess],
        key: str | Column | Callable[[Any], Any],
        value: Any = None,
        key_type: Any = None,
        timestamp: str | Column | None = None,
        order_by: Sequence[str | Column] = (),
        place: Place | None = None,
    ) -> Self:
        """Add an operator with the state that a process leaves which sees the rows of each key.

        Args:
            uid: of the operator, as in the service.
            rows: one row per call of ``process``.
            bootstrap: a class derived from `KeyedStateBootstrap`, any other `KeyedProcess` that
                emits nothing, or a function that makes one.
            key: of a row: a column, or a function of the value.
            value: what ``process`` is given: a type with fields, made of the columns of these
                names; any other type, made of the column ``value``; None: a dict of all columns.
            key_type: of the keys, where neither services nor the column or function say it.
            timestamp: column with ``ctx.timestamp``, as timestamp or as milliseconds; else 0.
            order_by: the order of the rows of one key. Without it, it is not defined.
            place: where the operator stands, when the writer has no services.

        Raises ConfigurationError for a uid that is taken, or that the services do not have.
        """
        if self._draft.found(uid) is not None:
            raise ConfigurationError(
                f"there is an operator {uid!r} already; use replace_operator, or another uid"
            )
        said = self._graph.step(uid)
        owner = owner_class(uid, bootstrap, KeyedProcess)
        key_column = F.col(key) if isinstance(key, str) else key
        key_kind, key_schema = key_of(uid, rows, key_column, key_type, said)
        states = tuple(StateDraft(entry, None) for entry in states_of(owner, key_schema))
        if said is not None:
            for state in states:
                agree(uid, state.entry, said)
        how = Bootstrap(
            frame=rows,
            process=bootstrap,
            key=key_column,
            key_type=key_kind,
            key_schema=key_schema,
            value_type=value,
            values=values_of(uid, rows, value),
            timestamp=F.col(timestamp) if isinstance(timestamp, str) else timestamp,
            order_by=tuple(F.col(c) if isinstance(c, str) else c for c in order_by),
        )
        entry = self._entry(uid, "keyed_process", said, place)
        new = OperatorDraft(entry, states, bootstrap=how)
        return self._with(self._draft.with_operator(None, new))

    def replace_operator(self, uid: str, rows: DataFrame, **how: Any) -> Self:
        """`remove_operator` and `with_operator`: nothing of the operator's old state is left."""
        old = self._draft.operator(uid).entry
        if not self._graph and how.get("place") is None:
            how["place"] = Place(old.service, old.stage, old.ownership, old.partitions)
        return self.remove_operator(uid).with_operator(uid, rows, **how)

    def with_state(
        self,
        uid: str,
        state: str,
        rows: DataFrame,
        *,
        kind: StateKind | None = None,
        value_type: Any = None,
        key_type: Any = None,
        key: str = KEY,
        place: Place | None = None,
    ) -> Self:
        """Add a state whose rows a DataFrame has; its operator, too, when there is none.

        The columns are those in which the state is read: the key, ``list_index`` or ``map_key`` or
        those of timers, then one for each field of a struct or else ``value``; for a step whose
        source is ``partitioned=True`` also ``partition``. State of subtasks needs only its values:
        a list keeps the order of the DataFrame unless it has ``element_index``.

        Args:
            uid: of the operator.
            state: its name.
            rows: one row per key, element, entry or timer.
            kind: ``value``, ``list``, ``map``, ``reducing``, ``aggregating``, ``timers``,
                ``operator_list``, ``operator_union``, ``operator_broadcast``; as the services say
                it when they do.
            value_type: of the value; of a list its element, of a map ``dict[K, V]``.
            key_type: of the keys.
            key: the column with the key.
            place: where a new operator stands, when the writer has no services.
        """
        said = self._graph.step(uid)
        spec = None if said is None else said.states.get(state)
        entry = state_of(uid, state, kind, value_type, key_type, rows, key, spec)
        if said is not None:
            agree(uid, entry, said)
        new = StateDraft(entry, Framed(lambda: rows, key, has_keys=True))
        operator = self._draft.found(uid)
        if operator is None:
            keyed = "keyed_process" if entry.kind in KEYED_KINDS else "process"
            operator = OperatorDraft(self._entry(uid, keyed, said, place), (new,))
            return self._with(self._draft.with_operator(None, operator))
        if state in {other.name for other in operator.states}:
            raise ConfigurationError(
                f"operator {uid!r} has a state {state!r} already; remove_state it before, or use "
                "map_state"
            )
        if said is not None and operator.described().ownership == "none":
            owner = self._entry(uid, operator.entry.kind, said, place)
            changed = replace(operator, entry=owner)
            return self._with(self._draft.with_operator(operator, changed.with_state(None, new)))
        return self._with_state(operator, None, new)

    def with_source_positions(
        self,
        uid: str,
        topic: str,
        positions: Mapping[int, int],
        *,
        place: Place | None = None,
    ) -> Self:
        """Say where a source starts: the NEXT offset of every partition of its topic.

        Replaces the positions that the source had.
        """
        if (
            sorted(positions) != list(range(len(positions)))
            or min(positions.values(), default=0) < 0
        ):
            raise ConfigurationError(
                f"source {uid!r}: expected the next offset, 0 or more, of every partition from 0 "
                f"on, found {dict(positions)}"
            )
        said = self._graph.source(uid, topic)
        old = self._draft.found(uid)
        if old is not None and old.entry.kind != "source":
            raise ConfigurationError(
                f"{uid!r} is an operator ({old.entry.kind}) of this savepoint, not a source; name "
                "the source"
            )
        where = place or Place()
        if said is not None:
            where = Place(*said)
        elif old is not None and place is None:
            where = Place(old.entry.service, old.entry.stage)
        where = where._replace(ownership="none", partitions=len(positions))
        entry = self._entry(uid, "source", None, where)
        state = StateEntry(name=POSITIONS, kind="positions", value=Schema("int"))
        source = SourceEntry(
            uid=uid, stage=entry.stage, topic=topic, positions=dict(sorted(positions.items()))
        )
        kept = tuple(other for other in self._draft.sources if other.uid != uid)
        new = OperatorDraft(entry, (StateDraft(state, None),))
        draft = self._draft.with_operator(old, new)
        return self._with(replace(draft, sources=(*kept, source)))

    def with_watermark(self, uid: str, watermark_ms: int) -> Self:
        """Say how far event time has come in the stage of an operator or source."""
        entry = self._draft.operator(uid).entry
        mark = WatermarkEntry(
            stage=entry.stage,
            low=0,
            high=entry.partitions,
            partitions=entry.partitions,
            watermark_ms=watermark_ms,
        )
        others = tuple(m for m in self._draft.watermarks if m.stage != entry.stage)
        return self._with(replace(self._draft, watermarks=(*others, mark)))

    def _entry(
        self, uid: str, kind: str, said: Declared | None, place: Place | None
    ) -> OperatorEntry:
        """A new operator, placed as the services or ``place`` say."""
        where = place or Place()
        if said is not None:
            where = Place(said.service, said.stage, said.ownership, self._partitions(said, place))
            kind = said.kind
        service = checked("service", where.service or self._draft.app)
        return OperatorEntry(
            uid=checked("uid", uid),
            kind=kind,
            service=service,
            stage=checked("stage", where.stage or f"{service}.{uid}"),
            parallelism=1,
            ownership=where.ownership,
            partitions=where.partitions,
            states=(),
        )

    def _partitions(self, said: Declared, place: Place | None) -> int:
        """Of a stage's input: those of a topic are known by its positions."""
        if said.partitions is not None:
            return said.partitions
        for source in self._draft.sources:
            if source.uid == said.source:
                return len(source.positions)
        if place is None:
            raise ConfigurationError(
                f"how many partitions the topic of source {said.source!r} has is not known; use "
                "with_source_positions before, or place=Place(partitions=...)"
            )
        return place.partitions
