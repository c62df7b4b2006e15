"""A Spark session of a command's own: quiet, local unless a master is named, ended with it."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

_QUIET: Final = Path(__file__).with_name("log4j2.properties")
_SETTINGS: Final = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "16",
    "spark.driver.memory": "2g",
}
"""For a session on this machine; a cluster has its own, and spark-defaults.conf comes first."""


@contextmanager
def session(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """A session named ``name`` on ``master``; this machine's processors when None."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master or "local[*]")
    for setting, value in _SETTINGS.items() if master is None else ():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
