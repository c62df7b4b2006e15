"""What a Spark session needs once so that the data source works on every machine."""

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from penstock_spark.source import PenstockSource

HANDED_ON = "PENSTOCK_S3_"


def enable(spark: SparkSession, env: Mapping[str, str] | None = None) -> SparkSession:
    """Let the Python workers of ``spark`` know the store, wherever they run.

    Without it the data source is found, too, as long as Spark's workers can import it; but then
    workers on other machines need the settings of the store in their own environment.

    Args:
        spark: a session that runs.
        env: the settings PENSTOCK_S3_… are taken from here, by default from this process. Paths in
            them (…_FILE) must exist where the workers run.

    Returns:
        The same session.
    """
    given = os.environ if env is None else env
    # The environment of Python workers, sent with their tasks; no page or log of Spark shows it.
    worker_env = spark.sparkContext.environment
    worker_env.update({name: given[name] for name in given if name.startswith(HANDED_ON)})
    spark.dataSource.register(PenstockSource)
    return spark
