"""A savepoint of format version 1, as the first release wrote it, is restored for ever."""

import json
from pathlib import Path
from typing import Any

import pytest
from penstock.ids import Attempt, CheckpointId, Term
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.restoring import imported
from penstock.snapshot import manifest as manifests
from penstock.testing import Driver
from penstock.testing.driver import Checkpoint
from penstock.testing.store import SimulatedStore
from penstock_minio import FileStore

from tests.data.savepoint_v1.make import services, state_of

KEPT = Path(__file__).parents[2] / "data" / "savepoint_v1"
EXPECTED: dict[str, Any] = json.loads((KEPT / "expected.json").read_text())


@pytest.mark.parametrize("parallelism", [1, 3])
def test_it_is_restored(parallelism):
    store = SimulatedStore()
    manifest = imported(
        Savepoint.open(FileStore(KEPT / "savepoint")),
        tuple(service.spec() for service in services()),
        "kept",
        prefix="kept/imports/1-2",
        checkpoint=CheckpointId(3),
        term=Term(1),
        attempt=Attempt(2),
        put=store.put,
        partitions=lambda topic: 4,
    )
    store.put("manifest.json", manifests.encode(manifest))
    driver = Driver(
        services(),
        checkpoint=Checkpoint("manifest.json", store.objects),
        parallelism=parallelism,
    )
    found, wanted = state_of(driver), dict(EXPECTED["state"])
    if parallelism > 1:  # every subtask has all elements of a union
        assert len(found.pop("ledger.known")) == parallelism * len(wanted.pop("ledger.known"))
    assert found == wanted
    for subtask in driver._subtasks:
        assert subtask.chain.watermark == EXPECTED["watermark_ms"]
    for source in ("orders", "audited"):
        read = [s.positions()["orders"] for s in driver._subtasks if s.source == source]
        assert sum(sum(positions.values()) for positions in read) == EXPECTED["positions"]


def test_every_row_of_it_is_read():
    savepoint = Savepoint.open(FileStore(KEPT / "savepoint"))
    for file in savepoint.manifest.files:
        assert savepoint.read(file).num_rows == file.rows > 0
