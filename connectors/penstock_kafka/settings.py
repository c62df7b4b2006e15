"""What an operator may say about the connection to Kafka: an allow-list, for two client libraries.

Settings that reach a client are code or network access in disguise (CVE-2023-25194,
CVE-2025-27817): what is not on the list is refused by name. Nothing that a REST caller says ever
arrives here.
"""

import logging
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from penstock.failure import ConfigurationError

from penstock_kafka.secret import HIDDEN, Secret

CLIENT_LOG: Final = logging.getLogger("penstock.kafka.client")
"""Where librdkafka's own log lines go; it redacts secrets and ``debug`` is not on the list."""

_PREFIX: Final = "PENSTOCK_KAFKA_"


_CLIENT: Final = re.compile(r"^[A-Z]+ \[[^\]]*\] (\[thrd:[^\]]*\]: )?")
_TIMES: Final = re.compile(r" \(after \d+ms in state .*\)")
_BROKER: Final = re.compile(r"(?:\w+://)?([^/\s]+:\d+)/(?:bootstrap|\d+): ")


class _Seldom(logging.Filter):
    """Lets a line about a broker through once in 30 s: clients that lose it repeat each other.

    Which client and thread it was, and after how many milliseconds, is left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = _TIMES.sub("", _CLIENT.sub("", record.getMessage()))
        broker = _BROKER.match(line)
        if broker is not None:
            line = f"{broker[1]}: {line[broker.end() :]}"
        record.msg, record.args = line, ()
        line = line if broker is None else broker[1]
        now = time.monotonic()
        if now - self._said.get(line, -60.0) < 30.0:
            return False
        if len(self._said) > 100:
            self._said.clear()
        self._said[line] = now
        return True


CLIENT_LOG.addFilter(_Seldom())

_NAMES: Final[dict[str, str | None]] = {
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
    "broker.address.family": None,
    "socket.keepalive.enable": None,
}
"""librdkafka's name -> kafka-python's name; None: nothing to say to kafka-python."""

_SECRETS: Final = frozenset({"sasl.password", "ssl.key.password"})

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl.mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "ssl.endpoint.identification.algorithm": ("https", "none"),
    "broker.address.family": ("any", "v4", "v6"),
    "socket.keepalive.enable": ("true", "false"),
}

_DANGEROUS: Final[dict[str, str]] = {
    "plugin.library.paths": "it loads code",
    "ssl.engine.location": "it loads code",
    "ssl.providers": "it loads code",
    "sasl.kerberos.kinit.cmd": "it is a shell command",
    "debug": "it writes wire contents to the log",
    "enable.ssl.certificate.verification": "without it anyone can pose as the broker",
    "transactional.id": "the framework decides it",
    "group.id": "the framework decides it",
}

_SASL_LOGS: Final = tuple(f"kafka.net.sasl.{name}" for name in ("plain", "scram"))

_BOOTSTRAP: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):\d{1,5}")


def checked_bootstrap(bootstrap: str) -> str:
    """``bootstrap`` when it is host:port[,host:port…]; raises ConfigurationError."""
    servers = [server.strip() for server in bootstrap.split(",")]
    for server in servers:
        if not _BOOTSTRAP.fullmatch(server):
            raise ConfigurationError(
                f"bootstrap server {server!r} is not host:port; give PENSTOCK_BOOTSTRAP or "
                "--bootstrap as host:port[,host:port…]"
            )
    return ",".join(servers)


def checked_settings(settings: Mapping[str, Any]) -> dict[str, str | Secret]:
    """``settings`` when all of them are on the allow-list and well-formed; ConfigurationError."""
    checked = {name: _checked(name, value) for name, value in settings.items()}
    protocol = checked.get("security.protocol", "PLAINTEXT")
    wanted = ["sasl.mechanism", "sasl.username", "sasl.password"]
    if str(protocol).startswith("SASL_") and (lacking := [n for n in wanted if n not in checked]):
        raise ConfigurationError(
            f"security.protocol={protocol} needs {', '.join(lacking)}: set "
            + ", ".join(_PREFIX + name.replace(".", "_").upper() for name in lacking)
        )
    if not str(protocol).endswith("SSL") and (
        useless := [n for n in checked if n.startswith("ssl.")]
    ):
        raise ConfigurationError(
            f"{', '.join(useless)} would be ignored with security.protocol={protocol}; set "
            "security.protocol to SSL or SASL_SSL"
        )
    return checked


def _checked(name: str, value: Any) -> str | Secret:
    if name not in _NAMES:
        why = _DANGEROUS.get(name)
        if why is None and name.startswith("ssl.engine"):
            why = "it loads code"
        if why is None and name.startswith("sasl.oauthbearer"):
            why = "it makes clients fetch an address of somebody's choice"
        raise ConfigurationError(
            f"Kafka setting {name!r} is not allowed"
            + (f" ({why})" if why else "")
            + f"; allowed are {', '.join(sorted(_NAMES))}"
        )
    if name in _SECRETS:
        if not isinstance(value, Secret):
            raise ConfigurationError(
                f"Kafka setting {name} is a secret ({HIDDEN}): give Secret.env('VARIABLE') or "
                "Secret.file('/path'), never the value"
            )
        return value
    if not isinstance(value, str):
        raise ConfigurationError(
            f"Kafka setting {name} must be a string; found {type(value).__name__}"
        )
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        raise ConfigurationError(
            f"Kafka setting {name}={value!r} is not known; use one of {', '.join(choices)}"
        )
    return value


def settings_from_env(environ: Mapping[str, str]) -> dict[str, str | Secret]:
    """The settings in PENSTOCK_KAFKA_…; secrets become references, also from …_FILE variables."""
    settings: dict[str, str | Secret] = {}
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX).lower().replace("_", ".")
        if name in _SECRETS:
            value: str | Secret = Secret.env(variable)
        elif name.removesuffix(".file") in _SECRETS:
            name, value = name.removesuffix(".file"), Secret.file(environ[variable])
        else:
            value = environ[variable]
        if name in settings:
            raise ConfigurationError(f"{variable} says again what another variable said of {name}")
        settings[name] = value
    return settings


def librdkafka(bootstrap: str, settings: Mapping[str, str | Secret]) -> dict[str, Any]:
    """The settings as confluent-kafka takes them, with secrets read."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": "penstock",
        "socket.nagle.disable": True,
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "log_level": 3,  # errors: its warnings are about what it mends by itself
        "logger": CLIENT_LOG,
    }
    for name, value in settings.items():
        config[name] = value.reveal(name) if isinstance(value, Secret) else value
    return config


def kafka_python(bootstrap: str, settings: Mapping[str, str | Secret]) -> dict[str, Any]:
    """The same settings as kafka-python takes them, with secrets read."""
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap.split(","),
        "client_id": "penstock",
        "receive_message_max_bytes": 100_000_000,
        "max_in_flight_requests_per_connection": 10_000,
        "reconnect_backoff_max_ms": 1000,
    }
    for name, value in settings.items():
        theirs = _NAMES[name]
        if theirs is None:
            continue
        if theirs == "ssl_check_hostname":
            config[theirs] = value == "https"
        else:
            config[theirs] = value.reveal(name) if isinstance(value, Secret) else value
    return config


def quiet_kafka_python() -> None:
    """Keep kafka-python's log silent: its debug lines show the wire's bytes, and so passwords."""
    for name in ("kafka", "kafka.protocol.parser", "kafka.net.connection", *_SASL_LOGS):
        logger = logging.getLogger(name)
        if logger.level < logging.CRITICAL:
            logger.setLevel(logging.CRITICAL)
