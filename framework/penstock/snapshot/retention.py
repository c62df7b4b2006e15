"""Which objects nobody needs any more (L19). Pure: the janitor does the deleting."""

from collections.abc import Iterable

from penstock.snapshot.manifest import Manifest, object_keys


def deletable(
    dropped: Manifest, dropped_key: str, kept: Iterable[tuple[str, Manifest]]
) -> list[str]:
    """The objects of a dropped checkpoint that no kept one names, its own manifest last.

    A manifest whose inline chunks a kept checkpoint names stays. With the newest complete
    checkpoint
    among ``kept``, nothing that a checkpoint in flight will name is deleted: its chain consists of
    chunks of the newest complete chain and of new ones.
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
    """Chunks in the store that attempts before ``before_attempt`` left and no kept checkpoint
    names.

    An attempt that is over names no new object, so only those that still run are left alone.
    """
    needed: set[str] = set()
    for key, manifest in kept:
        needed.add(key)
        needed |= object_keys(manifest)
    found = []
    for key in stored:
        parts = key.split("/")
        is_old = len(parts) == 4 and parts[1].isdecimal() and int(parts[1]) < before_attempt
        if is_old and key.endswith(".chunk") and key not in needed:
            found.append(key)
    return found
