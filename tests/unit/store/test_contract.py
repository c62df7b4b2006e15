"""The contract of a snapshot store, on the two that need no server (L19)."""

from pathlib import Path

import pytest
from contract.store import CONTRACT, Check
from penstock.testing.store import SimulatedStore
from penstock_minio import open_store


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_file_store(check: Check, tmp_path: Path) -> None:
    check(open_store(f"file://{tmp_path}/not/there/yet", {}))
    left = [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert left == []


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_simulated_store(check: Check) -> None:
    check(SimulatedStore())
