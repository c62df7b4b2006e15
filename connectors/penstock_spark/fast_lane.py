"""The fast lane: the files of a state through Spark's own Parquet reader.

It prunes columns, skips row groups by their statistics and never leaves the JVM; in exchange the
sums of the files are not verified, and s3:// needs Hadoop's S3 client in the session.
"""

import os
from collections.abc import Mapping

from penstock.failure import ConfigurationError
from penstock.runtime.connectors import store_from
from penstock.savepoint.reading import Savepoint
from pyspark.sql import DataFrame, SparkSession

from penstock_spark.choosing import chosen
from penstock_spark.columns import spark_schema
from penstock_spark.options import ReadOptions
from penstock_spark.s3a import hadoop_url, has_s3a, s3a_options


def native(
    spark: SparkSession,
    url: str,
    operator: str | None = None,
    state: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of a state, with the columns that the data source gives them.

    Args:
        spark: a session; for ``s3://`` one with Hadoop's S3 client, see `s3a_jars`.
        url: of the savepoint.
        operator: uid of the operator; both may be left out where there is one keyed state.
        state: name of the state.
        env: the settings PENSTOCK_S3_…, by default those of this process.

    Raises:
        ConfigurationError: there is no such state, or the session cannot read ``s3a://``.
        CorruptedObject: there is no savepoint, or its manifest is damaged.
    """
    given = os.environ if env is None else env
    savepoint = Savepoint.open(store_from({**given, "PENSTOCK_STORE": url}))
    found = chosen(savepoint, ReadOptions(url=url, operator=operator, state=state))
    schema = spark_schema(savepoint.layout(found[0].uid, found[1].name).arrow_schema)
    paths = [
        hadoop_url(f"{savepoint.url}/{file.path}")
        for file in savepoint.files(found[0].uid, found[1].name)
    ]
    if not paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema)
    if savepoint.url.startswith("s3:"):
        if not has_s3a(spark):
            raise ConfigurationError(_NO_CLIENT)
        reader = reader.options(**s3a_options(savepoint.url, given))
    return reader.parquet(*paths)


_NO_CLIENT = (
    "this Spark session cannot read s3a://: Hadoop's S3 client (hadoop-aws) is not among its jars. "
    "Build it with .config('spark.jars', penstock_spark.s3a_jars()), or with the settings of "
    "penstock_spark.s3a_packages(); the data source, spark.read.format('penstock'), needs no jar"
)
