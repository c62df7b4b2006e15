"""``penstock savepoint inspect``: what a savepoint says of itself, its rows, its sums."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.failure import ConfigurationError, StoreFailed
from penstock.record import MAX_WATERMARK, MIN_WATERMARK
from penstock.runtime import savepoint_places
from penstock.runtime.events import say
from penstock.runtime.shown_text import (
    indented,
    moment,
    number,
    plain,
    printed,
    printed_json,
    size,
    table,
    width,
    wrapped,
)
from penstock.savepoint.manifest import FileEntry, SavepointManifest, StateEntry, WatermarkEntry
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.rows import as_json, rows_of, shown_value
from penstock.schema import shown

DAMAGED = 3
_LABEL = 13


def inspect(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Everything that a savepoint says of itself; with ``--rows`` what is in a state."""
    savepoint = Savepoint.open(savepoint_places.published(options.url, env))
    if options.rows is not None:
        return _show_rows(savepoint, options)
    if options.operator is not None or options.state is not None:
        raise ConfigurationError("--operator and --state choose the rows to show: give --rows N")
    flaws = _flaws(savepoint) if options.verify else None
    if options.json:
        printed_json(described(savepoint, flaws))
    else:
        printed(_page(savepoint))
    if flaws is None:
        return 0
    files = number(len(savepoint.manifest.files), "file")
    if not flaws:
        say("savepoint", f"verified {files}: every sum, every row in its key group")
        return 0
    for flaw in flaws.values():
        sys.stderr.write(f"penstock: {plain(flaw)}\n")
    sys.stderr.write(f"penstock: {len(flaws)} of {files} are damaged\n")
    return DAMAGED


def described(savepoint: Savepoint, flaws: Mapping[str, str] | None) -> dict[str, Any]:
    """What ``--json`` gives; types are written as people read them."""
    manifest = savepoint.manifest
    found: dict[str, Any] = {
        "url": savepoint.url,
        "savepoint_id": manifest.savepoint_id,
        "app": manifest.app,
        "checkpoint": manifest.checkpoint,
        "created_at_ms": manifest.created_at_ms,
        "created_by": manifest.created_by,
        "parent": manifest.parent,
        "format_version": manifest.format_version,
        "max_parallelism": manifest.max_parallelism,
        "hash": manifest.hash,
        **totals(manifest.files),
        "sources": manifest.sources,
        "watermarks": manifest.watermarks,
        "operators": [
            {
                "uid": operator.uid,
                "kind": operator.kind,
                "service": operator.service,
                "stage": operator.stage,
                "parallelism": operator.parallelism,
                "ownership": operator.ownership,
                "states": [
                    {
                        "name": state.name,
                        "kind": state.kind,
                        "key": None if state.key is None else shown(state.key),
                        "value": shown(state.value),
                        **totals(savepoint.files(operator.uid, state.name)),
                        "key_groups": _key_groups(savepoint.files(operator.uid, state.name)),
                    }
                    for state in operator.states
                ],
            }
            for operator in manifest.operators
        ],
    }
    if flaws is not None:
        found["verified"] = not flaws
        found["damaged"] = dict(flaws)
    return found


def totals(files: Iterable[FileEntry]) -> dict[str, int]:
    """Rows, bytes and how many files."""
    entries = tuple(files)
    return {
        "rows": sum(file.rows for file in entries),
        "bytes": sum(file.bytes for file in entries),
        "files": len(entries),
    }


def _key_groups(files: Iterable[FileEntry]) -> tuple[int, int] | None:
    pairs = [
        (file.key_group_min, file.key_group_max)
        for file in files
        if file.key_group_min is not None and file.key_group_max is not None
    ]
    return (min(low for low, _ in pairs), max(high for _, high in pairs)) if pairs else None


# -- the page


def _page(savepoint: Savepoint) -> str:
    manifest = savepoint.manifest
    total = totals(manifest.files)
    hashed = manifest.hash
    facts = {
        "application": manifest.app,
        "checkpoint": str(manifest.checkpoint),
        **({"made of": manifest.parent} if manifest.parent else {}),
        "created": f"{moment(manifest.created_at_ms)} UTC by {manifest.created_by}",
        "holds": f"{number(total['rows'], 'row')} in {number(total['files'], 'file')}, "
        f"{size(total['bytes'])}",
        "key groups": f"{manifest.max_parallelism} ({hashed.algorithm} of {hashed.input}, seed "
        f"{hashed.seed})",
    }
    parts = [plain(savepoint.url), *(_fact(name, value) for name, value in facts.items())]
    parts += ["", "sources", *_sources(manifest)]
    if manifest.watermarks:
        parts += ["", "watermarks", *_watermarks(manifest)]
    for operator in manifest.operators:
        if operator.kind == "source":
            continue
        owner = {"key_group": "by key group", "partition": "by source partition"}
        parts += [
            "",
            f"operator {operator.uid}",
            f"  {operator.kind} in stage {operator.stage}, parallelism {operator.parallelism}"
            + (f", owned {owner[operator.ownership]}" if operator.ownership in owner else ""),
        ]
        for state in operator.states:
            parts += _state(savepoint, operator.uid, state)
    return "\n".join(parts)


def _fact(name: str, value: str) -> str:
    return wrapped(f"  {name:<{_LABEL}}", value)


def _sources(manifest: SavepointManifest) -> list[str]:
    lines = []
    for source in manifest.sources:
        lines.append(f"  {source.uid} reads topic {source.topic}, next offset of each partition")
        places = [f"{partition}: {offset:,}" for partition, offset in source.positions.items()]
        lines.append(wrapped("    ", "   ".join(places) or "none yet"))
    return lines


def _watermarks(manifest: SavepointManifest) -> list[str]:
    stages: dict[str, list[WatermarkEntry]] = {}
    for mark in manifest.watermarks:
        stages.setdefault(mark.stage, []).append(mark)
    rows = []
    for stage, marks in stages.items():
        least = min(mark.watermark_ms for mark in marks)
        greatest = max(mark.watermark_ms for mark in marks)
        text = _time(least) if least == greatest else f"{_time(least)} to {_time(greatest)}"
        rows.append((stage, text))
    return [indented(table(("stage", "event time (UTC)"), rows))]


def _time(ms: int) -> str:
    if ms <= MIN_WATERMARK:
        return "none yet"
    return "all of it" if ms >= MAX_WATERMARK else moment(ms)


def _state(savepoint: Savepoint, uid: str, state: StateEntry) -> list[str]:
    files = savepoint.files(uid, state.name)
    total = totals(files)
    groups = _key_groups(files)
    holds = "no rows"
    if files:
        holds = f"{number(total['rows'], 'row')}, {size(total['bytes'])} in "
        holds += number(total["files"], "file")
    if groups is not None:
        holds += f", key groups {groups[0]}-{groups[1]}"
    lines = ["", plain(f"  {state.name}: {state.kind}, {holds}")]
    if state.key is not None:
        lines.append(wrapped("    key    ", shown(state.key)))
    if state.kind != "timers":
        lines.append(wrapped("    value  ", shown(state.value)))
    return lines


# -- rows and sums


def _show_rows(savepoint: Savepoint, options: argparse.Namespace) -> int:
    uid, name = _chosen(savepoint, options.operator, options.state)
    state = savepoint.state(uid, name)
    found = savepoint.layout(uid, name).arrow_schema.empty_table()
    for file in savepoint.files(uid, name):
        if found.num_rows >= options.rows:
            break
        found = pa.concat_tables([found, savepoint.read(file)]).slice(0, options.rows)
    heads, rows = rows_of(state, found)
    if options.json:
        printed_json([dict(zip(heads, map(as_json, row), strict=True)) for row in rows])
        return 0
    if rows:
        cells = [list(map(shown_value, row)) for row in rows]
        printed(table(heads, cells, right=_numbers(rows, heads), cut=width()))
    total = sum(file.rows for file in savepoint.files(uid, name))
    say("savepoint", f"{len(rows):,} of {number(total, 'row')} of {uid}.{name}")
    return 0


def _numbers(rows: list[list[Any]], heads: list[str]) -> list[str]:
    """The columns in which only numbers stand."""
    columns = dict(zip(heads, zip(*rows, strict=True), strict=True))
    return [
        name for name, values in columns.items() if all(type(v) in (int, float) for v in values)
    ]


def _chosen(savepoint: Savepoint, uid: str | None, name: str | None) -> tuple[str, str]:
    """The state whose rows are meant; ConfigurationError when it is not clear."""
    operators = savepoint.manifest.operators
    if uid is None:
        candidates = [op for op in operators if op.states and op.kind != "source"]
        if len(candidates) != 1:
            known = ", ".join(op.uid for op in operators if op.states)
            raise ConfigurationError(f"name the operator with --operator: {known or 'none'}")
        uid = candidates[0].uid
    states = [state.name for state in savepoint.operator(uid).states]
    if name is None:
        if len(states) != 1:
            known = ", ".join(states)
            raise ConfigurationError(
                f"name the state of operator {uid!r} with --state: {known or 'it has none'}"
            )
        name = states[0]
    return uid, savepoint.state(uid, name).name


def _flaws(savepoint: Savepoint) -> dict[str, str]:
    """File -> what is wrong with it: its sum, its rows, or a key in a wrong key group."""
    found: dict[str, str] = {}
    for file in savepoint.manifest.files:
        try:
            rows = savepoint.read(file)
            layout = savepoint.layout(file.operator, file.state)
            layout.verify(rows, savepoint.manifest.max_parallelism)
        except StoreFailed as error:
            found[file.path] = str(error)
    return found
