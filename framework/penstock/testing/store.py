"""SimulatedStore: the snapshot store in memory, for tests that make it fail.

It passes the same contract as the real ones (tests/contract/store.py), so what a test shows with
it is not a fiction. Faults are ordered beforehand and happen to the calls that follow.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from enum import Enum

from penstock.failure import ConfigurationError, StoreFailed
from penstock.snapshot.objects import (
    checked_key,
    checked_prefix,
    missing,
    settled,
    verified,
)


class Damage(Enum):
    """What has become of an object's bytes where they lie."""

    FLIPPED = "one bit is different"
    TRUNCATED = "the last byte is gone"
    EXTENDED = "one byte too many"
    MISSING = "the object is gone"


class StoreCrash(BaseException):
    """The process dies inside a call of the store; no ``except Exception`` survives it."""


class SimulatedStore:
    """Objects in a dict. Two stores with the same ``objects`` are two clients of one server.

    ``calls`` lists what was asked, as (method, key); ``sleep`` stands for time passing.
    """

    def __init__(
        self,
        url: str = "simulated://store",
        objects: dict[str, bytes] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self.objects: dict[str, bytes] = {} if objects is None else objects
        self.calls: list[tuple[str, str]] = []
        self.down = False
        """While True every call fails, and ``check`` says that the store cannot be reached."""
        self.latency_s = 0.0
        """How long each call takes."""
        self._sleep = sleep
        self._lock = threading.RLock()
        self._failures: list[tuple[str | None, str, bool]] = []
        self._crashes: list[tuple[str | None, bool]] = []
        self._listed: list[str] | None = None

    def __repr__(self) -> str:
        return f"SimulatedStore({self.url!r}, {len(self.objects)} objects)"

    # -- faults -----------------------------------------------------------------------------------

    def fail_next(
        self,
        times: int = 1,
        *,
        call: str | None = None,
        cause: str = "503 SlowDown",
        after_effect: bool = False,
    ) -> None:
        """The next ``times`` calls (of method ``call``, or of any) raise StoreFailed.

        ``after_effect``: the work is done all the same and only the answer is lost.
        """
        self._failures += [(call, cause, after_effect)] * times

    def crash_next(self, *, call: str | None = None, after_effect: bool = False) -> None:
        """The next call (of method ``call``, or of any) raises StoreCrash, before or after."""
        self._crashes.append((call, after_effect))

    def damage(self, key: str, how: Damage = Damage.FLIPPED) -> None:
        """Spoil an object where it lies."""
        data = self.objects[key]
        match how:
            case Damage.FLIPPED:
                middle = len(data) // 2
                flipped = bytes([data[middle] ^ 1])
                self.objects[key] = data[:middle] + flipped + data[middle + 1 :]
            case Damage.TRUNCATED:
                self.objects[key] = data[:-1]
            case Damage.EXTENDED:
                self.objects[key] = data + b"\0"
            case Damage.MISSING:
                del self.objects[key]

    def freeze_listing(self) -> None:
        """From now on ``list`` shows what is there now, however old (a stale list)."""
        self._listed = list(self.objects)

    def heal(self) -> None:
        """Forget every fault ordered so far; damaged objects stay as they are."""
        self.down = False
        self.latency_s = 0.0
        self._failures.clear()
        self._crashes.clear()
        self._listed = None

    # -- the port ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises ConfigurationError while the store is down."""
        try:
            self._done(self._begun("check", ""))
        except StoreFailed as exc:
            raise ConfigurationError(str(exc)) from None

    def put(self, key: str, data: bytes) -> None:
        """Write one object; the same bytes again succeed, other bytes are refused."""
        checked_key(key)
        fault = self._begun("put", key)
        self._write(key, bytes(data))
        self._done(fault)

    def put_stream(self, key: str, parts: Iterable[bytes]) -> tuple[int, str]:
        """Write one object from parts; nothing is there when they fail; (size, sha256 hex)."""
        checked_key(key)
        fault = self._begun("put_stream", key)
        data = b"".join(parts)
        self._write(key, data)
        self._done(fault)
        return len(data), hashlib.sha256(data).hexdigest()

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object; CorruptedObject when missing or not of this size and sum."""
        checked_key(key)
        fault = self._begun("get", key)
        data = self.objects.get(key)
        self._done(fault)
        if data is None:
            raise missing(self.url, key)
        return verified(self.url, key, data, size=size, sha256=sha256)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone already do not matter."""
        names = [checked_key(key) for key in keys]
        fault = self._begun("delete", ",".join(names))
        with self._lock:
            for name in names:
                self.objects.pop(name, None)
        self._done(fault)

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted."""
        checked_prefix(prefix)
        fault = self._begun("list", prefix)
        with self._lock:
            names = list(self.objects) if self._listed is None else self._listed
        self._done(fault)
        return sorted(name for name in names if name.startswith(prefix))

    def _write(self, key: str, data: bytes) -> None:
        with self._lock:
            there = self.objects.setdefault(key, data)
        settled(self.url, key, there, len(data), hashlib.sha256(data).hexdigest())

    def _begun(self, call: str, key: str) -> tuple[BaseException, bool] | None:
        """Faults before the effect happen here; one for after it is returned."""
        with self._lock:
            self.calls.append((call, key))
            fault = self._fault(call, key)
        if self.latency_s:
            self._sleep(self.latency_s)
        if fault is not None and not fault[1]:
            raise fault[0]
        return fault

    def _done(self, fault: tuple[BaseException, bool] | None) -> None:
        """A fault for after the effect happens here."""
        if fault is not None:
            raise fault[0]

    def _fault(self, call: str, key: str) -> tuple[BaseException, bool] | None:
        for order, (wanted, after) in enumerate(self._crashes):
            if wanted in {None, call}:
                del self._crashes[order]
                when = "after" if after else "before"
                return StoreCrash(f"crash {when} the effect of {call} {key!r}"), after
        if self.down:
            return StoreFailed(f"{self.url} did not {call} {key!r}: it is down; start it"), False
        for order, (wanted, cause, after) in enumerate(self._failures):
            if wanted in {None, call}:
                del self._failures[order]
                return StoreFailed(f"{self.url} did not {call} {key!r}: {cause}"), after
        return None
