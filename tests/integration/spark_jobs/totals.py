"""A job for any master: ``totals.py MASTER SAVEPOINT`` sums the balances and looks one up."""

import sys

import penstock_spark
from penstock import ConfigurationError
from pyspark.sql import SparkSession

master, url = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .appName("totals")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .config("spark.executor.memory", "512m")
    .getOrCreate()
)
penstock_spark.enable(spark)
balances = (
    spark.read.format("penstock").option("operatorUid", "ledger").option("stateName", "balance")
)
frame = balances.load(url)
row = frame.selectExpr("count(*)", "sum(total)").head()
print(f"master={spark.sparkContext.master}")
print(f"rows={row[0]}\ntotal={row[1]}")
print(f"lookup={balances.option('key', 'acc-7').load(url).head().total}")
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(f"executors={len(executors) - 1}")  # it counts the driver, too
try:
    print(f"native={penstock_spark.native(spark, url, 'ledger', 'balance').count()}")
except ConfigurationError as refused:
    print(f"native={refused}")
spark.stop()
