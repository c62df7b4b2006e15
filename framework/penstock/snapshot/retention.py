"""Which objects nobody needs any more (L19). Pure: the janitor does the deleting."""

import re
from collections.abc import Iterable

from penstock.snapshot.manifest import Manifest, object_keys

_CHUNK = re.compile(r"[^/]+/(?:([0-9]+)/[^/]+|imports/[0-9]+-([0-9]+))/[^/]+\.chunk")
"""``app/ATTEMPT/subtask/name.chunk``, ``app/imports/TERM-ATTEMPT/name.chunk``."""


def deletable(
    dropped: Manifest, dropped_key: str, kept: Iterable[tuple[str, Manifest]]
) -> list[str]:
    """The objects of a dropped checkpoint that no kept one names, its own manifest last.

    A manifest whose inline chunks a kept checkpoint names stays. With the newest complete
    checkpoint among ``kept``, nothing that a checkpoint in flight will name is deleted: its chain
    consists of chunks of the newest complete chain and of new ones.
    """
    needed: set[str] = set()
    for key, manifest in kept:
        needed.add(key)
        needed |= object_keys(manifest)
    free = sorted(object_keys(dropped) - needed - {dropped_key})
    if dropped_key not in needed:
        free.append(dropped_key)
    return free


def orphans(
    stored: Iterable[str], kept: Iterable[tuple[str, Manifest]], *, before_attempt: int
) -> list[str]:
    """Chunks that attempts before ``before_attempt``, and imports that died in them, left in the
    store and no kept checkpoint names.

    An attempt that is over names no new object, so only those that still run are left alone.
    """
    needed: set[str] = set()
    for key, manifest in kept:
        needed.add(key)
        needed |= object_keys(manifest)
    found = []
    for key in stored:
        match = _CHUNK.fullmatch(key)
        if match is None or key in needed:
            continue
        if int(match[1] or match[2]) < before_attempt:
            found.append(key)
    return found
