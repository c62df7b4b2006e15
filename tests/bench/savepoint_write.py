"""Writing savepoints with Spark, beside Spark's own Parquet writer: the same rows, one session.

What is compared: ``parquet`` writes the rows as they come; ``sorted parquet`` does all that the
format asks for with Spark alone (a key group of every key, rows brought together and sorted by it).
Then ours: rows that are state already, a process that sees every row, other key groups, and a copy.
Every output is read back and its sums are checked.
"""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.savepoint.reading import Savepoint
from penstock_minio import FileStore
from penstock_spark import KeyedStateBootstrap, SavepointWriter
from processes import Sampler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # everybody calls it so
from savepoint_read import KEY_GROUPS, Account, session
from workload import OutputWrong

KEY_GROUPS_AFTER = 200
TASKS = 4
KINDS = ("parquet", "sorted_parquet", "state", "bootstrap", "rescale", "copy")


class Accounts(KeyedStateBootstrap):
    """The row of a key is its state."""

    account = ps.ValueState(Account)

    def process(self, row: Account, ctx: ps.Context) -> None:
        self.account.set(row)


def bench(rows: int, repetitions: int, say: Callable[[str], object]) -> dict[str, Any]:
    """Seconds and CPU seconds of each, medians over the repetitions. Raises OutputWrong."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-savepoint-") as scratch:
        folder = Path(scratch)
        spark = session(folder)
        sampler = Sampler([os.getpid()])
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        try:
            writes = Writes(spark, folder, rows)
            for repetition in range(-1, repetitions):
                for kind in KINDS:
                    began, ended = writes.timed(kind)
                    sampler.sample()
                    took, cpu = ended - began, sampler.cpu_between(began, ended)
                    if repetition >= 0:
                        found[kind].append((took, cpu))
                        say(f"savepoint write {kind:<15} {took:6.2f} s, {cpu:.2f} s CPU")
        finally:
            sampler.stop()
            spark.stop()
    return {
        "rows": rows,
        **{
            kind: {
                "s": round(statistics.median(took for took, _ in each), 3),
                "cpu_s": round(statistics.median(cpu for _, cpu in each), 3),
            }
            for kind, each in found.items()
        },
    }


class Writes:
    """What is timed."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.spark = spark
        self.folder = folder
        self.rows = rows
        source = folder / "source"
        spark.range(rows, numPartitions=TASKS).selectExpr(
            "concat('account-', lpad(cast(id as string), 7, '0')) AS account",
            "id * 7 AS total",
            "id & 1023 AS orders",
            "id + 1790000000000 AS last_order_ms",
            "concat('order of account ', id, '; paid') AS note",
        ).write.parquet(source.as_uri(), compression="zstd")
        self.source = source.as_uri()

    def timed(self, kind: str) -> tuple[float, float]:
        """When one write began and ended; its rows are checked afterwards."""
        target = self.folder / kind
        shutil.rmtree(target, ignore_errors=True)
        began = time.time()
        getattr(self, kind)(target)
        ended = time.time()
        self._check(kind, target)
        return began, ended

    def parquet(self, target: Path) -> None:
        """The rows as they come."""
        self._input().write.parquet(target.as_uri(), compression="zstd")

    def sorted_parquet(self, target: Path) -> None:
        """All columns and the order of the format, by Spark alone."""
        group = f"cast(pmod(xxhash64(key), {KEY_GROUPS}) as int) AS key_group"
        frame = self._input().selectExpr(
            "concat(X'AF', cast(account as binary)) AS key", "account AS key_value", "*"
        )
        frame = frame.selectExpr(group, "*")
        part = F.expr(f"cast(key_group * {TASKS} div {KEY_GROUPS} as int)")
        frame = frame.repartitionById(TASKS, part).sortWithinPartitions("key_group", "key")
        frame.write.parquet(target.as_uri(), compression="zstd")

    def state(self, target: Path) -> None:
        """Rows that are state already."""
        self._new().with_state(
            "ledger", "account", self._input(), kind="value", key="account", value_type=Account
        ).write(target.as_uri(), tasks=TASKS)

    def bootstrap(self, target: Path) -> None:
        """A process that sees every row."""
        self._new().with_operator(
            "ledger", self._input(), bootstrap=Accounts, key="account", value=Account
        ).write(target.as_uri(), tasks=TASKS)

    def rescale(self, target: Path) -> None:
        """Every key in another key group."""
        self._existing().with_max_parallelism(KEY_GROUPS_AFTER).write(target.as_uri(), tasks=TASKS)

    def copy(self, target: Path) -> None:
        """Nothing is changed."""
        self._existing().write(target.as_uri())

    def _input(self) -> DataFrame:
        return self.spark.read.parquet(self.source)

    def _new(self) -> SavepointWriter:
        return SavepointWriter.new(self.spark, app="bench", max_parallelism=KEY_GROUPS)

    def _existing(self) -> SavepointWriter:
        return SavepointWriter.from_existing(self.spark, (self.folder / "state").as_uri())

    def _check(self, kind: str, target: Path) -> None:
        paths = [target.as_uri()]
        if "parquet" not in kind:
            savepoint = Savepoint.open(FileStore(target))
            files = savepoint.files("ledger", "account")
            paths = [f"{savepoint.url}/{file.path}" for file in files]
            groups = savepoint.manifest.max_parallelism
            strays = self.spark.read.parquet(*paths).where(
                f"key_group <> cast(pmod(xxhash64(key), {groups}) as int)"
            )
            if strays.count():
                raise OutputWrong(f"{kind}: keys in wrong key groups")
        found = self.spark.read.parquet(*paths).selectExpr(
            "count(1)", "count(distinct account)", "sum(total)", "sum(orders)", "sum(length(note))"
        )
        expected = self._input().selectExpr(
            "count(1)", "count(1)", "sum(total)", "sum(orders)", "sum(length(note))"
        )
        if found.head() != expected.head():
            raise OutputWrong(f"{kind}: expected {expected.head()}, found {found.head()}")
