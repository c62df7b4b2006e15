"""Asking a running application for a savepoint, and making it (``penstock savepoint trigger``).

The coordinator takes the checkpoint and keeps it for as long as it is asked for; turning it into
open tables happens here, with the credentials and the memory of whoever wants it. A trigger that
dies leaves files without a manifest, which nobody reads.
"""

import secrets
import time
from collections.abc import Callable

import msgspec

from penstock.checkpoint import history as hist
from penstock.control import (
    Abort,
    AnyDecision,
    Complete,
    SavepointAsked,
    SavepointReleased,
    Stop,
    Trigger,
    decode_decision,
    encode,
)
from penstock.failure import ConfigurationError, PenstockError, TransportFailed
from penstock.ids import CheckpointId, transactional_prefix
from penstock.runtime.background import Background
from penstock.runtime.ports import Kafka, LogReader, LogWriter

ASK_EVERY_S = 1.0
TELL_EVERY_S = 5.0


class SavepointFailed(PenstockError):
    """No savepoint was made; the application is as it was."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    app: str
    stop: bool = False
    drain: bool = False
    timeout_s: float = 600.0
    """How long the coordinator may take until the checkpoint is complete."""


class SavepointTrigger:
    """One savepoint on its way."""

    def __init__(self, wish: Wish, kafka: Kafka, tell: Callable[[str], None]) -> None:
        self._wish = wish
        self._kafka = kafka
        self._tell = tell
        self._request = secrets.token_hex(6)
        self._history = hist.History()
        self._checkpoint: CheckpointId | None = None
        self._manifest: str | None = None
        self._stopped = False
        self._asked_at = 0.0
        self._told_at = time.monotonic()
        self._decisions: LogReader
        self._reports: LogWriter

    def run(self, make: Callable[[CheckpointId, str], str]) -> str:
        """Take the checkpoint, let ``make`` turn it into a savepoint; what ``make`` returned.

        ``make(checkpoint, manifest key)`` runs in a thread, while the checkpoint is kept. With a
        stop it returns when everything up to the savepoint is committed. Raises SavepointFailed.
        """
        app = self._wish.app
        try:
            self._kafka.end_positions(f"{app}.decisions")
        except ConfigurationError:
            raise ConfigurationError(
                f"there is no application {app!r} in this cluster: topic {app + '.decisions'!r} "
                "does not exist; name the app= of its services, and check --bootstrap"
            ) from None
        self._decisions = self._kafka.log_reader(f"{app}.decisions", "earliest")
        self._reports = self._kafka.log_writer(f"{app}.reports")
        try:
            self._await(lambda: self._manifest is not None, self._wish.timeout_s, self._waiting)
            url = self._made(make)
            if self._wish.stop or self._wish.drain:
                self._await(lambda: self._stopped, 120, lambda: "waits for the stop")
                self._await_commits()
            return url
        finally:
            released = SavepointReleased(worker=self._name, request=self._request)
            self._reports.append(encode(released))
            self._reports.flush(10)
            self._reports.close()
            self._decisions.close()

    @property
    def _name(self) -> str:
        return f"savepoint-{self._request}"

    def _made(self, make: Callable[[CheckpointId, str], str]) -> str:
        checkpoint, manifest = self._checkpoint, self._manifest
        if checkpoint is None or manifest is None:
            raise SavepointFailed("no checkpoint was taken")
        self._tell(f"checkpoint {checkpoint} is complete; writing the savepoint")
        work = Background(1, "savepoint")
        results: list[str] = []
        errors: list[BaseException] = []
        work.submit(lambda: make(checkpoint, manifest), results.append, errors.append)
        while not results and not errors:
            self._turn()
            work.wait(0.1)
            work.drain()
        work.close()
        if errors:
            raise errors[0]
        return results[0]

    def _await(self, holds: Callable[[], bool], timeout_s: float, doing: Callable[[], str]) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            self._turn()
            now = time.monotonic()
            if now > deadline:
                raise SavepointFailed(
                    f"application {self._wish.app!r} {doing()}, after {timeout_s:.0f} s: is its "
                    "coordinator running, and do its checkpoints complete?"
                )
            if now - self._told_at >= TELL_EVERY_S:
                self._told_at = now
                self._tell(f"application {self._wish.app!r} {doing()}")

    def _waiting(self) -> str:
        if self._checkpoint is None:
            return "has taken no checkpoint for it yet"
        return f"takes checkpoint {self._checkpoint}"

    def _turn(self) -> None:
        """Ask again, and read what was decided."""
        now = time.monotonic()
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            asked = SavepointAsked(
                worker=self._name,
                request=self._request,
                stop=self._wish.stop or self._wish.drain,
                drain=self._wish.drain,
                checkpoint=self._checkpoint if self._manifest is not None else None,
            )
            self._reports.append(encode(asked))
        self._reports.poll(0)
        for record in self._decisions.poll(0.1):
            decision = decode_decision(record.data)
            self._history, counts = hist.applied(self._history, record.offset, decision)
            if counts:
                self._decided(decision)

    def _decided(self, decision: AnyDecision) -> None:
        match decision:
            case Trigger() if decision.savepoint == self._request:
                self._checkpoint = decision.checkpoint
            case Abort() if decision.checkpoint == self._checkpoint and self._manifest is None:
                self._checkpoint = None
                self._tell(f"checkpoint {decision.checkpoint} failed: {decision.reason}; again")
            case Complete() if decision.checkpoint == self._checkpoint:
                self._manifest = decision.manifest
            case Stop() if self._manifest is not None:
                self._stopped = True

    def _await_commits(self) -> None:
        """Every transaction of the application is decided: its output is visible (L14)."""
        prefix = transactional_prefix(self._wish.app)
        recovery = self._kafka.recovery(self._wish.app)
        try:
            deadline = time.monotonic() + 60
            while left := recovery.open_transactions(prefix):
                if time.monotonic() > deadline:
                    raise TransportFailed(
                        f"the savepoint is made and application {self._wish.app!r} has stopped, "
                        f"but {len(left)} of its transactions are still open: {sorted(left)[:3]}; "
                        "start it once more, so that they are decided"
                    )
                time.sleep(0.1)
        finally:
            recovery.close()
