"""A savepoint that nobody needs any more is deleted: its manifest first, then what it named."""

import re
from typing import NamedTuple

from penstock.failure import ConfigurationError
from penstock.savepoint.manifest import MANIFEST_KEY, load
from penstock.savepoint.store import SavepointStore

_WRITTEN = re.compile(r"(data/[^/]+/[^/]+/|sources/[^/]+/positions-)[0-9a-f]{32}\.parquet")
"""What `penstock.savepoint.writing.file_path` names, so that no folder of other Parquet files is
taken for what is left of a savepoint."""


class Disposed(NamedTuple):
    """What was deleted."""

    had_manifest: bool
    files: int
    """Without the manifest."""


def is_written(key: str) -> bool:
    """Whether a writer of savepoints may have left this file, with a manifest or without."""
    return _WRITTEN.fullmatch(key) is not None


def dispose(store: SavepointStore) -> Disposed:
    """Delete the savepoint in ``store``, which is opened at the savepoint's own folder.

    Without its manifest it is none any more: a reader finds it whole or not at all. Then go the
    files that it named and what attempts that failed left under ``data/`` and ``sources/``; done
    again it goes on where it was interrupted, and finds nothing when it was not. Files of other
    names stay.

    Raises ConfigurationError when the folder holds something else than a savepoint or was written
    by a later version, CorruptedObject when its manifest is damaged, StoreFailed.
    """
    found = store.list("")
    left = {key for key in found if is_written(key)}
    if MANIFEST_KEY not in found:
        foreign = [key for key in found if key not in left]
        if foreign:
            raise ConfigurationError(
                f"{store.url} is no savepoint: it has no {MANIFEST_KEY} and holds "
                f"{len(foreign)} other files, like {foreign[0]!r}; nothing was deleted"
            )
        store.delete(sorted(left))
        return Disposed(had_manifest=False, files=len(left))
    manifest = load(store.get(MANIFEST_KEY), store.url)
    named = {file.path for file in manifest.files}
    store.delete([MANIFEST_KEY])
    store.delete(sorted(named | left))
    return Disposed(had_manifest=True, files=len(left | (named & set(found))))
