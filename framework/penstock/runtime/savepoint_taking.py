"""``penstock savepoint trigger`` and ``convert``: a checkpoint taken or found, and made open."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from penstock.failure import ConfigurationError, PenstockError
from penstock.ids import CheckpointId, checked_name
from penstock.runtime import retained, savepoint_making, savepoint_places
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.events import say
from penstock.runtime.ports import SnapshotStore
from penstock.runtime.savepoint_places import Target
from penstock.runtime.savepoint_trigger import SavepointTrigger, Wish
from penstock.runtime.shown_text import number, printed, printed_json, size
from penstock.savepoint.manifest import SavepointManifest

INTERRUPTED = 130
TELL_EVERY_S = 5.0


def trigger(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Ask a running application for a savepoint; its URL on standard output."""
    app = checked_name("application id", options.app)
    kafka, store = kafka_from(env), store_from(env)
    kafka.check()
    _check_name(options.name)
    where = savepoint_places.target(
        env, app, to=options.to, name=options.name, default=_name_of_now()
    )
    known = retained.history(app, kafka, store)
    if retained.is_stopped(app, kafka):
        raise ConfigurationError(
            f"application {app!r} is stopped: start it first, or make a savepoint of its last "
            f"checkpoint: penstock savepoint convert {app}"
        )
    # Which ones is another matter: while we look, the application drops one and takes the next.
    folders = (f"{app}/manifests/", f"{app}/imports/")
    if known.completed and not any(map(store.list, folders)):
        raise ConfigurationError(
            f"store {store.url} has no checkpoint of application {app!r}, and the decision log "
            "knows some: name the store that the application uses, with --store"
        )
    wish = Wish(app=app, stop=options.stop, drain=options.drain, timeout_s=options.timeout_s)
    making = _Making(store, where)
    how = ", and to stop with it" if options.stop or options.drain else ""
    _tell(f"asks application {app!r} for a savepoint{how}")
    try:
        SavepointTrigger(wish, kafka, _tell).run(making.make)
    except KeyboardInterrupt:
        return making.given_up(is_stopping=options.stop or options.drain)
    except PenstockError:
        making.say_what_is_left()
        raise
    if wish.stop or wish.drain:
        _tell(f"application {app!r} has stopped; its output is committed up to the savepoint")
    return making.told(as_json=options.json)


def convert(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Turn a checkpoint in the store into a savepoint; its URL on standard output."""
    app = checked_name("application id", options.app)
    store = store_from(env)
    _check_name(options.name)
    if options.manifest is not None:
        checkpoint, key = _named(options.manifest, app, store)
    else:
        checkpoint, key = _found(options.checkpoint, app, store, env)
    where = savepoint_places.target(
        env, app, to=options.to, name=options.name, default=f"checkpoint-{checkpoint}"
    )
    making = _Making(store, where)
    _tell(f"reads checkpoint {checkpoint} of application {app!r}")
    try:
        making.make(CheckpointId(checkpoint), key)
    except KeyboardInterrupt:
        return making.given_up(is_stopping=False)
    except PenstockError:
        making.say_what_is_left()
        raise
    return making.told(as_json=options.json)


def _tell(text: str) -> None:
    say("savepoint", text)


def _check_name(name: str | None) -> None:
    if name is not None:
        checked_name("savepoint", name)


def _name_of_now() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _named(key: str, app: str, store: SnapshotStore) -> tuple[int, str]:
    """The checkpoint of a manifest in the store, without asking Kafka."""
    key = key.removeprefix(f"{store.url}/")
    prefix = f"{app}/manifests/"
    number_, dash, rest = key.removeprefix(prefix).partition("-")
    fits = key.startswith(prefix) and dash and number_.isdecimal() and rest.endswith(".json")
    known = sorted(store.list(prefix), key=lambda each: (len(each), each))
    if fits and key in known:
        return int(number_), key
    if not known:
        raise savepoint_places.no_such_app(app, store)
    instead = savepoint_places.nearest(key, known) or f"; there is {known[-1]!r}"
    raise ConfigurationError(f"store {store.url} has no manifest {key!r}{instead}")


def _found(
    wanted: int | None, app: str, store: SnapshotStore, env: Mapping[str, str]
) -> tuple[int, str]:
    """A complete checkpoint of the decision log, the newest by default."""
    if not env.get("PENSTOCK_BOOTSTRAP"):
        raise ConfigurationError(
            "no Kafka cluster is named, which knows the complete checkpoints: pass --bootstrap "
            "HOST:PORT or set PENSTOCK_BOOTSTRAP; without Kafka name a manifest in the store: "
            f"--manifest {app}/manifests/CHECKPOINT-TERM.json"
        )
    kafka = kafka_from(env)
    kafka.check()
    known = retained.history(app, kafka, store)
    if not known.completed:
        raise ConfigurationError(f"application {app!r} has no complete checkpoint yet")
    there = retained.checkpoints(known, app, store)
    chosen = retained.chosen(there, wanted, f"application {app!r}", store.url)
    return chosen.checkpoint, chosen.manifest


class _Making:
    """A savepoint in the making, and what there is to tell of it."""

    def __init__(self, store: SnapshotStore, target: Target) -> None:
        self._store = store
        self._target = target
        self._files = _Counted(target.store)
        self._began = time.monotonic()
        self.made: SavepointManifest | None = None

    def make(self, checkpoint: CheckpointId, manifest: str) -> str:
        """Write the savepoint of a checkpoint; its URL."""
        began = time.monotonic()
        self.made = savepoint_making.make(
            self._store, manifest, self._files, name=self._target.name
        )
        rows = sum(file.rows for file in self.made.files)
        stored = sum(file.bytes for file in self.made.files)
        _tell(
            f"checkpoint {checkpoint} is a savepoint: {number(rows, 'row')} in "
            f"{number(len(self.made.files), 'file')}, {size(stored)}, written in "
            f"{time.monotonic() - began:.1f} s"
        )
        return self._target.url

    def told(self, *, as_json: bool) -> int:
        """The result on standard output; the exit code."""
        if self.made is None:
            raise AssertionError("told before it was made")
        if not as_json:
            printed(self._target.url)
            return 0
        printed_json(
            {
                "url": self._target.url,
                "savepoint_id": self.made.savepoint_id,
                "app": self.made.app,
                "checkpoint": self.made.checkpoint,
                "rows": sum(file.rows for file in self.made.files),
                "files": len(self.made.files),
                "bytes": sum(file.bytes for file in self.made.files),
                "seconds": round(time.monotonic() - self._began, 3),
            }
        )
        return 0

    def given_up(self, *, is_stopping: bool) -> int:
        """What to say after Ctrl-C; the exit code."""
        stopping = "; it was asked to stop, and may do so all the same" if is_stopping else ""
        if self.made is None:
            sys.stderr.write(f"penstock: interrupted, no savepoint was made{stopping}\n")
            self.say_what_is_left()
        else:
            sys.stderr.write(
                f"penstock: interrupted; savepoint {self._target.url} was made{stopping}\n"
            )
        return INTERRUPTED

    def say_what_is_left(self) -> None:
        """Name the files without a manifest, if any was written."""
        if self.made is None and self._files.count:
            _tell(
                f"{number(self._files.count, 'file')} without a manifest are left; delete them: "
                f"penstock savepoint dispose {self._target.url}"
            )


class _Counted:
    """The store that is written to; tells how far it is."""

    def __init__(self, store: SnapshotStore, tell: Callable[[str], None] = _tell) -> None:
        self._store = store
        self._tell = tell
        self._told_at: float | None = None
        self.url = store.url
        self.count = 0
        self.bytes = 0

    def put(self, key: str, data: bytes) -> None:
        """Write one object."""
        self._store.put(key, data)
        self.count += 1
        self.bytes += len(data)
        now = time.monotonic()
        if self._told_at is None or now - self._told_at >= TELL_EVERY_S:
            if self._told_at is not None:
                self._tell(f"wrote {number(self.count, 'file')}, {size(self.bytes)}")
            self._told_at = now

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object."""
        return self._store.get(key, size=size, sha256=sha256)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects."""
        self._store.delete(keys)

    def list(self, prefix: str) -> list[str]:
        """Keys under a prefix."""
        return self._store.list(prefix)
