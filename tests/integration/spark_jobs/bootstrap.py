"""A job for any master: ``bootstrap.py MASTER FOLDER`` writes savepoints with classes of its own.

Every task fails once, as tasks on a cluster do, and is run again.
"""

import sys

import msgspec
import penstock as ps
from penstock.failure import UserCodeFailed
from penstock_spark import KeyedStateBootstrap, SavepointWriter
from pyspark import TaskContext
from pyspark.sql import SparkSession


class Balance(msgspec.Struct):
    account: str
    total: int = 0
    orders: int = 0


class Ledger(KeyedStateBootstrap):
    balance = ps.ValueState(Balance)
    history = ps.ListState(int)

    def process(self, amount: int, ctx: ps.Context) -> None:
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() == 0 and self.balance.get() is not None:
            raise OSError("the first attempt fails")
        balance = self.balance.get() or Balance(ctx.key)
        balance.total += amount
        balance.orders += 1
        self.balance.set(balance)
        self.history.add(amount)


class Refused(KeyedStateBootstrap):
    def process(self, amount: int, ctx: ps.Context) -> None:
        if amount == 7:
            raise ValueError("no seventh")


master, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .appName("bootstrap")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .config("spark.executor.memory", "512m")
    .config("spark.sql.shuffle.partitions", "4")
    .getOrCreate()
)
print(f"master={spark.sparkContext.master}")
orders = spark.range(5000).selectExpr("concat('acc-', id % 1000) AS account", "id AS value")
new = SavepointWriter.new(spark, app="payments")
first = new.with_operator(
    "ledger", orders, bootstrap=Ledger, key="account", value=int, order_by=["value"]
).write(f"{folder}/first", tasks=4)
print("rows={} {}".format(*(first.rows["ledger", state] for state in ("balance", "history"))))
writer = SavepointWriter.from_existing(spark, first.url).with_max_parallelism(200)
writer.write(f"{folder}/second", tasks=4)
try:
    new.with_operator("ledger", orders, bootstrap=Refused, key="account", value=int).write(
        f"{folder}/third", tasks=2
    )
except UserCodeFailed as error:
    print(f"refused={error}")
spark.stop()
