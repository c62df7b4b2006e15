"""What simulated processes share: the broker, the store, and the marks that tests look at."""

import zlib
from typing import Any, NamedTuple, Protocol

from penstock import control
from penstock.ids import Attempt, CheckpointId
from penstock.testing.broker import SimulatedBroker

APP = "sim"


class Crash(Exception):
    """The simulation itself is wrong: a machine asked for something that makes no sense."""


class Record(NamedTuple):
    """One record of a source."""

    partition: int
    offset: int
    key: str


class Mark(NamedTuple):
    """Something that happened, for invariants: a step of a machine, or a deed of a process."""

    what: str
    who: str
    before: Any = None
    event: Any = None
    after: Any = None
    effects: tuple[Any, ...] = ()


def edge_partition(key: str, partitions: int) -> int:
    """Where a key goes; any fixed function will do here."""
    return zlib.crc32(key.encode()) % partitions


class Surroundings(Protocol):
    """What a simulated process may do to the world around it."""

    broker: SimulatedBroker
    store: dict[str, Any]
    sources: tuple[tuple[str, ...], ...]
    """Source partition -> the key of each record."""
    eager: bool
    """Effects of a loop are performed at once: no crash falls between them."""
    now_ms: int

    def decision(self, offset: int) -> control.AnyDecision: ...

    def decide(self, decision: control.AnyDecision) -> int: ...

    def report(self, report: control.AnyReport) -> None: ...

    def may_trigger(self) -> bool:
        """Whether the plan has a checkpoint left."""
        ...

    def mark(self, mark: Mark) -> None: ...

    def id_attempt(self, attempt: Attempt) -> Attempt:
        """The attempt that a transactional id names."""
        ...

    def initialise(self, name: str, who: str) -> tuple[int, int]:
        """InitProducerId."""
        ...

    def commit(self, name: str, identity: tuple[int, int]) -> bool:
        """EndTxn(commit); whether the answer was definite (L17)."""
        ...

    def end_transaction(self, name: str, identity: tuple[int, int], *, commit: bool) -> bool:
        """EndTxn, with an answer."""
        ...

    def put(self, key: str, value: Any) -> bool:
        """Write an object; False when the store is down."""
        ...

    def manifest(self, key: str | None, attempt: Attempt) -> tuple[control.SubtaskSnapshot, ...]:
        """The snapshots of the checkpoint that ``attempt`` is restored from."""
        ...

    def chunk(self, key: str, attempt: Attempt) -> Any:
        """An object of the checkpoint that ``attempt`` is restored from."""
        ...

    def upstreams(self, deploy: control.Deploy) -> int: ...

    def witnesses(self) -> dict[str, CheckpointId]: ...
