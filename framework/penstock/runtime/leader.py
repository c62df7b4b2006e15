"""The coordinator process: performs what the coordinator's machine decides.

One loop: reports, the decision log's tail and finished background work come in as events; effects
go out. Appends to the decision log are ordered and made by this loop only; storing manifests,
recovery and deletion happen in background threads.
"""

import os
import signal
import time
from importlib import import_module
from typing import Any

import msgspec

from penstock.application import union_specs
from penstock.checkpoint import coordinator as machine
from penstock.checkpoint import history as hist
from penstock.control import (
    AnyDecision,
    Complete,
    Deploy,
    Restore,
    SubtaskSnapshot,
    TermBegan,
    Trigger,
    decode_decision,
    decode_report,
    encode,
)
from penstock.failure import (
    ConfigurationError,
    CorruptedObject,
    PenstockError,
    TransportFailed,
)
from penstock.graph import ServiceSpec
from penstock.ids import CheckpointId, Position, Term
from penstock.runtime.background import Background
from penstock.runtime.events import EventLog, say
from penstock.runtime.faultpoint import reached
from penstock.runtime.follower import Follower
from penstock.runtime.janitor import Janitor
from penstock.runtime.plan import check_parallelism
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.runtime.recovery import edge_starts, recover
from penstock.snapshot import manifest as manifests
from penstock.snapshot.assign import check_graph

FATAL = 4
"""Exit code of an end that a restart cannot help; 1 is a crash, 2 configuration, 3 passing."""
SUMMARY_EVERY = 2000
"""Records of the decision log after which a Summary is written and the log is cut."""
REPEAT_S = 60.0
AWAKE_STEP_S = 1.0


class AwakeClock:
    """The time in which this process was awake, in ms: while it slept nobody else was late."""

    def __init__(self) -> None:
        self._seen = time.monotonic()
        self._awake_s = 0.0

    def now_ms(self) -> int:
        """Time goes on by no more than AWAKE_STEP_S from one look to the next."""
        now = time.monotonic()
        self._awake_s += min(now - self._seen, AWAKE_STEP_S)
        self._seen = now
        return int(self._awake_s * 1000)


class Origin(msgspec.Struct, frozen=True):
    """The savepoint that an application is started from."""

    store: SnapshotStore
    """Opened at the savepoint's own folder."""
    claim: bool
    """The application owns it from now on, and deletes it when it needs it no more."""


class Leader:
    """One coordinator of an application, from its Term record to its exit."""

    def __init__(
        self,
        app: str,
        settings: machine.Settings,
        kafka: Kafka,
        store: SnapshotStore,
        events: EventLog,
        *,
        accept_loss: bool = False,
        allow_dropped: bool = False,
        stop: bool = False,
        origin: Origin | None = None,
    ) -> None:
        self._origin = origin
        self._app = app
        self._settings = settings
        self._kafka = kafka
        self._store = store
        self._events = events
        self._accept_loss = accept_loss
        self._allow_dropped = allow_dropped
        self._work = Background(2, "coordinator")
        self._janitor = Janitor(app, kafka, store)
        self._exit: machine.Exit | None = None
        self._stop_asked = stop
        self._appended = 0
        self._triggered: dict[CheckpointId, float] = {}
        self._clock = AwakeClock()
        self._said: dict[str, float] = {}

    def ask_stop(self, *_: Any) -> None:
        """Signal handler: a graceful stop."""
        self._stop_asked = True

    def run(self) -> int:
        """Lead until stopped; the process's exit code."""
        signal.signal(signal.SIGTERM, self.ask_stop)
        signal.signal(signal.SIGINT, self.ask_stop)
        self._kafka.transaction_timeout_ms()
        self._kafka.ensure_control_topics(self._app)
        # Fixed before our Term record: the joins that answer it come after this offset.
        end = self._kafka.end_positions(f"{self._app}.reports")[0]
        self._reports = self._kafka.log_reader(f"{self._app}.reports", end)
        self._decisions = self._kafka.log_writer(f"{self._app}.decisions")
        term = self._claim()
        history = self._history(term)
        self._tail = Follower(self._kafka, self._app, self._work, start=term + 1)
        self._state, effects = machine.coordinator(
            self._settings, term, history, self._clock.now_ms()
        )
        say("coordinator", f"leads {self._app!r} in term {term}")
        self._perform(effects)
        while self._exit is None:
            self._turn()
        self._decisions.flush(10)
        self._janitor.close()
        self._tail.close()
        self._work.close()
        if self._exit.error:
            say("coordinator", self._exit.error)
        return FATAL if self._exit.error else 0

    def _claim(self) -> Term:
        """Append our Term record; its offset is our term (L1)."""
        written: list[tuple[int | None, str | None]] = []
        claim = TermBegan(leader=f"{os.uname().nodename}-{os.getpid()}")
        self._decisions.append(encode(claim), lambda *result: written.append(result))
        self._decisions.flush(30)
        self._decisions.poll(0)
        offset, error = written[0] if written else (None, "no answer")
        if offset is None:
            raise TransportFailed(f"the Term record of {self._app!r} was not written: {error}")
        return Term(offset)

    def _history(self, term: Term) -> hist.History:
        """Fold the log up to and with our own Term record, and only then decide (L1)."""
        reader = self._kafka.log_reader(f"{self._app}.decisions", "earliest")
        history, deadline = hist.History(), time.monotonic() + 60
        try:
            while time.monotonic() < deadline:
                for record in reader.poll(0.2):
                    history, _ = hist.applied(history, record.offset, decode_decision(record.data))
                    if record.offset == term:
                        return history
        finally:
            reader.close()
        raise TransportFailed(
            f"the decision log of {self._app!r} could not be read to offset {term}"
        )

    def _turn(self) -> None:
        if self._stop_asked:
            self._stop_asked = False
            self._event(machine.StopAsked())
        self._work.drain()
        self._decisions.poll(0)
        for offset, decision in self._tail.take():
            self._event(machine.DecisionRead(offset, decision))
        for record in self._reports.poll(0.001 if self._state.in_flight else 0.004):
            report = decode_report(record.data)
            self._event(machine.Reported(report, self._clock.now_ms()))
        self._event(machine.Ticked(self._clock.now_ms()))

    def _event(self, event: machine.Event) -> None:
        before = self._state.phase
        self._state, effects = machine.step(self._state, event)
        self._perform(effects)
        if self._state.phase is machine.Phase.RUNNING and before is not machine.Phase.RUNNING:
            deploy = self._state.history.deploy
            checkpoint = deploy.checkpoint if deploy is not None else None
            self._attempt_event(self._state.history.attempt, checkpoint, "running", "")

    def _perform(self, effects: tuple[machine.Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case machine.Append(decision):
                    self._append(decision)
                case machine.StoreManifest(checkpoint, snapshots):
                    self._store_manifest(checkpoint, snapshots)
                case machine.Recover():
                    self._recover(effect)
                case machine.Measure():
                    self._measure(effect)
                case machine.Sweep(attempt):
                    self._janitor.sweep(attempt)
                case machine.Retain(checkpoints):
                    reached("a12")
                    self._janitor.retain(checkpoints, self._state.history.attempt)
                    self._claim_savepoint()
                case machine.Say(text):
                    self._say(text)
                case machine.Exit():
                    self._exit = effect

    # -- effects

    def _append(self, decision: AnyDecision) -> None:
        def written(_: int | None, error: str | None) -> None:
            if (
                error is not None
            ):  # leadership without a log is none: leave, and let a new term begin
                raise TransportFailed(f"the decision log of {self._app!r} took no record: {error}")

        self._decisions.append(encode(decision), written)
        self._decisions.poll(0)
        self._told(decision)
        self._appended += 1
        if self._appended % SUMMARY_EVERY == 0 and self._state.in_flight is None:
            self._summarise()

    def _summarise(self) -> None:
        summary = hist.summary(self._state.history, self._settings.retained)

        def written(offset: int | None, _: str | None) -> None:
            if offset is not None:
                self._janitor.cut(f"{self._app}.decisions", {0: Position(offset)})

        self._decisions.append(encode(summary), written)

    def _store_manifest(
        self, checkpoint: CheckpointId, snapshots: tuple[SubtaskSnapshot, ...]
    ) -> None:
        deploy = self._state.history.deploy
        if deploy is None:
            return
        key = manifests.object_key(self._app, checkpoint, self._state.term)
        data = manifests.encode(
            manifests.build(self._app, self._state.term, checkpoint, deploy, snapshots)
        )
        self._stats(checkpoint, snapshots, len(data))

        def stored(_: Any) -> None:
            reached("a8")
            self._janitor.remember(key, data)
            self._event(machine.ManifestStored(checkpoint, key, self._clock.now_ms()))

        def failed(error: BaseException) -> None:
            self._event(machine.ManifestFailed(checkpoint, str(error), self._clock.now_ms()))

        self._work.submit(lambda: self._store.put(key, data), stored, failed)

    def _recover(self, effect: machine.Recover) -> None:
        self._work.submit(
            lambda: recover(
                self._kafka,
                self._store,
                self._app,
                effect,
                accept_loss=self._accept_loss,
            ),
            self._event,
            lambda error: self._event(machine.RecoveryFailed(effect.attempt, repr(error))),
        )

    def _measure(self, effect: machine.Measure) -> None:
        def measure() -> machine.Event:
            union_specs(effect.services)
            check_parallelism(effect.services, self._settings.services)
            imported = None
            if effect.importing is None:
                self._check_manifest(effect.services)
            else:
                imported = self._import(effect, effect.importing)
            starts = edge_starts(self._kafka, self._app, effect.services)
            return machine.Measured(effect.attempt, starts, imported)

        def failed(error: BaseException) -> None:
            fatal = isinstance(error, ConfigurationError | CorruptedObject)
            self._event(machine.RecoveryFailed(effect.attempt, str(error), fatal=fatal))

        self._work.submit(measure, self._event, failed)

    def _check_manifest(self, services: tuple[ServiceSpec, ...]) -> None:
        """Refuse a graph that would leave state of the restored checkpoint behind."""
        manifest = hist.completed_at(self._state.history, self._state.restoring)
        if manifest is not None:
            loaded = manifests.load(self._store.get(manifest), manifest)
            check_graph(loaded, services, allow_dropped=self._allow_dropped)

    def _import(self, effect: machine.Measure, checkpoint: CheckpointId) -> str:
        """Turn the savepoint into objects of our own; the key of its durable manifest (C9, L22)."""
        if self._origin is None:
            raise ConfigurationError("the savepoint to start from is not named: --from-savepoint")
        # Only here: Parquet takes a third of a second to import, which no recovery should wait for.
        reading = import_module("penstock.savepoint.reading")
        restoring = import_module("penstock.savepoint.restoring")
        savepoint = reading.Savepoint.open(self._origin.store)
        say("coordinator", f"reads savepoint {savepoint.url}")
        prefix = f"{self._app}/imports/{self._state.term}-{effect.attempt}"
        manifest = restoring.imported(
            savepoint,
            effect.services,
            self._app,
            prefix=prefix,
            checkpoint=checkpoint,
            term=self._state.term,
            attempt=effect.attempt,
            put=self._store.put,
            partitions=self._kafka.partitions,
            allow_dropped=self._allow_dropped,
            mode=self._settings.mode,
        )
        key = f"{prefix}/manifest.json"
        self._store.put(key, manifests.encode(manifest))
        return key

    def _claim_savepoint(self) -> None:
        """A later checkpoint is complete: a savepoint that was claimed is needed no more."""
        origin, self._origin = self._origin, None
        if origin is None or not origin.claim:
            return
        if self._state.history.imported != self._settings.savepoint:
            self._origin = origin
            return
        disposing = import_module("penstock.savepoint.disposing")
        self._janitor.later(lambda: disposing.dispose(origin.store))

    # -- what people and programs are told

    def _say(self, text: str) -> None:
        """Tell people; what is true again and again is told once a minute."""
        now = time.monotonic()
        if now - self._said.get(text, -REPEAT_S) < REPEAT_S:
            return
        if len(self._said) > 200:
            self._said.clear()
        self._said[text] = now
        say("coordinator", text)

    def _told(self, decision: AnyDecision) -> None:
        match decision:
            case Trigger():
                self._triggered = {decision.checkpoint: time.monotonic()}
            case Complete():
                stats = self._last_stats if self._last_stats[0] == decision.checkpoint else (0, {})
                self._checkpoint_event(decision.checkpoint, "completed", **stats[1])
            case Restore():
                self._attempt_event(
                    decision.attempt, decision.checkpoint, "restoring", decision.reason
                )
            case Deploy():
                self._attempt_event(decision.attempt, decision.checkpoint, "deployed", "")
            case _ if hasattr(decision, "reason") and hasattr(decision, "checkpoint"):
                self._checkpoint_event(decision.checkpoint, "failed", reason=decision.reason)

    _last_stats: tuple[int, dict[str, float]] = (0, {})

    def _stats(
        self, checkpoint: CheckpointId, snapshots: tuple[SubtaskSnapshot, ...], size: int
    ) -> None:
        names = ("sync_ms", "alignment_ms", "async_ms", "start_delay_ms")
        worst = {n: max((s.stats.get(n, 0.0) for s in snapshots), default=0.0) for n in names}
        total = sum(s.stats.get("checkpointed_bytes", 0.0) for s in snapshots)
        began = self._triggered.get(checkpoint, time.monotonic())
        acknowledged = (time.monotonic() - began) * 1000
        self._last_stats = (
            checkpoint,
            {**worst, "bytes": total + size, "acknowledged_ms": acknowledged},
        )

    def _checkpoint_event(self, checkpoint: CheckpointId | None, status: str, **more: Any) -> None:
        began = self._triggered.get(checkpoint) if checkpoint is not None else None
        duration = (time.monotonic() - began) * 1000 if began is not None else None
        self._events.emit(
            "checkpoint", checkpoint=checkpoint, status=status, duration_ms=duration, **more
        )

    def _attempt_event(self, attempt: int, checkpoint: int | None, state: str, reason: str) -> None:
        self._events.emit(
            "attempt", attempt=attempt, checkpoint=checkpoint, state=state, reason=reason
        )


def lead(
    app: str,
    settings: machine.Settings,
    kafka: Kafka,
    store: SnapshotStore,
    events: EventLog,
    *,
    accept_loss: bool = False,
    allow_dropped: bool = False,
    stop: bool = False,
    origin: Origin | None = None,
) -> int:
    """Run a coordinator to its end; one clear line on standard error when it cannot run."""
    try:
        leader = Leader(
            app,
            settings,
            kafka,
            store,
            events,
            accept_loss=accept_loss,
            allow_dropped=allow_dropped,
            stop=stop,
            origin=origin,
        )
        return leader.run()
    except ConfigurationError as error:
        say("coordinator", str(error))
        return 2
    except (PenstockError, msgspec.MsgspecError) as error:
        say("coordinator", str(error))
        return 3
