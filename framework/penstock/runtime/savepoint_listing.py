"""``penstock savepoint list`` and ``dispose``, ``penstock checkpoint list``: what there is."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from penstock.failure import ConfigurationError
from penstock.ids import checked_name
from penstock.runtime import retained, savepoint_places
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.events import say
from penstock.runtime.shown_text import (
    indented,
    moment,
    number,
    printed,
    printed_json,
    size,
    table,
    wrapped,
)
from penstock.savepoint.disposing import dispose, is_written
from penstock.savepoint.manifest import MANIFEST_KEY, load

KEPT = 1
"""Exit code of a question that was answered with no."""


def listing(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """The savepoints of an application, or below a URL."""
    where, found = savepoint_places.listed(options.place, env)
    if options.json:
        printed_json([_summary(each) for each in found])
        return 0
    if not found:
        say("savepoint", f"there is no savepoint in {where}")
        return 0
    rows = [
        (
            each.name,
            moment(each.manifest.created_at_ms),
            each.manifest.checkpoint,
            sum(file.rows for file in each.manifest.files),
            size(sum(file.bytes for file in each.manifest.files)),
        )
        for each in found
        if each.manifest is not None
    ]
    printed(where)
    if rows:
        heads = ("name", "created (UTC)", "checkpoint", "rows", "size")
        printed(indented(table(heads, rows, right=("checkpoint", "rows", "size"))))
    for each in found:
        if each.manifest is None:
            printed(wrapped(f"  {each.name}: ", each.flaw))
    return 0


def checkpoints(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """The complete checkpoints of an application that the store still has."""
    app = checked_name("application id", options.app)
    kafka, store = kafka_from(env), store_from(env)
    kafka.check()
    found = retained.checkpoints(retained.history(app, kafka, store), app, store)
    if options.json:
        printed_json([each._asdict() for each in found])
        return 0
    if not found:
        say("checkpoint", f"application {app!r} has no complete checkpoint in {store.url}")
        return 0
    rows = [
        (
            each.checkpoint,
            "-" if each.attempt is None else each.attempt,
            "-" if each.bytes is None else size(each.bytes),
            each.manifest,
        )
        for each in found
    ]
    printed(store.url)
    heads = ("checkpoint", "attempt", "size", "manifest")
    printed(indented(table(heads, rows, right=("checkpoint", "attempt", "size"))))
    for each in found:
        if each.flaw:
            printed(wrapped(f"  checkpoint {each.checkpoint} cannot be restored: ", each.flaw))
    return 0


def disposal(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Delete a savepoint, once somebody has said yes."""
    store = savepoint_places.reached(options.url, env)
    keys = store.list("")
    if MANIFEST_KEY in keys:
        manifest = load(store.get(MANIFEST_KEY), store.url)
        rows = sum(file.rows for file in manifest.files)
        what = (
            f"savepoint {store.url} of application {manifest.app!r}, checkpoint "
            f"{manifest.checkpoint}, {number(rows, 'row')} in "
            f"{number(len(manifest.files), 'file')}"
        )
    elif keys and all(map(is_written, keys)):
        what = f"{number(len(keys), 'file')} without a manifest in {store.url}"
    else:
        raise savepoint_places.none_at(store.url, env)
    if not options.yes and not _agreed(what):
        say("savepoint", "nothing was deleted")
        return KEPT
    dispose(store)
    say("savepoint", f"deleted {what}")
    return 0


def _agreed(what: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError(f"this would delete {what}; say so with --yes")
    sys.stderr.write(f"delete {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _summary(found: savepoint_places.Found) -> dict[str, Any]:
    if found.manifest is None:
        return {"name": found.name, "url": found.url, "flaw": found.flaw}
    return {
        "name": found.name,
        "url": found.url,
        "app": found.manifest.app,
        "checkpoint": found.manifest.checkpoint,
        "created_at_ms": found.manifest.created_at_ms,
        "rows": sum(file.rows for file in found.manifest.files),
        "bytes": sum(file.bytes for file in found.manifest.files),
        "files": len(found.manifest.files),
    }
