"""Deletes what no retained checkpoint needs: objects of dropped manifests (L19), old edge records
(L24).

All of it happens in one background thread, late rather than early: a crash leaves garbage, never a
hole.
"""

import time
from collections.abc import Callable
from typing import Any

from penstock.ids import Attempt, CheckpointId, Position
from penstock.runtime.background import Background
from penstock.runtime.events import say
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.runtime.recovery import sweep
from penstock.snapshot import manifest as manifests
from penstock.snapshot.retention import deletable, orphans

TRIM_EVERY_S = 5.0
LAST_S = 5.0
"""How long an ending coordinator lets the janitor work; the next one deletes what is left."""


class Janitor:
    """Knows the manifests of the retained checkpoints and drops the rest."""

    def __init__(self, app: str, kafka: Kafka, store: SnapshotStore) -> None:
        self._app = app
        self._kafka = kafka
        self._store = store
        self._work = Background(1, "janitor")
        self._manifests: dict[str, manifests.Manifest] = {}
        self._encoded: dict[str, bytes] = {}
        self._trimmed_at = 0.0
        self._cleared = Attempt(0)
        """What older attempts left behind is deleted."""

    def remember(self, key: str, data: bytes) -> None:
        """The manifest that was just stored, so that it need not be read again."""
        self._encoded[key] = data

    def retain(self, checkpoints: tuple[tuple[CheckpointId, str], ...], attempt: Attempt) -> None:
        """Keep these checkpoints only, and of attempts before ``attempt`` what they need."""
        self._later(lambda: self._retain([key for _, key in checkpoints], attempt))

    def cut(self, topic: str, positions: dict[int, Position]) -> None:
        """Delete the records of a topic before the positions."""
        self._later(lambda: self._kafka.delete_before(topic, positions))

    def sweep(self, attempt: Attempt) -> None:
        """Fence what a subtask of an older attempt opened when it woke."""
        self._later(lambda: sweep(self._kafka, self._app, attempt))

    def later(self, call: Callable[[], object]) -> None:
        """Do something else that can wait."""
        self._later(call)

    def close(self) -> None:
        """Finish what was asked for, the sweep of a stop above all; wait for no outage."""
        self._work.close(finish_s=LAST_S)

    def _later(self, call: Any) -> None:
        self._work.drain()
        self._work.submit(
            call, lambda _: None, lambda error: say("janitor", f"left alone: {error}")
        )

    def _retain(self, keys: list[str], attempt: Attempt) -> None:
        for key in keys:
            if key not in self._manifests:
                data = self._encoded.pop(key, None)
                self._manifests[key] = manifests.load(data or self._store.get(key), key)
        kept = [self._manifests[key] for key in keys]
        for key in [key for key in self._manifests if key not in keys]:
            dropped = self._manifests.pop(key)
            self._store.delete(deletable(dropped, key, list(zip(keys, kept, strict=True))))
        if kept and attempt > self._cleared:
            self._cleared = attempt
            self._clear(attempt)
        if kept and time.monotonic() - self._trimmed_at >= TRIM_EVERY_S:
            self._trimmed_at = time.monotonic()
            self._trim(kept[0])

    def _clear(self, attempt: Attempt) -> None:
        """Delete what older attempts uploaded and no manifest in the store names.

        Not even one that this application does not know: it may be all that is left of a life
        before this one, whose decision log was lost.
        """
        stored = self._store.list(f"{self._app}/")
        named = list(self._manifests.items())
        if not orphans(stored, named, before_attempt=attempt):
            return
        for key in stored:
            is_manifest = key.endswith(".json") and key.split("/")[1] in ("manifests", "imports")
            if is_manifest and key not in self._manifests:
                named.append((key, manifests.load(self._store.get(key), key)))
        self._store.delete(orphans(stored, named, before_attempt=attempt))

    def _trim(self, oldest: manifests.Manifest) -> None:
        for edge, positions in manifests.edge_positions(oldest).items():
            self._kafka.delete_before(f"{self._app}.edge.{edge}", positions)
