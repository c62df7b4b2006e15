"""A sink of one subtask: the pool's machine on one side, transactional producers on the other."""

from collections.abc import Callable
from typing import Protocol

from penstock.control import Committable
from penstock.failure import TransportFailed
from penstock.ids import Attempt, CheckpointId, transactional_id
from penstock.runtime.background import Background
from penstock.runtime.faultpoint import reached
from penstock.runtime.ports import Kafka, SinkProducer
from penstock.sink import transaction as tx
from penstock.task.subtask import SinkChanged

HELD_RECORDS = 20_000
"""Records that may wait in memory for a producer; past it the loop waits."""
Records = tuple[list[bytes | None], list[bytes | None], list[int] | None]
WAIT_S = 120.0
"""How long records may wait for a producer to warm up before the attempt is given up."""


class SinkOwner(Protocol):
    """The subtask that the sink belongs to."""

    def event(self, event: SinkChanged) -> None:
        """Step the subtask's machine and perform what follows."""
        ...


class SinkWriter:
    """Writes records into the open transaction; performs the effects of its pool."""

    def __init__(
        self,
        owner: SinkOwner,
        kafka: Kafka,
        work: Background,
        *,
        app: str,
        uid: str,
        index: int,
        topic: str,
        timeout_ms: int,
        clock_s: Callable[[], float],
        attempt: Attempt,
    ) -> None:
        self._owner = owner
        self._kafka = kafka
        self._work = work
        self._app = app
        self._uid = uid
        self._index = index
        self._topic = topic
        self._timeout_ms = timeout_ms
        self._clock_s = clock_s
        self._attempt = attempt
        self._producers: dict[int, SinkProducer] = {}
        self._open: SinkProducer | None = None
        self._held: list[Records] = []
        self._held_records = 0
        self.records = 0

    def write(
        self, keys: list[bytes | None], values: list[bytes | None], times: list[int] | None
    ) -> None:
        """Queue records of the current epoch; begins its transaction with the first."""
        if not values:
            return
        self.records += len(values)
        producer = self._open
        if producer is not None:
            producer.write(keys, values, times)
            return
        self._held.append((keys, values, times))
        self._held_records += len(values)
        self._begin_if_possible()
        if self._held_records > HELD_RECORDS:
            self.settle()

    def settle(self) -> None:
        """Wait until no record is held back: before a barrier, and when too many are."""
        deadline = self._clock_s() + WAIT_S
        while self._held:
            if self._clock_s() > deadline:
                raise TransportFailed(
                    f"sink {self._uid!r} got no transactional producer within {WAIT_S:.0f} s: is "
                    "the transaction coordinator of the Kafka cluster available?"
                )
            self._work.wait(0.01)
            self._work.drain()
            self.look()
            self._begin_if_possible()

    def _begin_if_possible(self) -> None:
        """Begin the epoch's transaction; not before the one before it is flushed (S6)."""
        if not self._held:
            return
        if self._open is None:
            self._changed(tx.TransactionNeeded())
        producer = self._open
        if producer is not None:
            held, self._held, self._held_records = self._held, [], 0
            for keys, values, times in held:
                producer.write(keys, values, times)

    def perform(self, effect: tx.Effect) -> None:
        """Carry out one effect of the pool."""
        match effect:
            case tx.Open(slot):
                self._open_slot(slot)
            case tx.Begin(slot):
                self._open = self._producers[slot]
                self._open.begin()
            case tx.PreCommit(slot, checkpoint):
                producer, self._open = self._producers[slot], None
                self._work.submit(
                    lambda: _precommitted(producer, checkpoint),
                    lambda committable: self._prepared(slot, committable),
                    _raise,
                )
            case tx.Commit(permit):
                producer = self._producers[permit.slot]
                self._work.submit(
                    lambda: _committed(producer),
                    lambda definite: self._proven(permit.slot, definite),
                    _raise,
                )
            case tx.Renew(slot):
                producer = self._producers.pop(slot)
                self._work.submit(producer.close, _ignore, _ignore)
            case tx.Exhausted(undecided):
                raise TransportFailed(
                    f"sink {self._uid!r} has {undecided} undecided transactions and no further "
                    "transactional id: checkpoints do not complete; raise --tolerable-failures or "
                    "mend the store"
                )

    def look(self) -> None:
        """Raise when a producer can never go on, long before its calls have run out of time."""
        for producer in self._producers.values():
            producer.look()

    def close(self) -> list[Callable[[], None]]:
        """The clients to give up; open transactions are left to the recovery (L11)."""
        self._open = None
        self._held = []
        return [producer.close for producer in self._producers.values()]

    def _open_slot(self, slot: int) -> None:
        name = transactional_id(self._app, self._uid, self._index, slot, self._attempt)
        producer = self._kafka.sink_producer(self._app, self._topic, name, self._timeout_ms)
        self._producers[slot] = producer
        self._work.submit(producer.open, lambda _: self._opened(slot), _raise)

    def _prepared(self, slot: int, committable: Committable) -> None:
        self._changed(tx.Prepared(slot, committable))
        self._begin_if_possible()

    def _opened(self, slot: int) -> None:
        self._changed(tx.SlotOpened(slot))
        self._begin_if_possible()

    def _proven(self, slot: int, definite: bool) -> None:
        reached("a10")
        self._changed(tx.Committed(slot, definite))

    def _changed(
        self, event: tx.SlotOpened | tx.TransactionNeeded | tx.Prepared | tx.Committed
    ) -> None:
        self._owner.event(SinkChanged(self._uid, event))


def _precommitted(producer: SinkProducer, checkpoint: CheckpointId) -> Committable:
    reached("a6")
    return producer.precommit(checkpoint)


def _committed(producer: SinkProducer) -> bool:
    reached("a9")
    reached("a11", delay_s=0.0005)
    return producer.commit()


def _raise(error: BaseException) -> None:
    raise error


def _ignore(_: object) -> None:
    """Closing an abandoned client has no result that matters."""
