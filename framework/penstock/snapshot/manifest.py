"""The manifest: the document that names everything in a checkpoint (L2, L19).

JSON, so that a person can read it. What it names is checked before anybody follows it: object keys
stay under the application's prefix, sums are sums, ranges tile.
"""

import base64
import hashlib
import re

import msgspec

from penstock.control import ChunkRef, Deploy, SubtaskSnapshot
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.graph import EdgeInputSpec, ServiceSpec
from penstock.ids import Attempt, CheckpointId, Position, Term
from penstock.snapshot.objects import older_checkpoint

FORMAT = 1
KEY_HASH = "xxh64-42-msgpack-pmod"
_UNSIGNED_HASH = "xxh64-42-msgpack"
"""The digest as an unsigned integer: what checkpoints of 0.1 were placed by (decision 0010)."""
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one complete checkpoint."""

    format: int
    app: str
    checkpoint: CheckpointId
    term: Term
    attempt: Attempt
    services: tuple[ServiceSpec, ...]
    """The graph that took it."""
    parallelism: dict[str, int]
    """Subtasks of each service."""
    max_parallelism: int
    key_hash: str
    """How keys become key groups."""
    mode: str
    subtasks: tuple[SubtaskSnapshot, ...]
    inline: dict[str, str]
    """Entry -> base64 of the small chunks that stand in this very object."""


def object_key(app: str, checkpoint: CheckpointId, term: Term) -> str:
    """The object that holds a checkpoint's manifest; a term never writes one twice (L19)."""
    return f"{app}/manifests/{checkpoint}-{term}.json"


def build(
    app: str,
    term: Term,
    checkpoint: CheckpointId,
    deploy: Deploy,
    snapshots: tuple[SubtaskSnapshot, ...],
) -> Manifest:
    """The manifest of acknowledged snapshots; inline chunks find their place in it."""
    own = object_key(app, checkpoint, term)
    inline: dict[str, str] = {}
    parts = []
    for snapshot in sorted(snapshots, key=lambda s: s.subtask):
        for entry, data in snapshot.inline.items():
            inline[entry] = base64.b64encode(data).decode()
        chain = tuple(
            msgspec.structs.replace(ref, key=own) if ref.entry is not None and not ref.key else ref
            for ref in snapshot.chain
        )
        parts.append(msgspec.structs.replace(snapshot, chain=chain, inline={}))
    return Manifest(
        format=FORMAT,
        app=app,
        checkpoint=checkpoint,
        term=term,
        attempt=deploy.attempt,
        services=deploy.services,
        parallelism=deploy.parallelism,
        max_parallelism=max((s.max_parallelism for s in deploy.services), default=128),
        key_hash=KEY_HASH,
        mode=deploy.mode,
        subtasks=tuple(parts),
        inline=inline,
    )


def encode(manifest: Manifest) -> bytes:
    """The bytes of the object."""
    body = msgspec.json.encode(manifest)
    sha256 = hashlib.sha256(body).hexdigest().encode()
    return b'{"sha256":"' + sha256 + b'","manifest":' + body + b"}"


class _Envelope(msgspec.Struct, frozen=True):
    """The object: the manifest and the sum of its bytes, for nothing else names that sum."""

    sha256: str
    manifest: msgspec.Raw


_envelopes = msgspec.json.Decoder(_Envelope)
_decoder = msgspec.json.Decoder(Manifest)


def load(data: bytes, key: str) -> Manifest:
    """The manifest in the object ``key``.

    Raises CorruptedObject naming it, or ConfigurationError when a newer Penstock wrote it.
    """
    try:
        envelope = _envelopes.decode(data)
        body = bytes(envelope.manifest)
        found = hashlib.sha256(body).hexdigest()
        if found != envelope.sha256:
            raise _corrupted(key, f"its sum is {found}, expected {envelope.sha256}")
        manifest = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _corrupted(key, str(error)) from error
    if manifest.format != FORMAT:
        raise ConfigurationError(
            f"manifest {key!r} has format {manifest.format}, this penstock reads {FORMAT}; run the "
            "version that wrote it"
        )
    _check(manifest, key)
    return manifest


def places_alike(key_hash: str, max_parallelism: int) -> bool:
    """Whether ``key_hash`` gives every key the key group that `KEY_HASH` gives it."""
    is_power_of_two = max_parallelism & (max_parallelism - 1) == 0
    return key_hash == KEY_HASH or (key_hash == _UNSIGNED_HASH and is_power_of_two)


def entry(manifest: Manifest, ref: ChunkRef) -> bytes | None:
    """The bytes of an inline chunk of ``manifest``; None when it has no such entry.

    Raises CorruptedObject when the bytes are not of the reference's size.
    """
    text = None if ref.entry is None else manifest.inline.get(ref.entry)
    if text is None:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _corrupted(ref.key, f"entry {ref.entry!r} is not base64") from error
    if len(data) != ref.size:
        raise _corrupted(ref.key, f"entry {ref.entry!r} has {len(data)} bytes, expected {ref.size}")
    return data


def edge_positions(manifest: Manifest) -> dict[str, dict[int, Position]]:
    """Edge -> partition -> first offset that the checkpoint still needs (L24)."""
    edges = {
        stage.name: stage.input.uid
        for service in manifest.services
        for stage in service.stages
        if isinstance(stage.input, EdgeInputSpec)
    }
    needed: dict[str, dict[int, Position]] = {}
    for part in manifest.subtasks:
        edge = edges.get(part.subtask.stage)
        if edge is None:
            continue
        positions = needed.setdefault(edge, {})
        for partition, offset in part.edge_positions.items():
            least = min(offset, positions.get(partition, offset))
            positions[partition] = Position(least)
    return needed


def object_keys(manifest: Manifest) -> set[str]:
    """Every object that the manifest names, other manifests that hold inline chunks too."""
    return {ref.key for part in manifest.subtasks for ref in part.chain}


def _check(manifest: Manifest, key: str) -> None:
    seen = set()
    for part in manifest.subtasks:
        if part.subtask in seen:
            raise _corrupted(key, f"it has two snapshots of {part.subtask}")
        seen.add(part.subtask)
        low, high = part.buckets
        if not 0 <= low <= high:
            raise _corrupted(key, f"{part.subtask} owns partitions {low} to {high}")
        for ref in part.chain:
            _check_ref(manifest, key, ref)


def _check_ref(manifest: Manifest, key: str, ref: ChunkRef) -> None:
    if not _KEY.fullmatch(ref.key) or ".." in ref.key or not ref.key.startswith(f"{manifest.app}/"):
        raise _corrupted(
            key, f"it names the object {ref.key!r}, which is not one of {manifest.app!r}"
        )
    if not _SHA256.fullmatch(ref.sha256) or ref.size < 0 or not 0 <= ref.low <= ref.high:
        raise _corrupted(key, f"its reference to {ref.key!r} has a wrong sum, size or range")
    own = object_key(manifest.app, manifest.checkpoint, manifest.term)
    if ref.entry is not None and ref.key == own and ref.entry not in manifest.inline:
        raise _corrupted(key, f"it names an inline chunk {ref.entry!r} that it does not hold")


def _corrupted(key: str, reason: str) -> CorruptedObject:
    remedy = older_checkpoint(key.partition("/")[0])
    return CorruptedObject(f"manifest {key!r} is damaged: {reason}; {remedy}")
