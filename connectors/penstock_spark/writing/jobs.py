"""The Spark jobs of a write: rows brought together by key group, sorted, and written by tasks.

Each job is one DataFrame whose rows are the entries of the files that its tasks wrote. Nothing runs
until it is collected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.failure import ConfigurationError
from penstock.operator.process import KeyedProcess
from penstock.savepoint.layout import StateLayout
from penstock.savepoint.manifest import OperatorEntry, StateEntry
from penstock.schema import Schema
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so

from penstock_spark.shipping import shipped
from penstock_spark.writing.bootstrap import Bootstrapping
from penstock_spark.writing.draft import Framed
from penstock_spark.writing.keying import GROUP, PARTITION, RAW, TIME, Code, ValueKeying, key_state
from penstock_spark.writing.output import ENTRY, FramedRows, SortedRows, Target, identity
from penstock_spark.writing.placing import (
    WHOLE,
    by_key,
    group_of,
    keyed_schema,
    type_of,
    with_keys,
)
from penstock_spark.writing.rows import StateRows, named
from penstock_spark.writing.values import Values

_ORDER, _KEY = "__order_", "__key_value"


@dataclass(frozen=True)
class Bootstrap:
    """How an operator's state is made of the rows of a DataFrame."""

    frame: DataFrame
    process: Callable[[], KeyedProcess]
    key: Column | Callable[[Any], Any]
    key_type: Any
    key_schema: Schema
    value_type: Any
    values: Values
    timestamp: Column | None
    order_by: tuple[Column, ...]


class Jobs:
    """The jobs of one write.

    Args:
        target: where to.
        tasks: how many tasks write keyed state; each has a range of key groups.
    """

    def __init__(self, target: Target, tasks: int) -> None:
        self._target = target
        self._groups = target.max_parallelism
        self._tasks = max(1, min(tasks, self._groups))

    def filtered(self, operator: OperatorEntry, state: StateEntry, frame: DataFrame) -> DataFrame:
        """Write rows of the format; key groups are counted anew."""
        layout = StateLayout(operator, state)
        if layout.keyed:
            frame = frame.withColumn("key_group", group_of("key", self._groups))
        frame = frame.select(*layout.arrow_schema.names)
        run = SortedRows(self._target, operator, state)
        return self._sorted(frame, layout, identity(layout)).mapInArrow(run.batches, ENTRY)

    def framed(self, operator: OperatorEntry, state: StateEntry, content: Framed) -> DataFrame:
        """Write rows that a user made. Raises ConfigurationError for a missing column."""
        frame: DataFrame = content.frame()
        run = FramedRows(self._target, operator, state, content.key, content.has_keys)
        rows = run.rows()
        layout = rows.layout
        if not layout.keyed and "element_index" not in frame.columns:
            frame = frame.withColumn("element_index", F.monotonically_increasing_id())
        missing = rows.missing(frame.columns)
        if missing:
            raise ConfigurationError(_missing(rows, missing, frame.columns))
        if layout.keyed:
            frame = with_keys(frame, content.key, operator, state, self._groups)
        names = {"key_group": GROUP, "key": RAW}
        order = [names.get(name, name) for name in identity(layout)]
        order = [name for name in order if name in frame.columns]
        return self._sorted(frame, layout, order).mapInArrow(run.batches, ENTRY)

    def bootstrap(self, operator: OperatorEntry, bootstrap: Bootstrap, now_ms: int) -> DataFrame:
        """Run the process over the rows of each key."""
        frame = self._prepared(operator, bootstrap)
        is_column = isinstance(bootstrap.key, Column)
        code = shipped(
            Code(
                process=bootstrap.process,
                key=None if is_column else bootstrap.key,  # type: ignore[arg-type]
                key_type=bootstrap.key_type,
                value_type=bootstrap.value_type,
            )
        )
        if is_column:
            state = key_state(bootstrap.key_schema)
            frame = with_keys(frame, _KEY, operator, state, self._groups)
        else:
            keying = ValueKeying(operator.uid, self._groups, bootstrap.values, code)
            frame = frame.mapInArrow(keying.batches, keyed_schema(frame))
        owner = [PARTITION] if operator.ownership == "partition" else []
        order = [name for name in frame.columns if name.startswith(_ORDER)]
        run = Bootstrapping(self._target, operator, bootstrap.values, now_ms, code)
        return (
            by_key(frame, GROUP, self._tasks, self._groups)
            .sortWithinPartitions(GROUP, *owner, RAW, *order)
            .mapInArrow(run.batches, ENTRY)
        )

    def _prepared(self, operator: OperatorEntry, bootstrap: Bootstrap) -> DataFrame:
        """The columns that are needed, and no others."""
        frame = bootstrap.frame
        names = list(bootstrap.values.columns)
        if operator.ownership == "partition" and PARTITION not in names:
            if PARTITION not in frame.columns:
                raise ConfigurationError(
                    f"operator {operator.uid!r} belongs to a stage whose source is "
                    f"partitioned=True: its keys are owned by the source partition that they come "
                    f"from; the DataFrame needs a column {PARTITION!r} with it, and has "
                    f"{', '.join(frame.columns)}"
                )
            names.append(PARTITION)
        columns = [frame[name] for name in names]
        if isinstance(bootstrap.key, Column):
            columns.append(bootstrap.key.alias(_KEY))
        if bootstrap.timestamp is not None:
            columns.append(_millis(frame, bootstrap.timestamp).alias(TIME))
        columns += [
            column.alias(f"{_ORDER}{number}") for number, column in enumerate(bootstrap.order_by)
        ]
        return frame.select(*columns)

    def _sorted(self, frame: DataFrame, layout: StateLayout, order: Sequence[str]) -> DataFrame:
        """The rows in their order; without keys in one task."""
        if not layout.keyed:
            return frame.coalesce(1).sortWithinPartitions(*order)
        group = GROUP if GROUP in order else "key_group"
        return by_key(frame, group, self._tasks, self._groups).sortWithinPartitions(*order)


def _millis(frame: DataFrame, column: Column) -> Column:
    if isinstance(type_of(frame, column), WHOLE):
        return column.cast("long")
    return F.unix_millis(column.cast("timestamp"))


def _missing(rows: StateRows, missing: list[str], columns: list[str]) -> str:
    text = (
        f"{named(rows.operator, rows.state)} needs the columns {', '.join(missing)}, and the "
        f"DataFrame has {', '.join(columns)}; add them"
    )
    if PARTITION in missing:
        text += (
            f" ({PARTITION!r} is the source partition that owns the key: the operator's source is "
            "partitioned=True)"
        )
    return text
