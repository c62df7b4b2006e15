"""The options of format("penstock_kafka")."""

import pickle
from typing import Any

import pytest
from penstock.failure import ConfigurationError
from penstock_kafka import Secret
from penstock_spark.kafka_options import options_of, wanted_from

LEAST = {"subscribe": "events", "kafka.bootstrap.servers": "broker:9092"}


def test_the_defaults_read_everything_that_is_committed() -> None:
    wanted = wanted_from(LEAST, {})
    assert wanted.topics == ("events",)
    assert wanted.cluster.bootstrap == "broker:9092"
    assert (wanted.starting, wanted.ending) == ("earliest", "latest")
    assert wanted.is_committed
    assert wanted.fails_on_loss
    assert not wanted.with_headers
    assert wanted.rows_per_slice is None


def test_options_have_no_case_and_say_what_they_say() -> None:
    wanted = wanted_from(
        {
            "SUBSCRIBE": "a, b,a",
            "Kafka.Bootstrap.Servers": "broker:9092",
            "startingoffsets": '{"a":{"0":5,"1":-2},"b":{"0":-1}}',
            "ENDINGOFFSETS": "Latest",
            "isolationLevel": "read_uncommitted",
            "includeHeaders": "TRUE",
            "rowsPerPartition": "1000",
            "failOnDataLoss": "false",
            "startingTimestamp": "0",
            "pollTimeoutMs": "5000",
        },
        {},
    )
    assert wanted.topics == ("a", "b")
    assert wanted.starting == {"a": {0: 5, 1: -2}, "b": {0: -1}}
    assert not wanted.is_committed
    assert not wanted.fails_on_loss
    assert wanted.with_headers
    assert wanted.rows_per_slice == 1000
    assert wanted.starting_ms == 0
    assert wanted.poll_timeout_ms == 5000
    assert wanted_from(options_of(wanted), {}) == wanted


def test_the_environment_gives_what_the_options_leave_out() -> None:
    environ = {
        "PENSTOCK_BOOTSTRAP": "elsewhere:9092",
        "PENSTOCK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "PENSTOCK_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "PENSTOCK_KAFKA_SASL_USERNAME": "environment",
        "PENSTOCK_KAFKA_SASL_PASSWORD": "hunter2",
    }
    wanted = wanted_from({"subscribe": "events", "kafka.sasl.username": "option"}, environ)
    assert wanted.cluster.bootstrap == "elsewhere:9092"
    settings = dict(wanted.cluster.settings)
    assert settings["sasl.username"] == "option"
    assert settings["sasl.password"] == Secret.env("PENSTOCK_KAFKA_SASL_PASSWORD")
    for shown in (repr(wanted), pickle.dumps(wanted).decode("latin1"), str(options_of(wanted))):
        assert "hunter2" not in shown
    assert wanted_from(options_of(wanted), {}) == wanted


def test_a_secret_is_a_place_and_never_a_value() -> None:
    sasl = {
        **LEAST,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "me",
    }
    wanted = wanted_from({**sasl, "kafka.sasl.password.file": "/run/secrets/p"}, {})
    assert dict(wanted.cluster.settings)["sasl.password"] == Secret.file("/run/secrets/p")
    with pytest.raises(ConfigurationError) as refused:
        wanted_from({**sasl, "kafka.sasl.password": "hunter2"}, {})
    assert "hunter2" not in str(refused.value)
    assert "never the value" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"subscribe": ""}, "names no topic"),
        ({"subscribe": "a,,"}, "names no topic"),
        ({"subscribePattern": "a.*"}, "unknown option 'subscribePattern'"),
        ({"kafka.plugin.library.paths": "/tmp/x.so"}, "it loads code"),
        ({"kafka.group.id": "mine"}, "the framework decides it"),
        ({"kafka.isolation.level": "read_committed"}, "say isolationLevel=read_committed"),
        ({"kafka.bootstrap.servers": "http://x"}, "not host:port"),
        ({"startingOffsets": "latest"}, "reads nothing"),
        ({"endingOffsets": "earliest"}, "reads nothing"),
        ({"startingOffsets": "first"}, "startingOffsets='first' is not earliest"),
        ({"startingOffsets": '{"events":{"0":-3}}'}, "says offset -3"),
        ({"endingOffsets": '{"other":{"0":3}}'}, "speaks of other"),
        ({"isolationLevel": "committed"}, "isolationLevel='committed'"),
        ({"includeHeaders": "yes"}, "includeHeaders='yes'"),
        ({"rowsPerPartition": "0"}, "not a number from 1 up"),
        ({"rowsPerPartition": "many"}, "not a number"),
        ({"startingTimestamp": "-1"}, "not a number from 0 up"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wanted_from({**LEAST, **change}, {})


def test_without_an_address_there_is_nothing_to_read() -> None:
    with pytest.raises(ConfigurationError, match=r"no Kafka address.*kafka\.bootstrap\.servers"):
        wanted_from({"subscribe": "events"}, {})
