"""One Spark session for all tests of a run: local, two threads, no page, with the jars of s3a."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import penstock_spark
import pytest
from penstock import ConfigurationError
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture(scope="session")
def s3a_jars() -> str:
    """The value of ``spark.jars``; where it cannot be had, skipped here and failed in CI."""
    found, reason = _jars()
    if not found:
        if os.environ.get("CI"):
            pytest.fail(f"s3a is tested in CI: {reason}", pytrace=False)
        pytest.skip(f"needs the jars of s3a: {reason}")
    return found


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; `penstock_spark.enable` was not called on it."""
    with pytest.MonkeyPatch.context() as patch:
        # Spark's workers: this very Python, wherever the tests were started from
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = session_on("local[2]", tmp_path_factory.mktemp("spark"), jars=_jars()[0])
        yield session
        session.stop()


def session_on(master: str, folder: Path, *, jars: str = "") -> SparkSession:
    """A new session; there can be one at a time."""
    builder = SparkSession.builder.master(master).appName("penstock-tests")
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    if jars:
        settings["spark.jars"] = jars
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _jars() -> tuple[str, str]:
    try:
        return penstock_spark.s3a_jars(lambda _: None), ""
    except ConfigurationError as failure:
        return "", str(failure)
