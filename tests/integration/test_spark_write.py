"""Savepoints written by a real Spark: every kind of state, in a folder, a bucket, on a cluster."""

import contextlib
import datetime as dt
import decimal
import io
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import penstock as ps
import pytest
from penstock.edge.routing import key_bytes, key_group
from penstock.runtime.connectors import store_from
from penstock.savepoint.manifest import OperatorEntry
from penstock.savepoint.reading import Savepoint
from penstock.schema import schema_of
from penstock.testing import Driver
from penstock_minio import FileStore
from penstock_minio.bucket import MinioStore
from penstock_spark import Place, SavepointWriter
from penstock_spark.writing.keying import GROUP, RAW, key_state
from penstock_spark.writing.placing import key_schema_of, with_keys
from penstock_stack import Stack
from penstock_stack.spark import start_spark_cluster
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so

from tests.docs.pages import ROOT, matches, read
from tests.integration import test_spark_pages as pages
from tests.integration.spark_writing import (
    Quiet,
    at,
    commands,
    comparable,
    driven,
    prove,
    quiet,
    restored,
)
from tests.unit.savepoint.every_state import (
    Command,
    Line,
    brought_in,
    live,
    savepoint_of,
    service,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

CLUSTER_JOB = Path(__file__).with_name("spark_jobs") / "bootstrap.py"


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return comparable(driven())


@pytest.fixture
def target(tmp_path: Path) -> str:
    return (tmp_path / "made").as_uri()


# -- bootstrap


def test_every_kind_of_state_is_as_if_it_had_run(
    spark: SparkSession, target: str, tmp_path: Path, expected: dict[str, Any]
) -> None:
    writer = (
        SavepointWriter.new(spark, app="app", services=[quiet()])
        .with_operator(
            "everything",
            commands(spark),
            bootstrap=Quiet,
            key="key",
            value=Command,
            order_by=["number"],
        )
        .with_source_positions("commands", "commands", {0: 10, 1: 20, 2: 30, 3: 40})
        .with_watermark("everything", 500)
        .with_watermark("commands", 600)
    )
    assert not (tmp_path / "made").exists(), "nothing runs before write"
    written = writer.write(target, tasks=3)
    savepoint = at(tmp_path / "made")
    assert savepoint.manifest == written.manifest
    assert savepoint.manifest.savepoint_id == "made"
    assert written.rows["everything", "account"] == 6
    assert written.rows["everything", "seen"] == 60
    run = restored(savepoint, quiet())
    for name, found in comparable(run).items():
        assert found == expected[name], name
    assert [s.positions()["commands"] for s in run._subtasks if s.positions()] == [
        {0: 10, 1: 20},
        {2: 30, 3: 40},
    ]
    assert {s.chain.watermark for s in run._subtasks} == {500, 600}


def test_rows_that_are_state_already(spark: SparkSession, target: str, tmp_path: Path) -> None:
    day = dt.date(2026, 1, 2)
    accounts = spark.sql(
        "SELECT 'a' owner, 'a' value_key, 9L total, 0.5D value_partition, 'high' rank, "
        "CAST(NULL AS STRUCT<_1: LONG, _2: STRING>) ids, "
        "ARRAY(NAMED_STRUCT('price', '1.5', 'day', DATE'2026-01-02', 'note', NULL)) lines"
    )
    frames: dict[str, DataFrame] = {
        "seen": spark.sql("SELECT 'a' key_value, CAST(p AS LONG) list_index, CONCAT('s', p) value "
                          "FROM VALUES (1), (0) AS t(p)"),
        "counts": spark.sql("SELECT 'a' key_value, m map_key, 1L value "
                            "FROM VALUES ('x'), ('y') AS t(m)"),
        "by_day": spark.sql("SELECT 'a' key_value, DATE'2026-01-02' map_key, "
                            "CAST(1.5 AS DECIMAL(9,2)) price, DATE'2026-01-02' day, NULL note"),
        "least": spark.sql("SELECT 'a' key_value, 3 value"),
        "mean": spark.createDataFrame(
            [("a", bytearray(msgspec.msgpack.encode(7)))], "key_value string, value binary"
        ).selectExpr("key_value", "ARRAY(value, value) value"),
        "timers": spark.sql("SELECT 'a' key_value, 'event' time_domain, "
                            "TIMESTAMP'2026-01-01 00:00:01Z' timestamp_ms"),
        "recent": spark.sql("SELECT value FROM VALUES ('z'), ('y') AS t(value)").coalesce(1),
        "known": spark.sql("SELECT 4L value"),
        "rates": spark.sql("SELECT 'eur' map_key, 1.25D value"),
    }  # fmt: skip
    writer = SavepointWriter.new(spark, app="app", services=[service()])
    writer = writer.with_state("everything", "account", accounts, key="owner")
    for name, frame in frames.items():
        writer = writer.with_state("everything", name, frame)
    writer.write(target)
    savepoint = at(tmp_path / "made")
    made = service()
    found = live(Driver(made, checkpoint=brought_in(savepoint, made), parallelism=1))
    account = found.pop("account")["a"]
    assert (account.key, account.total, account.rank.value) == ("a", 9, "high")
    line = Line(decimal.Decimal("1.5"), day)
    assert account.lines == [line]
    moment = int(dt.datetime(2026, 1, 1, 0, 0, 1, tzinfo=dt.UTC).timestamp() * 1000)
    assert found.pop("timers") == [(0, moment, "a")]
    assert found.pop("rates") == {"eur": 1.5, "usd": 2.0}, "open() sets eur anew"
    assert found == {
        "seen": {"a": ["s0", "s1"]},
        "lines": {},
        "counts": {"a": {"x": 1, "y": 1}},
        "by_day": {"a": {day: line}},
        "least": {"a": 3},
        "mean": {"a": [7, 7]},
        "recent": ["z", "y"],
        "known": [[4]],
    }


def test_without_services_types_and_places_are_said(
    spark: SparkSession, target: str, tmp_path: Path
) -> None:
    frame = spark.range(100).selectExpr("id", "id * 2 AS value", "CAST(id % 4 AS INT) partition")
    place = Place(service="sums", stage="sums.in", ownership="partition", partitions=4)
    written = (
        SavepointWriter.new(spark, app="app", max_parallelism=100)
        .with_state("sum", "total", frame, kind="value", value_type=int, key="id", place=place)
        .write(target, savepoint_id="first", tasks=7)
    )
    savepoint = at(tmp_path / "made")
    (operator,) = savepoint.manifest.operators
    assert (operator.service, operator.stage, operator.partitions) == ("sums", "sums.in", 4)
    assert (operator.ownership, operator.kind) == ("partition", "keyed_process")
    assert savepoint.state("sum", "total").key == schema_of(int)
    assert (written.manifest.savepoint_id, written.manifest.max_parallelism) == ("first", 100)
    (row,) = savepoint.lookup("sum", "total", 42).to_pylist()
    assert (row["partition"], row["value"]) == (2, 84)
    assert len(savepoint.files("sum", "total")) == 7


def test_spark_makes_the_same_bytes_of_keys(spark: SparkSession) -> None:
    """Msgpack has a form for every size of text and of integers: all of their edges."""
    sizes = (0, 1, 31, 32, 33, 255, 256, 257, 65535, 65536, 70000)
    texts = ["ab" * (n // 2) + "c" * (n % 2) for n in sizes] + ["ключ", "Ω" * 16, "\x00", "𝄞" * 64]
    edges = [0, 31, 32, 33, 127, 128, 129, *(1 << n for n in (8, 15, 16, 31, 32, 62, 63))]
    numbers = {sign * (n + d) for n in edges for sign in (1, -1) for d in (-1, 0, 1)}
    for kind, keys in (
        ("string", texts),
        ("bigint", sorted(n for n in numbers if -(1 << 63) <= n < 1 << 63)),
        ("int", [-(1 << 31), -1, 0, (1 << 31) - 1]),
        ("tinyint", [-128, -33, -32, 127]),
    ):
        frame = spark.createDataFrame([(key,) for key in keys], f"k {kind}")
        schema = key_schema_of(frame, F.col("k"))
        assert schema is not None
        entry = OperatorEntry(
            uid="x", kind="x", service="x", stage="x", parallelism=1, ownership="key_group",
            partitions=1, states=(),
        )  # fmt: skip
        found = with_keys(frame, "k", entry, key_state(schema), 200)
        assert "Python" not in found._jdf.queryExecution().toString()
        for row in found.collect():
            assert bytes(row[RAW]) == key_bytes(row.k), row.k
            assert row[GROUP] == key_group(row.k, 200), row.k


# -- in a bucket, and on a cluster


def test_in_a_bucket_the_server_copies(
    spark: SparkSession, stack: Stack, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    env = {**stack.store_env}
    folder = f"{stack.store_url}/{secrets.token_hex(4)}/app/savepoints"
    first = (
        SavepointWriter.new(spark, app="app", services=[quiet()], env=env)
        .with_operator("everything", commands(spark), bootstrap=Quiet, key="key", value=Command,
                       order_by=["number"])
        .with_watermark("everything", 500)
        .write(f"{folder}/first", tasks=3)
    )  # fmt: skip
    read: list[str] = []
    get = MinioStore.get
    monkeypatch.setattr(
        MinioStore, "get", lambda store, key, **how: read.append(key) or get(store, key, **how)
    )
    second = (
        SavepointWriter.from_existing(spark, first.url, env=env)
        .rename_state("everything", "account", "accounts")
        .rename_state("everything", "accounts", "account")
        .write(f"{folder}/second")
    )
    if stack.store_url.startswith("s3://"):
        assert read == ["manifest.json"], "no byte of a file came by"
    assert second.copied_files == len(first.manifest.files) > 8
    store = store_from({**env, "PENSTOCK_STORE": f"{folder}/second"})
    savepoint = Savepoint.open(store)
    prove(savepoint)
    found = comparable(restored(savepoint, quiet()))
    assert found == expected


@pytest.mark.timeout(400)
def test_a_standalone_cluster(stack: Stack, tmp_path: Path) -> None:
    """A script with classes of its own, on a master with two workers who know nothing of either."""
    folder = f"{stack.store_url}/{secrets.token_hex(4)}/app/savepoints"
    unknown = dict.fromkeys(stack.store_env, "")
    with start_spark_cluster(env=unknown, progress=lambda _: None) as cluster:
        run = subprocess.run(
            [sys.executable, str(CLUSTER_JOB), cluster.url, folder],
            env={**os.environ, **stack.store_env, "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    said = dict(line.split("=", 1) for line in run.stdout.splitlines() if "=" in line)
    assert said["master"] == cluster.url
    assert said["rows"] == "1000 5000"
    assert said["refused"] == "operator 'ledger': key 'acc-7', 7: ValueError: no seventh"
    for name, groups in (("first", 128), ("second", 200)):
        savepoint = Savepoint.open(
            store_from({**stack.store_env, "PENSTOCK_STORE": f"{folder}/{name}"})
        )
        prove(savepoint)
        assert savepoint.manifest.max_parallelism == groups
        (row,) = savepoint.lookup("ledger", "balance", "acc-7").to_pylist()
        assert (row["total"], row["orders"]) == (7 + 1007 + 2007 + 3007 + 4007, 5)


# -- the pages about it

RUN_HERE = "tests/integration/test_spark_write.py"


@pytest.fixture
def before_the_change(tmp_path: Path) -> str:
    """What the page about modifying speaks of."""
    made = ps.Service("ledger", app="payments")
    keyed = made.source("orders", topic="orders", value=pages.Order).key_by(
        "k", lambda o: o.account
    )
    keyed.process("ledger", pages.Ledger).sink("out", topic="out")
    run = Driver(made, partitions=2, parallelism=2)
    for account, amount in pages.ORDERS:
        run.send("orders", pages.Order(account, amount))
    savepoint_of(run.checkpoint(), FileStore(tmp_path / "savepoints" / "before-the-change"))
    return (tmp_path / "savepoints").as_uri()


@pytest.mark.parametrize("name", ["bootstrap-state", "modify-a-savepoint"])
def test_the_page(
    name: str,
    spark: SparkSession,
    before_the_change: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = read(ROOT / "docs" / "howto" / f"{name}.md")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__", "folder": before_the_change}
    printed = ""
    for block in page.blocks:
        if block.how == "output":
            assert matches(block.text, printed), f"{block.where}: what was printed:\n{printed}"
            continue
        assert block.language == "python"
        assert (block.skip_reason or "").startswith(RUN_HERE)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * block.line + block.text, block.where, "exec"), names)
        printed = out.getvalue()
    assert names["spark"] is spark
    for made in (tmp_path / "savepoints").iterdir():
        if any(made.iterdir()):
            at(made)
