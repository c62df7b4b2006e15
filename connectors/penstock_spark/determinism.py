"""Whether a replay wrote again what was recorded: the outputs of a range, key by key.

A deterministic application gives each key the same records in the same order. Where several sinks
or subtasks write one key, their order may differ between two runs of the same records; that is told
apart from records that differ.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from penstock_spark.enabling import enable
from penstock_spark.kafka_options import options_of, wanted_from
from penstock_spark.session import session

_DIGEST_CHARACTERS = 32
_RECORDS = "key binary, value binary, partition int, offset bigint"


@dataclass(frozen=True)
class Determinism:
    """What the comparison of one output found."""

    topic: str
    records: int
    """Written by the replay."""
    keys: int
    same: int
    """Keys whose replayed records stand in the recorded ones as they are, without a gap."""
    reordered: int
    """Keys with the same records in another order."""
    different: int
    """Keys for which the replay wrote a record that is not among the recorded ones."""
    examples: tuple[str, ...]
    """Some of the keys that differ, or are reordered where none does."""

    @property
    def is_deterministic(self) -> bool:
        """Nothing was written that was not recorded."""
        return self.different == 0


def compared(
    topic: str, recorded: DataFrame, replayed: DataFrame, *, whole: bool = False
) -> Determinism:
    """Look for the replayed records of each key among the recorded ones.

    Both have the columns ``key``, ``value`` (binary), ``partition`` and ``offset``. ``whole``: the
    replay began where the recording began, so that a key's records must be its first ones.
    """
    ours, theirs = _by_key(replayed, "replayed"), _by_key(recorded, "recorded")
    both = ours.join(theirs, ours["key_r"].eqNullSafe(theirs["key_r"]), "left").select(
        ours["key"], "replayed", sf.coalesce("recorded", sf.lit("")).alias("recorded")
    )
    place = sf.expr("instr(recorded, replayed)")
    in_order = (place == 1) if whole else (place > 0) & (place % _DIGEST_CHARACTERS == 1)
    extra = _extra(recorded, replayed)
    judged = both.join(extra, both["key"].eqNullSafe(extra["extra_key"]), "left").select(
        both["key"],
        sf.when(in_order, "same")
        .when(sf.col("extra_key_seen").isNull(), "reordered")
        .otherwise("different")
        .alias("verdict"),
    )
    found = {row["verdict"]: row for row in _counted(judged).collect()}

    def count(verdict: str) -> int:
        return int(found[verdict]["keys"]) if verdict in found else 0

    worst = "different" if "different" in found else "reordered"
    return Determinism(
        topic=topic,
        records=replayed.count(),
        keys=sum(map(count, found)),
        same=count("same"),
        reordered=count("reordered"),
        different=count("different"),
        examples=tuple(map(_shown, found[worst]["examples"])) if worst in found else (),
    )


def _by_key(found: DataFrame, name: str) -> DataFrame:
    """Key -> the digests of its records, in the order of the topic, as one text."""
    digest = sf.md5(sf.coalesce(sf.col("value"), sf.lit(b"\xffnull")))
    entries = sf.sort_array(sf.collect_list(sf.struct("partition", "offset", digest.alias("d"))))
    text = sf.concat_ws("", sf.transform(entries, lambda entry: entry["d"]))
    return found.groupBy("key").agg(text.alias(name)).withColumn("key_r", sf.col("key"))


def _extra(recorded: DataFrame, replayed: DataFrame) -> DataFrame:
    """Keys with a record that the replay wrote more often than it was recorded."""
    ours = replayed.groupBy("key", "value").agg(sf.count("*").alias("ours"))
    theirs = recorded.groupBy("key", "value").agg(sf.count("*").alias("theirs"))
    theirs = theirs.withColumnsRenamed({"key": "key_t", "value": "value_t"})
    same = ours["key"].eqNullSafe(theirs["key_t"]) & ours["value"].eqNullSafe(theirs["value_t"])
    more = ours.join(theirs, same, "left").where(sf.col("ours") > sf.coalesce("theirs", sf.lit(0)))
    return more.select(
        sf.col("key").alias("extra_key"), sf.lit(True).alias("extra_key_seen")
    ).distinct()


def _counted(judged: DataFrame) -> DataFrame:
    examples = sf.slice(sf.sort_array(sf.collect_set("key")), 1, 5)
    return judged.groupBy("verdict").agg(sf.count("*").alias("keys"), examples.alias("examples"))


def _shown(key: bytes | None) -> str:
    return "(no key)" if key is None else bytes(key).decode(errors="backslashreplace")


def run(
    outputs: Mapping[str, str],
    env: Mapping[str, str],
    *,
    whole: bool = False,
    master: str | None = None,
) -> int:
    """Compare each recorded topic with its replayed one and print it; 0 when nothing differs."""
    with session("penstock replay", master) as spark:
        enable(spark)
        found = [
            compared(topic, _all(spark, topic, env), _all(spark, copy, env), whole=whole)
            for topic, copy in sorted(outputs.items())
        ]
    sys.stdout.write(table(found))
    return 0 if all(each.is_deterministic for each in found) else 1


def _all(spark: SparkSession, topic: str, env: Mapping[str, str]) -> DataFrame:
    wanted = wanted_from({"subscribe": topic}, env)
    reader = spark.read.format("penstock_kafka").options(**options_of(wanted))
    return reader.schema(_RECORDS).load()


def table(found: list[Determinism]) -> str:
    """The result for people."""
    width = max([len(each.topic) for each in found] + [6])
    head = ("records", "keys", "same", "reordered", "different")
    lines = [f"{'output':<{width}}" + "".join(f"{name:>12}" for name in head)]
    for each in found:
        counts = (each.records, each.keys, each.same, each.reordered, each.different)
        lines.append(f"{each.topic:<{width}}" + "".join(f"{count:>12,}" for count in counts))
        if each.examples:
            lines.append(
                f"  {'differ' if each.different else 'reordered'}: " + ", ".join(each.examples)
            )
    verdict = (
        "deterministic" if all(each.is_deterministic for each in found) else "NOT deterministic"
    )
    return "\n".join([*lines, f"verdict: {verdict}", ""])
