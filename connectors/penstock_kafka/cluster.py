"""One Kafka cluster: the settings, and everything the runtime makes out of them."""

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.failure import ConfigurationError, TransportFailed
from penstock.ids import Position, checked_name

from penstock_kafka.admin import DECISIONS, EDGE, REPORTS, WITNESS, Admin
from penstock_kafka.edge import KafkaEdgeReader, KafkaEdgeSender
from penstock_kafka.log import KafkaLogReader, KafkaLogWriter
from penstock_kafka.recovery import KafkaRecovery
from penstock_kafka.secret import Secret
from penstock_kafka.settings import (
    checked_bootstrap,
    checked_settings,
    librdkafka,
    settings_from_env,
)
from penstock_kafka.sink import KafkaSinkProducer
from penstock_kafka.source import KafkaSourceReader
from penstock_kafka.wire import Wire


def edge_topic(app: str, edge: str) -> str:
    """The topic of an edge."""
    return f"{checked_name('application', app)}.edge.{checked_name('edge', edge)}"


def witness_topic(app: str) -> str:
    """The topic of an application's witnesses (L15)."""
    return f"{checked_name('application', app)}.witness"


@dataclass(frozen=True)
class KafkaCluster:
    """A cluster's address and settings; implements the port ``Kafka``. Picklable, opens nothing.

    ``settings`` are (librdkafka name, value) pairs from the allow-list in
    `penstock_kafka.settings`.
    Secrets are references, so neither a pickle nor a repr of this holds one.
    """

    bootstrap: str
    settings: tuple[tuple[str, str | Secret], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "bootstrap", checked_bootstrap(self.bootstrap))
        checked = checked_settings(dict(self.settings))
        object.__setattr__(self, "settings", tuple(sorted(checked.items(), key=lambda i: i[0])))

    @classmethod
    def from_env(cls, environ: Mapping[str, str], bootstrap: str | None = None) -> "KafkaCluster":
        """From PENSTOCK_BOOTSTRAP (or ``bootstrap``) and PENSTOCK_KAFKA_… variables."""
        address = bootstrap or environ.get("PENSTOCK_BOOTSTRAP")
        if not address:
            raise ConfigurationError(
                "no Kafka address: set PENSTOCK_BOOTSTRAP or give --bootstrap host:port"
            )
        return cls(address, tuple(settings_from_env(environ).items()))

    def check(self) -> None:
        """Reach the cluster or raise ConfigurationError naming it and the cause."""
        try:
            self._admin().metadata()
        except TransportFailed as error:
            raise ConfigurationError(str(error)) from None

    def partitions(self, topic: str) -> int:
        """Partition count; ConfigurationError naming the topic when it does not exist."""
        return self._admin().partitions(topic)

    def ensure_control_topics(self, app: str) -> None:
        """Create or verify decisions, reports and witness, one partition each."""
        admin, app = self._admin(), checked_name("application", app)
        admin.ensure(f"{app}.decisions", 1, DECISIONS)
        admin.ensure(f"{app}.reports", 1, REPORTS)
        admin.ensure(witness_topic(app), 1, WITNESS)

    def ensure_edge(self, app: str, edge: str, partitions: int) -> None:
        """Create the edge topic or verify its partition count and settings; ConfigurationError."""
        self._admin().ensure(edge_topic(app, edge), partitions, EDGE)

    def end_positions(self, topic: str) -> list[int]:
        """Log end offset of each partition (read_uncommitted)."""
        return self._admin().end_positions(topic)

    def delete_before(self, topic: str, positions: dict[int, Position]) -> None:
        """Delete records before the positions (L24)."""
        self._admin().delete_before(topic, positions)

    def positions_at(self, topic: str, at_ms: int) -> list[int]:
        """First offset of each partition whose record is not older; the end where none is."""
        return self._admin().positions_at(topic, at_ms)

    def copy_topic(self, topic: str, copy: str) -> None:
        """Create ``copy`` with the partitions and the settings of ``topic``, or verify it."""
        self._admin().copy(topic, copy)

    def topics_under(self, prefix: str) -> list[str]:
        """Names of the topics that begin with ``prefix``, sorted."""
        return sorted(name for name in self._admin().metadata().topics if name.startswith(prefix))

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics; those that are gone already do not matter."""
        self._admin().delete(list(topics))

    def transaction_timeout_ms(self) -> int:
        """The greatest transaction timeout the brokers allow; ConfigurationError below 60 s."""
        return self._admin().transaction_timeout_ms()

    def source_reader(
        self,
        topic: str,
        positions: dict[int, Position | None],
        start: str,
        group: str,
        *,
        want_keys: bool = True,
        until: Mapping[int, int] | None = None,
    ) -> KafkaSourceReader:
        """Reader of the given partitions; None means ``start`` ("earliest" or "latest")."""
        return KafkaSourceReader(
            self._base(),
            topic,
            positions=positions,
            start=start,
            group=group,
            want_keys=want_keys,
            until=until,
        )

    def edge_reader(self, app: str, edge: str, positions: dict[int, Position]) -> KafkaEdgeReader:
        """Reader of the given partitions of an edge."""
        return KafkaEdgeReader(self._base(), edge_topic(app, edge), positions)

    def edge_sender(self, app: str) -> KafkaEdgeSender:
        """Sender to the edges of an application."""
        return KafkaEdgeSender(self._base(), checked_name("application", app))

    def sink_producer(
        self, app: str, topic: str, transactional_id: str, timeout_ms: int
    ) -> KafkaSinkProducer:
        """One slot of a sink's pool; nothing happens before its ``open``."""
        return KafkaSinkProducer(
            self._base(),
            self._wire,
            topic=topic,
            witness_topic=witness_topic(app),
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
        )

    def log_writer(self, topic: str) -> KafkaLogWriter:
        """Writer of a control topic."""
        return KafkaLogWriter(self._base(), topic)

    def log_reader(self, topic: str, start: int | str) -> KafkaLogReader:
        """Reader of a control topic from an offset, "earliest" or "latest"."""
        return KafkaLogReader(self._base(), topic, start)

    def recovery(self, app: str, *, timeout_s: float = 60.0) -> KafkaRecovery:
        """Decides transactions of dead subtasks of an application; each call ends in time."""
        return KafkaRecovery(self._wire, self._base(), witness_topic(app), timeout_s)

    def _base(self) -> dict[str, Any]:
        return librdkafka(self.bootstrap, dict(self.settings))

    def _wire(self, connect_timeout_s: float) -> Wire:
        return Wire(self.bootstrap, dict(self.settings), connect_timeout_s)

    def _admin(self) -> Admin:
        """This process's admin client for the cluster: made once, because connecting takes longer
        than most of its calls.
        """
        key = (os.getpid(), self)
        with _ADMINS_LOCK:
            admin = _ADMINS.get(key)
            if admin is None:
                admin = _ADMINS[key] = Admin(self._base(), self.bootstrap)
        return admin


_ADMINS: Final[dict[tuple[int, KafkaCluster], Admin]] = {}
_ADMINS_LOCK: Final = threading.Lock()
