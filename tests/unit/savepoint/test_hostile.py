"""Savepoints that somebody wrote to harm: every sum is true, and still nothing comes in (L21)."""

import hashlib
import io
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.edge.routing import group_of_bytes
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint import limits, reading
from penstock.savepoint.manifest import FileEntry, encode
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.writing import row_bound, shown_bound
from penstock.testing import Driver
from penstock.testing.store import SimulatedStore

from tests.unit.savepoint.every_state import Command, brought_in, savepoint_of, service

Change = Callable[[pa.Table], pa.Table]


@pytest.fixture(scope="module")
def honest() -> Savepoint:
    run = Driver(service(), now_ms=5)
    for number in range(30):
        run.send("commands", Command(f"key-{number % 10}", number=number))
    return savepoint_of(run.checkpoint())


def forged(honest: Savepoint, state: str, data: bytes, **entry: Any) -> Savepoint:
    """The savepoint with another file for a state, named with its true sum."""
    (before,) = honest.files("everything", state)
    path = f"data/everything/x/{hashlib.sha256(data).hexdigest()[:32]}.parquet"
    changes = {"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    file = msgspec.structs.replace(before, **(changes | entry))
    return published(honest, {before.path: (file,)}, {path: data})


def published(
    honest: Savepoint, files: dict[str, tuple[FileEntry, ...]], objects: dict[str, bytes]
) -> Savepoint:
    named = tuple(new for old in honest.manifest.files for new in files.get(old.path, (old,)))
    manifest = msgspec.structs.replace(honest.manifest, files=named)
    store = SimulatedStore(
        "s3://b/hostile", objects={f.path: honest.data(f) for f in honest.manifest.files}
    )
    store.objects.update(objects)
    store.objects["manifest.json"] = encode(manifest)
    return Savepoint.open(store)


def with_rows(honest: Savepoint, state: str, change: Change, **entry: Any) -> Savepoint:
    """The savepoint with other rows, of which the manifest says the truth."""
    (before,) = honest.files("everything", state)
    rows = change(honest.read(before))
    changes: dict[str, Any] = {"rows": rows.num_rows}
    order = tuple(before.lower)
    if order and rows["key_group"].null_count == 0:
        first, last = row_bound(rows, 0, order), row_bound(rows, -1, order)
        changes |= {"key_group_min": first[0], "key_group_max": last[0]}
        changes |= {"lower": shown_bound(order, first), "upper": shown_bound(order, last)}
    return forged(honest, state, parquet(rows), **(changes | entry))


def parquet(rows: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(rows, sink, **options)
    return sink.getvalue()


def refused(savepoint: Savepoint, message: str, kind: type[Exception] = CorruptedObject) -> None:
    with pytest.raises(kind, match=f"(?s)data/everything/x/.*s3://b/hostile.*{message}") as error:
        brought_in(savepoint, service())
    assert any(word in str(error.value) for word in ("copy of the savepoint", "remove these rows"))


def replaced(name: str, values: Callable[[list[Any]], list[Any]]) -> Change:
    """A change of one column."""

    def change(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index(name)
        found = pa.array(values(rows[name].to_pylist()), rows.schema.field(name).type)
        return rows.set_column(at, rows.schema.field(name), found)

    return change


def moved(rows: pa.Table) -> pa.Table:
    """Every key one key group further on."""
    return replaced("key_group", lambda groups: [g + 1 for g in groups])(rows)


def long_header(rows: pa.Table) -> pa.Table:
    """The keys as msgpack that says the same in more bytes, in the groups of these bytes."""
    keys = [b"\xd9" + bytes([len(key)]) + key.encode() for key in rows["key_value"].to_pylist()]
    rows = replaced("key", lambda _: keys)(rows)
    rows = replaced("key_group", lambda _: [group_of_bytes(key, 128) for key in keys])(rows)
    return rows.sort_by([("key_group", "ascending"), ("key", "ascending")])


def first_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 1), rows])


def other_values(rows: pa.Table) -> pa.Table:
    return replaced("key_value", lambda keys: [f"{key}!" for key in keys])(rows)


def as_type(name: str, kind: pa.DataType) -> Change:
    return lambda rows: rows.set_column(
        rows.column_names.index(name), name, pa.array([None] * rows.num_rows, kind)
    )


@pytest.mark.parametrize(
    ("state", "change", "message"),
    [
        ("account", moved, "is in key group"),
        ("account", long_header, "column key has d9"),
        ("account", other_values, "column key has"),
        ("account", first_twice, "is there twice"),
        ("account", lambda rows: rows.take([0, 2, 1, *range(3, rows.num_rows)]), "came after"),
        ("account", lambda rows: rows.drop_columns(["total"]), "no column.*total"),
        ("account", as_type("total", pa.string()), "Expected `int`"),
        ("account", as_type("total", pa.int64()), "Expected `int`"),
        ("account", as_type("key_value", pa.string()), "column key"),
        ("account", as_type("key_group", pa.int32()), "key_group.*null|null.*key_group"),
        (
            "account",
            replaced("lines", lambda lines: [[None]] * len(lines)),
            "Expected",
        ),
        ("seen", first_twice, "is there twice"),
        ("seen", replaced("list_index", lambda found: [-n for n in found]), "is there twice|came"),
        ("counts", first_twice, "same key twice"),
        ("timers", first_twice, "is there twice"),
        ("timers", replaced("time_domain", lambda found: ["other"] * len(found)), "other"),
        ("timers", replaced("timestamp_ms", lambda found: [-n for n in found]), "came after"),
        ("recent", first_twice, "is there twice"),
        ("mean", replaced("value", lambda found: [[b""]] * len(found)), "truncated"),
        ("mean", replaced("value", lambda found: [[b"\x01\xa1k\x01"]] * len(found)), "trailing"),
        ("mean", replaced("value", lambda found: [[b"\x91" * 10**6]] * len(found)), "recursion"),
    ],
)
def test_rows_that_are_not_what_they_should_be(honest, state, change, message, monkeypatch):
    savepoint = with_rows(honest, state, change)
    refused(savepoint, message)
    monkeypatch.setattr(reading, "BATCH_ROWS", 1)  # where one batch ends, the next is compared
    refused(savepoint, message)


def test_a_namespace_is_not_forgotten(honest):
    change = replaced("namespace", lambda found: ["window"] * len(found))
    refused(with_rows(honest, "least", change), "namespace", ConfigurationError)


@pytest.mark.parametrize(
    "entry",
    [
        {"rows": 9},
        {"lower": {"key_group": 0, "key": "a0"}, "key_group_min": 0},
        {"upper": {"key_group": 127, "key": "ff"}, "key_group_max": 127},
    ],
)
def test_what_the_manifest_says_of_a_file_is_checked(honest, entry):
    refused(with_rows(honest, "account", lambda rows: rows, **entry), "manifest")


def test_a_file_may_not_be_there_twice(honest):
    (file,) = honest.files("everything", "account")
    data = honest.data(file)
    again = msgspec.structs.replace(file, path="data/everything/x/again.parquet")
    refused(
        published(honest, {file.path: (file, again)}, {again.path: data}),
        "is there twice|came after",
    )


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/penstock-bomb",)


def test_pickle_is_bytes_like_any_other(honest, tmp_path, monkeypatch):
    """L21: as a file, as a value, and as the extension type of a column."""
    ran: list[str] = []
    monkeypatch.setattr(os, "system", ran.append)
    bomb = pickle.dumps(Bomb())
    refused(forged(honest, "account", bomb), "magic|Parquet")
    refused(
        with_rows(honest, "mean", replaced("value", lambda found: [[bomb]] * len(found))), "damaged"
    )

    def extension(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index("total")
        metadata = {
            "ARROW:extension:name": "arrow.py_extension_type",
            "ARROW:extension:metadata": bomb,
        }
        return rows.set_column(at, pa.field("total", pa.int64(), metadata=metadata), rows["total"])

    brought_in(with_rows(honest, "account", extension), service())
    assert ran == []


def test_columns_may_not_be_crossed(honest):
    document = msgspec.to_builtins(honest.manifest, str_keys=True)
    account = document["operators"][1]["states"][0]
    account["columns"] = {"total": "key_group"}
    manifest = msgspec.convert(document, type(honest.manifest), strict=False)
    store = SimulatedStore("s3://b/hostile", {f.path: honest.data(f) for f in manifest.files})
    store.objects["manifest.json"] = encode(manifest)
    with pytest.raises(CorruptedObject, match=r"columns of state 'account'.*are not its own"):
        brought_in(Savepoint.open(store), service())


def test_a_footer_may_not_ask_for_more_than_there_is(honest):
    (file,) = honest.files("everything", "account")
    data = honest.data(file)
    for start in range(len(data) - 8, len(data)):
        broken = bytearray(data)
        broken[start] ^= 0x7F
        refused(forged(honest, "account", bytes(broken)), "")
    refused(forged(honest, "account", data[:-8] + b"\xff\xff\xff\x7fPAR1"), "")
    refused(forged(honest, "account", data, rows=2**40), "rows")


def test_a_page_may_not_say_that_it_is_huge(honest, monkeypatch):
    """Half a megabyte of zeros in a kilobyte; the limit for real files is 256 MB."""
    monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 500_000)
    (file,) = honest.files("everything", "seen")
    rows = replaced("value", lambda found: ["0" * 20_000] * len(found))(honest.read(file))
    data = parquet(rows, compression="zstd", use_dictionary=False)
    assert len(data) < 10_000
    refused(forged(honest, "seen", data), "a page that says [0-9]+ bytes, more than 500000")


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_ROWS", "it says 10 rows, more than 9"),
        ("MAX_VALUES", "says 10 values in a row group, more than 9"),
        ("MAX_GROUP_BYTES", "a row group has [0-9]+ bytes, more than 9"),
    ],
)
def test_a_file_may_not_ask_for_more_than_the_limits(honest, monkeypatch, limit, message):
    monkeypatch.setattr(limits, limit, 9)
    (file,) = honest.files("everything", "account")
    refused(forged(honest, "account", honest.data(file)), message)


def test_a_footer_over_which_pyarrow_ends_the_process(honest):
    """Statistics of a size that is not the column's: refused by the reader, not by an abort."""
    (file,) = honest.files("everything", "account")
    data = bytearray(honest.data(file))
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for place in range(start, len(data) - 8):
        if data[place - 1 : place + 1] == b"\x29\x16":  # a list of one number: make it of none
            spoilt = bytes(data[:place]) + b"\x06" + bytes(data[place + 1 :])
            with suppress(CorruptedObject, ConfigurationError):
                brought_in(forged(honest, "account", spoilt), service())


def repeated(rows: pa.Table) -> pa.Table:
    return replaced("value", lambda found: ["x" * 5_000_000] * len(found))(rows)


def test_a_dictionary_may_not_repeat_without_bound(honest, monkeypatch):
    """A few kilobytes that would become gigabytes."""
    monkeypatch.setattr(limits, "MAX_BATCH_BYTES", 100_000_000)
    (file,) = honest.files("everything", "seen")
    rows = repeated(honest.read(file))
    data = parquet(rows, compression="zstd")
    assert len(data) < 10_000
    refused(forged(honest, "seen", data), "bytes, more than 100000000")


def test_an_encoding_that_repeats_is_not_of_the_format(honest):
    (file,) = honest.files("everything", "seen")
    data = parquet(
        honest.read(file), use_dictionary=False, column_encoding={"value": "DELTA_BYTE_ARRAY"}
    )
    refused(forged(honest, "seen", data), "DELTA_BYTE_ARRAY")


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True, "compression": "snappy"},
        {"data_page_version": "2.0", "data_page_size": 100},
        {"use_dictionary": False, "compression": "none", "row_group_size": 3},
        {"store_schema": False, "write_page_index": True},
    ],
)
def test_other_writers_are_read_all_the_same(honest, options):
    rows = honest.table("everything", "account")
    wide = rows.cast(
        pa.schema(
            field.with_type(pa.large_string()) if field.type == pa.string() else field
            for field in rows.schema
        )
    )
    mine = forged(honest, "account", parquet(wide, **options))
    assert brought_in(mine, service()).manifest.subtasks
    assert mine.table("everything", "account").equals(rows)
    assert pc.sum(mine.table("everything", "account")["total"]).as_py() == sum(range(30))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_an_error_that_is_named(honest, data):
    """Bytes changed anywhere, under a true sum: an error of ours, or other rows; never a crash."""
    state = data.draw(st.sampled_from(["account", "lines", "mean", "timers", "recent"]))
    (file,) = honest.files("everything", state)
    found = bytearray(honest.data(file))
    for _ in range(data.draw(st.integers(1, 4))):
        found[data.draw(st.integers(0, len(found) - 1))] = data.draw(st.integers(0, 255))
    savepoint = forged(honest, state, bytes(found))
    with suppress(CorruptedObject, ConfigurationError):
        brought_in(savepoint, service())
