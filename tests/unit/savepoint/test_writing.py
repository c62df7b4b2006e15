"""Files of a savepoint: where they are cut, how they are named, and what stands in the entries."""

import hashlib
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.failure import ConfigurationError
from penstock.savepoint import writing
from penstock.savepoint.manifest import OperatorEntry, StateEntry
from penstock.savepoint.writing import SavepointFiles, file_path, state_slug
from penstock.schema import Schema
from penstock.snapshot.objects import is_key
from penstock.testing.store import SimulatedStore

SEEN = StateEntry(name="seen", kind="value", key=Schema("str"), value=Schema("int"))
OPERATOR = OperatorEntry(
    uid="count",
    kind="keyed_process",
    service="s",
    stage="s.words",
    parallelism=2,
    ownership="key_group",
    partitions=8,
    states=(SEEN,),
)
ROWS = st.lists(st.tuples(st.integers(0, 7), st.binary(max_size=1)), max_size=60).map(sorted)


def table(rows: list[tuple[int, bytes]]) -> pa.Table:
    return pa.table(
        {
            "key_group": pa.array([row[0] for row in rows], pa.int32()),
            "key": pa.array([row[1] for row in rows], pa.binary()),
            "value": pa.array(range(len(rows)), pa.int64()),
        }
    )


def written(store: SimulatedStore, rows: list[tuple[int, bytes]], pieces: int, **limits: int):
    files = SavepointFiles(store, OPERATOR, SEEN, 8, **limits)
    whole = table(rows)
    step = max(1, len(rows) // pieces)
    for start in range(0, len(rows), step):
        files.add(whole.slice(start, step))
    return files.close()


@settings(deadline=None)
@given(ROWS, st.integers(1, 9), st.integers(1, 12), st.integers(1, 5))
def test_files_hold_every_row_once_in_order_and_never_overlap(rows, room, group, pieces):
    store = SimulatedStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "GROUP_ROWS", group)
        entries = written(store, rows, pieces, file_rows=room)
    found: list[tuple[int, bytes]] = []
    for entry in entries:
        data = store.get(entry.path, size=entry.bytes, sha256=entry.sha256)
        part = pq.read_table(io.BytesIO(data))
        part_rows = list(zip(part["key_group"].to_pylist(), part["key"].to_pylist(), strict=True))
        assert 0 < len(part_rows) == entry.rows <= room
        first, last = part_rows[0], part_rows[-1]
        assert (entry.key_group_min, entry.key_group_max) == (first[0], last[0])
        assert entry.lower == {"key_group": first[0], "key": first[1].hex()}
        assert entry.upper == {"key_group": last[0], "key": last[1].hex()}
        found += part_rows
    assert found == rows


def test_a_file_is_cut_between_key_groups_where_it_can_be():
    rows = [(group, bytes([n])) for group in range(8) for n in range(10)]
    entries = written(SimulatedStore(), rows, 1, file_rows=25)
    assert [(e.key_group_min, e.key_group_max, e.rows) for e in entries] == [
        (0, 1, 20),
        (2, 3, 20),
        (4, 5, 20),
        (6, 7, 20),
    ]


def test_a_large_key_group_is_cut_between_keys():
    rows = [(3, bytes([n // 4])) for n in range(40)]
    entries = written(SimulatedStore(), rows, 1, file_rows=10)
    assert [entry.rows for entry in entries] == [8, 8, 8, 8, 8]


def test_a_file_is_full_by_its_bytes_too():
    rows = [
        (group, hashlib.sha512(bytes([group, n])).digest()) for group in range(8) for n in range(9)
    ]
    rows.sort()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "GROUP_ROWS", 9)
        assert len(written(SimulatedStore(), rows, 8, file_bytes=1000)) > 3
        assert len(written(SimulatedStore(), rows, 8)) == 1


def test_what_is_out_of_order_or_range_is_refused():
    files = SavepointFiles(SimulatedStore(), OPERATOR, SEEN, 8)
    files.add(table([(1, b"b"), (2, b"a")]))
    with pytest.raises(ConfigurationError, match=r"'seen' of operator 'count' are not in order"):
        files.add(table([(1, b"a")]))
    with pytest.raises(ConfigurationError, match="not in order"):
        files.add(table([(4, b"a"), (3, b"a")]))
    with pytest.raises(ConfigurationError, match="key groups 8 to 8, expected 0 to 7"):
        files.add(table([(8, b"a")]))


def test_the_same_rows_give_the_same_file_again():
    """A task that is run again overwrites nothing and leaves no second file (L19)."""
    store = SimulatedStore()
    once = written(store, [(1, b"a")], 1)
    assert written(store, [(1, b"a")], 1) == once
    assert len(store.objects) == 1


def test_a_file_explains_itself():
    store = SimulatedStore()
    (entry,) = written(store, [(1, b"a"), (2, b"b")], 1)
    file = pq.ParquetFile(io.BytesIO(store.get(entry.path)))
    metadata = file.metadata
    assert metadata.metadata == {
        b"penstock.format_version": b"1",
        b"penstock.operator": b"count",
        b"penstock.state": b"seen",
    }
    column = metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert (column.statistics.min, column.statistics.max) == (1, 2)
    assert column.has_column_index
    assert column.has_dictionary_page


@given(st.text(min_size=1))
def test_any_name_of_a_state_has_a_folder(name):
    path = file_path(OPERATOR, StateEntry(name=name, kind="value", value=Schema("int")), "0" * 64)
    assert is_key(path)
    assert Path(path).parts[:2] == ("data", "count")


def test_folders_of_two_states_differ():
    names = ["seen", "Seen", "_seen", "__seen", "sëen", "seen_", "a" * 61, "a" * 62, "..", "-"]
    assert len({state_slug(name) for name in names}) == len(names)
    assert state_slug("seen") == "seen"
