"""Penstock's settings of a store as those of Hadoop's S3 client, for its bucket alone."""

import penstock_spark
import pytest
from penstock import ConfigurationError
from penstock_spark.s3a import hadoop_url, s3a_options
from penstock_stack.jars import S3A

URL = "s3://states/production/payments/savepoints/s1"
ENV = {
    "PENSTOCK_S3_ENDPOINT": "http://127.0.0.1:9000",
    "PENSTOCK_S3_ACCESS_KEY": "penstock",
    "PENSTOCK_S3_SECRET_KEY": "hush-hush",
}


def test_settings_are_of_the_bucket() -> None:
    assert s3a_options(URL, ENV) == {
        f"fs.s3a.bucket.states.{name}": value
        for name, value in {
            "endpoint": "http://127.0.0.1:9000",
            "endpoint.region": "us-east-1",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": "penstock",
            "secret.key": "hush-hush",
            "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        }.items()
    }


def test_a_session_token_and_tls() -> None:
    env = {
        **ENV,
        "PENSTOCK_S3_ENDPOINT": "https://minio.internal",
        "PENSTOCK_S3_SESSION_TOKEN": "token",
        "PENSTOCK_S3_REGION": "eu-central-1",
    }
    found = s3a_options(URL, env)
    bucket = "fs.s3a.bucket.states"
    assert found[f"{bucket}.connection.ssl.enabled"] == "true"
    assert found[f"{bucket}.endpoint.region"] == "eu-central-1"
    assert found[f"{bucket}.session.token"] == "token"
    assert found[f"{bucket}.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")


def test_a_setting_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigurationError, match="PENSTOCK_S3_SECRET_KEY"):
        s3a_options(URL, {**ENV, "PENSTOCK_S3_SECRET_KEY": ""})


def test_urls() -> None:
    assert hadoop_url(f"{URL}/data/x.parquet") == f"s3a{URL[2:]}/data/x.parquet"
    assert hadoop_url("file:///tmp/a%20b/x.parquet") == "file:///tmp/a%20b/x.parquet"


def test_packages_are_the_jars_without_the_bundle() -> None:
    found = penstock_spark.s3a_packages()
    assert found["spark.jars.packages"].startswith("org.apache.hadoop:hadoop-aws:")
    assert len(found["spark.jars.packages"].split(",")) == len(S3A.artifacts)
    assert "software.amazon.awssdk:bundle" in found["spark.jars.excludes"].split(",")
    assert "io.netty:*" in found["spark.jars.excludes"].split(",")
