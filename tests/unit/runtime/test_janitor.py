"""What the janitor deletes, and what it must leave alone (L19)."""

from penstock.ids import Attempt, CheckpointId
from penstock.runtime.janitor import Janitor
from penstock.snapshot import manifest as manifests
from penstock.testing.store import SimulatedStore

from tests.unit.snapshot.test_manifest import build, ref, snapshot

OURS = "app/manifests/3-9.json"
KEPT, DIED = "app/2/s.e-0/1-1.chunk", "app/2/s.e-0/7-1.chunk"
RUNNING, IMPORT = "app/4/s.e-0/1-1.chunk", "app/imports/17-3/0.chunk"


def left_after(store: SimulatedStore, attempt: int) -> set[str]:
    janitor = Janitor("app", None, store)  # type: ignore[arg-type]  # no edges: nothing to trim
    janitor.retain(((CheckpointId(3), OURS),), Attempt(attempt))
    janitor.close()
    return set(store.objects)


def stored(*keys: str) -> SimulatedStore:
    store = SimulatedStore()
    for key in (KEPT, DIED, RUNNING, IMPORT, *keys):
        store.put(key, b"1234")
    store.put(OURS, manifests.encode(build(snapshot(0, 1, ref(KEPT)))))
    return store


def test_what_dead_attempts_left_is_deleted_once_a_later_one_is_complete() -> None:
    assert left_after(stored(), 2) == {KEPT, DIED, RUNNING, IMPORT, OURS}
    assert left_after(stored(), 3) == {KEPT, RUNNING, IMPORT, OURS}
    assert left_after(stored(), 4) == {KEPT, RUNNING, OURS}


def test_what_a_manifest_names_stays_though_nobody_knows_the_manifest() -> None:
    """The decision log of an earlier life was lost: its checkpoints can still be converted."""
    store = stored()
    earlier = "app/manifests/900-5.json"
    store.put(earlier, manifests.encode(build(snapshot(0, 1, ref(DIED)), number=900)))
    assert left_after(store, 4) == {KEPT, DIED, RUNNING, earlier, OURS}


def test_a_manifest_that_cannot_be_read_keeps_everything() -> None:
    store = stored()
    store.put("app/imports/17-3/manifest.json", b"{")
    assert {KEPT, DIED, RUNNING, IMPORT} <= left_after(store, 4)
