"""Savepoints changed by a real Spark: renamed, filtered, rewritten, in other key groups."""

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import penstock as ps
import pytest
from penstock.savepoint.reading import Savepoint
from penstock_minio import FileStore
from penstock_spark import SavepointWriter
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so

from tests.integration.spark_writing import (
    COMMANDS,
    Quiet,
    at,
    commands,
    comparable,
    driven,
    every_state,
    modified,
    restored,
)
from tests.unit.savepoint.every_state import STATES, Command, savepoint_of, service

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

# -- modify


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    return every_state(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return comparable(driven())


def sums(savepoint: Savepoint) -> Counter[str]:
    return Counter(file.sha256 for file in savepoint.manifest.files)


def test_what_is_not_changed_is_copied_byte_by_byte(
    spark: SparkSession, base: Savepoint, tmp_path: Path, expected: dict[str, Any]
) -> None:
    made = modified(spark, base, tmp_path, lambda w: w, services=[service()])
    before, after = base.manifest, made.manifest
    assert len(after.files) == len(before.files)
    for operator in before.operators:
        for state in operator.states:
            files = [sp.files(operator.uid, state.name) for sp in (base, made)]
            assert list(map(base.data, files[0])) == list(map(made.data, files[1]))
    assert (after.operators, after.sources) == (before.operators, before.sources)
    assert (after.watermarks, after.checkpoint) == (before.watermarks, before.checkpoint)
    assert (after.parent, after.app) == (base.url, before.app)
    assert comparable(restored(made)) == expected
    again = modified(spark, made, tmp_path / "again", lambda w: w)
    assert sums(again) == sums(base)


def test_operators_are_renamed_swapped_and_removed(
    spark: SparkSession, base: Savepoint, tmp_path: Path, expected: dict[str, Any]
) -> None:
    def change(writer: SavepointWriter) -> SavepointWriter:
        return (
            writer.rename_operator("everything", "other")
            .rename_operator("commands", "orders")
            .rename_state("other", "seen", "counts")
            .rename_state("other", "counts", "seen")
            .remove_state("other", "lines")
        )

    made = modified(spark, base, tmp_path, change)
    states = {state.name: state.kind for state in made.operator("other").states}
    assert (states["seen"], states["counts"]) == ("map", "list")
    assert "lines" not in states
    assert [s.uid for s in made.manifest.sources] == ["orders"]
    assert made.table("orders", "positions")["source_uid"].to_pylist() == ["orders"] * 4
    kept = {f.sha256 for f in base.manifest.files if f.operator == "everything"}
    assert {f.sha256 for f in made.manifest.files if f.operator == "other"} < kept
    back = modified(
        spark, made, tmp_path / "back",
        lambda w: w.rename_operator("other", "orders").rename_operator("orders", "other")
        .remove_operator("other").rename_operator("orders", "everything")
        .rename_state("everything", "counts", "seen")
        .rename_state("everything", "seen", "counts"),
    )  # fmt: skip
    assert back.manifest.sources == ()
    found = comparable(restored(back, allow_dropped=True))
    assert found.pop("lines") == {}
    assert found == {name: value for name, value in expected.items() if name != "lines"}


def test_rows_are_filtered_and_rewritten(
    spark: SparkSession, base: Savepoint, tmp_path: Path, expected: dict[str, Any]
) -> None:
    made = modified(
        spark,
        base,
        tmp_path,
        lambda w: (
            w.filter_state("everything", "account", F.col("total") > 270)
            .filter_state("everything", "lines", "day < DATE'2026-01-05'")
            .filter_state("everything", "recent", "value <> ''")
            .filter_state("everything", "timers", "time_domain = 'event'")
            .map_state("everything", "least", lambda d: d.withColumn("value", F.expr("value * 2")))
            .filter_state("everything", "least", "value > 2")
            .map_state(
                "everything", "mean", lambda d: d.withColumn("key_value", F.lower("key_value"))
            )
            .filter_state("everything", "mean", "key_value <> ''")
        ),
    )
    found = comparable(restored(made))
    for name in ("seen", "counts", "by_day", "known", "rates"):
        assert found[name] == expected[name], name
    assert found["account"] == {k: a for k, a in expected["account"].items() if a.total > 270}
    assert found["lines"] == {
        key: [line for line in lines if line.day < dt.date(2026, 1, 5)]
        for key, lines in expected["lines"].items()
    }
    assert found["recent"] == [key for key in expected["recent"] if key]
    assert found["timers"] == [timer for timer in expected["timers"] if timer[0] == 0]
    assert found["least"] == {k: 2 * n for k, n in expected["least"].items() if n > 1}
    assert found["mean"] == {k.lower(): n for k, n in expected["mean"].items() if k}


class Wide(msgspec.Struct, frozen=True):
    """What ``least`` becomes."""

    value: int
    note: str


class Migrated(ps.KeyedProcess):
    least = ps.ValueState(Wide)

    def process(self, value: Command, ctx: ps.Context) -> None: ...


def migrated() -> ps.Service:
    made = ps.Service("all", app="app")
    stream = made.source("commands", topic="commands", value=Command)
    stream.key_by("by-key", lambda c: c.key).process("everything", Migrated)
    return made


def test_the_type_of_a_state_changes(spark: SparkSession, base: Savepoint, tmp_path: Path) -> None:
    def change(writer: SavepointWriter) -> SavepointWriter:
        for state in STATES:
            if state not in ("account", "timers"):
                writer = writer.remove_state("everything", state)
        return writer.map_state(
            "everything",
            "account",
            lambda rows: rows.selectExpr("key_value", "total AS value", "rank AS note"),
            value_type=Wide,
        ).rename_state("everything", "account", "least")

    made = modified(spark, base, tmp_path, change, services=[migrated()])
    found = restored(made, migrated()).state("everything", "least")
    assert found["a"] == Wide(sum(c.number for c in COMMANDS if c.key == "a"), "high")


def test_an_operator_is_replaced(spark: SparkSession, base: Savepoint, tmp_path: Path) -> None:
    made = modified(
        spark,
        base,
        tmp_path,
        lambda w: w.replace_operator(
            "everything",
            commands(spark, COMMANDS[:6]),
            bootstrap=Quiet,
            key=lambda c: c.key,
            key_type=str,
            value=Command,
            order_by=["number"],
        ),
    )
    assert made.operator("everything").stage == base.operator("everything").stage
    found = comparable(restored(made))
    assert {key: account.total for key, account in found["account"].items()} == {
        c.key: c.number for c in COMMANDS[:6]
    }


@pytest.mark.parametrize("partitioned", [False, True])
def test_another_number_of_key_groups(
    spark: SparkSession, tmp_path: Path, partitioned: bool, expected: dict[str, Any]
) -> None:
    """128 -> 200, which is no power of two, -> 256: every key has its state, by both owners."""
    run = driven(partitioned=partitioned)
    found = savepoint_of(run.checkpoint(), FileStore(tmp_path / "base"))
    wanted = comparable(run)
    for groups in (200, 256):
        writer = SavepointWriter.from_existing(spark, found.url).with_max_parallelism(groups)
        written = writer.write((tmp_path / str(groups)).as_uri(), tasks=3)
        assert written.copied_files == 4, "positions, and state that has no keys"
        found = at(tmp_path / str(groups))
        made = service(partitioned=partitioned)
        made.max_parallelism = groups
        again = restored(found, made)
        for name, value in comparable(again).items():
            assert value == wanted[name], name
        by_stage = {mark.stage: mark.watermark_ms for mark in found.manifest.watermarks}
        assert set(by_stage.values()) == {500}
