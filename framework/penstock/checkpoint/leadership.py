"""The values of one leadership: settings, the coordinator's state, its events and its effects."""

from enum import Enum
from typing import TypeAlias

import msgspec

from penstock.checkpoint import history as hist
from penstock.control import AnyDecision, AnyReport, SubtaskSnapshot
from penstock.graph import ServiceSpec
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How an application is run; times in milliseconds."""

    services: dict[str, int]
    """Service -> subtasks."""
    interval_ms: int = 1000
    min_pause_ms: int = 0
    timeout_ms: int = 600_000
    tolerable_failures: int = 3
    """Consecutive failed checkpoints that are only counted; one more restarts the attempt."""
    heartbeat_timeout_ms: int = 10_000
    resume_grace_ms: int = 3_000
    """How long a new leader waits for the workers of a running attempt before it restores."""
    retained: int = 2
    sweep_interval_ms: int = 10_000
    """How often transactions that a woken subtask of an old attempt opened are looked for."""
    restart_initial_ms: int = 500
    restart_max_ms: int = 60_000
    steady_ms: int = 10_000
    """An attempt that completes a checkpoint after running so long ends a series of failures: a
    poisonous record may come behind any number of checkpoints that complete."""
    mode: str = "EXACTLY_ONCE"
    savepoint: str = ""
    """Start from this savepoint, unless it was the last one that was imported."""
    savepoint_checkpoint: CheckpointId = CheckpointId(0)
    """The checkpoint that it was: the application's ids go on above it."""
    request_timeout_ms: int = 15_000
    """A savepoint that nobody asked for again so long is no longer wanted."""

    @property
    def pool(self) -> int:
        """Transactional ids of a sink subtask: one open, one prepared, one cooling, one to spare,
        and one for each failed checkpoint that is tolerated.
        """
        return self.tolerable_failures + 4


class Phase(Enum):
    """Where the application is."""

    RESUMING = "resuming"
    BACKING_OFF = "backing off"
    RESTORING = "restoring"
    WAITING = "waiting for workers"
    MEASURING = "measuring edges"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Worker(msgspec.Struct, frozen=True):
    """A worker process as its reports show it."""

    service: str
    slot: int | None
    seen_ms: int
    attempt: Attempt = Attempt(0)
    ready: bool = False
    finished: bool = False


class InFlight(msgspec.Struct, frozen=True):
    """The checkpoint that is being taken."""

    checkpoint: CheckpointId
    triggered_ms: int
    missing: frozenset[SubtaskId]
    snapshots: tuple[SubtaskSnapshot, ...] = ()
    storing: bool = False
    stop: bool = False
    savepoint: str = ""
    """The request that it answers."""


class Wanted(msgspec.Struct, frozen=True):
    """A savepoint that somebody waits for."""

    request: str
    stop: bool
    drain: bool
    seen_ms: int
    made_of: tuple[CheckpointId, str] | None = None
    """(checkpoint, manifest) once it is complete: kept until it was copied (C10)."""


class Coordinator(msgspec.Struct, frozen=True, kw_only=True):
    """State of one leadership."""

    settings: Settings
    term: Term
    history: hist.History
    phase: Phase
    now_ms: int
    since_ms: int
    """When the phase began."""
    workers: dict[str, Worker] = {}
    services: dict[str, ServiceSpec] = {}
    in_flight: InFlight | None = None
    last_triggered_ms: int = -1_000_000_000
    last_settled_ms: int = -1_000_000_000
    swept_ms: int = -1_000_000_000
    failures: int = 0
    """Consecutive failed checkpoints."""
    failed_attempts: int = 0
    """How many failed since one was steady; those whose process was lost are not counted."""
    due_ms: int = 0
    """When a backed-off restore may begin."""
    reason: str = ""
    restoring: CheckpointId | None = None
    confirmed: bool = False
    """The Restore of ``history.attempt`` was read back: no leader can go on with an older one."""
    restore_after: str | None = None
    """A restore that waits for the manifest in flight (C2)."""
    restore_lost: bool = False
    """It waits because a process is gone."""
    stop_asked: bool = False
    wanted: dict[str, Wanted] = {}
    """Savepoints that were asked for, by request, oldest first."""
    exhausted: frozenset[str] = frozenset()
    """Workers whose sources came to their end in this attempt."""


class Ticked(msgspec.Struct, frozen=True):
    """Time passed."""

    now_ms: int


class Reported(msgspec.Struct, frozen=True):
    """A record of the reports topic."""

    report: AnyReport
    now_ms: int


class DecisionRead(msgspec.Struct, frozen=True):
    """A record of the decision log after our Term record, ours or another's."""

    offset: int
    decision: AnyDecision


class ManifestStored(msgspec.Struct, frozen=True):
    """The manifest of the checkpoint is durable."""

    checkpoint: CheckpointId
    manifest: str
    now_ms: int


class ManifestFailed(msgspec.Struct, frozen=True):
    """The store did not take the manifest."""

    checkpoint: CheckpointId
    reason: str
    now_ms: int


class Recovered(msgspec.Struct, frozen=True):
    """Transactions are decided and ids fenced for ``attempt`` from ``checkpoint``."""

    attempt: Attempt
    checkpoint: CheckpointId | None


class Measured(msgspec.Struct, frozen=True):
    """The graph is checked, every edge exists, and these were their ends after Restore (L10)."""

    attempt: Attempt
    edge_starts: dict[str, list[int]]
    imported: str | None = None
    """The manifest that the savepoint became, durable."""


class RecoveryFailed(msgspec.Struct, frozen=True):
    """The recovery could not finish; ``fatal`` when only a person can help.

    ``fall_back`` names an older retained checkpoint whose output is whole.
    """

    attempt: Attempt
    reason: str
    fatal: bool = False
    fall_back: CheckpointId | None = None


class StopAsked(msgspec.Struct, frozen=True):
    """A person or a signal asked for a graceful stop."""


Event: TypeAlias = (
    Ticked
    | Reported
    | DecisionRead
    | ManifestStored
    | ManifestFailed
    | Recovered
    | Measured
    | RecoveryFailed
    | StopAsked
)


class Append(msgspec.Struct, frozen=True):
    """Append to the decision log, in order."""

    decision: AnyDecision


class StoreManifest(msgspec.Struct, frozen=True):
    """Write the manifest, then report ManifestStored or ManifestFailed."""

    checkpoint: CheckpointId
    snapshots: tuple[SubtaskSnapshot, ...]


class Recover(msgspec.Struct, frozen=True):
    """Decide transactions, fence the ids of attempts before (L14-L16), then report Recovered."""

    attempt: Attempt
    checkpoint: CheckpointId | None
    manifest: str | None
    older: CheckpointId | None = None
    """The retained checkpoint before this one: where a restore may fall back to."""
    importing: bool = False
    """The state will be a savepoint's: of this checkpoint only the transactions matter."""


class Measure(msgspec.Struct, frozen=True):
    """Check the graph, create or check its edges, read their ends (L10), then report Measured.

    With ``importing`` the savepoint of the settings becomes that checkpoint first (C9).
    """

    attempt: Attempt
    services: tuple[ServiceSpec, ...]
    importing: CheckpointId | None = None


class Retain(msgspec.Struct, frozen=True):
    """Only these checkpoints are kept: delete what no manifest of them names (L19, L24)."""

    checkpoints: tuple[tuple[CheckpointId, str], ...]


class Sweep(msgspec.Struct, frozen=True):
    """Fence what attempts before ``attempt`` hold open (L16).

    A subtask that slept through its recovery may have opened a transaction after it, which would
    hold back readers until its timeout.
    """

    attempt: Attempt


class Say(msgspec.Struct, frozen=True):
    """Tell people; no decision."""

    text: str


class Exit(msgspec.Struct, frozen=True):
    """The coordinator's work is over; ``error`` empty when it ended as asked."""

    error: str = ""


Effect: TypeAlias = Append | StoreManifest | Recover | Measure | Retain | Sweep | Say | Exit
Step: TypeAlias = tuple[Coordinator, tuple[Effect, ...]]


def replaced(state: Coordinator, **changes: object) -> Coordinator:
    """The state with some fields changed."""
    return msgspec.structs.replace(state, **changes)


def entered(state: Coordinator, phase: Phase, **changes: object) -> Coordinator:
    """The state at the beginning of a phase."""
    return replaced(state, phase=phase, since_ms=state.now_ms, **changes)


def appended(state: Coordinator, decision: AnyDecision) -> Step:
    """Append a decision of our own and fold it at once: the next one builds on it."""
    history, _ = hist.applied(state.history, -1, decision)
    return replaced(state, history=history), (Append(decision),)
