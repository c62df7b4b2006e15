"""The checkpoints that can still be restored: complete, and whole in the store."""

from typing import NamedTuple

from penstock.checkpoint import history as hist
from penstock.control import Stop, decode_decision
from penstock.failure import ConfigurationError, CorruptedObject, TransportFailed
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.runtime.savepoint_making import history_of
from penstock.runtime.savepoint_places import near_app
from penstock.snapshot import manifest as manifests

LEAST_RETAINED = 2
"""No application retains fewer: one of these that is not whole is damaged, not dropped."""


class Retained(NamedTuple):
    """A complete checkpoint."""

    checkpoint: int
    attempt: int | None
    subtasks: int | None
    bytes: int | None
    """Of its manifest and of the objects that it names; those of other checkpoints, too."""
    manifest: str
    """The key of its manifest."""
    flaw: str
    """Why it cannot be restored; empty when it can, as far as names tell."""


def history(app: str, kafka: Kafka, store: SnapshotStore) -> hist.History:
    """What the decision log says; ConfigurationError naming the nearest application."""
    try:
        return history_of(kafka, app)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}{near_app(app, store)}") from None


def is_stopped(app: str, kafka: Kafka) -> bool:
    """Whether the last decision is a Stop: nobody leads the application now."""
    end = kafka.end_positions(f"{app}.decisions")[0]
    if not end:
        return False
    reader = kafka.log_reader(f"{app}.decisions", end - 1)
    try:
        for _ in range(50):
            for record in reader.poll(0.2):
                return isinstance(decode_decision(record.data), Stop)
    finally:
        reader.close()
    raise TransportFailed(f"{app}.decisions could not be read at offset {end - 1}")


def checkpoints(known: hist.History, app: str, store: SnapshotStore) -> list[Retained]:
    """The complete checkpoints that the store still has, the oldest first."""
    stored = set(store.list(f"{app}/"))
    newest = known.completed[-LEAST_RETAINED:]
    found = []
    for checkpoint, key in known.completed:
        each = _looked_at(checkpoint, key, store, stored)
        if not each.flaw or (checkpoint, key) in newest:
            found.append(each)
    return found


def chosen(found: list[Retained], wanted: int | None, app: str, store: str) -> Retained:
    """The checkpoint ``wanted``, or the newest that can be restored.

    Raises ConfigurationError naming those that there are; ``app`` and ``store`` are named in it.
    """
    usable = [each for each in found if not each.flaw]
    others = f"there are {', '.join(str(each.checkpoint) for each in usable[-8:])}"
    if not usable:
        others = "nor can another: is it the store that the application uses (--store)?"
    if wanted is None:
        if usable:
            return usable[-1]
        raise ConfigurationError(f"no checkpoint of {app} can be used in store {store}; {others}")
    for each in found:
        if each.checkpoint == wanted and not each.flaw:
            return each
        if each.checkpoint == wanted:
            raise ConfigurationError(
                f"checkpoint {wanted} of {app} cannot be used: {each.flaw} in store {store}; "
                f"{others}"
            )
    raise ConfigurationError(
        f"checkpoint {wanted} of {app} cannot be used: store {store} does not have it; {others}"
    )


def _looked_at(checkpoint: int, key: str, store: SnapshotStore, stored: set[str]) -> Retained:
    if key not in stored:
        return Retained(checkpoint, None, None, None, key, "its manifest is missing")
    try:
        data = store.get(key)
        manifest = manifests.load(data, key)
    except CorruptedObject:
        return Retained(checkpoint, None, None, None, key, "its manifest is damaged")
    except ConfigurationError:
        return Retained(checkpoint, None, None, None, key, "a later version of penstock wrote it")
    chunks = {
        ref.key: ref.size for part in manifest.subtasks for ref in part.chain if ref.entry is None
    }
    missing = sorted(manifests.object_keys(manifest) - stored)
    flaw = f"{missing[0]} is missing" if missing else ""
    return Retained(
        checkpoint,
        manifest.attempt,
        len(manifest.subtasks),
        len(data) + sum(chunks.values()),
        key,
        flaw,
    )
