"""An A/B run as one JSON document: what ``penstock ab start`` began and ``ab report`` compares.

It stands in the snapshot store under ``<app>/ab/<variant>.json`` and is written once, when the run
starts: where the final savepoints will be is decided then, and they are there once they are
published.
"""

import msgspec

from penstock.failure import ConfigurationError, CorruptedObject
from penstock.ids import checked_name
from penstock.runtime.ports import SnapshotStore

FORMAT_VERSION = 1
Positions = dict[str, dict[int, int]]
"""Topic -> partition -> the next offset."""


class AbRun(msgspec.Struct, frozen=True, kw_only=True):
    """Two applications that start from one savepoint: the original, A, and a variant of it, B."""

    variant: str
    """The variant's name, as in ``--variant b=…``."""
    app: str
    """The application that the savepoint is of; the document stands under its id."""
    app_a: str
    """The id that A runs under: ``app`` itself when both run live, else an isolated copy's."""
    app_b: str
    files_a: tuple[str, ...]
    files_b: tuple[str, ...]
    savepoint: str
    """URL of the savepoint that both start from."""
    until: Positions | None = None
    """Where both stop reading their sources (exclusive); None when they run live."""
    sinks: dict[str, str]
    """Every topic that A writes -> the topic that B writes instead."""
    starts: Positions
    """Every topic of ``sinks``, of A and of B: its end when the run started."""
    parallelism: dict[str, int]
    """Service -> workers."""
    final_a: str
    """URL of the savepoint that A ends with; not there before A has ended."""
    final_b: str
    created_at_ms: int
    format_version: int = FORMAT_VERSION


def key_of(app: str, variant: str) -> str:
    """Where the run of ``variant`` stands in the snapshot store. Raises InvalidName."""
    return f"{checked_name('application id', app)}/ab/{checked_name('variant', variant)}.json"


def promoted_key(app: str, variant: str) -> str:
    """What is there once the variant has taken over: from then on it is no copy any more."""
    return (
        f"{checked_name('application id', app)}/ab/promoted/{checked_name('variant', variant)}.json"
    )


def encode(run: AbRun) -> bytes:
    """The document's bytes, readable by people."""
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def decode(data: bytes, where: str) -> AbRun:
    """The run that ``data`` describes; ``where`` names it in errors.

    Raises ConfigurationError for one that a newer release wrote, CorruptedObject for what is no
    description of a run.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise ConfigurationError(
                f"{where} is an A/B run of format {version}; this release reads format "
                f"{FORMAT_VERSION}: use the release that started the run"
            )
        run = msgspec.json.decode(data, type=AbRun)
    except msgspec.MsgspecError as error:
        raise CorruptedObject(
            f"{where} does not describe an A/B run: {error}; start the run again"
        ) from None
    without = {*run.sinks, *run.sinks.values()} - run.starts.keys()
    if without:
        raise CorruptedObject(
            f"{where} names no start of {', '.join(sorted(without))}: expected one for each topic "
            "of its sinks; start the run again"
        )
    return run


def load(store: SnapshotStore, app: str, variant: str) -> AbRun:
    """The run of ``variant``. Raises ConfigurationError when there is none, and as `decode`."""
    key = key_of(app, variant)
    known = store.list(f"{app}/ab/")
    if key not in known:
        names = [each.rpartition("/")[2].removesuffix(".json") for each in known]
        raise ConfigurationError(
            f"application {app!r} has no A/B run of a variant {variant!r} in {store.url}; "
            + (f"its variants: {', '.join(names)}" if names else "start one: penstock ab start")
        )
    return decode(store.get(key), f"{store.url}/{key}")


class _Version(msgspec.Struct):
    format_version: int
