"""Reading a savepoint in Spark: the data source and the fast lane beside plain Parquet.

The three read the same files in the same session, one after the other in each repetition, every
column of every row; each sum that they compute is checked. One column, and one key, likewise.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import penstock_spark
import pyarrow as pa
import pyarrow.compute as pc
from penstock.edge.routing import group_of_bytes
from penstock.savepoint.layout import StateLayout, state_entry
from penstock.savepoint.manifest import FileEntry, OperatorEntry, SavepointManifest
from penstock.savepoint.writing import SavepointFiles, publish
from penstock.schema import schema_of
from penstock_minio import FileStore
from processes import Sampler
from pyspark.sql import DataFrame, SparkSession
from workload import OutputWrong

KEY_GROUPS = 128
NAMED = {"operatorUid": "ledger", "stateName": "accounts"}
ALL_COLUMNS = (
    "count(1)", "sum(key_group)", "sum(length(key))", "sum(length(key_value))", "count(namespace)",
    "sum(length(account))", "sum(total)", "sum(orders)", "sum(last_order_ms)", "sum(length(note))",
)  # fmt: skip
WIDTH = len("account-0000000")


class Account(msgspec.Struct, frozen=True):
    """One row: a key of 15 bytes and about 60 bytes of value."""

    account: str
    total: int
    orders: int
    last_order_ms: int
    note: str


def bench(rows: int, repetitions: int, say: Callable[[str], object]) -> dict[str, Any]:
    """Seconds of each, medians over the repetitions. Raises OutputWrong."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-savepoint-") as scratch:
        folder = Path(scratch)
        files = made(folder, rows)
        megabytes = sum(file.bytes for file in files) / 1e6
        say(f"savepoint of {rows:,} rows, {len(files)} files, {megabytes:.0f} MB")
        spark = session(folder)
        try:
            found = Reads(spark, folder, files, rows).measured(repetitions, say)
        finally:
            spark.stop()
    return {"rows": rows, "files": len(files), "mb": round(megabytes, 1), **found}


def session(folder: Path) -> SparkSession:
    """Two threads, and nothing tuned."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # its workers: this very Python
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def key_of(number: int) -> str:
    """The key of a row."""
    return f"account-{number:07}"


def made(folder: Path, rows: int) -> list[FileEntry]:
    """A published savepoint of one state; its files."""
    state = state_entry("accounts", "value", schema_of(str), schema_of(Account))
    operator = OperatorEntry(
        uid="ledger", kind="keyed_process", service="ledger", stage="ledger", parallelism=1,
        ownership="key_group", partitions=16, states=(state,),
    )  # fmt: skip
    store = FileStore(folder / "savepoint")
    out = SavepointFiles(store, operator, state, KEY_GROUPS)
    table = _table(rows, StateLayout(operator, state).arrow_schema)
    for start in range(0, rows, 100_000):
        out.add(table.slice(start, 100_000))
    files = out.close()
    publish(
        store,
        SavepointManifest(
            savepoint_id="bench", app="bench", checkpoint=1, created_at_ms=0, created_by="bench",
            max_parallelism=KEY_GROUPS, operators=(operator,), files=tuple(files),
        ),
    )  # fmt: skip
    return files


def _table(rows: int, schema: pa.Schema) -> pa.Table:
    names = [key_of(number) for number in range(rows)]
    raw = [bytes([0xA0 + WIDTH]) + name.encode() for name in names]  # msgpack of a short str
    numbers = pa.array(range(rows), pa.int64())
    text = pa.array(names)
    columns = {
        "key_group": pa.array([group_of_bytes(key, KEY_GROUPS) for key in raw], pa.int32()),
        "key": pa.array(raw, pa.binary()),
        "key_value": text,
        "namespace": pa.nulls(rows, pa.string()),
        "account": text,
        "total": pc.multiply(numbers, 7),
        "orders": pc.bit_wise_and(numbers, 1023),
        "last_order_ms": pc.add(numbers, 1_790_000_000_000),
        "note": pc.binary_join_element_wise("order of", text, "; paid", " "),
    }
    table = pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)
    return table.sort_by([("key_group", "ascending"), ("key", "ascending")])


class Reads:
    """What is timed."""

    def __init__(
        self, spark: SparkSession, folder: Path, files: list[FileEntry], rows: int
    ) -> None:
        self.spark = spark
        self.url = (folder / "savepoint").as_uri()
        self.paths = [f"{self.url}/{file.path}" for file in files]
        self.rows = rows
        self.key = key_of(rows // 3)
        self.sums = _expected(rows)

    def measured(self, repetitions: int, say: Callable[[str], object]) -> dict[str, Any]:
        """Medians by what is read and by whom, after one round that warms up.

        Seconds of the clock, and CPU seconds of the JVM and its Python workers: on a machine that
        has other work, the latter compare better.
        """
        kinds = {"scan": self.scan, "column": self.column, "key": self.lookup}
        found: dict[str, dict[str, list[tuple[float, float]]]] = {}
        sampler = Sampler([os.getpid()])
        for repetition in range(-1, repetitions):
            for kind, read in kinds.items():
                for reader in ("parquet", "fast_lane", "data_source"):
                    began = time.time()
                    read(reader)
                    ended = time.time()
                    sampler.sample()
                    took, cpu = ended - began, sampler.cpu_between(began, ended)
                    if repetition >= 0:
                        found.setdefault(kind, {}).setdefault(reader, []).append((took, cpu))
                        say(f"savepoint {kind:<7} {reader:<12} {took:6.2f} s, {cpu:.2f} s CPU")
        sampler.stop()
        return {
            kind: {
                name: {
                    "s": round(statistics.median(took for took, _ in each), 3),
                    "cpu_s": round(statistics.median(cpu for _, cpu in each), 3),
                }
                for name, each in by_reader.items()
            }
            for kind, by_reader in found.items()
        }

    def scan(self, reader: str) -> None:
        """Every column of every row."""
        frame = self._frame(reader).selectExpr(*ALL_COLUMNS)
        self._check(f"full scan by {reader}", tuple(frame.collect()[0]), self.sums)

    def column(self, reader: str) -> None:
        """One column of every row."""
        frame = self._frame(reader, columns="total").selectExpr("sum(total)")
        total = self.sums[ALL_COLUMNS.index("sum(total)")]
        self._check(f"sum by {reader}", tuple(frame.collect()[0]), (total,))

    def lookup(self, reader: str) -> None:
        """The row of one key."""
        frame = self._frame(reader, key=self.key).where(f"key_value = '{self.key}'")
        if reader == "data_source":
            self._check("tasks of a lookup, one a file", frame.rdd.getNumPartitions(), 1)
        found = [row.total for row in frame.collect()]
        self._check(f"lookup by {reader}", found, [self.rows // 3 * 7])

    def _frame(self, reader: str, **options: str) -> DataFrame:
        if reader == "parquet":
            return self.spark.read.parquet(*self.paths)
        if reader == "fast_lane":
            return penstock_spark.native(self.spark, self.url, **_names())
        return self.spark.read.format("penstock").options(**NAMED, **options).load(self.url)

    def _check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise OutputWrong(f"{what}: expected {expected}, found {found}")


def _names() -> dict[str, str]:
    return {"operator": NAMED["operatorUid"], "state": NAMED["stateName"]}


def _expected(rows: int) -> tuple[int, ...]:
    """The sums of `ALL_COLUMNS`, by plain Python."""
    groups = keys = notes = orders = 0
    for number in range(rows):
        name = key_of(number)
        groups += group_of_bytes(msgspec.msgpack.encode(name), KEY_GROUPS)
        keys += 1 + len(name)
        notes += len(f"order of {name} ; paid")
        orders += number & 1023
    triangle = rows * (rows - 1) // 2
    names = rows * WIDTH
    times = rows * 1_790_000_000_000 + triangle
    return (rows, groups, keys, names, 0, names, triangle * 7, orders, times, notes)
