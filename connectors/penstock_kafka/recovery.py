"""Deciding the transactions of the dead, from any process (L14-L16).

What EndTxn version 3 answers (docs/concepts/sinks.md, the decision table):

| answer | meaning | outcome |
|---|---|---|
| NONE | committed now, or committed before by the same producer and epoch | COMMITTED |
| CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS, no answer | not known yet | ask again |
| NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE | moved | find the coordinator, ask again |
| INVALID_TXN_STATE | aborted, or empty, under our epoch | AMBIGUOUS |
| PRODUCER_FENCED, INVALID_PRODUCER_EPOCH | initialised since, or timed out | AMBIGUOUS |
| INVALID_PRODUCER_ID_MAPPING | forgotten by the broker | AMBIGUOUS |
| TRANSACTIONAL_ID_AUTHORIZATION_FAILED | not allowed | ConfigurationError |

What is ambiguous is decided by the witness (L15). An unknown transaction is never aborted by
EndTxn: version 5 says NONE to that whatever happened. `fence` aborts, by initialising.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition
from penstock.control import Committable
from penstock.failure import ProtocolViolation, TransportFailed
from penstock.ids import CheckpointId
from penstock.runtime.ports import Outcome

from penstock_kafka.client import Backoff, failure, passes, take
from penstock_kafka.reading import Reading
from penstock_kafka.sink import ANNOUNCED
from penstock_kafka.wire import NONE, PASSING, UNANSWERED, Wire, code_name, refuse

INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
PRODUCER_FENCED: Final = 90

AMBIGUOUS: Final = frozenset({
    INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED,
})  # fmt: skip

_FINISHED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
_AT_ONCE: Final = 500
_FENCE_TIMEOUT_MS: Final = 10_000
"""Timeout of transactions that nobody will begin; every broker allows it."""


class KafkaRecovery:
    """Decides transactions of dead subtasks from any process; all calls block.

    Every call is repeated with back-off until ``timeout_s``, then raises TransportFailed.
    """

    def __init__(
        self,
        make_wire: Callable[[float], Wire],
        base: dict[str, Any],
        witness_topic: str,
        timeout_s: float = 60.0,
    ) -> None:
        self._make_wire = make_wire
        self._base = base
        self._witness_topic = witness_topic
        self._timeout_s = timeout_s
        self._opened: Wire | None = None

    @property
    def _wire(self) -> Wire:
        if self._opened is None:
            self._opened = self._make_wire(self._timeout_s)
        return self._opened

    def commit(self, transaction: Committable) -> Outcome:
        """EndTxn(commit) with the stored producer id and epoch, one pinned version, retried."""
        name = transaction.transactional_id
        backoff = Backoff(self._timeout_s)
        while True:
            code = self._wire.end(
                name, transaction.producer_id, transaction.producer_epoch, commit=True
            )
            if code == NONE:
                return Outcome.COMMITTED
            if code in AMBIGUOUS:
                return Outcome.AMBIGUOUS
            self._go_on(f"committing {name} of checkpoint {transaction.checkpoint}", code, backoff)

    def transactional_ids(self, prefix: str) -> set[str]:
        """Every transactional id that the cluster knows with this prefix."""
        return {name for name, _ in self._listed(prefix)}

    def open_transactions(self, prefix: str) -> dict[str, str]:
        """Transactional id -> state, of those under ``prefix`` that are not finished."""
        return {name: state for name, state in self._listed(prefix) if state not in _FINISHED}

    def fence(self, transactional_ids: Iterable[str]) -> None:
        """InitProducerId for each: aborts what is open, fences every older producer.

        All are asked at once; those whose abort is under way answer CONCURRENT_TRANSACTIONS and are
        asked again until their markers are written.
        """
        left = set(transactional_ids)
        backoff = Backoff(self._timeout_s)
        while left:
            codes = self._wire.initialise(sorted(left), _FENCE_TIMEOUT_MS)
            done = {name for name, code in codes.items() if code == NONE}
            left -= done
            if done:
                continue
            for name in sorted(left)[:1]:
                self._go_on(
                    f"fencing {len(left)} transactional ids ({name}…)", codes[name], backoff
                )

    def witnesses(self) -> dict[str, CheckpointId]:
        """Newest committed witness of each transactional id (read_committed, to the end).

        The end is the end of the log when the call began: a transaction that is still open before
        it would hide witnesses, so it is waited for, and is the cause named when that takes long.
        """
        reading = Reading(
            self._base,
            self._witness_topic,
            f"{self._witness_topic}.reader",
            {"isolation.level": "read_committed", "enable.partition.eof": True},
        )
        try:
            return self._read_witnesses(reading)
        finally:
            reading.close()

    def _read_witnesses(self, reading: Reading) -> dict[str, CheckpointId]:
        _, end = reading.range_of(0)
        found: dict[str, CheckpointId] = {}
        if end == 0:
            return found
        reading.consumer.assign([TopicPartition(self._witness_topic, 0, OFFSET_BEGINNING)])
        deadline = time.monotonic() + self._timeout_s
        while True:
            for message in take(reading.consumer, _AT_ONCE, 0.5):
                error = message.error()
                if error is None:
                    if message.value() == ANNOUNCED:
                        continue
                    name, checkpoint = _witness(message.key(), message.value(), message.offset())
                    found[name] = checkpoint
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    if (message.offset() or 0) >= end:
                        return found
                elif not passes(error):
                    raise failure(f"witness topic {self._witness_topic}", error)
            if time.monotonic() > deadline:
                raise TransportFailed(
                    f"witness topic {self._witness_topic} cannot be read to its end {end}: a "
                    "transaction is still open in it, or the brokers do not answer"
                )

    def _listed(self, prefix: str) -> list[tuple[str, str]]:
        backoff = Backoff(self._timeout_s)
        while True:
            code, listings = self._wire.transactions()
            if code == NONE:
                return [
                    (listing.transactional_id, listing.transaction_state)
                    for listing in listings
                    if listing.transactional_id.startswith(prefix)
                ]
            self._go_on("listing transactions", code, backoff)

    def _go_on(self, what: str, code: int, backoff: Backoff) -> None:
        """Wait before another try; raises when there is none."""
        refuse(what, code)
        if code not in PASSING and code != UNANSWERED:
            raise TransportFailed(f"{what}: {code_name(code)}")
        if not backoff.wait():
            raise TransportFailed(f"{what}: {code_name(code)}, for {self._timeout_s:.0f} s")

    def close(self) -> None:
        """Close the connections."""
        wire, self._opened = self._opened, None
        if wire is not None:
            wire.close()


def _witness(
    key: bytes | None, value: bytes | None, offset: int | None
) -> tuple[str, CheckpointId]:
    if key is not None and value is not None and value.isdigit():
        return key.decode(errors="replace"), CheckpointId(int(value))
    raise ProtocolViolation(
        f"record {offset} of the witness topic is not a witness (transactional id -> checkpoint "
        "number); nothing else may write to this topic"
    )
