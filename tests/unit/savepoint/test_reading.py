"""Savepoints read by us and by others: DuckDB, Polars and pandas, with no line of ours."""

import decimal
import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint import converting, writing
from penstock.savepoint.limits import checked
from penstock.savepoint.reading import Savepoint
from penstock.testing import Driver
from penstock.testing.store import Damage, SimulatedStore
from penstock_minio import FileStore

from tests.unit.savepoint.every_state import Command, live, savepoint_of, service

KEYS = [f"key-{n}" for n in range(12)]


@pytest.fixture(scope="module")
def run() -> Driver:
    made = Driver(service(), parallelism=2, now_ms=5)
    for number in range(60):
        made.send("commands", Command(KEYS[number % 12], number=number))
    return made


@pytest.fixture(scope="module")
def folder(run: Driver, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("savepoint")
    with pytest.MonkeyPatch.context() as patch:
        small = partial(writing.SavepointFiles, file_rows=7)
        patch.setattr(converting, "SavepointFiles", small)
        savepoint_of(run.checkpoint(), FileStore(path))
    return path


def paths(folder: Path, operator: str, state: str) -> list[str]:
    """As a stranger finds them: in the manifest, and nowhere else."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return [
        str(folder / file["path"])
        for file in manifest["files"]
        if (file["operator"], file["state"]) == (operator, state)
    ]


def expected_accounts(run: Driver) -> dict[str, tuple[Any, ...]]:
    return {
        key: (account.key, account.total, account.partition, account.rank.value, len(account.lines))
        for key, account in live(run)["account"].items()
    }


def test_duckdb_reads_typed_columns(run, folder):
    import duckdb

    files = paths(folder, "everything", "account")
    assert len(files) > 1
    rows = duckdb.execute(
        "select key_value, value_key, total, value_partition, rank, len(lines) "
        "from read_parquet($1)",
        [files],
    ).fetchall()
    assert {row[0]: row[1:] for row in rows} == expected_accounts(run)
    prices = duckdb.execute(
        "select key_value, list_index, price, day from read_parquet($1) order by 1, 2",
        [paths(folder, "everything", "lines")],
    ).fetchall()
    wanted = [
        (key, index, str(line.price), line.day)
        for key, lines in sorted(live(run)["lines"].items())
        for index, line in enumerate(lines)
    ]
    assert prices == wanted


def test_polars_reads_typed_columns(run, folder):
    import polars as pl

    table = pl.read_parquet(paths(folder, "everything", "account"))
    rows = table.select("key_value", "value_key", "total", "value_partition", "rank").rows()
    assert {row[0]: row[1:] for row in rows} == {
        key: row[:4] for key, row in expected_accounts(run).items()
    }
    counts = pl.read_parquet(paths(folder, "everything", "counts"))
    found: dict[str, dict[str, int]] = {}
    for key, name, value in counts.select("key_value", "map_key", "value").iter_rows():
        found.setdefault(key, {})[name] = value
    assert found == live(run)["counts"]


def test_pandas_reads_typed_columns(run, folder):
    import pandas as pd

    parts = [pd.read_parquet(path) for path in paths(folder, "everything", "timers")]
    timers = pd.concat(parts)
    found = {
        (("event", "processing").index(domain), ms, key)
        for domain, ms, key in zip(
            timers["time_domain"], timers["timestamp_ms"], timers["key_value"], strict=True
        )
    }
    assert sorted(found) == live(run)["timers"]
    recent = pd.concat(map(pd.read_parquet, paths(folder, "everything", "recent")))
    ordered = recent.sort_values(["subtask_index", "element_index"])
    assert list(ordered["value"]) == live(run)["recent"]
    offsets = pd.concat(pd.read_parquet(p) for p in paths(folder, "commands", "positions"))
    assert offsets.to_dict("records") == [
        {
            "service": "all",
            "stage": "all.commands",
            "source_uid": "commands",
            "topic": "commands",
            "partition": partition,
            "position": 15,
        }
        for partition in range(4)
    ]


def test_the_manifest_names_what_is_there(run, folder):
    manifest = Savepoint.open(FileStore(folder)).manifest
    assert manifest.sources[0].positions == dict.fromkeys(range(4), 15)
    assert [operator.uid for operator in manifest.operators] == ["commands", "everything"]
    assert [o.ownership for o in manifest.operators] == ["none", "key_group"]
    account = manifest.operators[1].states[0]
    assert account.columns == {"key": "value_key", "partition": "value_partition"}
    named = {file.path for file in manifest.files} | {"manifest.json"}
    assert named == set(FileStore(folder).list(""))


class CountingStore(SimulatedStore):
    @property
    def files(self) -> int:
        return sum(key.endswith(".parquet") for call, key in self.calls if call == "get")


def test_a_lookup_touches_one_file(run, folder):
    files = FileStore(folder)
    store = CountingStore(objects={key: files.get(key) for key in files.list("")})
    savepoint = Savepoint.open(store)
    account = live(run)["account"]["key-3"]
    row = savepoint.lookup("everything", "account", "key-3").to_pylist()[0]
    assert (row["value_key"], row["total"]) == (account.key, account.total)
    assert row["lines"][0]["price"] == str(decimal.Decimal(account.lines[0].price))
    assert store.files == 1
    assert savepoint.lookup("everything", "account", "nobody").num_rows == 0
    assert store.files <= 2
    assert savepoint.lookup("everything", "seen", "key-3").num_rows == 5
    assert savepoint.lookup("everything", "timers", "key-3").num_rows == 5


def test_a_lookup_in_a_key_group_of_many_files_touches_one():
    run = Driver(service(partitions=1, max_parallelism=1))
    for number in range(40):
        run.send("commands", Command(f"key-{number}"))
    store = CountingStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converting, "SavepointFiles", partial(writing.SavepointFiles, file_rows=7))
        savepoint = savepoint_of(run.checkpoint(), store)
    assert len(savepoint.files("everything", "least")) == 6
    for number in range(40):
        store.calls.clear()
        assert savepoint.lookup("everything", "least", f"key-{number}").num_rows == 1
        assert store.files == 1


def test_files_are_chosen_by_key_group(folder):
    savepoint = Savepoint.open(FileStore(folder))
    every = savepoint.files("everything", "account")
    assert len(every) > 1
    assert savepoint.files("everything", "account", range(0)) == ()
    low = every[0].key_group_min
    assert low is not None
    assert savepoint.files("everything", "account", range(low, low + 1)) == (every[0],)
    found = savepoint.read(every[0], ["total", "key_group"])
    assert found.column_names == ["total", "key_group"]
    assert found.num_rows == every[0].rows
    assert savepoint.table("everything", "account").num_rows == 12


def test_what_is_not_there_is_named(folder):
    savepoint = Savepoint.open(FileStore(folder))
    with pytest.raises(ConfigurationError, match="no operator 'everthing'; did you mean 'everyth"):
        savepoint.table("everthing", "account")
    with pytest.raises(ConfigurationError, match="no state of 'everything' 'acount'; did you mean"):
        savepoint.table("everything", "acount")
    with pytest.raises(ConfigurationError, match="has no keys to look up"):
        savepoint.lookup("everything", "recent", "x")
    with pytest.raises(ConfigurationError, match="there is no key"):
        savepoint.lookup("everything", "account", ["x"])
    with pytest.raises(CorruptedObject, match=r"manifest\.json"):
        Savepoint.open(SimulatedStore())


@pytest.mark.parametrize("damage", list(Damage))
def test_a_file_is_proven_before_it_is_read(folder, damage):
    files = FileStore(folder)
    store = SimulatedStore(objects={key: files.get(key) for key in files.list("")})
    savepoint = Savepoint.open(store)
    (file, *_) = savepoint.files("everything", "account")
    store.damage(file.path, damage)
    with pytest.raises(CorruptedObject, match=f"{file.path}.*(expected {file.bytes} b|missing)"):
        savepoint.read(file)


def test_a_file_is_read_from_arrows_own_memory(folder: Path) -> None:
    """Arrow's threads may let go of it while Python ends: memory of Python's would abort that."""
    savepoint = Savepoint.open(FileStore(folder))
    (file, *_) = savepoint.files("everything", "account")
    data = savepoint.data(file)
    before = pa.total_allocated_bytes()
    with checked(data, file, savepoint.url) as source:
        assert pa.total_allocated_bytes() - before >= len(data)
        assert source.read_buffer().to_pybytes() == data
