"""What a reader of ``penstock_kafka`` was asked for: its options, checked."""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from penstock.failure import ConfigurationError
from penstock_kafka import KafkaCluster, Secret
from penstock_kafka.settings import settings_from_env

NAME: Final = "penstock_kafka"
EARLIEST: Final = -2
LATEST: Final = -1
"""Offsets with a meaning, as Spark's own Kafka source and Kafka's protocol spell them."""

Bound: TypeAlias = Literal["earliest", "latest"] | dict[str, dict[int, int]]
"""Where reading starts or ends: for all partitions alike, or topic -> partition -> offset."""

_PREFIX: Final = "kafka."
_OURS: Final = {
    "subscribe": "subscribe",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "startingtimestamp": "startingTimestamp",
    "isolationlevel": "isolationLevel",
    "includeheaders": "includeHeaders",
    "rowsperpartition": "rowsPerPartition",
    "failondataloss": "failOnDataLoss",
    "polltimeoutms": "pollTimeoutMs",
}
"""Lower case, as Spark compares options, -> as they are written."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which records of which topics, and from where; holds no secret, only where one is kept."""

    cluster: KafkaCluster
    topics: tuple[str, ...]
    starting: Bound = "earliest"
    ending: Bound = "latest"
    starting_ms: int | None = None
    """Start at the first record that is at least so young; overrides ``starting``."""
    is_committed: bool = True
    with_headers: bool = False
    rows_per_slice: int | None = None
    """Cut a partition's range into slices of about so many offsets; None leaves it whole."""
    fails_on_loss: bool = True
    poll_timeout_ms: int = 120_000
    """How long nothing may come before the end is reached."""


def wanted_from(options: Mapping[str, str], environ: Mapping[str, str]) -> Wanted:
    """The request in a reader's options; what they leave out of Kafka is taken from ``environ``.

    Raises ConfigurationError naming the option.
    """
    given = {name.lower(): value for name, value in options.items()}
    found = {_OURS[name]: value for name, value in given.items() if name in _OURS}
    unknown = [n for n in options if n.lower() not in _OURS and not n.lower().startswith(_PREFIX)]
    if unknown:
        raise ConfigurationError(
            f"{NAME}: unknown option {', '.join(map(repr, sorted(unknown)))}; the options are "
            f"{', '.join(_OURS.values())} and {_PREFIX}… for the connection"
        )
    starting = _bound("startingOffsets", found.get("startingOffsets", "earliest"))
    ending = _bound("endingOffsets", found.get("endingOffsets", "latest"))
    if starting == "latest" or ending == "earliest":
        raise ConfigurationError(
            f"{NAME}: startingOffsets={found.get('startingOffsets', 'earliest')!r} with "
            f"endingOffsets={found.get('endingOffsets', 'latest')!r} reads nothing for ever: a "
            "batch ends at what is there now; start earlier or end later"
        )
    topics = tuple(dict.fromkeys(t.strip() for t in found.get("subscribe", "").split(",")))
    if not all(topics):
        raise ConfigurationError(f"{NAME}: option subscribe names no topic; give topic[,topic…]")
    for name, bound in (("startingOffsets", starting), ("endingOffsets", ending)):
        if not isinstance(bound, str) and (others := sorted(bound.keys() - set(topics))):
            raise ConfigurationError(
                f"{NAME}: {name} speaks of {', '.join(others)}, which subscribe does not name"
            )
    return Wanted(
        cluster=_cluster(given, environ),
        topics=topics,
        starting=starting,
        ending=ending,
        starting_ms=_number(found, "startingTimestamp", least=0),
        is_committed=_choice(found, "isolationLevel", "read_committed", "read_uncommitted"),
        with_headers=not _choice(found, "includeHeaders", "false", "true"),
        rows_per_slice=_number(found, "rowsPerPartition", least=1),
        fails_on_loss=_choice(found, "failOnDataLoss", "true", "false"),
        poll_timeout_ms=_number(found, "pollTimeoutMs", least=1) or 120_000,
    )


def options_of(wanted: Wanted) -> dict[str, str]:
    """The options that say the same; secrets as the places where they are kept."""
    options = {
        f"{_PREFIX}bootstrap.servers": wanted.cluster.bootstrap,
        "subscribe": ",".join(wanted.topics),
        "startingOffsets": _said(wanted.starting),
        "endingOffsets": _said(wanted.ending),
        "isolationLevel": "read_committed" if wanted.is_committed else "read_uncommitted",
        "includeHeaders": str(wanted.with_headers).lower(),
        "failOnDataLoss": str(wanted.fails_on_loss).lower(),
        "pollTimeoutMs": str(wanted.poll_timeout_ms),
    }
    if wanted.starting_ms is not None:
        options["startingTimestamp"] = str(wanted.starting_ms)
    if wanted.rows_per_slice is not None:
        options["rowsPerPartition"] = str(wanted.rows_per_slice)
    for name, value in wanted.cluster.settings:
        if isinstance(value, Secret):
            source, place = value.__reduce__()[1]
            options[f"{_PREFIX}{name}.{source}"] = place
        else:
            options[f"{_PREFIX}{name}"] = value
    return options


def _cluster(given: Mapping[str, str], environ: Mapping[str, str]) -> KafkaCluster:
    """The connection: each ``kafka.…`` option before what the environment says."""
    settings = settings_from_env(environ)
    bootstrap = environ.get("PENSTOCK_BOOTSTRAP")
    for option, value in given.items():
        if not option.startswith(_PREFIX):
            continue
        name = option.removeprefix(_PREFIX)
        if name == "bootstrap.servers":
            bootstrap = value
        elif name == "isolation.level":
            raise ConfigurationError(
                f"{NAME}: say isolationLevel={value} instead of kafka.isolation.level"
            )
        elif name.endswith((".env", ".file")):
            where, _, source = name.rpartition(".")
            settings[where] = Secret(source, value)
        else:
            settings[name] = value
    if not bootstrap:
        raise ConfigurationError(
            f"{NAME}: no Kafka address: give option kafka.bootstrap.servers, or set "
            "PENSTOCK_BOOTSTRAP before the Spark session starts"
        )
    return KafkaCluster(bootstrap, tuple(settings.items()))


def _bound(option: str, text: str) -> Bound:
    if text.lower() in ("earliest", "latest"):
        return "earliest" if text.lower() == "earliest" else "latest"
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"{NAME}: {option}={text!r:.200} is not earliest, latest or "
            f'{{"topic":{{"0":23,"1":{LATEST}}}}}: {error}'
        ) from None
    least = min((offset for ends in found.values() for offset in ends.values()), default=0)
    if least < EARLIEST:
        raise ConfigurationError(
            f"{NAME}: {option} says offset {least}; use {EARLIEST} (earliest), {LATEST} (latest) "
            "or an offset"
        )
    return found


def _said(bound: Bound) -> str:
    return bound if isinstance(bound, str) else json.dumps(bound)


def _number(found: Mapping[str, str], option: str, *, least: int) -> int | None:
    text = found.get(option)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise ConfigurationError(f"{NAME}: {option}={text!r} is not a number from {least} up")
    return int(text)


def _choice(found: Mapping[str, Any], option: str, default: str, other: str) -> bool:
    """Whether it is the default."""
    text = str(found.get(option, default)).lower()
    if text not in (default, other):
        raise ConfigurationError(f"{NAME}: {option}={text!r}; use {default} or {other}")
    return text == default
