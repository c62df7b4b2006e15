"""What a savepoint says about itself, as tables: ``metadata=operators|states|files|…``."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from penstock.savepoint.manifest import SavepointManifest
from penstock.schema import shown

Rows = Iterator[tuple[Any, ...]]


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


_TEXT, _INT, _LONG = pa.string(), pa.int32(), pa.int64()

TIMERS = _schema(
    operator_uid=_TEXT,
    key_group=_INT,
    key=pa.binary(),
    namespace=_TEXT,
    time_domain=_TEXT,
    timestamp_ms=_LONG,
    registration=_LONG,
)
"""Timers of all operators; those of one operator with their typed key: option readTimers."""

SCHEMAS: dict[str, pa.Schema] = {
    "operators": _schema(
        operator_uid=_TEXT,
        kind=_TEXT,
        service=_TEXT,
        stage=_TEXT,
        parallelism=_INT,
        max_parallelism=_INT,
        ownership=_TEXT,
        partitions=_INT,
        states=_INT,
        files=_INT,
        rows=_LONG,
        bytes=_LONG,
    ),
    "states": _schema(
        operator_uid=_TEXT,
        state_name=_TEXT,
        state_kind=_TEXT,
        key_type=_TEXT,
        value_type=_TEXT,
        files=_INT,
        rows=_LONG,
        bytes=_LONG,
    ),
    "files": _schema(
        operator_uid=_TEXT,
        state_name=_TEXT,
        path=_TEXT,
        rows=_LONG,
        bytes=_LONG,
        sha256=_TEXT,
        key_group_min=_INT,
        key_group_max=_INT,
        lower=_TEXT,
        upper=_TEXT,
    ),
    "offsets": _schema(source_uid=_TEXT, stage=_TEXT, topic=_TEXT, partition=_INT, position=_LONG),
    "watermarks": _schema(
        stage=_TEXT, bucket_low=_INT, bucket_high=_INT, partitions=_INT, watermark_ms=_LONG
    ),
    "timers": TIMERS,
}


_ABOUT_FILES = ("files", "rows", "bytes")


def table(manifest: SavepointManifest, name: str, *, has_files: bool = True) -> pa.Table:
    """The table ``name``; that of timers is read from files and not made here.

    Without files, as of a checkpoint, what they would tell is null.
    """
    schema = SCHEMAS[name]
    rows = list(_TABLES[name](manifest))
    columns = [list(column) for column in zip(*rows)] if rows else [[] for _ in schema]
    if not has_files:
        for number, column in enumerate(schema.names):
            if column in _ABOUT_FILES:
                columns[number] = [None] * len(rows)
    return pa.table(columns, schema=schema)


def _operators(manifest: SavepointManifest) -> Rows:
    for operator in manifest.operators:
        files = [file for file in manifest.files if file.operator == operator.uid]
        yield (
            operator.uid,
            operator.kind,
            operator.service,
            operator.stage,
            operator.parallelism,
            manifest.max_parallelism,
            operator.ownership,
            operator.partitions,
            len(operator.states),
            len(files),
            sum(file.rows for file in files),
            sum(file.bytes for file in files),
        )


def _states(manifest: SavepointManifest) -> Rows:
    for operator in manifest.operators:
        for state in operator.states:
            place = (operator.uid, state.name)
            files = [file for file in manifest.files if (file.operator, file.state) == place]
            yield (
                *place,
                state.kind,
                None if state.key is None else shown(state.key),
                shown(state.value),
                len(files),
                sum(file.rows for file in files),
                sum(file.bytes for file in files),
            )


def _files(manifest: SavepointManifest) -> Rows:
    for file in manifest.files:
        bounds = [msgspec.json.encode(bound).decode() for bound in (file.lower, file.upper)]
        yield (
            file.operator,
            file.state,
            file.path,
            file.rows,
            file.bytes,
            file.sha256,
            file.key_group_min,
            file.key_group_max,
            *bounds,
        )


def _offsets(manifest: SavepointManifest) -> Rows:
    for source in manifest.sources:
        for partition, position in sorted(source.positions.items()):
            yield source.uid, source.stage, source.topic, partition, position


def _watermarks(manifest: SavepointManifest) -> Rows:
    for mark in manifest.watermarks:
        yield mark.stage, mark.low, mark.high, mark.partitions, mark.watermark_ms


_TABLES: dict[str, Callable[[SavepointManifest], Rows]] = {
    "operators": _operators,
    "states": _states,
    "files": _files,
    "offsets": _offsets,
    "watermarks": _watermarks,
}
