"""An object of the snapshot store: which keys may name one, and how its bytes are proven (L19).

Shared by every store, real or simulated, so that a key from a hostile manifest is refused before
any of them builds a path or a URL out of it.
"""

import hashlib
import re

from penstock.failure import CorruptedObject, ProtocolViolation, StoreFailed

MAX_KEY = 700
"""Characters of a key; S3 allows 1024 bytes, and the store's own prefix comes before it."""

_SEGMENT = re.compile(r"[a-z0-9][a-z0-9._-]{0,239}")
_RULE = (
    "expected segments of 1-240 characters of a-z, 0-9, '.', '_' and '-', each starting with a "
    f"letter or digit, without '..', joined by '/', {MAX_KEY} characters in all; "
    "if it comes from a manifest, the manifest is not one that Penstock wrote: do not restore it"
)


def is_key(key: object) -> bool:
    """Whether ``key`` may name an object: no path tricks, no escapes, one alphabet."""
    return (
        isinstance(key, str)
        and len(key) <= MAX_KEY
        and ".." not in key
        and all(_SEGMENT.fullmatch(segment) for segment in key.split("/"))
    )


def checked_key(key: str) -> str:
    """Return ``key`` when it may name an object. Raises ProtocolViolation."""
    if not is_key(key):
        raise ProtocolViolation(f"{_shown(key)} is not an object key: {_RULE}")
    return key


def checked_prefix(prefix: str) -> str:
    """Return ``prefix`` when keys may start with it; '' is every key. Raises ProtocolViolation."""
    if prefix == "" or is_key(prefix.removesuffix("/")):
        return prefix
    raise ProtocolViolation(f"{_shown(prefix)} is not the start of an object key: {_RULE}")


def verified(
    store: str, key: str, data: bytes, *, size: int | None = None, sha256: str | None = None
) -> bytes:
    """Return ``data`` when it has the size and sum that the manifest says (L19).

    Raises CorruptedObject naming the store, the object, what was expected and what was found.
    """
    if (size is None or size == len(data)) and sha256 is None:
        return data
    found = hashlib.sha256(data).hexdigest()
    if (size is None or size == len(data)) and sha256 == found:
        return data
    expected = [f"{size} bytes"] if size is not None else []
    expected += [f"sha256 {sha256}"] if sha256 is not None else []
    raise CorruptedObject(
        f"object {key!r} in {store} is corrupted: expected {', '.join(expected)}; "
        f"found {len(data)} bytes, sha256 {found}. {_remedy(key)}"
    )


def missing(store: str, key: str) -> CorruptedObject:
    """The error for an object that is not there."""
    return CorruptedObject(
        f"object {key!r} in {store} is missing: expected an object that was written and never "
        f"deleted; found none. {_remedy(key)}"
    )


def settled(store: str, key: str, found: bytes, size: int, sha256: str) -> None:
    """Judge a name that was taken before our write: by our own earlier try, or by other bytes.

    Raises StoreFailed when what is there is not what was to be written (L19).
    """
    there = hashlib.sha256(found).hexdigest()
    if (len(found), there) != (size, sha256):
        raise StoreFailed(
            f"object {key!r} in {store} was not written: the name is taken, and a name is never "
            f"used twice (L19): expected {size} bytes, sha256 {sha256}; found {len(found)} bytes, "
            f"sha256 {there}. Does another application or an older attempt write here?"
        )


def older_checkpoint(app: str = "APP") -> str:
    """The remedy for a checkpoint that is damaged; the newest is all that a start looks at."""
    return (
        f"start from an older checkpoint: penstock savepoint convert {app} --checkpoint N, then "
        "penstock run --from-savepoint"
    )


def _remedy(key: str) -> str:
    folder, _, inside = key.partition("/")
    if not inside or folder in _OF_SAVEPOINTS:
        return "Put the object back from a copy of the savepoint, or take the savepoint again."
    return f"Put the object back from a copy of the store, or {older_checkpoint(folder)}."


_OF_SAVEPOINTS = ("data", "sources")
"""The folders of a savepoint; objects of checkpoints stand below the name of their application."""


def _shown(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 120 else f"{text[:117]}..."
