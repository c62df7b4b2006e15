"""Savepoints and checkpoints through a real Spark: local, on a cluster, in a folder, on MinIO."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import penstock_spark
import pytest
from penstock import ConfigurationError
from penstock.failure import StoreFailed
from penstock.runtime.connectors import store_from
from penstock.savepoint.reading import Savepoint
from penstock_minio import FileStore
from penstock_spark.pruning import Wanted
from penstock_stack import Stack
from penstock_stack.spark import start_spark_cluster
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from tests.integration.running import Application, Reader, feed, make_topics, running
from tests.unit.spark.savepoints import MAX_PARALLELISM, ledger

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ACCOUNTS = 200
BALANCES = {"operatorUid": "ledger", "stateName": "balance"}
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
CLUSTER_JOB = Path(__file__).with_name("spark_jobs") / "totals.py"


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    return ledger(tmp_path_factory.mktemp("savepoint"), ACCOUNTS)


def load(spark: SparkSession, savepoint: Savepoint | str, **options: str) -> DataFrame:
    url = savepoint if isinstance(savepoint, str) else savepoint.url
    return spark.read.format("penstock").options(**options).load(url)


def rows(frame: DataFrame) -> list[str]:
    return sorted(repr(row.asDict(recursive=True)) for row in frame.collect())


def kept(savepoint: Savepoint, operator: str, state: str) -> list[str]:
    """What the core reader sees, in the same form."""
    return sorted(map(repr, savepoint.table(operator, state).to_pylist()))


# -- on a folder


def test_it_is_found_without_any_call(spark: SparkSession, savepoint: Savepoint) -> None:
    frame = load(spark, savepoint, **BALANCES)
    assert frame.columns[-3:] == ["account", "total", "value_key"]
    assert rows(frame) == kept(savepoint, "ledger", "balance")
    assert frame.rdd.getNumPartitions() == len(savepoint.files("ledger", "balance")) > 3


@pytest.mark.parametrize("state", ["balance", "history", "limits", "timers"])
def test_both_lanes_agree_with_the_core_reader(
    spark: SparkSession, savepoint: Savepoint, state: str
) -> None:
    named = {"operatorUid": "ledger", "stateName": state}
    expected = kept(savepoint, "ledger", state)
    assert rows(load(spark, savepoint, **named)) == expected
    native = penstock_spark.native(spark, savepoint.url, "ledger", state)
    assert rows(native) == expected
    assert native.columns == load(spark, savepoint, **named).columns


def test_views_and_tables_about_it_in_sql(spark: SparkSession, savepoint: Savepoint) -> None:
    for view, options in {
        "balances": "operatorUid 'ledger', stateName 'balance'",
        "offsets": "metadata 'offsets'",
    }.items():
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {view} USING penstock "
            f"OPTIONS (path '{savepoint.url}', {options})"
        )
    (total,) = spark.sql("SELECT sum(total) FROM balances WHERE account LIKE 'acc-%'").head()
    assert total == sum(number * 10 for number in range(ACCOUNTS))
    offsets = spark.sql("SELECT topic, partition, position FROM offsets ORDER BY partition")
    assert [tuple(row) for row in offsets.collect()] == [("orders", 0, 10), ("orders", 1, 20)]
    for view in ("balances", "offsets"):
        spark.catalog.dropTempView(view)


def test_spark_computes_the_same_key_groups(spark: SparkSession, savepoint: Savepoint) -> None:
    frame = load(spark, savepoint, **BALANCES)
    other = frame.where(f"key_group <> cast(pmod(xxhash64(key), {MAX_PARALLELISM}) as int)")
    assert other.count() == 0


def test_a_key_as_an_option_is_one_task(spark: SparkSession, savepoint: Savepoint) -> None:
    frame = load(spark, savepoint, **BALANCES, key="acc-7")
    assert frame.rdd.getNumPartitions() == 1
    assert [row.total for row in frame.collect()] == [70]
    assert load(spark, savepoint, **BALANCES, key="nobody").collect() == []


def test_the_user_s_schema_prunes(spark: SparkSession, savepoint: Savepoint) -> None:
    frame = spark.read.format("penstock").options(**BALANCES).schema("total double")
    assert frame.load(savepoint.url).agg({"total": "sum"}).head() == (199_000.0,)


def test_a_dataframe_may_be_used_again(spark: SparkSession, savepoint: Savepoint) -> None:
    """Also where filters may be pushed; ours are not, unless asked for."""
    spark.conf.set(PUSH_DOWN, "true")
    try:
        frame = load(spark, savepoint, **BALANCES)
        assert frame.where("key_value = 'acc-7'").count() == 1
        assert frame.count() == ACCOUNTS
    finally:
        spark.conf.unset(PUSH_DOWN)


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(PUSH_DOWN, "true")
    yield spark
    spark.conf.unset(PUSH_DOWN)


@pytest.mark.parametrize(
    "where",
    [
        "key_value = 'acc-7'",
        "key = X'a56163632d37'",
        "key_value IN ('acc-7', 'acc-8') AND total > 10",
        "key_group BETWEEN 3 AND 5",
        "key_group < 9 AND NOT key_group = 4",
        "total > 1000",
        "key_value LIKE 'acc-1%'",
        "key_value IS NULL",
        "key_group = 3 OR key_group = 90",
    ],
)
def test_filters_that_are_pushed(pushing: SparkSession, savepoint: Savepoint, where: str) -> None:
    found = load(pushing, savepoint, **BALANCES, pushFilters="true").where(where)
    assert rows(found) == rows(load(pushing, savepoint, **BALANCES).where(where))


def test_a_pushed_key_touches_one_file(pushing: SparkSession, savepoint: Savepoint) -> None:
    frame = load(pushing, savepoint, **BALANCES, pushFilters="true").where("key_value = 'acc-7'")
    assert frame.rdd.getNumPartitions() == 1
    assert frame.head().total == 70


def test_why_filters_are_not_pushed_unasked(pushing: SparkSession, savepoint: Savepoint) -> None:
    """Spark keeps the pruned plan with the DataFrame. When this fails, Spark has mended it: push
    them always, and drop the option."""
    frame = load(pushing, savepoint, **BALANCES, pushFilters="true")
    assert frame.where("key_value = 'acc-7'").count() == 1
    assert frame.count() == 1


def test_spark_refuses_pushed_filters_without_its_conf(
    spark: SparkSession, savepoint: Savepoint
) -> None:
    frame = load(spark, savepoint, **BALANCES, pushFilters="true")
    with pytest.raises(AnalysisException, match=PUSH_DOWN):
        frame.count()


def test_what_is_wrong_is_said_to_the_user_of_spark(
    spark: SparkSession, savepoint: Savepoint
) -> None:
    with pytest.raises(AnalysisException, match=r"3 keyed states.*ledger/balance"):
        load(spark, savepoint)
    with pytest.raises(AnalysisException, match="did you mean 'ledger'"):
        load(spark, savepoint, operatorUid="leger", stateName="balance")
    with pytest.raises(ConfigurationError, match="did you mean 'balance'"):
        penstock_spark.native(spark, savepoint.url, "ledger", "balances")


# -- on MinIO


@pytest.fixture(scope="module")
def in_bucket(stack: Stack, savepoint: Savepoint) -> str:
    """The same savepoint in the stack's store."""
    url = f"{stack.store_url}/{secrets.token_hex(4)}/payments/savepoints/before-the-change"
    store = store_from({**stack.store_env, "PENSTOCK_STORE": url})
    source = FileStore(Path(savepoint.url.removeprefix("file://")))
    for key in source.list(""):
        store.put(key, source.get(key))
    return url


@pytest.fixture
def enabled(spark: SparkSession, stack: Stack) -> SparkSession:
    if not stack.store_env:
        pytest.skip("needs a store server: this stack has none")
    return penstock_spark.enable(spark, stack.store_env)


def test_a_savepoint_in_a_bucket(
    enabled: SparkSession, savepoint: Savepoint, in_bucket: str
) -> None:
    frame = load(enabled, in_bucket, **BALANCES)
    assert rows(frame) == kept(savepoint, "ledger", "balance")
    assert load(enabled, in_bucket, metadata="files").count() == len(savepoint.manifest.files)


@pytest.mark.usefixtures("s3a_jars")
def test_the_fast_lane_over_s3a(
    enabled: SparkSession, savepoint: Savepoint, in_bucket: str, stack: Stack
) -> None:
    frame = penstock_spark.native(enabled, in_bucket, "ledger", "balance", env=stack.store_env)
    assert rows(frame) == kept(savepoint, "ledger", "balance")
    assert all(name.startswith("s3a://") for name in frame.inputFiles())
    assert frame.where("key_value = 'acc-7'").head().total == 70


@pytest.mark.usefixtures("s3a_jars")
def test_no_secret_is_shown(
    enabled: SparkSession, in_bucket: str, stack: Stack, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = stack.store_env["PENSTOCK_S3_SECRET_KEY"]
    frames = [
        load(enabled, in_bucket, **BALANCES),
        penstock_spark.native(enabled, in_bucket, "ledger", "balance", env=stack.store_env),
    ]
    for frame in frames:
        frame.explain(extended=True)
        frame.count()
        shown = str(frame._jdf.queryExecution())
        assert "key_group" in shown
        assert secret not in shown
    confs = [*enabled.sparkContext.getConf().getAll(), *enabled.conf.getAll.items()]
    assert secret not in repr(confs)
    wrong = {**stack.store_env, "PENSTOCK_S3_ENDPOINT": "http://127.0.0.1:9"}
    with pytest.raises(StoreFailed, match=r"127\.0\.0\.1:9") as failed:
        penstock_spark.native(enabled, in_bucket, "ledger", "balance", env=wrong)
    assert secret not in str(failed.value)
    assert secret not in "".join(capfd.readouterr())


def test_the_last_checkpoint_of_an_application(
    enabled: SparkSession, stack: Stack, app_id: str, tmp_path: Path
) -> None:
    keys, each = 20, 30
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    feed(stack, f"{app_id}.numbers", keys, 1, each)
    reader = Reader(stack, f"{app_id}.sums")
    application = Application(stack, app_id, tmp_path, "--checkpoint-interval-ms", "200")
    with running(application):
        reader.until(keys * each, 60, application)
        assert application.stop() == 0, application.log()
    options = {"app": app_id, "operatorUid": "summing", "stateName": "sums"}
    sums = load(enabled, stack.store_url, **options)
    found = sums.selectExpr("key_value", "count AS records", "total").collect()
    assert {row.key_value: (row.records, row.total) for row in found} == {
        f"k{k}": (each, each * (each + 1) // 2) for k in range(keys)
    }
    offsets = load(enabled, stack.store_url, app=app_id, metadata="offsets").collect()
    assert sum(row.position for row in offsets) == keys * each
    number = str(application.checkpoints()[-1])
    same = load(enabled, stack.store_url, **options, checkpointId=number)
    assert rows(same) == rows(sums)


# -- on a cluster


@pytest.mark.timeout(400)
def test_a_standalone_cluster(
    savepoint: Savepoint, in_bucket: str, stack: Stack, tmp_path: Path
) -> None:
    """The same job with a master of its own process and two workers; its executors know nothing
    of the store but what `enable` hands on."""
    unknown = dict.fromkeys(stack.store_env, "")
    with start_spark_cluster(env=unknown, progress=lambda _: None) as cluster:
        run = subprocess.run(
            [sys.executable, str(CLUSTER_JOB), cluster.url, in_bucket],
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
    assert int(said["executors"]) == 2
    assert int(said["rows"]) == ACCOUNTS
    assert int(said["total"]) == sum(number * 10 for number in range(ACCOUNTS))
    if stack.store_env:
        assert "spark.jars" in said["native"], "the remedy is named where the jars are missing"
        assert stack.store_env["PENSTOCK_S3_SECRET_KEY"] not in run.stdout + run.stderr
    assert said["lookup"] == "70"


def test_one_key_is_one_file_of_many(savepoint: Savepoint) -> None:
    """The arithmetic behind the lookups above."""
    files = savepoint.files("ledger", "balance")
    group = savepoint.lookup("ledger", "balance", "acc-7")["key_group"][0].as_py()
    assert len(files) > len(Wanted().among([group]).files(files, lambda _: group)) >= 1
