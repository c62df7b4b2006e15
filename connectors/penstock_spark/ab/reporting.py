"""The report of an A/B run: outputs and end states read, compared, and written to a folder."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from penstock.failure import ConfigurationError
from penstock.runtime import ab_run
from penstock.runtime.ab_run import AbRun
from penstock.runtime.connectors import store_from
from penstock.savepoint.manifest import MANIFEST_KEY
from penstock.savepoint.reading import Savepoint
from penstock.schema import ANY
from pyspark.sql import DataFrame, SparkSession

from penstock_spark.ab.comparison import compare
from penstock_spark.ab.figures import figures
from penstock_spark.ab.model import AbReport, Compared, Kind, PositionDifference
from penstock_spark.ab.outputs import (
    KEY,
    PARSED,
    PLACE,
    inferred,
    json_type,
    records,
    rows,
    with_parsed,
)
from penstock_spark.ab.page import page
from penstock_spark.ab.sinks import SinkType, sink_types
from penstock_spark.ab.states import position_differences, readable, state_names, state_pairs
from penstock_spark.enabling import enable
from penstock_spark.kafka_source import KafkaTopics

Columns = Mapping[str, Sequence[str]]
"""An output, by its topic in the service files, or ``operator/state`` -> columns."""
_UNKNOWN = SinkType("json", ANY)


@dataclass(frozen=True)
class Wishes:
    """How a report is to be made."""

    on: Columns = field(default_factory=dict)
    """Join columns of outputs; the record key when none are given."""
    ignore: Columns = field(default_factory=dict)
    """Columns that are not compared."""
    folder: Path | None = None
    """Where report.json, report.html and differences/ are written; None: nowhere."""
    say: Callable[[str], None] = lambda _: None
    """Told what happens now."""


def report(
    app: str, variant: str, env: Mapping[str, str], spark: SparkSession, wishes: Wishes = Wishes()
) -> AbReport:
    """The report of a run that ``penstock ab start`` began.

    Outputs are read as far as they are committed now; states are compared once both have ended.

    Args:
        app: the application that the run began from.
        variant: the variant's name.
        env: the settings of the cluster and of the snapshot store.
        spark: a session; it is made able to read savepoints and topics.
        wishes: join columns and the like.

    Raises ConfigurationError, CorruptedObject, StoreFailed, TransportFailed.
    """
    run = ab_run.load(store_from(env), app, variant)
    enable(spark, env)
    spark.dataSource.register(KafkaTopics)
    making = _Making(run, env, spark, wishes)
    making.check_names()
    found = AbReport(
        app=app,
        variant=variant,
        created_at_ms=time.time_ns() // 1_000_000,
        run=run,
        comparisons=(*making.outputs(), *making.states()),
        states_only_a=making.states_only_a,
        states_only_b=making.states_only_b,
        positions=making.positions,
        not_compared=tuple(making.not_compared),
    )
    if wishes.folder is not None:
        wishes.say("writing the page")
        write(found, wishes.folder)
    return found


def write(found: AbReport, folder: Path) -> None:
    """Write report.json and report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(found.to_json())
    (folder / "report.html").write_text(page(found), encoding="utf-8")


def compared(
    a: DataFrame,
    b: DataFrame,
    name: str,
    on: Sequence[str],
    *,
    kind: Kind = "output",
    named: tuple[str, str] = ("A", "B"),
    by: Sequence[str] | None = None,
    order: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    wishes: Wishes = Wishes(),
) -> Compared:
    """Two DataFrames compared, their differences written below the folder of ``wishes``."""
    comparison = compare(a, b, on, ignore=ignore, by=by, order=order)
    try:
        found = figures(comparison, name, kind=kind, a=named[0], b=named[1], say=wishes.say)
        if wishes.folder is None or not found.unequal:
            return found
        place = (
            wishes.folder / "differences" / re.sub(r"[^a-z0-9.-]+", "_", f"{kind}-{name}".lower())
        )
        wishes.say(f"{name}: writing {found.unequal:,} rows that are not equal")
        comparison.differences().write.mode("overwrite").parquet(place.absolute().as_uri())
        return msgspec.structs.replace(found, differences=str(place))
    finally:
        comparison.close()


class _Making:
    """The report on its way."""

    def __init__(
        self, run: AbRun, env: Mapping[str, str], spark: SparkSession, wishes: Wishes
    ) -> None:
        self._run, self._env, self._spark, self._wishes = run, env, spark, wishes
        self.not_compared: list[str] = []
        self._types_a, self._types_b = self._types("A", run.files_a), self._types("B", run.files_b)
        for side, one, other in (
            ("A", self._types_a, self._types_b),
            ("B", self._types_b, self._types_a),
        ):
            self.not_compared += [
                f"output {name}: only {side} writes it"
                for name in one
                if other and name not in other
            ]
        self._ends: tuple[Savepoint, Savepoint] | None = None
        self.positions: tuple[PositionDifference, ...] = ()
        self.states_only_a: tuple[str, ...] = ()
        self.states_only_b: tuple[str, ...] = ()
        self._states: tuple[str, ...] = ()
        a, b = self._opened("A", run.final_a), self._opened("B", run.final_b)
        if a is not None and b is not None:
            self._ends = a, b
            names_a, names_b = state_names(a), state_names(b)
            self.positions = position_differences(a, b)
            self.states_only_a = tuple(name for name in names_a if name not in names_b)
            self.states_only_b = tuple(name for name in names_b if name not in names_a)
            self._states = tuple(name for name in names_a if name in names_b)

    def check_names(self) -> None:
        """Raise ConfigurationError for a wish about what is not there."""
        outputs = [declared(topic, self._types_a) for topic in self._run.sinks]
        for what, wanted, there in (
            ("output to join", self._wishes.on, outputs),
            (
                "output or state to ignore columns of",
                self._wishes.ignore,
                [*outputs, *self._states],
            ),
        ):
            for name in wanted:
                if name not in there:
                    raise ConfigurationError(
                        f"there is no {what} that is called {name!r}; there are {', '.join(there)}"
                    )

    def outputs(self) -> Iterator[Compared]:
        """Every sink topic of A against that of B."""
        run = self._run
        for topic_a, topic_b in sorted(run.sinks.items()):
            name = declared(topic_a, self._types_a)
            a = records(self._spark, topic_a, run.starts[topic_a], self._env)
            b = records(self._spark, topic_b, run.starts[topic_b], self._env)
            type_a = self._types_a.get(name, _UNKNOWN)
            type_b = self._types_b.get(declared(topic_b, self._types_b), type_a)
            self._wishes.say(f"{name}: {topic_a} against {topic_b}")
            found = compared(
                *typed((a, type_a), (b, type_b)),
                name,
                self._wishes.on.get(name, (KEY,)),
                named=(topic_a, topic_b),
                by=(KEY,),
                order=PLACE,
                ignore=self._wishes.ignore.get(name, ()),
                wishes=self._wishes,
            )
            yield with_parsed(found)

    def states(self) -> Iterator[Compared]:
        """Every state that both savepoints have; none before both have ended."""
        if self._ends is None:
            return
        a, b = self._ends
        for pair in state_pairs(self._spark, a, b):
            ignored = tuple(self._wishes.ignore.get(pair.name, ()))
            found = compared(
                pair.a,
                pair.b,
                pair.name,
                pair.on,
                kind="state",
                named=(a.url, b.url),
                by=pair.by,
                ignore=(*pair.ignore, *ignored),
                wishes=self._wishes,
            )
            yield readable(found, ignored)

    def _types(self, side: str, files: Sequence[str]) -> dict[str, SinkType]:
        try:
            return sink_types(files)
        except ConfigurationError as error:
            self.not_compared.append(
                f"the types of {side}'s outputs, which are inferred from the data: {error}"
            )
            return {}

    def _opened(self, side: str, url: str) -> Savepoint | None:
        store = store_from({**self._env, "PENSTOCK_STORE": url})
        if MANIFEST_KEY in store.list(MANIFEST_KEY):
            return Savepoint.open(store)
        self.not_compared.append(f"the states: {side} has not ended with a savepoint at {url}")
        return None


def declared(topic: str, types: Mapping[str, SinkType]) -> str:
    """The name that a topic has in the service files: without the suffix of the run."""
    fitting = [name for name in types if topic == name or topic.startswith(f"{name}.")]
    return max(fitting, key=len, default=topic)


def typed(
    a: tuple[DataFrame, SinkType], b: tuple[DataFrame, SinkType]
) -> tuple[DataFrame, DataFrame]:
    """The typed rows of both sides; a type that only the data can tell is the same on both."""
    (frame_a, sink_a), (frame_b, sink_b) = a, b
    kind_a, kind_b = json_type(sink_a.value), json_type(sink_b.value)
    readable = [(found, sink.serde) for found, sink in (a, b) if sink.serde in PARSED]
    if readable and (kind_a is None or kind_b is None):
        kind_a = kind_b = inferred(readable)
    return rows(frame_a, sink_a.serde, kind_a), rows(frame_b, sink_b.serde, kind_b)
