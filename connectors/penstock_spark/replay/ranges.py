"""What a replay reads: the ranges of every partition, and the records in them."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
from penstock.failure import ConfigurationError
from pyspark.sql import DataFrame, SparkSession

from penstock_spark.kafka_offsets import OffsetRange, planned
from penstock_spark.kafka_options import Wanted, wanted_from
from penstock_spark.kafka_source import held
from penstock_spark.replay.plan import ReplayPlan

Positions = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> NEXT offset."""
Until = Positions | Literal["latest"]
Reader = Literal["penstock", "spark-kafka"]


class Input(NamedTuple):
    """Where the records come from."""

    ranges: list[OffsetRange]
    """Of every partition, empty ones, too."""
    records: DataFrame | None
    """None: each task reads Kafka by ``wanted``."""
    wanted: Wanted | None


def input_of(
    spark: SparkSession,
    plan: ReplayPlan,
    reader: Reader | DataFrame,
    until: Until,
    starts: Positions,
    options: Mapping[str, str],
    env: Mapping[str, str],
    *,
    allow_truncated: bool,
) -> Input:
    """What a replay reads from ``starts`` on; see `penstock_spark.replay.replayed`.

    Raises ConfigurationError for records that are gone, or not there yet.
    """
    if isinstance(reader, DataFrame):
        return Input(_said(plan, until, starts), reader, None)
    wanted = _wanted(plan, until, options, env)
    ranges = _there(plan, wanted, starts, allow_truncated=allow_truncated)
    if reader == "penstock":
        return Input(ranges, None, wanted)
    if reader == "spark-kafka":
        return Input(ranges, _by_spark(spark, wanted, ranges), None)
    raise ConfigurationError(
        f"reader={reader!r} is unknown; use 'penstock', 'spark-kafka' or a DataFrame"
    )


def _wanted(
    plan: ReplayPlan,
    until: Until,
    options: Mapping[str, str],
    env: Mapping[str, str],
) -> Wanted:
    wanted = wanted_from({**options, "subscribe": ",".join(plan.topics)}, env)
    if isinstance(until, str):
        return wanted
    return msgspec.structs.replace(wanted, ending=_ends(plan, until))


def _ends(plan: ReplayPlan, until: Positions) -> dict[str, dict[int, int]]:
    ends = {topic: dict(sorted(until.get(topic, {}).items())) for topic in plan.topics}
    for topic, offsets in ends.items():
        if not offsets or min(offsets.values()) < 0:
            raise ConfigurationError(
                f"until says {offsets or 'nothing'} of topic {topic!r}; say the NEXT offset of "
                "each of its partitions"
            )
    return ends


def _there(
    plan: ReplayPlan, wanted: Wanted, starts: Positions, *, allow_truncated: bool
) -> list[OffsetRange]:
    """The ranges in Kafka, of every partition."""
    has = held(wanted)
    starting: dict[str, dict[int, int]] = {}
    for topic in plan.topics:
        starting[topic] = {p: starts.get(topic, {}).get(p, 0) for p in has[topic]}
        for partition, there in has[topic].items():
            if there.low > starting[topic][partition]:
                if not allow_truncated:
                    raise ConfigurationError(
                        f"{topic}[{partition}] begins at offset {there.low}, and the replay at "
                        f"{starting[topic][partition]}: what the deleted records would have done "
                        "to the state would be missing; replay from a copy of the whole topic "
                        "(reader=...) or from a savepoint (since=...), or accept it with "
                        "allow_truncated=True"
                    )
                starting[topic][partition] = there.low
    wanted = msgspec.structs.replace(wanted, starting=starting)
    found = {(r.topic, r.partition): r for r in planned(wanted, has)}
    ranges: list[OffsetRange] = []
    for topic in plan.topics:
        for partition, there in sorted(has[topic].items()):
            end = there.stable
            if not isinstance(wanted.ending, str):
                end = wanted.ending[topic][partition]
            nothing = OffsetRange(topic, partition, end, end)
            ranges.append(found.get((topic, partition), nothing))
    return ranges


def _said(plan: ReplayPlan, until: Until, starts: Positions) -> list[OffsetRange]:
    """The ranges of a DataFrame: nobody but the caller knows them."""
    if isinstance(until, str):
        raise ConfigurationError(
            f"until={until!r} needs Kafka; with a DataFrame say where each partition ends"
        )
    ranges = []
    for topic, ends in _ends(plan, until).items():
        for partition, end in ends.items():
            start = starts.get(topic, {}).get(partition, 0)
            if start > end:
                raise ConfigurationError(
                    f"until says {end} of {topic}[{partition}], where the savepoint is at {start} "
                    "already; end there or later"
                )
            ranges.append(OffsetRange(topic, partition, start, end))
    return ranges


def _by_spark(spark: SparkSession, wanted: Wanted, ranges: Sequence[OffsetRange]) -> DataFrame:
    """The records by Spark's own source, whose jars the session must have."""
    if wanted.cluster.settings:
        raise ConfigurationError(
            "Spark's Kafka source has settings of its own for TLS and SASL; make the DataFrame "
            'with spark.read.format("kafka") and give it as reader='
        )
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for part in ranges:
        starts.setdefault(part.topic, {})[part.partition] = part.start
        ends.setdefault(part.topic, {})[part.partition] = part.end
    options = {
        "kafka.bootstrap.servers": wanted.cluster.bootstrap,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(ends),
        "startingOffsets": msgspec.json.encode(starts).decode(),
        "endingOffsets": msgspec.json.encode(ends).decode(),
    }
    return spark.read.format("kafka").options(**options).load()
