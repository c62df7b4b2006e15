"""The manifest of a savepoint: the one document that names what is in it (L22).

JSON, so that a person can read it, and written last, so that it publishes. What it names is checked
before anybody follows it: paths stay inside the savepoint, sums are sums, ranges are ranges, and
every file belongs to an operator and a state that the manifest lists.
"""

import hashlib
import re
from typing import Literal, TypeAlias

import msgspec

from penstock.failure import ConfigurationError, CorruptedObject
from penstock.record import MAX_WATERMARK
from penstock.schema import Schema, flaw
from penstock.snapshot.objects import is_key

FORMAT_VERSION = 1
MANIFEST_KEY = "manifest.json"
POSITIONS = "positions"
"""Name of the one state of a source."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VALUES = {"map": "map", "operator_broadcast": "map", "timers": "int", "positions": "int"}
"""What the value of a kind of state must be."""
_HEX = re.compile(r"([0-9a-f]{2})*")
_SUM = re.compile(rb'"sha256"\s*:\s*"([0-9a-f]{64})"\s*\}\s*\Z')
_ZEROS = "0" * 64

StateKind: TypeAlias = Literal[
    "value",
    "list",
    "map",
    "reducing",
    "aggregating",
    "timers",
    "operator_list",
    "operator_union",
    "operator_broadcast",
    "positions",
]
KEYED_KINDS = frozenset({"value", "list", "map", "reducing", "aggregating", "timers"})
"""State by key: its rows have a key group and a key."""
Ownership: TypeAlias = Literal["key_group", "partition", "none"]


class KeyHash(msgspec.Struct, frozen=True, kw_only=True):
    """How the bytes of a key become its key group; Spark's ``pmod(xxhash64(key), n)``."""

    algorithm: str = "xxh64"
    seed: int = 42
    input: str = "msgpack"
    """What is hashed: the canonical msgpack bytes of the key, the column ``key``."""
    modulo: str = "pmod"


class SourceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where a source stood: the NEXT offset of each partition."""

    uid: str
    stage: str
    topic: str
    positions: dict[int, int]


class WatermarkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Event time reached by buckets [low, high) of the input of a stage, of ``partitions``."""

    stage: str
    low: int
    high: int
    partitions: int
    watermark_ms: int


class StateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One state of an operator, and how its rows look."""

    name: str
    kind: StateKind
    key: Schema | None = None
    """Type of the key; None for state without one."""
    value: Schema
    """Type of the value; of a list its element, of a map a map."""
    columns: dict[str, str] = {}
    """Field of a flattened struct -> its column, only where they differ."""


class OperatorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A step with a stable uid, or a source (kind ``source``, with the state ``positions``)."""

    uid: str
    kind: str
    service: str
    stage: str
    parallelism: int
    ownership: Ownership
    """What decides who owns a key: its key group, or the source partition that it came from."""
    partitions: int
    """Partitions of the stage's input."""
    states: tuple[StateEntry, ...]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file, its sum, and the bounds of what stands in it."""

    path: str
    operator: str
    state: str
    rows: int
    bytes: int
    sha256: str
    key_group_min: int | None = None
    key_group_max: int | None = None
    """The last key group in the file, itself included; None for state without keys."""
    lower: dict[str, int | str] = {}
    """The first row of a keyed state: ``key_group``, ``partition`` when its rows have one, and
    ``key`` in hex. No other file of the state has a row between this and ``upper``."""
    upper: dict[str, int | str] = {}
    """The last row."""


class SavepointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one savepoint."""

    format_version: int = FORMAT_VERSION
    savepoint_id: str
    app: str
    checkpoint: int
    created_at_ms: int
    created_by: str
    parent: str | None = None
    """The savepoint or checkpoint that this one was made from, for people."""
    max_parallelism: int
    hash: KeyHash = KeyHash()
    sources: tuple[SourceEntry, ...] = ()
    watermarks: tuple[WatermarkEntry, ...] = ()
    operators: tuple[OperatorEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    sha256: str = _ZEROS
    """Of the document's bytes with these 64 digits as zeros; always the last field."""


def encode(manifest: SavepointManifest) -> bytes:
    """The bytes of the document, with its own sum in it."""
    plain = msgspec.json.encode(msgspec.structs.replace(manifest, sha256=_ZEROS))
    text = msgspec.json.format(plain, indent=2)
    return _with_sum(text, hashlib.sha256(text).hexdigest())


_decoder = msgspec.json.Decoder(SavepointManifest)


class _Version(msgspec.Struct, frozen=True):
    """What is looked at first: the rest may have another shape in a later version."""

    format_version: int


def load(data: bytes, where: str) -> SavepointManifest:
    """The manifest in the document ``data``, which stands at ``where``.

    Raises CorruptedObject naming it and what is wrong, or ConfigurationError when a later version
    of the format wrote it.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).format_version
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise corrupted(where, str(error)) from error
    if version != FORMAT_VERSION:
        raise ConfigurationError(
            f"savepoint {where} has format version {version}, this penstock reads "
            f"{FORMAT_VERSION}; use the version of penstock that wrote it"
        )
    found = _SUM.search(data)
    if found is None:
        raise corrupted(where, "its last field is not a sha256")
    sha256 = found[1].decode()
    plain = _with_sum(data, _ZEROS)
    if hashlib.sha256(plain).hexdigest() != sha256:
        raise corrupted(where, f"its sum is not the {sha256} that it says")
    try:
        manifest = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise corrupted(where, str(error)) from error
    _Check(manifest, where).all()
    return manifest


def corrupted(where: str, reason: str) -> CorruptedObject:
    """The error for a manifest that cannot be used."""
    return CorruptedObject(
        f"the manifest of savepoint {where} is damaged: {reason}; take the savepoint again, or "
        "restore another one"
    )


def _with_sum(data: bytes, sha256: str) -> bytes:
    found = _SUM.search(data)
    assert found is not None, "every document ends with its sum"
    return data[: found.start(1)] + sha256.encode() + data[found.end(1) :]


class _Check:
    """What must hold of a manifest that was read, in the order in which it is looked at."""

    def __init__(self, manifest: SavepointManifest, where: str) -> None:
        self.manifest = manifest
        self.where = where
        self.kinds: dict[tuple[str, str], str] = {}
        self.ownership: dict[str, str] = {}
        self.positions = {source.uid for source in manifest.sources}

    def all(self) -> None:
        """Raise CorruptedObject, or ConfigurationError for a hash that this version lacks."""
        manifest = self.manifest
        if manifest.hash != KeyHash():
            raise ConfigurationError(
                f"savepoint {self.where} places keys by {manifest.hash}, this penstock by "
                f"{KeyHash()}; use the version of penstock that wrote it"
            )
        self._must(0 < manifest.max_parallelism <= 1 << 15, "max_parallelism is out of range")
        self._must(_sane(manifest.checkpoint, manifest.created_at_ms), "a number is out of range")
        self._names(manifest.app, manifest.savepoint_id)
        for source in manifest.sources:
            self._source(source)
        for mark in manifest.watermarks:
            self._names(mark.stage)
            fits = 0 <= mark.low <= mark.high <= mark.partitions and _sane(mark.partitions)
            fits = fits and abs(mark.watermark_ms) <= MAX_WATERMARK
            self._must(fits, f"a watermark of stage {mark.stage!r} has a wrong range")
        for operator in manifest.operators:
            self._operator(operator)
        paths = [file.path for file in manifest.files]
        self._must(len(set(paths)) == len(paths), "it names a file twice")
        for file in manifest.files:
            self._file(file)

    def _must(self, holds: bool, reason: str) -> None:
        if not holds:
            raise corrupted(self.where, reason)

    def _names(self, *names: str) -> None:
        for name in names:
            self._must(is_key(name) and "/" not in name, f"{_short(name)} is not a name")

    def _source(self, source: SourceEntry) -> None:
        self._names(source.uid, source.stage)
        twice = sum(other.uid == source.uid for other in self.manifest.sources) > 1
        self._must(not twice, f"source {source.uid!r} stands in it twice")
        numbers = [*source.positions, *source.positions.values()]
        self._must(_sane(*numbers), f"source {source.uid!r} has a position out of range")

    def _operator(self, operator: OperatorEntry) -> None:
        self._names(operator.uid, operator.service, operator.stage)
        self._must(operator.uid not in self.ownership, f"operator {operator.uid!r} is in it twice")
        self.ownership[operator.uid] = operator.ownership
        sizes = _sane(operator.parallelism, operator.partitions)
        self._must(sizes, f"operator {operator.uid!r} has a size out of range")
        for state in operator.states:
            named = f"state {_short(state.name)} of operator {operator.uid!r}"
            self._must((operator.uid, state.name) not in self.kinds, f"{named} is in it twice")
            self.kinds[operator.uid, state.name] = state.kind
            keyed = state.kind in KEYED_KINDS
            self._must(keyed == (state.key is not None), f"{named} must have a key when keyed")
            for schema in (state.key, state.value):
                found = None if schema is None else flaw(schema)
                self._must(found is None, f"{named} has a schema that is none: {found}")
            wanted = _VALUES.get(state.kind)
            fits = wanted is None or (state.value.kind == wanted and not state.value.nullable)
            self._must(fits, f"{named} is {state.kind} state of {state.value.kind}")

    def _file(self, file: FileEntry) -> None:
        named = f"file {_short(file.path)}"
        folder = file.path.split("/", 1)[0]
        inside = is_key(file.path) and folder in {"data", "sources"}
        self._must(inside, f"{named} is not a path inside the savepoint")
        self._must(_SHA256.fullmatch(file.sha256) is not None, f"{named} has a wrong sum")
        self._must(_sane(file.rows, file.bytes), f"{named} has a size out of range")
        kind = self.kinds.get((file.operator, file.state))
        self._must(kind is not None, f"{named} belongs to no operator and state that it lists")
        low, high = file.key_group_min, file.key_group_max
        if kind not in KEYED_KINDS:
            self._must(low is None and high is None, f"{named} has key groups but no keys")
            return
        if low is None or high is None:
            raise corrupted(self.where, f"{named} has no range of key groups")
        inside = 0 <= low <= high < self.manifest.max_parallelism
        self._must(inside, f"{named} has key groups {low} to {high}")
        self._bounds(file, named)

    def _bounds(self, file: FileEntry, named: str) -> None:
        wanted: dict[str, type] = {"key_group": int, "key": str}
        if self.ownership[file.operator] == "partition":
            wanted["partition"] = int
        for bounds in (file.lower, file.upper):
            fits = bounds.keys() == wanted.keys() and all(
                type(bounds[name]) is kind for name, kind in wanted.items()
            )
            self._must(fits, f"{named} has bounds {_short(bounds)}")
            self._must(
                _HEX.fullmatch(str(bounds["key"])) is not None, f"{named} has a bound not in hex"
            )
        first, last = (
            (bounds["key_group"], bounds.get("partition", 0), bounds["key"])
            for bounds in (file.lower, file.upper)
        )
        self._must(first <= last, f"{named} has a last row before its first")
        ends = (file.lower["key_group"], file.upper["key_group"])
        fits = ends == (file.key_group_min, file.key_group_max)
        self._must(fits, f"{named} has bounds of other key groups than its range")


def _sane(*numbers: int) -> bool:
    """Whether all are counts or offsets that there can be."""
    return all(0 <= number < 1 << 62 for number in numbers)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
