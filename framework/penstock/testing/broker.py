"""SimulatedBroker: what Kafka does with transactions and logs, as far as the protocol leans on it.

Transactions of version 1, as librdkafka speaks them (measured on Kafka 4.1): EndTxn checks the
transactional id, the producer id and the epoch and nothing else, the epoch stays the same over the
transactions of one producer, an initialisation aborts what is open and fences what came before, a
timeout aborts and moves the epoch on. It passes the same contract as a real Kafka
(tests/contract/broker.py).

Everything is a value: a fork of a broker is cheap, and two brokers with the same past have the same
``key``.
"""

from typing import Any, NamedTuple

import msgspec

Partition = tuple[str, int]

EMPTY, ONGOING, COMMITTED, ABORTED = "Empty", "Ongoing", "CompleteCommit", "CompleteAbort"


class Refused(Exception):
    """The broker's error code for a request."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Entry(NamedTuple):
    """One record of a partition; ``writer`` is set inside a transaction, ``marker`` ends one."""

    key: str | None
    value: Any
    writer: int | None = None
    marker: str | None = None


class Log(NamedTuple):
    """One partition. ``digest`` stands for the entries when two pasts are compared."""

    entries: tuple[Entry, ...] = ()
    digest: int = 0

    def appended(self, entry: Entry) -> "Log":
        return Log((*self.entries, entry), hash((self.digest, entry)))


class Transactional(msgspec.Struct, frozen=True):
    """What the transaction coordinator knows of one transactional id."""

    producer_id: int
    epoch: int
    timeout_ms: int
    state: str = EMPTY
    began_ms: int = 0
    writes: tuple[tuple[Partition, int], ...] = ()
    """(partition, offset) of every record of the transaction that is or was last open."""


class SimulatedBroker:
    """Logs and transactions of one cluster."""

    def __init__(self) -> None:
        self.logs: dict[Partition, Log] = {}
        self.ids: dict[str, Transactional] = {}
        self.now_ms = 0
        self.next_producer_id = 1000

    def fork(self) -> "SimulatedBroker":
        """A broker with the same past."""
        other = SimulatedBroker.__new__(SimulatedBroker)
        other.logs = dict(self.logs)
        other.ids = dict(self.ids)
        other.now_ms = self.now_ms
        other.next_producer_id = self.next_producer_id
        return other

    def key(self) -> int:
        """Equal for equal pasts."""
        logs = tuple(sorted((partition, log.digest) for partition, log in self.logs.items()))
        return hash((logs, tuple(sorted(self.ids.items(), key=_name))))

    # -- logs

    def append(self, topic: str, partition: int, key: str | None, value: Any) -> int:
        """Write one record outside of transactions; its offset."""
        return self._append((topic, partition), Entry(key, value))

    def end(self, topic: str, partition: int) -> int:
        """The log end offset."""
        return len(self._log((topic, partition)).entries)

    def entry(self, topic: str, partition: int, offset: int) -> Entry:
        """The record at an offset, whatever became of its transaction."""
        return self._log((topic, partition)).entries[offset]

    def stable_end(self, topic: str, partition: int) -> int:
        """The last stable offset: the first record of an open transaction, else the log end."""
        at = (topic, partition)
        firsts = [
            offset
            for known in self.ids.values()
            if known.state == ONGOING
            for place, offset in known.writes
            if place == at
        ]
        return min(firsts, default=self.end(topic, partition))

    def read(
        self, topic: str, partition: int, start: int = 0, *, committed: bool = True
    ) -> list[tuple[int, Entry]]:
        """(offset, record) from ``start`` on; with ``committed`` as a read_committed consumer."""
        entries = self._log((topic, partition)).entries
        end = self.stable_end(topic, partition) if committed else len(entries)
        outcome: dict[int, str] = {}
        found = []
        for offset in range(len(entries) - 1, start - 1, -1):
            entry = entries[offset]
            if entry.marker is not None and entry.writer is not None:
                outcome[entry.writer] = entry.marker
            elif offset < end and (
                entry.writer is None or not committed or outcome.get(entry.writer) == COMMITTED
            ):
                found.append((offset, entry))
        found.reverse()
        return found

    # -- transactions

    def initialise(self, name: str, timeout_ms: int = 60_000) -> tuple[int, int]:
        """InitProducerId: aborts what is open, fences older producers; (producer id, epoch)."""
        known = self.ids.get(name)
        if known is None:
            fresh = Transactional(self.next_producer_id, 0, timeout_ms)
            self.next_producer_id += 1
        else:
            if known.state == ONGOING:
                known = self._ended(name, known, ABORTED, epoch=known.epoch + 1)
            fresh = Transactional(known.producer_id, known.epoch + 1, timeout_ms)
        self.ids[name] = fresh
        return fresh.producer_id, fresh.epoch

    def write(
        self,
        name: str,
        producer: tuple[int, int],
        topic: str,
        partition: int,
        *,
        key: str | None,
        value: Any,
    ) -> int:
        """Write one record of a transaction, which begins with its first one."""
        known = self._known(name, producer)
        if known.state != ONGOING:
            known = msgspec.structs.replace(known, state=ONGOING, began_ms=self.now_ms, writes=())
        at = (topic, partition)
        offset = self._append(at, Entry(key, value, known.producer_id))
        self.ids[name] = msgspec.structs.replace(known, writes=(*known.writes, (at, offset)))
        return offset

    def end_transaction(self, name: str, producer: tuple[int, int], *, commit: bool) -> bool:
        """EndTxn; True when this request ended the transaction, False when it was ended so before.

        Raises Refused with the broker's code.
        """
        known = self._known(name, producer)
        wanted = COMMITTED if commit else ABORTED
        if known.state == wanted:
            return False
        if known.state != ONGOING:
            raise Refused("INVALID_TXN_STATE")
        self._ended(name, known, wanted, epoch=known.epoch)
        return True

    def transactions(self, prefix: str) -> dict[str, str]:
        """Transactional id -> state."""
        return {name: known.state for name, known in self.ids.items() if name.startswith(prefix)}

    def advance(self, now_ms: int) -> list[str]:
        """Time passes; the ids whose transactions were aborted because they were open too long."""
        self.now_ms = now_ms
        late = [
            name
            for name, known in self.ids.items()
            if known.state == ONGOING and now_ms - known.began_ms >= known.timeout_ms
        ]
        for name in late:
            self.time_out(name)
        return late

    def time_out(self, name: str) -> None:
        """The transaction of ``name`` was open for too long."""
        known = self.ids[name]
        if known.state == ONGOING:
            self._ended(name, known, ABORTED, epoch=known.epoch + 1)

    def forget(self, name: str) -> None:
        """The id expires: nothing is known of it any more."""
        self.time_out(name)
        del self.ids[name]

    # -- parts

    def _known(self, name: str, producer: tuple[int, int]) -> Transactional:
        known = self.ids.get(name)
        if known is None or known.producer_id != producer[0]:
            raise Refused("INVALID_PRODUCER_ID_MAPPING")
        if known.epoch != producer[1]:
            raise Refused("PRODUCER_FENCED")
        return known

    def _ended(self, name: str, known: Transactional, state: str, *, epoch: int) -> Transactional:
        for partition in sorted({at for at, _ in known.writes}):
            self._append(partition, Entry(None, None, known.producer_id, state))
        ended = msgspec.structs.replace(known, state=state, epoch=epoch)
        self.ids[name] = ended
        return ended

    def _append(self, partition: Partition, entry: Entry) -> int:
        log = self._log(partition)
        self.logs[partition] = log.appended(entry)
        return len(log.entries)

    def _log(self, partition: Partition) -> Log:
        return self.logs.get(partition) or _NOTHING


_NOTHING = Log()


def _name(item: tuple[str, Transactional]) -> str:
    return item[0]
