"""The worker process: one slot of one service, attempt after attempt.

It follows the decision log, runs the subtasks that a Deploy gives it, and reports. A failure ends
the attempt, not the process: the next Deploy builds everything anew from the store.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from penstock.api import Service
from penstock.checkpoint import history as hist
from penstock.control import (
    Abort,
    AnyDecision,
    Complete,
    Deploy,
    Exhausted,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Ready,
    Report,
    Restore,
    Stop,
    TermBegan,
    Trigger,
    encode,
)
from penstock.failure import ConfigurationError, CorruptedObject, PenstockError, UserCodeFailed
from penstock.ids import Attempt
from penstock.runtime.deployment import Deployment
from penstock.runtime.events import say, where_raised
from penstock.runtime.follower import Follower
from penstock.runtime.plan import slot_of
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.runtime.pulse import Pulse

HEARTBEAT_S = 1.0
GC_THRESHOLDS = (50_000, 20, 1_000)
"""Millions of live objects of state: a full collection takes 100 ms a million, so it is rare."""
DRAIN_S = 8.0
"""How long a worker asked to leave waits for a checkpoint (containers are killed after 10 s)."""
CLOSE_S = 20.0
"""How long the clients of an old attempt may take to close before the process gives itself up."""


class Worker:
    """One worker process of a service."""

    def __init__(
        self,
        service: Service,
        kafka: Kafka,
        store: SnapshotStore,
        *,
        worker_id: str,
        slot: int | None,
        supervised: bool = False,
        until: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        self._until = until
        self._service = service
        self._spec = service.spec()
        self._kafka = kafka
        self._store = store
        self._id = worker_id
        self._slot = slot
        self._supervised = supervised
        self._explained = ""
        self._history = hist.History()
        self._deployment: Deployment | None = None
        self._attempt = Attempt(0)
        self._ready = False
        self._exhausted = False
        self._left: str | None = None
        self._leave_by: float | None = None
        self._stop_seen = False
        self._changing = threading.RLock()
        """Held where the deployment changes, so that no beat tells an old one after it."""

    def run(self) -> int:
        """Work until Stop or a signal; the process's exit code."""
        signal.signal(signal.SIGTERM, self._asked_to_leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._timeout_ms = self._kafka.transaction_timeout_ms()
        self._kafka.ensure_control_topics(self._spec.app)
        self._reports = self._kafka.log_writer(f"{self._spec.app}.reports")
        self._follower = Follower(self._kafka, self._spec.app)
        self._catch_up()
        self._join()
        self._pulse = Pulse(self._id, HEARTBEAT_S, self._beat)
        while self._left is None:
            self._turn()
        self._pulse.close()
        self._report_now(self._left)
        return 0

    def _beat(self) -> None:
        """Say that we live; who runs nothing offers itself again, for it may have been given up."""
        with self._changing:
            idle = self._deployment is None
            beat = self._offer() if idle else Heartbeat(worker=self._id, attempt=self._attempt)
            self._reports.append(encode(beat))
            if self._exhausted and not idle:
                self._reports.append(encode(self._exhaustion()))

    def _asked_to_leave(self, *_: Any) -> None:
        """SIGTERM: drain to the next barrier, so that nothing has to be done twice."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + DRAIN_S

    def _catch_up(self) -> None:
        """Fold what was decided before we came: nothing of it is for us."""
        deadline = time.monotonic() + 60
        while not self._follower.caught_up:
            for offset, decision in self._follower.take():
                self._history, _ = hist.applied(self._history, offset, decision)
            if time.monotonic() > deadline:
                raise PenstockError(
                    f"the decision log of {self._spec.app!r} could not be read within 60 s"
                )
            time.sleep(0.005)

    def _turn(self) -> None:
        for offset, decision in self._follower.take():
            self._history, counts = hist.applied(self._history, offset, decision)
            if counts:
                self._guarded(partial(self._decided, decision))
        deployment = self._deployment
        if deployment is None:
            time.sleep(0.002)
        else:
            self._guarded(deployment.turn)
            if not self._ready and deployment is self._deployment and deployment.is_ready:
                self._ready = True
                self._report(Ready(worker=self._id, attempt=self._attempt))
            if self._until is not None and self._ready and not self._exhausted:
                self._exhausted = deployment.exhausted
                if self._exhausted:
                    self._report(self._exhaustion())
            if deployment.finished:
                self._finish()
        now = time.monotonic()
        if self._leave_by is not None:
            self._drain(now)
        self._pulse.turned(now)
        self._reports.poll(0)

    def _guarded(self, call: Callable[[], Any]) -> None:
        """Run a part of the attempt; whatever it raises ends the attempt, and is told."""
        try:
            call()
        except Exception as error:
            attempt = self._attempt
            reason = f"{self._id}: {_told(error)}"
            fatal = isinstance(error, ConfigurationError | CorruptedObject)
            self._explain(error, attempt)
            with self._changing:
                self._give_up()
                self._report(Failed(worker=self._id, attempt=attempt, reason=reason, fatal=fatal))

    def _explain(self, error: Exception, attempt: Attempt) -> None:
        """What the coordinator, who tells the reason, cannot know: where in the code it was.

        A supervised worker shares its standard error with the coordinator: one of them is enough.
        """
        if not self._supervised:
            say(self._id, f"attempt {attempt} failed: {_told(error)}")
        frames = where_raised(error)
        if frames and frames != self._explained:
            say(self._id, f"attempt {attempt} failed here:\n{frames}")
        self._explained = frames

    def _decided(self, decision: AnyDecision) -> None:
        deployment = self._deployment
        match decision:
            case TermBegan():
                self._join()
            case Restore():
                self._give_up()
            case Deploy():
                self._give_up()
                if slot_of(decision, self._id) is not None:
                    self._deploy(decision)
            case Trigger() if deployment is not None:
                deployment.triggered(decision)
            case Complete() if deployment is not None:
                deployment.completed(decision)
            case Abort() if deployment is not None:
                deployment.aborted(decision)
            case Stop():
                self._stop_seen = True
                if deployment is None:
                    self._left = "stopped"
                else:
                    deployment.stopped(decision)

    def _deploy(self, deploy: Deploy) -> None:
        self._attempt = deploy.attempt
        self._ready = self._exhausted = False
        deployment = Deployment(
            deploy,
            self._id,
            self._service,
            self._kafka,
            self._store,
            report=self._report,
            timeout_ms=self._timeout_ms,
            until=self._until,
        )
        with self._changing:
            self._deployment = deployment
        deployment.open()
        # What was just restored lives long: the collector need not look at it again and again.
        gc.freeze()

    def _give_up(self) -> None:
        """Stop acting for the running attempt (L11); its clients close behind our back."""
        with self._changing:
            deployment, self._deployment = self._deployment, None
        if deployment is not None:
            closing = deployment.close()
            threading.Thread(target=_close_all, args=(closing,), daemon=True).start()

    def _drain(self, now: float) -> None:
        if self._deployment is None or not self._ready:
            self._left = self._left or "asked to leave"
        elif self._leave_by is not None and now > self._leave_by:
            self._left = f"asked to leave, no checkpoint within {DRAIN_S:.0f} s"
        else:
            self._deployment.drain()

    def _finish(self) -> None:
        attempt = self._attempt
        self._give_up()
        if self._stop_seen:
            self._report(Finished(worker=self._id, attempt=attempt))
        self._left = "finished" if self._stop_seen else "asked to leave, drained to a barrier"

    def _join(self) -> None:
        self._report(self._offer())

    def _exhaustion(self) -> Exhausted:
        return Exhausted(worker=self._id, attempt=self._attempt)

    def _offer(self) -> Join:
        running = self._attempt if self._deployment is not None else Attempt(0)
        return Join(worker=self._id, service=self._spec, slot=self._slot, attempt=running)

    def _report(self, report: Report) -> None:
        self._reports.append(encode(report))
        self._reports.poll(0)

    def _report_now(self, reason: str) -> None:
        if reason != "finished":
            self._report(Leave(worker=self._id, reason=reason))
        self._reports.flush(5)


def work(
    service: Service,
    kafka: Kafka,
    store: SnapshotStore,
    *,
    worker_id: str | None = None,
    slot: int | None = None,
    supervised: bool = False,
    until: Mapping[str, Mapping[int, int]] | None = None,
) -> int:
    """Run a worker to its end; its id is made when none is given.

    ``supervised``: a coordinator writes to the same standard error and tells why attempts fail.
    ``until``: topic -> partition -> offset at which the sources end.
    """
    # Background threads hold the interpreter for short; the loop must get it back sooner than 5 ms.
    sys.setswitchinterval(0.0005)
    gc.set_threshold(*GC_THRESHOLDS)
    name = worker_id or f"{service.name}-{os.urandom(4).hex()}"
    worker = Worker(
        service, kafka, store, worker_id=name, slot=slot, supervised=supervised, until=until
    )
    code = worker.run()
    # Clients of given-up attempts may still be closing in threads: nothing of theirs is needed.
    sys.stderr.flush()
    os._exit(code)


def _close_all(closing: list[Callable[[], None]]) -> None:
    guard = threading.Timer(CLOSE_S, lambda: os._exit(70))
    guard.daemon = True
    guard.start()
    for close in closing:
        try:
            close()
        except Exception as error:
            say("worker", f"closing an old client: {error}")
    guard.cancel()


def _told(error: BaseException) -> str:
    if isinstance(error, UserCodeFailed | PenstockError):
        return str(error)
    return f"{type(error).__name__}: {error}"
