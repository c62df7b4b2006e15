"""A scan of a savepoint's state: which files and row groups a task reads, and its Arrow batches."""

import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from penstock.edge.routing import group_of_bytes
from penstock.runtime.connectors import store_from
from penstock.runtime.ports import SnapshotStore
from penstock.savepoint.limits import checked
from penstock.savepoint.manifest import FileEntry
from penstock.schema import Schema
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock_spark import keys
from penstock_spark.columns import conforming, spark_schema
from penstock_spark.metadata import TIMERS
from penstock_spark.pruning import Wanted, narrowed

PART_ROWS = 512 * 1024
PART_BYTES = 32 * 1024 * 1024
"""A bigger file is read by several tasks. Each fetches it whole, for its sum is of the whole."""
BATCH_ROWS = 64 * 1024


class FilePart(InputPartition):
    """Some row groups of one file: what one task reads."""

    def __init__(self, file: FileEntry, number: int, count: int) -> None:
        super().__init__(None)
        self.file = file
        self.number = number
        self.count = count

    def __repr__(self) -> str:
        return f"FilePart({self.file.path!r}, {self.number}, {self.count})"

    def row_groups(self, groups: int) -> range:
        """Those of ``groups`` that belong to this part."""
        return range(
            self.number * groups // self.count,
            (self.number + 1) * groups // self.count,
        )


def parts_of(file: FileEntry) -> list[FilePart]:
    """One part, or several of a big file."""
    count = max(math.ceil(file.rows / PART_ROWS), math.ceil(file.bytes / PART_BYTES), 1)
    return [FilePart(file, number, count) for number in range(count)]


class StateFiles(NamedTuple):
    """The files of one state and how its rows are told apart; picklable."""

    url: str
    """Of the savepoint."""
    files: tuple[FileEntry, ...]
    max_parallelism: int
    key: Schema | None
    """Type of the key; None for state without one."""

    def group_of(self, key: bytes) -> int:
        """The key group of canonical bytes."""
        return group_of_bytes(key, self.max_parallelism)

    def wanted(self, groups: range | None, key: str | None) -> Wanted:
        """What the options keyGroups and key ask for. Raises ConfigurationError."""
        wanted = Wanted()
        if groups is not None:
            wanted = wanted.among(groups)
        if key is not None and self.key is not None:
            wanted = wanted.of(keys.of_text(self.key, key), self.group_of)
        return wanted


class StateReader(DataSourceReader):
    """Reads the rows of one state, all that the options ask for."""

    def __init__(self, state: StateFiles, wanted: Wanted, schema: StructType) -> None:
        self._state = state
        self._wanted = wanted
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        files = self._wanted.files(self._state.files, self._state.group_of)
        if self._wanted.keys is not None:
            return [FilePart(file, 0, 1) for file in files]  # a few rows of each
        return [part for file in files for part in parts_of(file)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a part. Raises CorruptedObject, StoreFailed, ConfigurationError."""
        if isinstance(partition, FilePart):  # Spark makes up another one when there are none
            store = opened(self._state.url)
            yield from batches(store, partition, self._wanted, self._schema)


class PruningReader(StateReader):
    """The same, and takes the filters of a query, to read only the files that they leave.

    Spark 4.3 keeps what it planned with a filter for as long as the DataFrame lives: a second scan
    of it, in another query or in the same one, sees only what the last filter left. So this reader
    is asked for by an option, for DataFrames of one scan. (Without the conf
    ``spark.sql.python.filterPushdown.enabled`` Spark refuses it and names the conf.)
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802  # Spark's name
        """Take note of them all and leave them all to Spark, which looks at each row again."""
        state = self._state
        key = state.key
        if key is not None:
            self._wanted = narrowed(
                self._wanted,
                filters,
                all_groups=state.max_parallelism,
                key_of=lambda value: keys.of_literal(key, value),
                group_of=state.group_of,
            )
        return filters


class TimersReader(StateReader):
    """Reads the timers of all operators, whose keys differ in type: as bytes."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a part, each of one operator."""
        if not isinstance(partition, FilePart):
            return
        conform = conforming(self._schema)
        stored = spark_schema(TIMERS, TIMERS.names[1:])
        for batch in batches(opened(self._state.url), partition, self._wanted, stored):
            uid = pa.repeat(partition.file.operator, batch.num_rows)
            yield conform(batch.append_column("operator_uid", uid))


def opened(url: str) -> SnapshotStore:
    """The store at ``url`` with the settings of this process. Raises ConfigurationError."""
    return store_from({**os.environ, "PENSTOCK_STORE": url})


def batches(
    store: SnapshotStore, part: FilePart, wanted: Wanted, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The wanted rows of a part as batches that equal ``schema``.

    Raises CorruptedObject naming the file when it is not what the manifest says.
    """
    file = part.file
    data = store.get(file.path, size=file.bytes, sha256=file.sha256)
    conform = conforming(schema)
    columns = list(dict.fromkeys([*schema.names, *_filtered_by(wanted)]))
    with checked(data, file, store.url) as source, pq.ParquetFile(source) as parquet:
        numbers = _row_groups(parquet.metadata, part, wanted)
        for batch in parquet.iter_batches(BATCH_ROWS, numbers, columns, use_threads=False):
            left = only(batch, wanted)
            if left.num_rows:
                yield conform(left)


def _filtered_by(wanted: Wanted) -> list[str]:
    columns = [] if wanted.groups is None else ["key_group"]
    return columns if wanted.keys is None else [*columns, "key"]


def _row_groups(metadata: pq.FileMetaData, part: FilePart, wanted: Wanted) -> list[int]:
    """The row groups of the part that can hold a wanted row, by their statistics."""
    numbers = part.row_groups(metadata.num_row_groups)
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if wanted.groups is None or "key_group" not in names:
        return list(numbers)
    at = names.index("key_group")
    found = []
    for number in numbers:
        about = metadata.row_group(number).column(at).statistics
        if (
            about is None
            or not about.has_min_max
            or any(about.min <= group <= about.max for group in wanted.groups)
        ):
            found.append(number)
    return found


def only(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """The wanted rows of a batch."""
    if wanted.groups is not None:
        groups = pa.array(sorted(wanted.groups), pa.int32())
        batch = batch.filter(pc.is_in(batch.column("key_group"), groups))
    if wanted.keys is not None:
        asked = pa.array(sorted(wanted.keys), pa.binary())
        batch = batch.filter(pc.is_in(batch.column("key"), asked))
    return batch
