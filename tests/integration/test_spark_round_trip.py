"""Live state, as a savepoint, through Spark and back: read, changed, gone on from exactly once.

Laws: L20, L22 (another parallelism, and another max_parallelism through Spark), L23.
"""

import json
from collections import Counter
from pathlib import Path

import penstock_spark
import pytest
from penstock_spark import SavepointWriter
from penstock_stack import Stack
from pyspark.sql import DataFrame, SparkSession

from tests.integration.running import PARTITIONS, environment, feed, make_topics, running
from tests.integration.test_savepoints import KEYS, Place, fed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LAST, FURTHER = 10, 16
FOREVER_MS = 10**15
"""When the timers of the service `everything` are due."""
STATES = ("sums", "seen", "parity", "greatest", "mean")


def test_live_state_goes_through_spark_and_on(
    stack: Stack, app_id: str, tmp_path: Path, spark: SparkSession
) -> None:
    place = Place(stack, app_id, tmp_path)
    env = environment(stack, app_id)
    try:
        with running(place.application()) as application:
            fed(place, application, 1, LAST)
            url = place.penstock("savepoint", "trigger", app_id, "--stop")
            assert application.wait(60) == 0, application.log()
        penstock_spark.enable(spark, env)
        check_read(spark, url)
        changed = f"{stack.store_url}/{app_id}/savepoints/changed"
        writer = SavepointWriter.from_existing(spark, url, env=env)
        for state in (*STATES, "timers"):
            writer = writer.filter_state("everything", state, "key_value <> 'k39'")
        written = (
            writer.rename_operator("everything", "kept").with_max_parallelism(100).write(changed)
        )
        assert written.url == changed
        gone_on_from(place, changed)
    finally:
        place.close()


def state_of(spark: SparkSession, url: str, operator: str, state: str) -> DataFrame:
    reader = spark.read.format("penstock").option("operatorUid", operator)
    return reader.option("stateName", state).load(url)


def check_read(spark: SparkSession, url: str) -> None:
    """Every value, timer and position that Spark sees is that of the live state."""

    def rows(state: str, *columns: str) -> Counter[tuple[object, ...]]:
        return Counter(
            map(tuple, state_of(spark, url, "everything", state).select(*columns).collect())
        )

    keys = [f"k{k}" for k in range(KEYS)]
    total = LAST * (LAST + 1) // 2
    assert rows("sums", "key_value", "count", "total") == Counter(
        (key, LAST, total) for key in keys
    )
    assert rows("seen", "key_value", "list_index", "value") == Counter(
        (key, n - 1, n) for key in keys for n in range(1, LAST + 1)
    )
    assert rows("parity", "key_value", "map_key", "value") == Counter(
        (key, side, LAST // 2) for key in keys for side in ("odd", "even")
    )
    assert rows("greatest", "key_value", "value") == Counter((key, LAST) for key in keys)
    assert rows("mean", "key_value", "value._1", "value._2") == Counter(
        (key, LAST, total) for key in keys
    )
    found = rows("timers", "key_value", "time_domain", "timestamp_ms")
    assert found == Counter(
        timer
        for key in keys
        for timer in ((key, "event", FOREVER_MS + LAST), (key, "processing", FOREVER_MS))
    )
    offsets = spark.read.format("penstock").option("metadata", "offsets").load(url)
    positions = {row["partition"]: row["position"] for row in offsets.collect()}
    assert positions == dict.fromkeys(range(PARTITIONS), KEYS // PARTITIONS * LAST)
    passed = state_of(spark, url, "numbered", "passed").agg({"value": "sum"}).first()
    assert passed is not None
    assert passed[0] == KEYS * LAST


def gone_on_from(place: Place, url: str) -> None:
    """Another uid, parallelism and number of key groups; k39 was taken out and begins anew."""
    sums = f"{place.app}.sums.on"
    make_topics(place.stack, sums, f"{sums}.fired")
    feed(place.stack, f"{place.app}.numbers", KEYS, LAST + 1, FURTHER)
    application = place.application(
        *("--from-savepoint", url, "--parallelism", "3"),
        app=f"{place.app}-on", TEST_SINK=sums, TEST_UID="kept", TEST_MAX_PARALLELISM="100",
    )  # fmt: skip
    more = type(place.reader)(place.stack, sums)
    try:
        with running(application):
            more.until(KEYS * (FURTHER - LAST), 90, application)
            again = place.penstock("savepoint", "trigger", application.app, "--stop", "--drain")
            assert application.wait(60) == 0, application.log()
        more.settle()
        found = Counter((r["key"], r["count"], r["total"]) for r in map(json.loads, more.values))
    finally:
        more.close()
    whole = [(n, n * (n + 1) // 2) for n in range(LAST + 1, FURTHER + 1)]
    begun = [(n, sum(range(LAST + 1, LAST + 1 + n))) for n in range(1, FURTHER - LAST + 1)]
    assert found == Counter(
        (f"k{k}", count, total)
        for k in range(KEYS)
        for count, total in (begun if k == 39 else whole)
    )
    savepoint = place.savepoint(again)
    assert savepoint.manifest.max_parallelism == 100
    assert savepoint.table("kept", "sums").num_rows == KEYS
