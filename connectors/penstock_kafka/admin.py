"""The topics of an application: made where they are missing, checked where they exist (L24)."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource  # the package does not export its names
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from penstock.failure import ConfigurationError, PenstockError, TransportFailed
from penstock.ids import Position

from penstock_kafka.client import LOG, MAX_MESSAGE_BYTES, Backoff, Errors, failure

LEAST_TRANSACTION_TIMEOUT_MS: Final = 60_000
_DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 900_000
_REACH_S: Final = 8.0
_CALL_S: Final = 30.0
_NEW_TOPIC_S: Final = 2.0
"""A topic made a moment ago may not be known to every broker."""

EDGE: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(32 * 1024 * 1024),
    "max.message.bytes": str(MAX_MESSAGE_BYTES),
}
"""Only DeleteRecords ends a frame's life (L24); small segments give the disk back soon."""
DECISIONS: Final = EDGE
REPORTS: Final = EDGE | {"retention.ms": str(24 * 3600 * 1000)}
"""A new leader asks workers to join again, so old reports are of no use to anyone."""
WITNESS: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "60000",
}

_COPIED: Final = (
    "cleanup.policy",
    "compression.type",
    "max.message.bytes",
    "message.timestamp.type",
    "retention.bytes",
    "retention.ms",
)
"""What the copy of a topic has in common with it."""
_BINDING: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
"""Settings of an existing topic that could lose records when they differ."""
_SIZE: Final = "max.message.bytes"


_SETTLING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._DESTROY,  # noqa: SLF001 - another thread has made the client anew
    }
)
_LOST: Final = frozenset(
    {
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    }
)
"""What a client says, too, that has forgotten every broker and never looks for one again."""

T = TypeVar("T")

_SILENT: Final = logging.getLogger("penstock.kafka.admin")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class Admin:
    """The cluster's topics and settings, through confluent-kafka's admin client.

    A process has one for as long as it lives, so its client is made anew whenever Kafka could not
    be reached with it: it may have forgotten every broker (`Errors.look` tells how).
    """

    def __init__(self, base: dict[str, Any], bootstrap: str) -> None:
        self._base = base
        self._bootstrap = bootstrap
        self._renew()

    def _renew(self) -> None:
        self._errors = Errors()
        # What it meets is in the errors that it raises: its log would say it twice.
        settings = {"error_cb": self._errors, "socket.timeout.ms": 30_000, "logger": _SILENT}
        try:
            self._client = AdminClient(self._base | settings)
        except KafkaException as error:
            raise ConfigurationError(
                f"the settings for Kafka at {self._bootstrap} are refused: {error.args[0].str()}; "
                "correct the PENSTOCK_KAFKA_… variables"
            ) from None

    def metadata(self) -> Any:
        """Brokers and topics; TransportFailed naming address and cause when out of reach."""
        backoff = Backoff(_REACH_S)
        while True:
            client, errors = self._client, self._errors
            try:
                found = client.list_topics(timeout=_REACH_S)
            except KafkaException as error:
                client.poll(0)
                self._renew()
                raise self._unreachable(errors, error.args[0].str()) from None
            if found.brokers:
                return found
            # It comes back from an outage, and answers before it knows that it is there itself.
            self._renew()
            if not backoff.wait():
                raise self._unreachable(errors, "it answers, and names no broker")

    def _unreachable(self, errors: Errors, cause: str) -> PenstockError:
        if errors.refused is not None:
            return failure(f"Kafka at {self._bootstrap}", errors.refused)
        return TransportFailed(
            f"Kafka at {self._bootstrap} cannot be reached within {_REACH_S:.0f} s: "
            f"{errors.causes() or cause}; check the address, that the broker runs, its "
            "advertised.listeners, and TLS/SASL settings (PENSTOCK_KAFKA_…)"
        )

    def partitions(self, topic: str) -> int:
        """Partition count; ConfigurationError naming the topic and its nearest names."""
        backoff = Backoff(_NEW_TOPIC_S)
        while True:
            topics = self.metadata().topics
            found = topics.get(topic)
            if found is not None and found.error is None and found.partitions:
                return len(found.partitions)
            if not backoff.wait():
                break
        near = get_close_matches(topic, [t for t in topics if not t.startswith("__")], n=3)
        raise ConfigurationError(
            f"topic {topic!r} does not exist in Kafka at {self._bootstrap}"
            + (f"; nearest names: {', '.join(near)}" if near else "")
            + f"; correct the name, or create it: kafka-topics.sh --bootstrap-server "
            f"{self._bootstrap} --create --topic {topic} --partitions N"
        )

    def ensure(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create ``topic`` or verify partition count and the settings that guard its records."""
        metadata = self.metadata()
        found = metadata.topics.get(topic)
        if found is None or found.error is not None:
            copies = min(3, len(metadata.brokers))
            self._create(topic, partitions, copies, config)
            found = self._led(topic)
        self._verify_count(topic, partitions, len(found.partitions))
        self._verify_config(topic, config)

    def copy(self, topic: str, copy: str) -> None:
        """Create ``copy`` with the partitions and the settings of ``topic``, or verify it."""
        partitions = self.partitions(topic)
        found = self._config(ConfigResource(ResourceType.TOPIC, topic), f"topic {topic!r}") or {}
        config = {name: found[name] for name in _COPIED if found.get(name) is not None}
        self.ensure(copy, partitions, config)

    def delete(self, topics: list[str]) -> None:
        """Delete topics; those that are gone already do not matter."""
        for topic, future in self._client.delete_topics(topics).items() if topics else ():
            try:
                _result(future)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise failure(f"topic {topic!r} cannot be deleted", error) from None

    def _create(self, topic: str, partitions: int, copies: int, config: Mapping[str, str]) -> None:
        settings = dict(config) | {"min.insync.replicas": str(max(1, copies - 1))}
        new = NewTopic(topic, partitions, copies, config=settings)
        try:
            _result(self._client.create_topics([new], operation_timeout=_CALL_S)[topic])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise failure(
                    f"topic {topic!r} cannot be created with {partitions} partitions", error
                ) from None

    def _led(self, topic: str) -> Any:
        """The new topic's metadata, once every partition has a leader."""
        deadline = time.monotonic() + _CALL_S
        while True:
            found = self.metadata().topics.get(topic)
            if found is not None and found.error is None:
                led = [p for p in found.partitions.values() if p.leader >= 0]
                if led and len(led) == len(found.partitions):
                    return found
            if time.monotonic() > deadline:
                raise failure(f"topic {topic!r}", "no leader for its partitions after its creation")
            time.sleep(0.02)

    def _verify_count(self, topic: str, expected: int, actual: int) -> None:
        if actual == expected:
            return
        if ".edge." in topic:
            remedy = (
                f"its keys are laid out for {expected}. Somebody has changed it: stop the "
                "application and delete this topic; it is made anew at the next start, and a "
                "complete checkpoint needs no record of it. Only a new application may say "
                f"partitions={actual}"
            )
        else:
            remedy = "it is a log whose order counts. It cannot be used: start under a new id"
        raise ConfigurationError(
            f"topic {topic!r} has {actual} partitions, but was built for {expected}: {remedy}"
        )

    def _verify_config(self, topic: str, expected: Mapping[str, str]) -> None:
        actual = self._config(ConfigResource(ResourceType.TOPIC, topic), f"topic {topic!r}")
        if actual is None:
            return
        wrong = {
            name: (actual.get(name), expected[name])
            for name in _BINDING
            if name in expected and actual.get(name) != expected[name]
        }
        if _SIZE in expected and int(actual.get(_SIZE) or 0) < int(expected[_SIZE]):
            wrong[_SIZE] = (actual.get(_SIZE), expected[_SIZE])
        if wrong:
            raise ConfigurationError(
                f"topic {topic!r} is set up in a way that can lose records: "
                + ", ".join(f"{n} is {was}, must be {must}" for n, (was, must) in wrong.items())
                + f"; change it: kafka-configs.sh --bootstrap-server {self._bootstrap} --alter "
                f"--topic {topic} --add-config "
                + ",".join(f"{n}={must}" for n, (_, must) in wrong.items())
            )

    def _config(self, resource: ConfigResource, what: str) -> dict[str, str] | None:
        """A resource's settings; None when this principal may not see them."""
        try:
            entries = self._repeated(
                lambda: _result(self._client.describe_configs([resource])[resource])
            )
        except KafkaException as error:
            refused = failure(f"settings of {what}", error)
            if isinstance(refused, ConfigurationError):
                LOG.warning("%s: they are not checked", refused)
                return None
            raise refused from None
        return {name: entry.value for name, entry in entries.items()}

    def transaction_timeout_ms(self) -> int:
        """The greatest transaction timeout that every broker allows."""
        name = "transaction.max.timeout.ms"
        least = None
        for broker in self.metadata().brokers:
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            config = self._config(resource, f"broker {broker}")
            value = int((config or {}).get(name) or _DEFAULT_TRANSACTION_TIMEOUT_MS)
            if value < LEAST_TRANSACTION_TIMEOUT_MS:
                raise ConfigurationError(
                    f"broker {broker} of Kafka at {self._bootstrap} has {name}={value}: an outage "
                    f"of {value / 1000:.0f} s would abort pre-committed output; set {name} to at "
                    f"least {LEAST_TRANSACTION_TIMEOUT_MS} (Kafka's default is "
                    f"{_DEFAULT_TRANSACTION_TIMEOUT_MS})"
                )
            least = value if least is None else min(least, value)
        return least if least is not None else _DEFAULT_TRANSACTION_TIMEOUT_MS

    def end_positions(self, topic: str) -> list[int]:
        """Log end offset of each partition (read_uncommitted)."""
        spec: Any = OffsetSpec
        return self._positions(topic, spec.latest())

    def positions_at(self, topic: str, at_ms: int) -> list[int]:
        """First offset of each partition whose record is not older; the end where none is."""
        spec: Any = OffsetSpec
        found = self._positions(topic, spec.for_timestamp(at_ms))
        pairs = zip(found, self.end_positions(topic), strict=True)
        return [end if offset < 0 else offset for offset, end in pairs]

    def _positions(self, topic: str, wanted: Any) -> list[int]:
        request = {
            TopicPartition(topic, partition): wanted for partition in range(self.partitions(topic))
        }
        try:
            found = self._repeated(lambda: self._ends(request))
        except KafkaException as error:
            raise failure(f"offsets of topic {topic!r} cannot be read", error) from None
        return [found[partition] for partition in range(len(found))]

    def _ends(self, request: dict[TopicPartition, Any]) -> dict[int, int]:
        found = self._client.list_offsets(
            request, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=_CALL_S
        )
        return {p.partition: _result(future).offset for p, future in found.items()}

    def delete_before(self, topic: str, positions: Mapping[int, Position]) -> None:
        """Delete records before the positions (L24)."""
        if not positions:
            return
        targets = [TopicPartition(topic, partition, at) for partition, at in positions.items()]
        try:
            self._repeated(lambda: self._delete(targets))
        except KafkaException as error:
            raise _undeletable(topic, error) from None

    def _delete(self, targets: list[TopicPartition]) -> None:
        for future in self._client.delete_records(targets).values():
            _result(future)

    def _repeated(self, call: Callable[[], T]) -> T:
        """Call again while a leader is being found: metadata of a new or moved topic lags."""
        backoff = Backoff(_CALL_S)
        while True:
            try:
                return call()
            except KafkaException as error:
                code = error.args[0].code()
                if code in _LOST:
                    self._renew()
                if code not in _SETTLING or not backoff.wait():
                    raise


def _undeletable(topic: str, error: KafkaException) -> PenstockError:
    return failure(f"old records of topic {topic!r} cannot be deleted", error)


def _result(future: "Future[Any]") -> Any:
    return future.result(timeout=2 * _CALL_S)
