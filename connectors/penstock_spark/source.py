"""The data source ``penstock``: state of a savepoint or checkpoint, or what it says about itself.

Spark makes an instance in a Python worker, asks for the schema, hands the pickled instance to
another worker for the plan, and the reader to the tasks: nothing is shared but what is pickled.
"""

from collections.abc import Iterator, MutableMapping, Sequence

import pyarrow as pa
from penstock.failure import ConfigurationError
from penstock.savepoint.layout import StateLayout
from penstock.savepoint.manifest import KEYED_KINDS, OperatorEntry, SavepointManifest, StateEntry
from penstock.savepoint.reading import Savepoint
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock_spark import metadata
from penstock_spark.checkpoint import ChainReader, Checkpoint, cells, found
from penstock_spark.choosing import chosen
from penstock_spark.columns import conforming, must_have, spark_schema
from penstock_spark.options import ReadOptions, parsed
from penstock_spark.pruning import Wanted
from penstock_spark.scan import PruningReader, StateFiles, StateReader, TimersReader, opened


class PenstockSource(DataSource):
    """``spark.read.format("penstock").load(url)``: the options stand in `options`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._asked: ReadOptions = parsed(options)
        # Kept when Spark hands the instance on, so that schema and rows are of one savepoint.
        self._manifest: SavepointManifest | None = None
        self._checkpoint: Checkpoint | None = None

    @classmethod
    def name(cls) -> str:
        """How it is called in ``format(…)`` and ``USING``."""
        return "penstock"

    def schema(self) -> StructType:
        """Raises ConfigurationError, CorruptedObject, StoreFailed."""
        return spark_schema(self._columns(), self._asked.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """``schema`` is ours or the user's, who then reads these columns only."""
        must_have(self._columns(), schema.names)
        asked, savepoint = self._asked, self._savepoint()
        if asked.metadata == "timers":
            return self._timers(savepoint, schema)
        if asked.metadata is not None:
            has_files = self._checkpoint is None
            about = metadata.table(savepoint.manifest, asked.metadata, has_files=has_files)
            return TableReader(about, schema)
        operator, state = chosen(savepoint, asked)
        if state.kind not in KEYED_KINDS:
            return self._unkeyed(savepoint, operator, state, schema)
        files = StateFiles(
            url=savepoint.url,
            files=savepoint.files(operator.uid, state.name),
            max_parallelism=savepoint.manifest.max_parallelism,
            key=state.key,
        )
        wanted = files.wanted(asked.key_groups, asked.key)
        if self._checkpoint is not None:
            return ChainReader(asked.url, self._checkpoint, [(operator, state)], wanted, schema)
        kind = PruningReader if asked.push_filters else StateReader
        return kind(files, wanted, schema)

    def _unkeyed(
        self, savepoint: Savepoint, operator: OperatorEntry, state: StateEntry, schema: StructType
    ) -> DataSourceReader:
        asked = self._asked
        if asked.key_groups is not None or asked.key is not None:
            raise ConfigurationError(
                f"state {state.name!r} of operator {operator.uid!r} has no keys: it takes no "
                "option keyGroups or key"
            )
        if self._checkpoint is not None:
            return TableReader(cells(self._checkpoint, operator, state), schema)
        files = savepoint.files(operator.uid, state.name)
        parts = savepoint.manifest.max_parallelism
        return StateReader(StateFiles(savepoint.url, files, parts, None), Wanted(), schema)

    def _timers(self, savepoint: Savepoint, schema: StructType) -> DataSourceReader:
        """Those of all operators, or of the one that is asked for."""
        asked = self._asked
        if asked.operator is not None:
            savepoint.operator(asked.operator)
        timers = [
            (operator, state)
            for operator in savepoint.manifest.operators
            if asked.operator in (None, operator.uid)
            for state in operator.states
            if state.kind == "timers"
        ]
        groups = savepoint.manifest.max_parallelism
        files = tuple(file for o, s in timers for file in savepoint.files(o.uid, s.name))
        state_files = StateFiles(savepoint.url, files, groups, None)
        wanted = state_files.wanted(asked.key_groups, None)
        if self._checkpoint is not None:
            return ChainReader(asked.url, self._checkpoint, timers, wanted, schema)
        return TimersReader(state_files, wanted, schema)

    def _columns(self) -> pa.Schema:
        if self._asked.metadata is not None:
            return metadata.SCHEMAS[self._asked.metadata]
        return StateLayout(*chosen(self._savepoint(), self._asked)).arrow_schema

    def _savepoint(self) -> Savepoint:
        """The savepoint; of a checkpoint, one without files that says the same."""
        asked = self._asked
        store = opened(asked.url)
        if self._manifest is None and asked.app is not None:
            self._checkpoint = found(store, asked.app, asked.checkpoint)
            self._manifest = self._checkpoint.about
        elif self._manifest is None:
            self._manifest = Savepoint.open(store).manifest
        return Savepoint(store, self._manifest)


class TableReader(DataSourceReader):
    """Reads a table that the planning worker made."""

    def __init__(self, table: pa.Table, schema: StructType) -> None:
        self._table = table
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """All of it."""
        yield from map(conforming(self._schema), self._table.to_batches())
