"""The contract of a snapshot store: what every implementation of the port does (L19).

Each function takes a store whose prefix or folder nobody else uses. Run over FileStore and
SimulatedStore in tests/unit/store, over real S3 servers in tests/integration/test_store_contract.
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from penstock.failure import CorruptedObject, ProtocolViolation, StoreFailed
from penstock.runtime.ports import SnapshotStore

Check = Callable[[SnapshotStore], None]

KB = b"0123456789abcdef" * 64
BIG = bytes(range(256)) * (9 << 12)  # 9 MiB: more than one part of a streamed object

BAD_KEYS = [
    "", "/", "/a", "a/", "a//b", "..", "a/../b", "../a", "./a", "a/.", "a/.hidden", "a\\b", "a\0b",
    "a%2e%2e/b", "%2e%2e", "A/b", "a b", "a\n", "a/b\n", "a:b", "a?b", "a#b", "ä", "s3://x/y", "-a",
    "a..b", "a" * 241, "/".join(["a" * 100] * 9), "C:\\x", "~", "~/x", "a/\u2024\u2024/b",
]  # fmt: skip


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_passes(store: SnapshotStore) -> None:
    store.check()
    store.check()


def what_was_put_is_got(store: SnapshotStore) -> None:
    for name, data in {"empty": b"", "one": b"\0", "kb": KB, "big": BIG}.items():
        store.put(f"app/1/{name}.chunk", data)
        assert store.get(f"app/1/{name}.chunk") == data
        assert store.get(f"app/1/{name}.chunk", size=len(data), sha256=sha256(data)) == data
    assert store.get("app/1/kb.chunk", size=1024) == KB
    assert store.get("app/1/kb.chunk", sha256=sha256(KB)) == KB


def a_damaged_object_is_named_with_expected_and_found(store: SnapshotStore) -> None:
    store.put("app/1/words-0/7-1.chunk", KB)
    for size, total in [(1023, sha256(KB)), (1025, None), (1024, sha256(b"")), (None, "00")]:
        with pytest.raises(CorruptedObject) as caught:
            store.get("app/1/words-0/7-1.chunk", size=size, sha256=total)
        text = str(caught.value)
        assert "'app/1/words-0/7-1.chunk'" in text
        assert store.url in text
        assert f"found 1024 bytes, sha256 {sha256(KB)}" in text
        assert size is None or f"expected {size} bytes" in text
        assert total is None or f"sha256 {total}" in text


def a_missing_object_is_named(store: SnapshotStore) -> None:
    store.put("app/here", KB)
    for key in ["app/gone", "nothing/at/all"]:
        with pytest.raises(CorruptedObject, match=f"'{key}' in .* is missing"):
            store.get(key, size=3)


def a_name_is_never_used_twice(store: SnapshotStore) -> None:
    store.put("a", KB)
    for other in [b"other", b"", KB[:-1], KB + b"1", BIG]:
        with pytest.raises(StoreFailed, match=r"'a' .*never used twice") as caught:
            store.put("a", other)
        assert not isinstance(caught.value, CorruptedObject)
        with pytest.raises(StoreFailed, match=r"'a' .*never used twice"):
            store.put_stream("a", [other])
    assert store.get("a") == KB
    store.put_stream("b", [BIG])
    for other in [KB, BIG + b"1"]:
        with pytest.raises(StoreFailed, match=r"'b' .*never used twice"):
            store.put_stream("b", [other])
    assert store.get("b") == BIG


def the_same_bytes_again_are_a_retry(store: SnapshotStore) -> None:
    for _ in range(3):
        store.put("a", KB)
        assert store.put_stream("b", [BIG, KB]) == (len(BIG + KB), sha256(BIG + KB))
    assert store.get("a") == KB
    assert store.get("b") == BIG + KB


def a_stream_gives_size_and_sum(store: SnapshotStore) -> None:
    streams: dict[str, list[bytes]] = {
        "none": [],
        "empty": [b""],
        "small": [b"a", b"", b"bc"],
        "crumbs": [KB] * 3000,
        "slabs": [BIG, BIG, b"tail"],
    }
    for key, parts in streams.items():
        whole = b"".join(parts)
        assert store.put_stream(key, iter(parts)) == (len(whole), sha256(whole))
        assert store.get(key, size=len(whole), sha256=sha256(whole)) == whole


class SourceBroke(Exception):
    """Raised by a source of parts."""


def a_stream_whose_source_fails_leaves_nothing(store: SnapshotStore) -> None:
    for full_parts in (0, 1, 3):

        def parts(full_parts: int = full_parts) -> Iterator[bytes]:
            for _ in range(full_parts):
                yield BIG
            raise SourceBroke("disk of the caller")

        with pytest.raises(SourceBroke, match="disk of the caller"):
            store.put_stream("app/half", parts())
        assert store.list("") == []
        with pytest.raises(CorruptedObject, match="missing"):
            store.get("app/half")
    store.put("app/half", KB)
    assert store.get("app/half") == KB


def an_os_error_of_the_source_is_not_the_stores(store: SnapshotStore) -> None:
    def parts() -> Iterator[bytes]:
        yield KB
        raise FileNotFoundError(2, "the caller's own file")

    with pytest.raises(FileNotFoundError, match="the caller's own file"):
        store.put_stream("app/half", parts())
    assert store.list("") == []


def deleting_what_is_gone_does_not_matter(store: SnapshotStore) -> None:
    store.delete([])
    store.delete(["a", "x/y/z"])
    store.put("a", KB)
    store.put("x/b", KB)
    store.delete(iter(["a", "never", "a", "x/never"]))
    assert store.list("") == ["x/b"]
    store.delete(["a", "x/b"])
    assert store.list("") == []
    store.put("x/b", KB)
    assert store.list("x/") == ["x/b"]


def more_than_a_thousand_are_listed_and_deleted(store: SnapshotStore) -> None:
    keys = [f"app/{number % 7}/{number}.chunk" for number in range(1050)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, key.encode()), keys))
    assert store.list("app/") == sorted(keys)
    assert store.list("app/3/") == sorted(key for key in keys if key.startswith("app/3/"))
    store.delete(keys[:1020] + [f"gone/{number}" for number in range(1000)])
    assert store.list("") == sorted(keys[1020:])


def a_list_is_sorted_and_starts_with_its_prefix(store: SnapshotStore) -> None:
    keys = ["b", "a.b", "a/2/y", "a/10/x", "a/2/x", "ab/c", "a/manifests/7-3.json", "a-b/c"]
    for key in keys:
        store.put(key, b"1")
    assert store.list("") == sorted(keys)
    assert store.list("a/") == sorted(key for key in keys if key.startswith("a/"))
    assert store.list("a") == sorted(key for key in keys if key.startswith("a"))
    assert store.list("a/2") == ["a/2/x", "a/2/y"]
    assert store.list("a/2/x") == ["a/2/x"]
    assert store.list("c") == store.list("c/d/") == store.list("b/") == []


def a_bad_key_is_refused_before_anything(store: SnapshotStore) -> None:
    store.put("a", b"1")
    for key in BAD_KEYS:
        for call in (
            lambda key: store.put(key, b"evil"),
            lambda key: store.put_stream(key, [b"evil"]),
            store.get,
            lambda key: store.delete(["a", key]),
        ):
            with pytest.raises(ProtocolViolation, match="is not an object key"):
                call(key)
        if key not in {"", "a/"}:
            with pytest.raises(ProtocolViolation, match="is not the start of an object key"):
                store.list(key)
    assert store.list("") == ["a"]


def a_long_key_works(store: SnapshotStore) -> None:
    key = "/".join(["s" * 240, "t" * 200, "u" * 200, "7-1.chunk"])
    store.put(key, KB)
    assert store.get(key) == KB
    assert store.list("") == [key]


def threads_do_not_disturb_each_other(store: SnapshotStore) -> None:
    def one(number: int) -> bool:
        data = bytes([number]) * (1000 + number)
        store.put(f"t/{number}/a", data)
        size, total = store.put_stream(f"t/{number}/b", [data, data])
        whole = store.get(f"t/{number}/b", size=size, sha256=total)
        same = store.get(f"t/{number}/a", size=len(data)) == data and whole == data + data
        store.delete([f"t/{number}/a"])
        return same

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(64)))
    assert store.list("t/") == sorted(f"t/{number}/b" for number in range(64))


CONTRACT: list[Check] = [
    check_passes,
    what_was_put_is_got,
    a_damaged_object_is_named_with_expected_and_found,
    a_missing_object_is_named,
    a_name_is_never_used_twice,
    the_same_bytes_again_are_a_retry,
    a_stream_gives_size_and_sum,
    a_stream_whose_source_fails_leaves_nothing,
    an_os_error_of_the_source_is_not_the_stores,
    deleting_what_is_gone_does_not_matter,
    more_than_a_thousand_are_listed_and_deleted,
    a_list_is_sorted_and_starts_with_its_prefix,
    a_bad_key_is_refused_before_anything,
    a_long_key_works,
    threads_do_not_disturb_each_other,
]
