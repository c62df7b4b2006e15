"""Spark's own S3 client: the jars that it needs, and its settings out of Penstock's."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from penstock.failure import ConfigurationError
from penstock_minio.settings import S3Settings, read_settings
from penstock_stack.failure import StackError
from penstock_stack.jars import S3A
from penstock_stack.jars import s3a_jars as fetched_jars
from penstock_stack.progress import Say
from pyspark.sql import SparkSession

CLIENT = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_PROVIDERS = "org.apache.hadoop.fs.s3a"


def s3a_jars(say: Say = print) -> str:
    """The value of ``spark.jars`` that lets Spark read ``s3a://``: 14 MB, fetched once.

    Raises ConfigurationError when they could not be fetched.
    """
    try:
        return ",".join(map(str, fetched_jars(say)))
    except StackError as failure:
        raise ConfigurationError(str(failure)) from None


def s3a_packages() -> dict[str, str]:
    """The same as settings of a session, for a Spark that fetches its packages itself."""
    return {
        "spark.jars.packages": ",".join(":".join(artifact) for artifact in S3A.artifacts),
        "spark.jars.excludes": ",".join(":".join(module) for module in S3A.excluded),
    }


def has_s3a(spark: SparkSession) -> bool:
    """Whether this session can read ``s3a://``."""
    jvm = spark._jvm  # noqa: SLF001  # PySpark has no public way to ask for a class
    return jvm is not None and bool(jvm.org.apache.spark.util.Utils.classIsLoadable(CLIENT))


def s3a_options(url: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Settings of the client for the bucket of ``url`` alone, other buckets keep theirs.

    As options of a reader they hold for its DataFrame and are shown nowhere. Raises
    ConfigurationError when a setting is missing.
    """
    settings = read_settings(url, os.environ if env is None else env)
    names = {
        "endpoint": settings.endpoint,
        "endpoint.region": settings.region,
        "path.style.access": "true",
        "connection.ssl.enabled": str(settings.endpoint.startswith("https:")).lower(),
        **_credentials(settings),
    }
    return {f"fs.s3a.bucket.{settings.bucket}.{name}": value for name, value in names.items()}


def hadoop_url(url: str) -> str:
    """``url`` as Hadoop calls it: ``s3a://…`` for ``s3://…``, ``file:///…`` as it is."""
    parts = urlsplit(url)
    return f"s3a://{parts.netloc}{parts.path}" if parts.scheme == "s3" else url


def _credentials(settings: S3Settings) -> dict[str, str]:
    found = {
        "access.key": settings.access_key.reveal(),
        "secret.key": settings.secret_key.reveal(),
        "aws.credentials.provider": f"{_PROVIDERS}.SimpleAWSCredentialsProvider",
    }
    if settings.session_token is not None:
        found["session.token"] = settings.session_token.reveal()
        found["aws.credentials.provider"] = f"{_PROVIDERS}.TemporaryAWSCredentialsProvider"
    return found
