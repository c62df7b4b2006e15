"""The data source by itself: what Spark's workers do with it, without the JVM."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from penstock import ConfigurationError
from penstock.edge.routing import key_group
from penstock.failure import CorruptedObject, StoreFailed
from penstock.savepoint.layout import state_entry
from penstock.savepoint.reading import Savepoint
from penstock.schema import schema_of
from penstock_minio import FileStore
from penstock_spark import scan
from penstock_spark.scan import PruningReader, StateReader
from penstock_spark.source import PenstockSource
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.unit.spark.savepoints import MAX_PARALLELISM, ledger, operator, written

BALANCES = {"operatorUid": "ledger", "stateName": "balance"}
ACCOUNTS = 200
PICKLE = CloudPickleSerializer()


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    return ledger(tmp_path_factory.mktemp("savepoint"), ACCOUNTS)


def source(savepoint: Savepoint, **options: str) -> PenstockSource:
    return PenstockSource({"path": savepoint.url, **options})


def rows(reader: DataSourceReader, schema: StructType) -> list[dict[str, Any]]:
    """As Spark reads: reader and parts pickled, batches equal to the schema."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    found: list[dict[str, Any]] = []
    for part in map(PICKLE.loads, map(PICKLE.dumps, reader.partitions() or [InputPartition(None)])):
        for batch in PICKLE.loads(PICKLE.dumps(reader)).read(part):
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.equals(wanted), batch.schema
            found += batch.to_pylist()
    return found


def read(savepoint: Savepoint, **options: str) -> list[dict[str, Any]]:
    found = source(savepoint, **options)
    schema = found.schema()
    return rows(found.reader(schema), schema)


def test_a_state_is_a_typed_table(savepoint: Savepoint) -> None:
    found = {row["key_value"]: row for row in read(savepoint, **BALANCES)}
    assert len(found) == ACCOUNTS
    assert found["acc-7"] == {
        "key_group": key_group("acc-7", MAX_PARALLELISM),
        "key": msgspec.msgpack.encode("acc-7"),
        "key_value": "acc-7",
        "namespace": None,
        "account": "acc-7",
        "total": 70,
        "value_key": "k7",
    }


def test_lists_maps_timers_and_state_of_subtasks(savepoint: Savepoint) -> None:
    history = read(savepoint, operatorUid="ledger", stateName="history")
    assert len(history) == 27
    assert {(row["list_index"], row["value"]) for row in history} == {(0, 1), (1, 2), (2, 3)}
    limits = read(savepoint, stateName="limits", columns="map_key,value")
    assert limits == [{"map_key": "day", "value": 1.5}, {"map_key": "week", "value": 2.5}] * 9
    timers = read(savepoint, readTimers="true")
    assert {(row["timestamp_ms"], row["key_value"]) for row in timers} == {
        (1000 + n, f"acc-{n}") for n in range(20)
    }
    rules = read(savepoint, operatorUid="rules")
    assert [(r["subtask_index"], r["value"]) for r in rules] == [(0, "a"), (0, "b"), (1, "c")]


def test_what_a_savepoint_says_about_itself(savepoint: Savepoint) -> None:
    about = {name: read(savepoint, metadata=name) for name in ("operators", "states", "files")}
    assert [row["operator_uid"] for row in about["operators"]] == ["ledger", "rules"]
    assert about["operators"][0]["rows"] == ACCOUNTS + 27 + 18 + 20
    states = {row["state_name"]: row for row in about["states"]}
    assert states["balance"]["value_type"].startswith("Balance(account: str, total: int = 0")
    assert states["rules"]["key_type"] is None
    assert {row["path"] for row in about["files"]} == {f.path for f in savepoint.manifest.files}
    assert [(r["partition"], r["position"]) for r in read(savepoint, metadata="offsets")] == [
        (0, 10), (1, 20)
    ]  # fmt: skip
    assert [row["watermark_ms"] for row in read(savepoint, metadata="watermarks")] == [99]
    timers = read(savepoint, metadata="timers")
    assert {row["operator_uid"] for row in timers} == {"ledger"}
    assert len(timers) == 20
    some = read(savepoint, metadata="timers", keyGroups="0-63", columns="operator_uid,key_group")
    assert {row["key_group"] // 64 for row in some} == {0}
    assert len(some) == sum(row["key_group"] < 64 for row in timers)


def test_the_only_keyed_state_needs_no_name(tmp_path: Path) -> None:
    state = state_entry("count", "value", schema_of(int), schema_of(int))
    made = written(
        FileStore(tmp_path), {("counter", "count"): {1: 10}}, [operator("counter", state)]
    )
    assert [(r["key_value"], r["value"]) for r in read(made)] == [(1, 10)]
    with pytest.raises(ConfigurationError, match="has no timers that fit the options; it has coun"):
        read(made, readTimers="true")


def test_several_states_are_listed(savepoint: Savepoint) -> None:
    with pytest.raises(ConfigurationError) as refused:
        source(savepoint).schema()
    text = str(refused.value)
    assert "3 keyed states" in text
    assert "ledger/balance (value Balance(" in text
    assert "ledger/history (list int)" in text


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"operatorUid": "leger", "stateName": "balance"}, "did you mean 'ledger'"),
        ({"operatorUid": "ledger", "stateName": "balances"}, "did you mean 'balance'"),
        ({**BALANCES, "columns": "totals"}, "no column 'totals'; the columns are key_group, key"),
        ({"operatorUid": "rules", "keyGroups": "0-3"}, "has no keys"),
        ({"operatorUid": "rules", "key": "x"}, "has no keys"),
        ({"metadata": "timers", "operatorUid": "leger"}, "did you mean 'ledger'"),
    ],
)
def test_what_is_not_there_is_named(
    savepoint: Savepoint, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        read(savepoint, **options)


def test_a_key_touches_one_file_and_gives_its_rows(
    savepoint: Savepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    get = FileStore.get

    def counted(store: FileStore, key: str, **how: Any) -> bytes:
        fetched.append(key)
        return get(store, key, **how)

    monkeypatch.setattr(FileStore, "get", counted)
    assert len(savepoint.files("ledger", "balance")) > 3
    for number in range(0, ACCOUNTS, 13):
        fetched.clear()
        (row,) = read(savepoint, **BALANCES, key=f"acc-{number}")
        assert row["total"] == number * 10
        assert len([key for key in fetched if key != "manifest.json"]) == 1
    assert read(savepoint, **BALANCES, key="nobody") == []


def test_key_groups_are_cut_to_the_row(savepoint: Savepoint) -> None:
    everything = read(savepoint, **BALANCES)
    some = read(savepoint, **BALANCES, keyGroups="10-20")
    assert some == [row for row in everything if 10 <= row["key_group"] <= 20]
    assert 0 < len(some) < len(everything)


def test_the_user_s_schema_prunes_and_casts(savepoint: Savepoint) -> None:
    narrow = StructType([StructField("total", StringType()), StructField("account", StringType())])
    found = rows(source(savepoint, **BALANCES).reader(narrow), narrow)
    assert {"total": "70", "account": "acc-7"} in found
    wrong = StructType([StructField("account", LongType())])
    with pytest.raises(ConfigurationError, match="column 'account' is string and was asked for as"):
        rows(source(savepoint, **BALANCES).reader(wrong), wrong)
    unknown = StructType([StructField("balance", LongType())])
    with pytest.raises(ConfigurationError, match="no column 'balance'"):
        source(savepoint, **BALANCES).reader(unknown)


def test_filters_that_are_pushed_leave_few_files(savepoint: Savepoint) -> None:
    found = source(savepoint, **BALANCES, pushFilters="true")
    schema = found.schema()
    reader = found.reader(schema)
    assert isinstance(reader, PruningReader)
    assert len(reader.partitions()) > 3
    filters: list[Filter] = [EqualTo(("key_value",), "acc-7")]
    assert reader.pushFilters(filters) == filters, "Spark must look at the rows again"
    assert len(reader.partitions()) == 1
    assert [row["account"] for row in rows(reader, schema)] == ["acc-7"]


def test_filters_are_pushed_when_asked_for(savepoint: Savepoint) -> None:
    """Spark keeps them with the DataFrame: see PruningReader."""
    plain = source(savepoint, **BALANCES)
    assert type(plain.reader(plain.schema())) is StateReader


def test_a_big_file_is_read_in_parts(
    savepoint: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.savepoint.writing.GROUP_ROWS", 40)
    monkeypatch.setattr(scan, "PART_ROWS", 100)
    whole = ledger(tmp_path, ACCOUNTS, file_rows=1_000_000)
    (file,) = whole.files("ledger", "balance")
    assert len(scan.parts_of(file)) == 2
    key = lambda row: row["key"]  # noqa: E731
    found = read(whole, **BALANCES)
    assert sorted(found, key=key) == sorted(read(savepoint, **BALANCES), key=key)
    assert found == sorted(found, key=lambda row: (row["key_group"], row["key"]))


def test_a_damaged_file_is_named(savepoint: Savepoint, tmp_path: Path) -> None:
    made = ledger(tmp_path, 20)
    file = made.files("ledger", "balance")[0]
    path = tmp_path / file.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(CorruptedObject, match=f"{file.path}.*expected {file.bytes} bytes, sha256"):
        read(made, **BALANCES)
    path.unlink()
    with pytest.raises(CorruptedObject, match="is missing"):
        read(made, **BALANCES)


def test_schema_and_rows_are_of_one_manifest(savepoint: Savepoint, tmp_path: Path) -> None:
    made = ledger(tmp_path, 20)
    found = source(made, **BALANCES)
    schema = found.schema()
    (tmp_path / "manifest.json").unlink()
    again = PICKLE.loads(PICKLE.dumps(found))
    assert len(rows(again.reader(schema), schema)) == 20


def test_no_savepoint_there(tmp_path: Path) -> None:
    with pytest.raises(CorruptedObject, match=r"manifest.json.*is missing"):
        PenstockSource({"path": tmp_path.as_uri()}).schema()
    with pytest.raises(StoreFailed, match=r"none.*No such file or directory"):
        PenstockSource({"path": (tmp_path / "none").as_uri()}).schema()
