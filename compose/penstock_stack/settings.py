"""The settings of the one Kafka node, as a plain process and inside an image."""

from collections.abc import Mapping
from pathlib import Path

from penstock_stack.port import HOST

BROKER_SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # A topic that was misspelt must be an error, not a new topic.
    "auto.create.topics.enable": "false",
    # One node holds the only copy of everything.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Few partitions of the internal topics: they are made and loaded at start.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    # Records carry the times of their own data, which may be long ago: nothing is deleted.
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "group.initial.rebalance.delay.ms": "0",
    # A development machine: few threads and little memory.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # A killed broker may come back when its old session is over: shorter than the 9 s by default,
    # and long enough for a machine whose cores are all taken.
    "broker.heartbeat.interval.ms": "250",
    "broker.session.timeout.ms": "5000",
}
JVM = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djava.awt.headless=true")
# Each of these writes several lines per partition at every start, or one per deleted segment.
TALKATIVE = (
    "kafka.cluster",
    "kafka.coordinator.transaction",
    "kafka.log",
    "kafka.server.ReplicaFetcherManager",
    "org.apache.kafka.controller.ConfigurationControlManager",
    "org.apache.kafka.controller.ReplicationControlManager",
    "org.apache.kafka.coordinator",
    "org.apache.kafka.storage.internals",
    "state.change.logger",
)
LOGGING = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    *(f"-Dorg.slf4j.simpleLogger.log.{name}=warn" for name in TALKATIVE),
)


def properties(
    port: int, controller_port: int, data: Path, overrides: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The settings of a node on this machine that listens on ``port``."""
    return {
        **BROKER_SETTINGS,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "log.dirs": str(data),
        **(overrides or {}),
    }


def image_properties() -> dict[str, str]:
    """The settings inside an image; its start script adds what is advertised.

    PLAINTEXT is for clients outside, under an address that means nothing inside; so the broker
    talks to itself (transaction markers) through INTERNAL, as the containers beside it do.
    """
    return {
        **BROKER_SETTINGS,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "INTERNAL",
        "listeners": f"PLAINTEXT://:9092,INTERNAL://:19092,CONTROLLER://{HOST}:9093",
        "controller.quorum.voters": f"1@{HOST}:9093",
        "log.dirs": "/var/lib/kafka/data",
    }


def write_properties(file: Path, settings: Mapping[str, str]) -> None:
    """Write ``settings`` in the format of Java's properties."""
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
