"""What travels between the coordinator and the workers, and nothing else they share.

Decisions are the records of ``<app>.decisions``; reports those of ``<app>.reports``. Both are
tagged msgpack maps: a newer version adds fields with defaults, unknown tags are an error.
"""

from typing import Any, cast

import msgspec

from penstock.failure import ProtocolViolation
from penstock.graph import ServiceSpec
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term


class Decision(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A record of the decision log, the only truth (L1)."""

    term: Term = Term(-1)
    """The writer's term; a Term record carries -1, its own offset is the term."""


class TermBegan(Decision, frozen=True, tag="Term", kw_only=True):
    """A coordinator claims leadership: whatever lesser terms write after it is void."""

    leader: str


class Restore(Decision, frozen=True, kw_only=True):
    """Attempt ``attempt`` is about to be restored from ``checkpoint`` (None: from nothing).

    Written before any recovery effect: workers of older attempts stop at it, and a later leader
    that finds it without its Deploy starts a new attempt, which fences what this one may still do.
    """

    attempt: Attempt
    checkpoint: CheckpointId | None
    manifest: str | None
    reason: str


class Deploy(Decision, frozen=True, kw_only=True):
    """Attempt ``attempt`` runs: who does what, from which manifest, edges read from where."""

    attempt: Attempt
    checkpoint: CheckpointId | None
    manifest: str | None
    services: tuple[ServiceSpec, ...]
    parallelism: dict[str, int]
    """Subtasks of each service."""
    assignment: dict[str, str]
    """``<service>/<index>`` -> worker id."""
    edge_starts: dict[str, list[int]]
    """Per edge and partition the log end before this attempt wrote its first frame (L10)."""
    pool: int
    """Producer slots of each sink subtask: bounds the transactional ids (L16)."""
    mode: str = "EXACTLY_ONCE"


class Trigger(Decision, frozen=True, kw_only=True):
    """Sources take barrier ``checkpoint``."""

    attempt: Attempt
    checkpoint: CheckpointId
    kind: str = "checkpoint"
    """checkpoint; stop: take no record after it; drain: a stop that fires every timer before."""
    at_ms: int = 0
    """The coordinator's clock, for statistics only."""
    savepoint: str = ""
    """The request that it answers, when it becomes a savepoint."""

    @property
    def stops(self) -> bool:
        """The application stops with this checkpoint."""
        return self.kind in ("stop", "drain")


class Complete(Decision, frozen=True, kw_only=True):
    """Checkpoint ``checkpoint`` is complete; its manifest is durable (L2)."""

    attempt: Attempt
    checkpoint: CheckpointId
    manifest: str


class Import(Decision, frozen=True, kw_only=True):
    """Checkpoint ``checkpoint`` is complete: it was made of the savepoint that ``savepoint`` names.

    It ends the line of every checkpoint before (H4); their transactions were decided by the
    recovery of ``attempt``, and it has none of its own (L22, L23).
    """

    attempt: Attempt
    checkpoint: CheckpointId
    manifest: str
    savepoint: str


class Abort(Decision, frozen=True, kw_only=True):
    """Checkpoint ``checkpoint`` will never complete. Its transactions live on (decision 0004)."""

    attempt: Attempt
    checkpoint: CheckpointId
    reason: str


class Stop(Decision, frozen=True, kw_only=True):
    """The application stops after checkpoint ``checkpoint``: commit what it holds, then leave."""

    attempt: Attempt
    checkpoint: CheckpointId | None


class Summary(Decision, frozen=True, kw_only=True):
    """All that a reader needs of the log before this record, so that the log can be cut."""

    attempt: Attempt
    next_checkpoint: CheckpointId
    retained: tuple[tuple[CheckpointId, str], ...]
    """(checkpoint, manifest) of each retained checkpoint, oldest first."""
    sinks: dict[str, tuple[int, int]]
    """Per sink operator the greatest (parallelism, pool) ever deployed: all ids to fence (L16)."""
    parallelism: dict[str, int] = {}
    deploy: "Deploy | None" = None
    """The deployment that is running, if any."""
    imported: str = ""
    """The savepoint that was imported last."""


class Committable(msgspec.Struct, frozen=True, order=True):
    """A pre-committed transaction: everything that lets any process decide it (L13, L14)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    checkpoint: CheckpointId
    topic: str
    partitions: tuple[int, ...]
    records: int


class ChunkRef(msgspec.Struct, frozen=True):
    """One object of keyed and operator state in a subtask's chain (L19).

    ``low`` <= bucket < ``high`` are the buckets of the object that this chain takes from it. An
    inline chunk stands inside the manifest object ``key``, under the entry ``entry``.
    """

    key: str
    size: int
    sha256: str
    low: int
    high: int
    base: bool = False
    entry: str | None = None


class SubtaskSnapshot(msgspec.Struct, frozen=True):
    """One subtask's part of a checkpoint (L4)."""

    subtask: SubtaskId
    buckets: tuple[int, int]
    """First owned partition of the input, and one past the last."""
    positions: dict[str, dict[int, int]]
    """Source topic -> partition -> next offset; empty for a stage that reads an edge."""
    edge_positions: dict[int, int]
    """Edge partition -> first offset not yet reflected: what is older may be deleted (L24)."""
    watermark: int
    """Event time reached by this subtask, ms; MIN_WATERMARK when none."""
    chain: tuple[ChunkRef, ...]
    operator_state: dict[str, dict[str, list[bytes]]]
    """Operator uid -> state name -> encoded list elements, split evenly on restore (L20)."""
    transactions: tuple[Committable, ...]
    """Every transaction not yet proven committed, older ones too (L13)."""
    inline: dict[str, bytes] = {}
    """Entry -> bytes of chunks that travel with this record."""
    stats: dict[str, float] = {}
    """Milliseconds start_delay_ms, alignment_ms, sync_ms, async_ms; bytes state_bytes,
    checkpointed_bytes, held_bytes."""


class Report(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A record of ``<app>.reports``, from one worker process."""

    worker: str


class Join(Report, frozen=True, kw_only=True):
    """A worker offers one slot of a service; sent again whenever a new term begins."""

    service: ServiceSpec
    slot: int | None = None
    """The subtask index this worker was started for, None: any."""
    attempt: Attempt = Attempt(0)
    """The attempt it is running now, 0: none."""


class Heartbeat(Report, frozen=True, kw_only=True):
    """The worker lives, and runs this attempt."""

    attempt: Attempt


class Ready(Report, frozen=True, kw_only=True):
    """All subtasks of the worker have restored attempt ``attempt`` and process records."""

    attempt: Attempt


class Acknowledge(Report, frozen=True, kw_only=True):
    """A subtask's snapshot is durable and its transactions are pre-committed."""

    attempt: Attempt
    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot


class Decline(Report, frozen=True, kw_only=True):
    """A subtask cannot take this checkpoint; the attempt goes on."""

    attempt: Attempt
    checkpoint: CheckpointId
    subtask: SubtaskId
    reason: str


class Failed(Report, frozen=True, kw_only=True):
    """A subtask cannot go on; ``fatal`` means that a restart cannot help."""

    attempt: Attempt
    reason: str
    fatal: bool = False


class Finished(Report, frozen=True, kw_only=True):
    """The worker committed everything up to Stop and leaves."""

    attempt: Attempt


class Exhausted(Report, frozen=True, kw_only=True):
    """Every source of the worker has come to the end that it was given."""

    attempt: Attempt


class SavepointAsked(Report, frozen=True, kw_only=True):
    """Somebody wants a savepoint, and says so again every second for as long as it is wanted.

    With ``checkpoint`` the one that it is made of is complete: keep it until it was copied.
    """

    request: str
    stop: bool = False
    drain: bool = False
    checkpoint: CheckpointId | None = None


class SavepointReleased(Report, frozen=True, kw_only=True):
    """The savepoint is made, or no longer wanted."""

    request: str


class Leave(Report, frozen=True, kw_only=True):
    """The worker process is gone (said by itself, or by the supervisor that saw it exit)."""

    reason: str


AnyDecision = TermBegan | Restore | Deploy | Trigger | Complete | Import | Abort | Stop | Summary
AnyReport = (
    Join
    | Heartbeat
    | Ready
    | Acknowledge
    | Decline
    | Failed
    | Exhausted
    | Finished
    | SavepointAsked
    | SavepointReleased
    | Leave
)

_encoder = msgspec.msgpack.Encoder()
_decisions: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyDecision)
_reports: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyReport)


def encode(record: Decision | Report) -> bytes:
    """The bytes of a control record."""
    return _encoder.encode(record)


def decode_decision(data: bytes) -> AnyDecision:
    """The decision in ``data``; raises ProtocolViolation when it is not one."""
    return cast("AnyDecision", _decoded(_decisions, data, "decision log"))


def decode_report(data: bytes) -> AnyReport:
    """The report in ``data``; raises ProtocolViolation when it is not one."""
    return cast("AnyReport", _decoded(_reports, data, "reports topic"))


def _decoded(decoder: msgspec.msgpack.Decoder[Any], data: bytes, where: str) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(
            f"a record of the {where} is not a control record of this version: {error}; check that "
            "nothing else writes to the topic and that all processes run one version of penstock"
        ) from error
