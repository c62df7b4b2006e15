"""The connectors that ship with Penstock, made from settings.

The framework never imports a connector by statement: the layers point the other way
(docs/ARCHITECTURE.md).
"""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from penstock.failure import ConfigurationError
from penstock.runtime.ports import Kafka, SnapshotStore


def kafka_from(env: Mapping[str, str]) -> Kafka:
    """The cluster of PENSTOCK_BOOTSTRAP and the PENSTOCK_KAFKA_* settings."""
    if not env.get("PENSTOCK_BOOTSTRAP"):
        raise ConfigurationError(
            "no Kafka cluster is named: pass --bootstrap HOST:PORT or set PENSTOCK_BOOTSTRAP"
        )
    return cast("Kafka", import_module("penstock_kafka").KafkaCluster.from_env(env))


def store_from(env: Mapping[str, str]) -> SnapshotStore:
    """The snapshot store of PENSTOCK_STORE and the PENSTOCK_S3_* settings."""
    url = env.get("PENSTOCK_STORE")
    if not url:
        raise ConfigurationError(
            "no snapshot store is named: pass --store s3://BUCKET/PREFIX or --store file:///DIR, "
            "or set PENSTOCK_STORE"
        )
    return cast("SnapshotStore", import_module("penstock_minio").open_store(url, env))
