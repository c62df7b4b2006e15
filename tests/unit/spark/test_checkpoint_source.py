"""A checkpoint read as it is gives the rows of the savepoint that would be made of it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock import ConfigurationError
from penstock.savepoint.manifest import OperatorEntry
from penstock.testing import Driver
from penstock_minio import FileStore
from penstock_spark import checkpoint as checkpoints
from penstock_spark.source import PenstockSource
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from tests.unit.savepoint.every_state import STATES, Command, savepoint_of, service

PICKLE = CloudPickleSerializer()
KEYS = ["a", "b", "c", "anna", "Ω", ""]
UNKEYED = ("recent", "known", "rates")
Row = dict[str, Any]


def read(options: dict[str, str]) -> list[Row]:
    source = PICKLE.loads(PICKLE.dumps(PenstockSource(options)))
    schema = source.schema()
    reader = source.reader(schema)
    found: list[Row] = []
    for part in reader.partitions() or [InputPartition(None)]:
        for batch in PICKLE.loads(PICKLE.dumps(reader)).read(PICKLE.loads(PICKLE.dumps(part))):
            assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
            found += batch.to_pylist()
    return found


class Both:
    """One checkpoint in a store, and the savepoint made of it."""

    def __init__(self, folder: Path, *, partitioned: bool = False) -> None:
        run = Driver(service(partitioned=partitioned), parallelism=3, now_ms=5)
        for number in range(60):
            run.send("commands", Command(KEYS[number % 6], number=number))
            if number == 40:
                self.older = run.checkpoint().manifest.checkpoint
        made = run.checkpoint()
        store = FileStore(folder / "store")
        for key, data in made.objects.items():
            store.put(key, data)
        savepoint_of(made, FileStore(folder / "savepoint"))
        self.number = made.manifest.checkpoint
        self._paths = ((folder / "savepoint").as_uri(), (folder / "store").as_uri())

    def savepoint(self, **options: str) -> list[Row]:
        return read({"path": self._paths[0], **options})

    def checkpoint(self, **options: str) -> list[Row]:
        return read({"path": self._paths[1], "app": "app", **options})

    def state(self, name: str) -> dict[str, str]:
        named = {"operatorUid": "everything", "stateName": name}
        return {"operatorUid": "everything", "readTimers": "true"} if name == "timers" else named


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("both"))


def ordered(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("name", STATES)
def test_every_state(both: Both, name: str) -> None:
    expected = both.savepoint(**both.state(name))
    assert expected
    assert ordered(both.checkpoint(**both.state(name))) == ordered(expected)


@pytest.mark.parametrize("name", [name for name in STATES if name not in UNKEYED])
def test_state_that_source_partitions_own(tmp_path: Path, name: str) -> None:
    both = Both(tmp_path, partitioned=True)
    expected = both.savepoint(**both.state(name))
    assert "partition" in expected[0]
    assert ordered(both.checkpoint(**both.state(name))) == ordered(expected)
    some = both.checkpoint(**both.state(name), keyGroups="0-63")
    assert ordered(some) == ordered([row for row in expected if row["key_group"] < 64])


@pytest.mark.parametrize("name", ["offsets", "timers", "watermarks"])
def test_what_it_says_about_itself(both: Both, name: str) -> None:
    expected = both.savepoint(metadata=name)
    assert expected
    assert ordered(both.checkpoint(metadata=name)) == ordered(expected)


@pytest.mark.parametrize("name", ["operators", "states"])
def test_it_has_no_files_to_count(both: Both, name: str) -> None:
    unknown = {"files": None, "rows": None, "bytes": None}
    expected = [{**row, **unknown} for row in both.savepoint(metadata=name)]
    assert both.checkpoint(metadata=name) == expected
    with pytest.raises(ConfigurationError, match="a checkpoint has chunks and no files"):
        both.checkpoint(metadata="files")


def test_positions_as_a_state(both: Both) -> None:
    asked = {"operatorUid": "commands", "stateName": "positions"}
    assert both.checkpoint(**asked) == both.savepoint(**asked) != []


def test_a_key_is_read_from_its_bucket_alone(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    entries = checkpoints.Chain.entries

    def counted(chain: Any, layout: Any, bucket: int) -> Any:
        decoded.append(bucket)
        return entries(chain, layout, bucket)

    monkeypatch.setattr(checkpoints.Chain, "entries", counted)
    account = both.state("account")
    found = both.checkpoint(**account, key="anna", columns="key_value,value_key,total")
    assert [(row["key_value"], row["value_key"]) for row in found] == [("anna", "anna")]
    assert len(decoded) == 1
    assert both.checkpoint(**account, key="nobody") == []


def test_a_long_chain_is_read_in_pieces(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = both.checkpoint(**both.state("account"))
    monkeypatch.setattr(checkpoints, "PART_BYTES", 300)
    assert both.checkpoint(**both.state("account")) == whole
    subtasks = PICKLE.loads(PICKLE.dumps(_checkpoint(both))).subtasks
    snapshot = max(subtasks, key=lambda part: sum(ref.size for ref in part.chain))
    pieces = checkpoints._pieces(msgspec.structs.replace(snapshot, buckets=(0, 7)))
    assert [piece.buckets[0] for piece in pieces] == [0, *(p.buckets[1] for p in pieces[:-1])]
    assert pieces[-1].buckets[1] == 7
    assert len(pieces) > 1


def _checkpoint(both: Both) -> checkpoints.Checkpoint:
    return checkpoints.found(FileStore(Path(both._paths[1].removeprefix("file://"))), "app", None)


def test_the_newest_one_or_a_number(both: Both) -> None:
    state = both.state("account")
    newest = both.checkpoint(**state, checkpointId="latest")
    assert newest == both.checkpoint(**state, checkpointId=str(both.number))
    assert newest != both.checkpoint(**state, checkpointId=str(both.older))
    there = f"no checkpoint 99 of.*there are: {both.older}, {both.number}"
    with pytest.raises(ConfigurationError, match=there):
        both.checkpoint(**state, checkpointId="99")
    with pytest.raises(ConfigurationError, match=r"no checkpoint of.*'other'.*none"):
        both.checkpoint(**{**state, "app": "other"})


def test_schema_and_rows_are_of_one_checkpoint(tmp_path: Path) -> None:
    both = Both(tmp_path)
    source = PenstockSource(
        {"path": both._paths[1], "app": "app", **both.state("account"), "columns": "total"}
    )
    schema = source.schema()
    store = FileStore(tmp_path / "store")
    (newest,) = [key for key in store.list("app/manifests/") if f"/{both.number}-" in key]
    store.put(f"app/manifests/{both.number + 1}-0.json", b"a newer one, damaged")
    again = PICKLE.loads(PICKLE.dumps(source))
    assert again.reader(schema).partitions()
    store.delete([newest])
    assert again.reader(schema).partitions()


def test_parts_are_in_the_order_of_their_buckets(both: Both) -> None:
    found = _checkpoint(both)
    operator: OperatorEntry = next(o for o in found.about.operators if o.uid == "everything")
    starts = [part.buckets[0] for part in found.parts(operator)]
    assert starts == sorted(starts)
    assert len(starts) == 3
