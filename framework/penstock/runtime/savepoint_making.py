"""A savepoint made of a complete checkpoint: what is in the log, where it goes, the work itself."""

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from penstock.checkpoint import history as hist
from penstock.control import decode_decision
from penstock.failure import ConfigurationError, TransportFailed
from penstock.ids import CheckpointId, checked_name
from penstock.runtime.connectors import store_from
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.savepoint.store import SavepointStore
from penstock.snapshot import manifest as manifests
from penstock.snapshot.chain import ChunkReader

READ_S = 60.0


def history_of(kafka: Kafka, app: str) -> hist.History:
    """What the decision log of ``app`` says up to now.

    Raises ConfigurationError when the cluster knows no such application.
    """
    topic = f"{app}.decisions"
    try:
        end = kafka.end_positions(topic)[0]
    except ConfigurationError:
        raise ConfigurationError(
            f"there is no application {app!r} in this cluster: topic {topic!r} does not exist; "
            "name the app= of its services, and check --bootstrap"
        ) from None
    reader = kafka.log_reader(topic, "earliest")
    history, deadline = hist.History(), time.monotonic() + READ_S
    try:
        while end:
            for record in reader.poll(0.2):
                history, _ = hist.applied(history, record.offset, decode_decision(record.data))
                if record.offset >= end - 1:
                    return history
            if time.monotonic() > deadline:
                raise TransportFailed(f"{topic} could not be read to offset {end}")
    finally:
        reader.close()
    return history


def complete(history: hist.History, app: str, wanted: int | None = None) -> tuple[int, str]:
    """(checkpoint, manifest key) of a complete checkpoint, the newest by default.

    Raises ConfigurationError naming those that there are.
    """
    found = dict(history.completed)
    if not found:
        raise ConfigurationError(f"application {app!r} has no complete checkpoint yet")
    number = CheckpointId(max(found) if wanted is None else wanted)
    if number not in found:
        known = ", ".join(map(str, sorted(found)[-8:]))
        raise ConfigurationError(
            f"checkpoint {number} of application {app!r} is not retained; the log knows {known}"
        )
    return number, found[number]


def default_url(env: Mapping[str, str], app: str, name: str) -> str:
    """Where savepoint ``name`` of ``app`` stands unless somebody says otherwise."""
    base = env.get("PENSTOCK_STORE", "").rstrip("/")
    return (
        f"{base}/{checked_name('application id', app)}/savepoints/{checked_name('savepoint', name)}"
    )


def opened(env: Mapping[str, str], url: str) -> SnapshotStore:
    """The store at a savepoint's own folder."""
    return store_from({**env, "PENSTOCK_STORE": url})


def make(store: SnapshotStore, manifest: str, target: SavepointStore, *, name: str) -> Any:
    """Write the checkpoint whose manifest this is into ``target``; the savepoint's manifest."""
    converting = import_module("penstock.savepoint.converting")  # Parquet takes time to import
    loaded = manifests.load(store.get(manifest), manifest)
    return converting.convert(
        loaded,
        ChunkReader(store),
        target,
        savepoint_id=name,
        created_at_ms=int(time.time() * 1000),
        parent=f"{store.url}/{manifest}",
    )
