"""Spark looks for modules named so: this one makes ``format("penstock_kafka")`` known to it."""

from penstock_spark.kafka_source import KafkaTopics as DefaultSource

__all__ = ["DefaultSource"]
