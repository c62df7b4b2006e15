"""FileStore: a file is there whole or not at all, and a bad folder is named (L19)."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from penstock.failure import ConfigurationError, CorruptedObject, StoreFailed
from penstock_minio import FileStore


def test_the_steps_of_a_durable_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    store.put("app/first", b"makes the folder")
    steps: list[str] = []
    sync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        steps.append("sync folder" if path.is_dir() else f"sync {path.suffix}")
        sync(handle)

    def linked(source: Path, target: Path) -> None:
        assert source.parent == target.parent
        steps.append(f"link {target.name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    store.put("app/a", b"data")
    assert steps == ["sync .tmp", "link a", "sync folder"]


def test_the_names_of_new_folders_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = os.fsync

    def seen(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        sync(handle)

    monkeypatch.setattr(os, "fsync", seen)
    (tmp_path / "s" / "app").mkdir(parents=True)  # by another process, not known to be synced
    FileStore(tmp_path / "s").put("app/1/a", b"data")
    folders = {path for path in synced if path.is_dir()}
    assert folders == {tmp_path / "s", tmp_path / "s" / "app", tmp_path / "s" / "app" / "1"}


def test_a_crash_before_the_name_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)

    def crash(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", crash)
        with pytest.raises(StoreFailed, match=r"did not write 'a/b': No space left on device"):
            store.put("a/b", b"data")
    assert store.list("") == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_of_many_writers_of_one_name_one_wins(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    def write(number: int) -> int | None:
        try:
            store.put("a/b", bytes([number]))
        except StoreFailed:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        won = [number for number in pool.map(write, range(64)) if number is not None]
    assert len(won) == 1
    assert store.get("a/b") == bytes(won)


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    store = FileStore(tmp_path)
    store.put("a/b", b"data")
    store.put("a/b", b"data")
    with pytest.raises(StoreFailed, match="never used twice"):
        store.put("a/b", b"other")
    assert store.get("a/b") == b"data"


def test_deleting_and_writing_in_one_folder_at_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    def one(number: int) -> None:
        store.put(f"app/1/words-0/{number}", b"x")
        store.delete([f"app/1/words-0/{number}"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(800)))
    assert list(tmp_path.iterdir()) == [], "emptied folders are removed"


def test_foreign_files_are_not_objects(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("app/a", b"x")
    for name in ["README", ".DS_Store", "lost+found"]:
        (tmp_path / "app" / name).write_text("foreign")
    assert store.list("") == ["app/a"]
    store.delete(["app/a"])
    assert (tmp_path / "app" / "README").exists()


def test_check_removes_what_was_left_long_ago(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("app/a", b"x")
    old, new = tmp_path / "app" / ".1.tmp", tmp_path / "app" / ".2.tmp"
    for path in (old, new):
        path.write_text("half an object")
    os.utime(old, (time.time() - 90_000,) * 2)
    store.check()
    assert not old.exists()
    assert new.exists(), "another process may be writing it"


def test_a_root_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for root in (file, file / "below", Path("/proc/no/such")):
        with pytest.raises(ConfigurationError, match=rf"{root}.* name a folder"):
            FileStore(root).check()
        with pytest.raises(StoreFailed, match=rf"{root}.* did not write 'a'"):
            FileStore(root).put("a", b"x")


def test_a_store_that_is_gone_is_not_a_corrupted_object(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match="did not read 'a'") as caught:
        FileStore(tmp_path / "gone").get("a")
    assert not isinstance(caught.value, CorruptedObject)
    assert FileStore(tmp_path / "gone").list("") == []


def test_a_name_that_is_a_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/b", b"x")
    with pytest.raises(CorruptedObject, match=r"'a' .*missing"):
        store.get("a")
    with pytest.raises(StoreFailed, match="did not write 'a/b/c'"):
        store.put("a/b/c", b"x")
