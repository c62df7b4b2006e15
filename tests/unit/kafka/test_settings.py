"""Connection settings: the allow-list, the mapping to two clients, and secrets that never show."""

import io
import logging
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from penstock.failure import ConfigurationError, PenstockError
from penstock_kafka import KafkaCluster, Secret
from penstock_kafka.settings import kafka_python, librdkafka, settings_from_env
from penstock_kafka.wire import Wire

CANARY = "canary-7f3a-never-show"
CLOSED = "127.0.0.1:1"

SASL = {
    "PENSTOCK_BOOTSTRAP": CLOSED,
    "PENSTOCK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "PENSTOCK_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "PENSTOCK_KAFKA_SASL_USERNAME": "ledger",
    "PENSTOCK_KAFKA_SASL_PASSWORD": CANARY,
    "PENSTOCK_KAFKA_SSL_CA_LOCATION": "/etc/ca.pem",
    "PENSTOCK_KAFKA_SSL_CERTIFICATE_LOCATION": "/etc/cert.pem",
    "PENSTOCK_KAFKA_SSL_KEY_LOCATION": "/etc/key.pem",
    "PENSTOCK_KAFKA_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM": "https",
}


@pytest.fixture
def sasl(monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    for name, value in SASL.items():
        monkeypatch.setenv(name, value)
    return KafkaCluster.from_env(os.environ)


def test_environment_reaches_both_clients_under_their_names(sasl: KafkaCluster) -> None:
    settings = dict(sasl.settings)
    theirs = librdkafka(sasl.bootstrap, settings)
    assert theirs["bootstrap.servers"] == CLOSED
    assert theirs["security.protocol"] == "SASL_SSL"
    assert theirs["sasl.mechanism"] == "SCRAM-SHA-512"
    assert theirs["sasl.username"] == "ledger"
    assert theirs["sasl.password"] == CANARY
    assert theirs["ssl.ca.location"] == "/etc/ca.pem"
    python = kafka_python(sasl.bootstrap, settings)
    assert python["bootstrap_servers"] == [CLOSED]
    assert python["security_protocol"] == "SASL_SSL"
    assert python["sasl_mechanism"] == "SCRAM-SHA-512"
    assert python["sasl_plain_username"] == "ledger"
    assert python["sasl_plain_password"] == CANARY
    assert python["ssl_cafile"] == "/etc/ca.pem"
    assert python["ssl_certfile"] == "/etc/cert.pem"
    assert python["ssl_keyfile"] == "/etc/key.pem"
    assert python["ssl_check_hostname"] is True


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(f"{CANARY}\n")
    settings = settings_from_env({"PENSTOCK_KAFKA_SASL_PASSWORD_FILE": str(path)})
    assert settings == {"sasl.password": Secret.file(str(path))}
    assert librdkafka(CLOSED, settings)["sasl.password"] == CANARY
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"sasl\.password: cannot read .*password"):
        librdkafka(CLOSED, settings)


def test_a_missing_variable_is_named() -> None:
    settings: dict[str, Any] = {"sasl.password": Secret.env("NO_SUCH_VARIABLE")}
    with pytest.raises(ConfigurationError, match=r"sasl\.password.*NO_SUCH_VARIABLE"):
        librdkafka(CLOSED, settings)


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths", "ssl.engine.location", "ssl.engine.id", "ssl.providers",
        "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.config",
        "sasl.kerberos.kinit.cmd", "debug", "enable.ssl.certificate.verification",
        "transactional.id", "enable.idempotence", "acks", "isolation.level", "no.such.setting",
    ],
)  # fmt: skip
def test_what_is_not_on_the_list_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name.replace(".", r"\.")):
        KafkaCluster(CLOSED, ((name, "x"),))
    variable = "PENSTOCK_KAFKA_" + name.replace(".", "_").upper()
    with pytest.raises(ConfigurationError, match=name.replace(".", r"\.")):
        KafkaCluster.from_env({"PENSTOCK_BOOTSTRAP": CLOSED, variable: "x"})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sasl.password": CANARY}, r"Secret\.env"),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism, sasl.username, sasl.password"),
        ({"security.protocol": "TLS"}, "use one of PLAINTEXT"),
        ({"sasl.mechanism": "GSSAPI"}, "use one of PLAIN"),
        ({"ssl.ca.location": "/ca"}, "would be ignored"),
        ({"client.id": 3}, "must be a string"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        KafkaCluster(CLOSED, tuple(settings.items()))
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", "user:pw@host:9092", "a:1,,b:2"]
)
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ConfigurationError):
        KafkaCluster.from_env({"PENSTOCK_BOOTSTRAP": address})


def test_a_cluster_is_a_value(sasl: KafkaCluster) -> None:
    again = pickle.loads(pickle.dumps(sasl))
    assert again == sasl
    assert hash(again) == hash(sasl)
    assert KafkaCluster("b:1, a:2").bootstrap == "b:1,a:2"


def test_no_secret_in_any_repr_pickle_error_or_log(
    sasl: KafkaCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every logger at DEBUG, both clients at work, and the canary nowhere."""
    monkeypatch.setenv("PENSTOCK_KAFKA_SECURITY_PROTOCOL", "SASL_PLAINTEXT")
    for name in list(os.environ):
        if name.startswith("PENSTOCK_KAFKA_SSL"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_KAFKA_SASL_MECHANISM", "PLAIN")
    cluster = KafkaCluster.from_env(os.environ)
    seen = io.StringIO()
    handler = logging.StreamHandler(seen)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        errors = []
        monkeypatch.setattr("penstock_kafka.admin._REACH_S", 0.5)
        for use in (
            cluster.check,
            lambda: Wire(cluster.bootstrap, dict(cluster.settings), connect_timeout_s=0.5),
        ):
            with pytest.raises(PenstockError) as caught:
                use()
            errors.append(repr(caught.value) + str(caught.value.__context__))
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    out, err = capfd.readouterr()
    dump = pickle.dumps(cluster).decode("latin-1")
    configs = repr(librdkafka(CLOSED, dict(cluster.settings))) + str(
        kafka_python(CLOSED, dict(cluster.settings))
    )
    for text in (repr(cluster), str(sasl), dump, configs, seen.getvalue(), out, err, *errors):
        assert CANARY not in text
    assert "***" in repr(cluster)
    assert CLOSED in errors[0]
