from pathlib import Path

import msgspec
import pytest
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.ids import InvalidName
from penstock.runtime import ab_run
from penstock_minio.folder import FileStore

RUN = ab_run.AbRun(
    variant="b",
    app="ledger",
    app_a="ledger.b-a",
    app_b="ledger.b",
    files_a=("services/ledger/transfers.py",),
    files_b=("services/ledger_ab/transfers.py",),
    savepoint="file:///s/ledger/savepoints/one",
    until={"transfers": {0: 100, 1: 90}},
    sinks={"postings.b-a": "postings.b"},
    starts={"postings.b-a": {0: 0}, "postings.b": {0: 0}},
    parallelism={"transfers": 2},
    final_a="file:///s/ledger/savepoints/b-a",
    final_b="file:///s/ledger/savepoints/b-b",
    created_at_ms=1,
)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put(ab_run.key_of("ledger", "b"), ab_run.encode(RUN))
    assert (tmp_path / "ledger" / "ab" / "b.json").is_file()
    assert ab_run.load(store, "ledger", "b") == RUN


def test_a_missing_run_names_those_that_are_there(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with pytest.raises(ConfigurationError, match="penstock ab start"):
        ab_run.load(store, "ledger", "b")
    store.put(ab_run.key_of("ledger", "b"), ab_run.encode(RUN))
    with pytest.raises(ConfigurationError, match=r"no A/B run of a variant 'c'.*variants: b$"):
        ab_run.load(store, "ledger", "c")


@pytest.mark.parametrize("name", ["../b", "", "B", "a/b"])
def test_a_variant_makes_no_path(name: str) -> None:
    with pytest.raises(InvalidName):
        ab_run.key_of("ledger", name)


def test_a_newer_format_is_refused_before_its_fields_are_read() -> None:
    data = b'{"format_version": 2, "other": 1}'
    with pytest.raises(ConfigurationError, match=r"x is an A/B run of format 2.*reads format 1"):
        ab_run.decode(data, "x")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\x80\x04", b'{"format_version": 1}'])
def test_what_is_no_run_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptedObject, match="x does not describe an A/B run"):
        ab_run.decode(data, "x")


def test_every_output_has_a_start() -> None:
    data = ab_run.encode(msgspec.structs.replace(RUN, starts={"postings.b": {0: 0}}))
    with pytest.raises(CorruptedObject, match=r"no start of postings\.b-a"):
        ab_run.decode(data, "x")
