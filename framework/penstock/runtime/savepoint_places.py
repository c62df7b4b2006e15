"""Where savepoints stand, and what is said when none is there."""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.failure import ConfigurationError, StoreFailed
from penstock.ids import checked_name
from penstock.runtime.connectors import store_from
from penstock.runtime.ports import SnapshotStore
from penstock.runtime.savepoint_making import default_url, opened
from penstock.savepoint import disposing
from penstock.savepoint.manifest import MANIFEST_KEY, SavepointManifest, load
from penstock.snapshot.objects import is_key

_PLACE = re.compile(rf"(?P<folder>(([^/]+/)?savepoints/)?[^/]+)/{re.escape(MANIFEST_KEY)}")
"""A savepoint below a folder, below the folder of an application, or below a store."""
_LEFT = re.compile(r"(?P<folder>(([^/]+/)?savepoints/)?[^/]+)/(data|sources)/.+\.parquet")


class Target(NamedTuple):
    """Where a savepoint is to be made."""

    url: str
    name: str
    store: SnapshotStore


class Found(NamedTuple):
    """A savepoint in a listing."""

    name: str
    """Its folder, below what was listed."""
    url: str
    manifest: SavepointManifest | None
    flaw: str
    """Why it cannot be used; empty when it can."""


def is_url(text: str) -> bool:
    """Whether this names a place, not an application."""
    return "://" in text


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?``, or nothing when nothing is like it."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def reached(url: str, env: Mapping[str, str]) -> SnapshotStore:
    """The store at a place that is only to be read. Raises ConfigurationError."""
    if not is_url(url):
        raise ConfigurationError(
            f"{url!r} is not the URL of a savepoint: give s3://BUCKET/PREFIX or file:///DIR; "
            "penstock savepoint list APP shows those of an application"
        )
    store = opened(env, url)
    if not store.url.startswith("file:"):  # there it would make the folder
        store.check()
    return store


def published(url: str, env: Mapping[str, str]) -> SnapshotStore:
    """The store of the savepoint at ``url``.

    Raises ConfigurationError when none is there, naming the nearest.
    """
    store = reached(url, env)
    if not has_manifest(store):
        raise none_at(store.url, env)
    return store


def manifest_at(url: str, env: Mapping[str, str]) -> SavepointManifest:
    """The manifest of the savepoint at ``url``; raises as `published` and `load`."""
    store = published(url, env)
    return load(store.get(MANIFEST_KEY), store.url)


def none_at(url: str, env: Mapping[str, str]) -> ConfigurationError:
    """The error for a place without a savepoint; it names what was perhaps meant."""
    return ConfigurationError(f"there is no savepoint at {url}{_instead(url, env)}")


def has_manifest(store: SnapshotStore) -> bool:
    """Whether the folder holds a savepoint."""
    return MANIFEST_KEY in store.list(MANIFEST_KEY)


def target(
    env: Mapping[str, str], app: str, *, to: str | None, name: str | None, default: str
) -> Target:
    """The free place for a new savepoint. Raises ConfigurationError when it is taken."""
    if to is None:
        name = default if name is None else name
        if not env.get("PENSTOCK_STORE"):
            store_from(env)  # says what is missing
        to = default_url(env, app, name)
    elif not is_url(to):
        raise ConfigurationError(
            f"--to {to!r} is not a URL: give s3://BUCKET/PREFIX or file:///DIR; a name alone is "
            "given with --name"
        )
    store = opened(env, to)
    store.check()
    there = store.list("")
    if MANIFEST_KEY in there:
        raise ConfigurationError(
            f"there is a savepoint at {store.url} already: choose another --name or --to, or "
            f"delete it: penstock savepoint dispose {store.url}"
        )
    foreign = [key for key in there if not disposing.is_written(key)]
    if foreign:
        raise ConfigurationError(
            f"{store.url} holds other files, like {foreign[0]!r}: give the savepoint a folder of "
            "its own"
        )
    last = store.url.rstrip("/").rpartition("/")[2]
    return Target(store.url, last if is_key(last) else default, store)


def listed(place: str, env: Mapping[str, str]) -> tuple[str, list[Found]]:
    """The savepoints of an application, or at and below a URL, the oldest first; and where.

    Raises ConfigurationError for an application that the store does not know.
    """
    if is_url(place):
        store = reached(place, env)
    else:
        app = checked_name("application id", place)
        home = store_from(env)
        if not home.url.startswith("file:"):
            home.check()
        if not home.list(f"{app}/"):
            raise no_such_app(app, home)
        store = opened(env, f"{env['PENSTOCK_STORE'].rstrip('/')}/{app}/savepoints")
    return store.url, _below(store)


def no_such_app(app: str, store: SnapshotStore) -> ConfigurationError:
    """The error for an application that has nothing in a store."""
    return ConfigurationError(
        f"store {store.url} has nothing of an application {app!r}{near_app(app, store)}; name the "
        "app= of its services, and check --store"
    )


def near_app(app: str, store: SnapshotStore) -> str:
    """The application in the store that was perhaps meant."""
    keys = (key.split("/", 2) for key in store.list(""))
    apps = {key[0] for key in keys if len(key) == 3 and key[1] in ("manifests", "savepoints")}
    return nearest(app, apps)


def _below(store: SnapshotStore) -> list[Found]:
    keys = store.list("")
    if MANIFEST_KEY in keys:
        name = store.url.rpartition("/")[2]
        return [_looked_at(store, MANIFEST_KEY, name, store.url)]
    places = {m["folder"]: key for key in keys if (m := _PLACE.fullmatch(key))}
    found = [
        _looked_at(store, key, folder, f"{store.url}/{folder}") for folder, key in places.items()
    ]
    found.sort(key=lambda each: (each.manifest.created_at_ms if each.manifest else 0, each.name))
    left = {m["folder"] for key in keys if (m := _LEFT.fullmatch(key))} - places.keys()
    found += [
        Found(folder, f"{store.url}/{folder}", None, "unfinished: it has no manifest")
        for folder in sorted(left)
    ]
    return found


def _looked_at(store: SnapshotStore, key: str, name: str, url: str) -> Found:
    try:
        return Found(name, url, load(store.get(key), url), "")
    except (StoreFailed, ConfigurationError) as error:
        return Found(name, url, None, str(error))


def _instead(url: str, env: Mapping[str, str]) -> str:
    """What was perhaps meant."""
    parent, _, name = url.rpartition("/")
    if "/manifests/" in f"{url}/":
        return (
            ": this is a checkpoint; make a savepoint of it with penstock savepoint convert APP "
            "--checkpoint N"
        )
    if parent.endswith("/savepoints"):
        store = opened(env, parent)
        found = [each.name for each in _below(store) if each.manifest is not None]
        near = nearest(name, found)
        if near:
            return near
        if found:
            return f"; there are {', '.join(found[-5:])}"
    return f": it has no {MANIFEST_KEY}; penstock savepoint list APP shows those there are"
