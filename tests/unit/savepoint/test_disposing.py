"""A savepoint is deleted manifest first; what is none is left alone."""

from pathlib import Path

import pytest
from penstock.failure import ConfigurationError, CorruptedObject, StoreFailed
from penstock.savepoint.disposing import dispose
from penstock.savepoint.manifest import MANIFEST_KEY
from penstock.testing.store import SimulatedStore
from penstock_minio import FileStore

from tests.unit.spark.savepoints import ledger

ORPHANS = (
    f"data/ledger/balance/{'0' * 32}.parquet",
    f"sources/orders/positions-{'1' * 32}.parquet",
)


def simulated(tmp_path: Path) -> SimulatedStore:
    """A savepoint with orphans, in a store that can fail."""
    ledger(tmp_path, 20)
    folder = FileStore(tmp_path)
    store = SimulatedStore(objects={key: folder.get(key) for key in folder.list("")})
    store.objects.update(dict.fromkeys(ORPHANS, b"left by a task that failed"))
    return store


def test_everything_goes_the_manifest_first(tmp_path: Path) -> None:
    store = simulated(tmp_path)
    files = len(store.objects) - 1
    assert dispose(store) == (True, files)
    deleted = [key for method, key in store.calls if method == "delete"]
    assert deleted[0] == MANIFEST_KEY
    assert len(deleted[1].split(",")) == files
    assert store.objects == {}
    assert dispose(store) == (False, 0)


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    store = simulated(tmp_path)
    store.delete([MANIFEST_KEY])
    left = len(store.objects)
    assert dispose(store) == (False, left)
    assert store.objects == {}


def test_other_files_stay(tmp_path: Path) -> None:
    store = simulated(tmp_path)
    others = {"readme.md": b"", "data/mine.parquet": b"", "data/a/b/mine.parquet": b""}
    store.objects.update(others)
    dispose(store)
    assert store.objects == others


@pytest.mark.parametrize(
    "key", ["payments/manifests/1-0.json", "data/a/b/part-0.parquet", "readme.md"]
)
def test_a_folder_that_is_no_savepoint_is_refused(key: str) -> None:
    store = SimulatedStore(objects={key: b"", ORPHANS[0]: b""})
    with pytest.raises(ConfigurationError, match=f"no savepoint.*like '{key}'; nothing was delete"):
        dispose(store)
    assert len(store.objects) == 2


def test_a_damaged_manifest_deletes_nothing(tmp_path: Path) -> None:
    store = simulated(tmp_path)
    store.objects[MANIFEST_KEY] = store.objects[MANIFEST_KEY].replace(b"payments", b"paiments")
    had = dict(store.objects)
    with pytest.raises(CorruptedObject, match="is damaged"):
        dispose(store)
    assert store.objects == had


def test_a_store_that_fails_says_so(tmp_path: Path) -> None:
    store = simulated(tmp_path)
    store.down = True
    with pytest.raises(StoreFailed):
        dispose(store)
