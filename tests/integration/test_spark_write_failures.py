"""What a writer of savepoints refuses, and what it leaves behind when it fails."""

import datetime as dt
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import penstock as ps
import pytest
from penstock import ConfigurationError
from penstock.failure import CorruptedObject, UserCodeFailed
from penstock.savepoint.reading import Savepoint
from penstock_minio import FileStore
from penstock_spark import KeyedStateBootstrap, SavepointWriter
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so

from tests.integration.spark_writing import Quiet, at, commands, every_state, quiet
from tests.unit.savepoint.every_state import Command, service

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    return every_state(tmp_path_factory.mktemp("base"))


@pytest.fixture
def target(tmp_path: Path) -> str:
    return (tmp_path / "made").as_uri()


class Migrated(ps.KeyedProcess):
    """Has a state of the same name and another kind."""

    least = ps.ValueState(int)

    def process(self, value: Command, ctx: ps.Context) -> None: ...


def migrated() -> ps.Service:
    made = ps.Service("all", app="app")
    stream = made.source("commands", topic="commands", value=Command)
    stream.key_by("by-key", lambda c: c.key).process("everything", Migrated)
    return made


# -- what is refused


def test_names_that_are_not_there(spark: SparkSession, base: Savepoint) -> None:
    writer = SavepointWriter.from_existing(spark, base.url)
    new = SavepointWriter.new(spark, app="app", services=[service()])
    typed = SavepointWriter.new(spark, app="app", services=[quiet()])
    frame = commands(spark)
    for attempt, message in [
        (lambda: writer.remove_operator("everythin"), "did you mean 'everything'"),
        (lambda: writer.rename_operator("sink", "x"), "there is no operator 'sink'"),
        (lambda: writer.rename_operator("everything", "A/b"), "'A/b' is not a valid name"),
        (lambda: writer.filter_state("everything", "acount", "1"), "did you mean 'account'"),
        (lambda: writer.map_state("commands", "positions", lambda d: d), "are no state"),
        (lambda: writer.with_max_parallelism(0), "max_parallelism 0 is not in 1-32768"),
        (lambda: new.with_operator("everthing", frame, bootstrap=Quiet, key="key"),
         "no step with state of the uid 'everthing'; did you mean 'everything'"),
        (lambda: new.with_state("everything", "sen", frame, kind="value", value_type=int),
         "has no state 'sen'; did you mean 'seen'"),
        (lambda: new.with_state("everything", "least", frame, value_type=str, key="key"),
         "state 'least' of operator 'everything' does not fit the service: it was str, is int"),
        (lambda: typed.with_state("everything", "least", frame, key_type=int, key="number"),
         "does not fit the service: its keys changed"),
        (lambda: new.with_state("everything", "least", frame, kind="list"),
         "it is reducing state there, not list state"),
        (
            lambda: writer.with_source_positions("everything", "commands", {0: 1}),
            r"'everything' is an operator \(keyed_process\) of this savepoint, not a source",
        ),
        (lambda: new.with_source_positions("comands", "commands", {0: 1}),
         "did you mean 'commands'"),
        (lambda: new.with_source_positions("commands", "other", {0: 1}),
         "reads topic 'commands', not 'other'"),
        (lambda: new.with_source_positions("commands", "commands", {1: 1}),
         "of every partition from 0 on"),
        (lambda: SavepointWriter.new(spark, app="app").with_operator(
            "x", frame, bootstrap=Quiet, key=lambda v: v, value=int), "stand in a column 'value'"),
        (lambda: SavepointWriter.new(spark, app="app").with_state("x", "s", frame),
         "say kind= and value_type="),
        (lambda: new.with_operator("everything", frame.drop("key"), bootstrap=Quiet,
                                   key="do", value=Command), "Command needs the columns key"),
    ]:  # fmt: skip
        print("expected:", message)
        with pytest.raises(ConfigurationError, match=message):
            attempt()


def test_keys_of_partitions_need_their_partition(spark: SparkSession, target: str) -> None:
    new = SavepointWriter.new(spark, app="app", services=[quiet(partitioned=True)])
    how: Any = {"bootstrap": Quiet, "key": "key", "value": Command}
    with pytest.raises(ConfigurationError, match="how many partitions the topic of source"):
        new.with_operator("everything", commands(spark), **how)
    known = new.with_source_positions("commands", "commands", {0: 1, 1: 1})
    with pytest.raises(ConfigurationError, match=r"partitioned=True.*needs a column 'partition'"):
        known.with_operator("everything", commands(spark), **how).write(target)
    frame = commands(spark).withColumnRenamed("key", "key_value").withColumn("value", F.lit(1))
    with pytest.raises(ConfigurationError, match="needs the columns partition, and"):
        known.with_state("everything", "least", frame).write(target)
    (operator,) = (
        known.with_operator("everything", commands(spark).withColumn("partition", F.lit(1)), **how)
        .write(target)
        .manifest.operators[1:]
    )
    assert (operator.ownership, operator.partitions) == ("partition", 2)


def test_an_operator_without_keys_gets_the_owner_of_its_stage(
    spark: SparkSession, base: Savepoint
) -> None:
    services = [quiet(partitioned=True)]
    writer = SavepointWriter.from_existing(spark, base.url, services=services)
    for state in base.operator("everything").states:
        if state.key is not None:
            writer = writer.remove_state("everything", state.name)
    assert writer._draft.operator("everything").described().ownership == "none"
    frame = spark.sql("SELECT 'a' key_value, 1L value, 2 partition")
    found = writer.with_state("everything", "least", frame)._draft.operator("everything")
    assert (found.described().ownership, found.described().partitions) == ("partition", 4)
    assert {state.name for state in found.states} == {"recent", "known", "rates", "least"}


def test_rows_that_are_none_name_operator_state_and_key(
    spark: SparkSession, base: Savepoint, target: str, tmp_path: Path
) -> None:
    new = SavepointWriter.new(spark, app="app").with_state
    old = SavepointWriter.from_existing(spark, base.url).map_state
    how: Any = {"kind": "value", "value_type": int}
    named = "state 's' of operator 'op'"
    twice = spark.sql("SELECT 'a' key_value, 1L value UNION ALL SELECT 'a', 2L")
    for writer, message in [
        (new("op", "s", twice, **how), f"^{named} has two rows for key_value 'a'"),
        (new("op", "s", twice.withColumn("value", F.lit(None).cast("long")), **how),
         f"^{named}, key 'a': column 'value' is null, expected int"),
        (new("op", "s", twice.drop("value"), **how), f"{named} needs the columns value, and"),
        (new("op", "s", twice.withColumn("key", F.lit(b"\xa1a")).limit(1)
             .withColumn("key_group", F.lit(1)), **how), "column 'key_group' is 1, expected"),
        (old("everything", "account", lambda d: d.withColumn("key_value", F.lit("same"))),
         "state 'account' of operator 'everything' has two rows for key_value 'same'"),
        (old("everything", "by_day", lambda d: d.withColumn("map_key", F.lit(dt.date(2026, 1, 1)))),
         r"two rows for key_value '.*', map_key datetime.date\(2026, 1, 1\)"),
        (old("everything", "timers", lambda d: d.withColumn("timestamp_ms", F.lit(1))),
         "two rows for key_value '.*', timestamp_ms 1, time_domain 'event'"),
    ]:  # fmt: skip
        with pytest.raises(ConfigurationError, match=message):
            writer.write(target)
    assert not list((tmp_path / "made").rglob("*")), "nothing is left of what failed"


def test_a_savepoint_that_the_services_cannot_take(
    spark: SparkSession, base: Savepoint, target: str, tmp_path: Path
) -> None:
    writer = SavepointWriter.from_existing(spark, base.url, services=[migrated()])
    with pytest.raises(
        ConfigurationError, match=r"'least' .* it was reducing state, is value state"
    ):
        writer.write(target)
    unknown = SavepointWriter.from_existing(spark, base.url, services=[service()])
    unknown = unknown.rename_operator("everything", "everythin")
    message = r"state that nobody takes: everythin.account \(is it 'everything' now\?\)"
    with pytest.raises(ConfigurationError, match=message):
        unknown.write(target)
    other = SavepointWriter.from_existing(spark, base.url, services=[service()])
    with pytest.raises(ConfigurationError, match="has 64 key groups, service 'all' says"):
        other.with_max_parallelism(64).write(target)
    assert not (tmp_path / "made").exists(), "it is found out before anything is written"


# -- failures, and several writers


class FailsLate(KeyedStateBootstrap):
    """Raises for one key once another task has written its file."""

    total = ps.ValueState(int)

    def process(self, value: dict[str, Any], ctx: ps.Context) -> None:
        self.total.set(value["id"])
        if value["id"] != 7:
            return
        for _ in range(600):
            if any(Path(value["folder"]).rglob("*.parquet")):
                raise OSError("the disk of the enemy")
            time.sleep(0.05)
        raise AssertionError("no other task has written anything")


def test_a_task_that_fails_leaves_nothing(spark: SparkSession, target: str, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    frame = spark.range(100).withColumn("folder", F.lit(str(folder)))
    writer = SavepointWriter.new(spark, app="app").with_operator(
        "op", frame, bootstrap=FailsLate, key="id"
    )
    with pytest.raises(UserCodeFailed, match=r"'op'.*key 7, .*OSError: the disk of the enemy"):
        writer.write(target, tasks=2)
    assert FileStore(folder).list("") == []


def test_a_damaged_file_is_not_copied_and_nothing_is_left(
    spark: SparkSession, base: Savepoint, target: str, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(Path(base.url.removeprefix("file://")), folder)
    file = base.files("everything", "timers")[0]
    data = bytearray((folder / file.path).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / file.path).write_bytes(data)
    writer = SavepointWriter.from_existing(spark, folder.as_uri())
    with pytest.raises(CorruptedObject, match=f"'{file.path}' in .* is corrupted"):
        writer.write(target)
    assert FileStore(tmp_path / "made").list("") == []
    writer.remove_state("everything", "timers").write(target)
    at(tmp_path / "made")


def test_what_others_left_is_swept_once_it_is_published(
    spark: SparkSession, base: Savepoint, tmp_path: Path
) -> None:
    store = FileStore(tmp_path / "made")
    store.put("data/everything/account/older-0.parquet", b"of a driver that was killed")
    chunk = "data/1/ledger-0/7-1.chunk"  # of an application that is called data, and no orphan
    store.put(chunk, b"state")
    store.put("sources/1/x.parquet", b"no positions")
    SavepointWriter.from_existing(spark, base.url).write(store.url)
    assert store.get(chunk) == b"state"
    store.delete([chunk, "sources/1/x.parquet"])
    at(tmp_path / "made")  # which proves that there is no other file
    writer = SavepointWriter.from_existing(spark, base.url)
    before = store.list("")
    with pytest.raises(ConfigurationError, match=r"a savepoint stands at .*made already"):
        writer.write(store.url)
    assert store.list("") == before


def test_of_several_writers_one_wins(spark: SparkSession, base: Savepoint, tmp_path: Path) -> None:
    """Each wrote its own files; those of the winner are all there, those of the other are not."""
    writer = SavepointWriter.from_existing(spark, base.url)
    writer = writer.filter_state("everything", "account", "total > 0")
    target = (tmp_path / "made").as_uri()
    begin = threading.Barrier(3)
    outcomes: list[str] = []

    def write() -> None:
        begin.wait()
        try:
            writer.write(target)
            outcomes.append("published")
        except ConfigurationError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = f"a savepoint stands at {target} already"
    assert sorted(text.startswith(taken) for text in outcomes) == [False, True, True], outcomes
    assert "published" in outcomes
    at(tmp_path / "made")
