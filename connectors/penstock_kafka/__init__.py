"""Kafka for Penstock: sources, edges, the two-phase-commit sink and the control topics."""

from penstock_kafka.cluster import KafkaCluster
from penstock_kafka.secret import Secret

__all__ = ["KafkaCluster", "Secret"]
