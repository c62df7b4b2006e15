"""What the runtime needs from Kafka and from a snapshot store, and nothing more.

Implementations: `penstock_kafka`, `penstock_minio`; simulated ones in `penstock.testing`. Blocking
calls say so: they are made from background threads, never from the loop of a subtask.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from penstock.control import Committable
from penstock.ids import CheckpointId, Position


class SourceRun(NamedTuple):
    """Consecutive records of one source partition: four lists of equal length, in offset order."""

    partition: int
    messages: Sequence[Any]
    """The client's messages; ``offset_of(messages[i])`` names a record in an error."""
    keys: list[bytes | None]
    values: list[bytes | None]
    times: list[int]
    """Kafka timestamps, ms since the epoch."""
    next_position: Position
    is_at_end: bool
    """The partition held nothing more when it was read; a run may say only that."""


class SourceReader(Protocol):
    """Reads the owned partitions of one topic, read_committed, by static assignment."""

    started: dict[int, Position]
    """Where each partition was started from, resolved when the reader was made."""
    exhausted: bool
    """Every partition was given up to the end that it was to be read to."""

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRun]:
        """Records ready now, waiting at most ``timeout_s`` for the first; [] when there are none.

        Returns as soon as one record is there. Raises TransportFailed, or ConfigurationError when a
        position is no longer in the topic (deleted by retention) or the topic is gone.
        """
        ...

    def offset_of(self, message: Any) -> int: ...

    def commit_for_monitoring(self, positions: dict[int, Position]) -> None:
        """Give positions to the consumer group for lag dashboards; never read back."""
        ...

    def close(self) -> None: ...


class EdgeFrame(NamedTuple):
    """One Kafka message of an edge."""

    partition: int
    offset: int
    data: bytes


class EdgeReader(Protocol):
    """Reads the owned partitions of one edge topic from given positions."""

    def poll(self, max_frames: int, timeout_s: float) -> list[EdgeFrame]:
        """Frames ready now, waiting at most ``timeout_s`` for the first. Raises TransportFailed."""
        ...

    def seek(self, partition: int, position: Position) -> None:
        """Read ``partition`` again from ``position`` (L7: Kafka is the spill)."""
        ...

    def close(self) -> None: ...


class EdgeSender(Protocol):
    """Writes frames to one or more edge topics, idempotently, in order per partition."""

    def send(self, edge: str, partition: int, frame: bytes) -> None:
        """Queue one frame; waits only when the client's queue is full."""
        ...

    def poll(self) -> None:
        """Serve delivery reports; raises TransportFailed when a frame could not be delivered."""
        ...

    def close(self) -> None: ...


class SinkProducer(Protocol):
    """One transactional id of a sink subtask's pool, in the life of one attempt (L13-L17)."""

    transactional_id: str

    def open(self) -> None:
        """Blocking: initialise transactions, learn producer id and epoch. TransportFailed."""
        ...

    def begin(self) -> None: ...

    def write(
        self, keys: list[bytes | None], values: list[bytes | None], times: list[int] | None
    ) -> None:
        """Queue records of the open transaction; waits only when the client's queue is full.

        Raises TransportFailed when an earlier record of this transaction failed.
        """
        ...

    def precommit(self, checkpoint: CheckpointId) -> Committable:
        """Blocking: write the witness, flush, check every delivery (L13, L15). TransportFailed."""
        ...

    def commit(self) -> bool:
        """Blocking: commit. True when nothing on the way was indefinite, so that the producer may
        be used again (L17); False when committed for sure but the producer must be thrown away.
        Raises TransportFailed when it is not known to be committed.
        """
        ...

    def look(self) -> None:
        """Often, from the loop: TransportFailed when the client can never go on."""
        ...

    def close(self) -> None:
        """Give up the client without waiting; an open transaction is left to recovery."""
        ...


class Outcome(Enum):
    """What a recovery's EndTxn said (the decision table in docs/concepts/sinks.md)."""

    COMMITTED = "committed"
    AMBIGUOUS = "ambiguous"


class Recovery(Protocol):
    """Decides transactions of dead subtasks from any process; all calls block (L14-L16)."""

    def commit(self, transaction: Committable) -> Outcome:
        """EndTxn(commit) with the stored producer id and epoch, one pinned version, retried."""
        ...

    def transactional_ids(self, prefix: str) -> set[str]:
        """Every transactional id that the cluster knows with this prefix."""
        ...

    def fence(self, transactional_ids: Iterable[str]) -> None:
        """InitProducerId for each: aborts what is open, fences every older producer."""
        ...

    def witnesses(self) -> dict[str, CheckpointId]:
        """Newest committed witness of each transactional id (read_committed, to the end)."""
        ...

    def open_transactions(self, prefix: str) -> dict[str, str]:
        """Transactional id -> state, of those under ``prefix`` that are not finished."""
        ...

    def close(self) -> None: ...


class LogRecord(NamedTuple):
    """A record of a control topic."""

    offset: int
    data: bytes


class LogWriter(Protocol):
    """Appends to one single-partition control topic, acks=all, idempotent, in order."""

    def append(
        self, data: bytes, on_written: Callable[[int | None, str | None], None] | None = None
    ) -> None:
        """Queue a record; ``on_written(offset, error)`` is called from ``poll``."""
        ...

    def poll(self, timeout_s: float = 0.0) -> None: ...

    def flush(self, timeout_s: float) -> None:
        """Blocking: wait until all is written; raises TransportFailed."""
        ...

    def close(self) -> None: ...


class LogReader(Protocol):
    """Reads one single-partition control topic from an offset on."""

    def poll(self, timeout_s: float) -> list[LogRecord]:
        """Records ready now, waiting at most ``timeout_s`` for the first. TransportFailed."""
        ...

    def close(self) -> None: ...


class Kafka(Protocol):
    """Everything that is made out of one cluster's settings; picklable, opens nothing by itself."""

    def check(self) -> None:
        """Reach the cluster or raise ConfigurationError naming it and the cause."""
        ...

    def partitions(self, topic: str) -> int:
        """Partition count; ConfigurationError naming the topic when it does not exist."""
        ...

    def ensure_control_topics(self, app: str) -> None:
        """Create or verify decisions, reports, witness (1 partition each, the last compacted)."""
        ...

    def ensure_edge(self, app: str, edge: str, partitions: int) -> None:
        """Create the edge topic or verify its partition count, else ConfigurationError."""
        ...

    def end_positions(self, topic: str) -> list[int]:
        """Log end offset of each partition (read_uncommitted)."""
        ...

    def delete_before(self, topic: str, positions: dict[int, Position]) -> None:
        """Delete records before the positions (L24)."""
        ...

    def positions_at(self, topic: str, at_ms: int) -> list[int]:
        """First offset of each partition whose record is not older; the end where none is."""
        ...

    def copy_topic(self, topic: str, copy: str) -> None:
        """Create ``copy`` with the partitions and the settings of ``topic``, or verify it."""
        ...

    def topics_under(self, prefix: str) -> list[str]:
        """Names of the topics that begin with ``prefix``, sorted."""
        ...

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Delete topics; those that are gone already do not matter."""
        ...

    def transaction_timeout_ms(self) -> int:
        """The greatest transaction timeout the broker allows; ConfigurationError when too small."""
        ...

    def source_reader(
        self,
        topic: str,
        positions: dict[int, Position | None],
        start: str,
        group: str,
        *,
        want_keys: bool = True,
        until: Mapping[int, int] | None = None,
    ) -> SourceReader:
        """Reader of the given partitions; None means ``start`` ("earliest" or "latest").

        Without ``want_keys`` the keys of its runs are all None. With ``until`` it ends: no record
        at or after that offset of a partition is given.
        """
        ...

    def edge_reader(self, app: str, edge: str, positions: dict[int, Position]) -> EdgeReader: ...

    def edge_sender(self, app: str) -> EdgeSender: ...

    def sink_producer(
        self, app: str, topic: str, transactional_id: str, timeout_ms: int
    ) -> SinkProducer: ...

    def log_writer(self, topic: str) -> LogWriter: ...

    def log_reader(self, topic: str, start: int | str) -> LogReader:
        """``start``: an offset, "earliest" or "latest"."""
        ...

    def recovery(self, app: str) -> Recovery: ...


class SnapshotStore(Protocol):
    """Objects written once under names never reused (L19). Every call blocks; thread-safe."""

    url: str

    def check(self) -> None:
        """Reach the store and find the bucket, or raise ConfigurationError naming both."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write one object durably; retried with back-off; StoreFailed."""
        ...

    def put_stream(self, key: str, parts: Iterable[bytes]) -> tuple[int, str]:
        """Write one object part by part with bounded memory; returns (size, sha256 hex)."""
        ...

    def get(self, key: str, *, size: int | None = None, sha256: str | None = None) -> bytes:
        """Read one object; CorruptedObject naming it when missing or not of this size and sum."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone already do not matter."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys under a prefix, sorted."""
        ...
