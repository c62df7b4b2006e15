"""Tier 5: the simulated broker keeps the contract that the real one keeps (L13-L17)."""

from collections.abc import Iterable

import pytest
from penstock.control import Committable
from penstock.failure import TransportFailed
from penstock.ids import CheckpointId
from penstock.runtime.ports import Outcome
from penstock.testing.broker import ONGOING, Refused, SimulatedBroker

from tests.contract.broker import CONTRACT, Check


class Owner:
    """A producer of the simulated broker, as a sink uses it."""

    def __init__(self, broker: SimulatedBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.identity = broker.initialise(name)
        self.records = 0

    def begin(self) -> None:
        self.records = 0

    def write(self, values: list[str]) -> None:
        for value in values:
            self._write("out", value)
        self.records += len(values)

    def precommit(self, checkpoint: int) -> Committable:
        self._write("witness", checkpoint)
        return Committable(
            transactional_id=self.name,
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            checkpoint=CheckpointId(checkpoint),
            topic="out",
            partitions=(0,),
            records=self.records,
        )

    def commit(self) -> bool:
        try:
            self.broker.end_transaction(self.name, self.identity, commit=True)
        except Refused as refusal:
            raise TransportFailed(refusal.code) from refusal
        return True

    def kill(self) -> None:
        """Nothing is said to the broker."""

    def _write(self, topic: str, value: object) -> None:
        try:
            self.broker.write(self.name, self.identity, topic, 0, key=self.name, value=value)
        except Refused as refusal:
            raise TransportFailed(refusal.code) from refusal


class Contract:
    """The simulated broker as the contract wants it."""

    def __init__(self) -> None:
        self.broker = SimulatedBroker()

    def open(self, slot: int) -> Owner:
        return Owner(self.broker, f"id!{slot}")

    def recover(self, transaction: Committable) -> Outcome:
        identity = (transaction.producer_id, transaction.producer_epoch)
        try:
            self.broker.end_transaction(transaction.transactional_id, identity, commit=True)
        except Refused:
            return Outcome.AMBIGUOUS
        return Outcome.COMMITTED

    def fence(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.broker.initialise(f"id!{slot}")

    def witnesses(self) -> dict[int, int]:
        return {_slot(e.key): e.value for _, e in self.broker.read("witness", 0)}

    def open_transactions(self) -> set[int]:
        states = self.broker.transactions("id!")
        return {_slot(name) for name, state in states.items() if state == ONGOING}

    def read_committed(self) -> list[str]:
        return [entry.value for _, entry in self.broker.read("out", 0)]

    def read_uncommitted(self) -> list[str]:
        return [entry.value for _, entry in self.broker.read("out", 0, committed=False)]

    def forgotten(self) -> Committable:
        return Committable("id!99", 1, 0, CheckpointId(1), "out", (0,), 1)


def _slot(name: str | None) -> int:
    return int((name or "").partition("!")[2])


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_contract(check: Check) -> None:
    check(Contract())


def test_a_late_commit_ends_the_next_transaction_of_the_same_producer() -> None:
    """E2, KAFKA-17754, the reason for L17: version 1 does not tell two transactions apart."""
    broker = Contract()
    owner = broker.open(0)
    owner.begin()
    owner.write(["a"])
    stale = owner.precommit(1)
    owner.commit()
    owner.begin()
    owner.write(["b"])
    assert broker.recover(stale) is Outcome.COMMITTED
    assert broker.read_committed() == ["a", "b"]


def test_a_timeout_aborts_and_moves_the_epoch_on() -> None:
    """E4: what was open too long is gone, and its owner is fenced."""
    broker = SimulatedBroker()
    identity = broker.initialise("x", timeout_ms=100)
    broker.write("x", identity, "out", 0, key=None, value="a")
    assert broker.advance(99) == []
    assert broker.advance(100) == ["x"]
    with pytest.raises(Refused, match="PRODUCER_FENCED"):
        broker.end_transaction("x", identity, commit=True)
    assert broker.read("out", 0) == []


def test_an_open_transaction_holds_back_readers() -> None:
    """The last stable offset: committed records behind an open transaction are not seen yet."""
    broker = SimulatedBroker()
    slow, fast = broker.initialise("slow"), broker.initialise("fast")
    broker.write("slow", slow, "out", 0, key=None, value=1)
    broker.write("fast", fast, "out", 0, key=None, value=2)
    broker.end_transaction("fast", fast, commit=True)
    assert broker.read("out", 0) == []
    assert broker.stable_end("out", 0) == 0
    broker.end_transaction("slow", slow, commit=False)
    assert [entry.value for _, entry in broker.read("out", 0)] == [2]
    assert broker.stable_end("out", 0) == broker.end("out", 0)


def test_an_id_that_expired_is_unknown() -> None:
    """E6."""
    broker = SimulatedBroker()
    identity = broker.initialise("x")
    broker.write("x", identity, "out", 0, key=None, value=1)
    broker.forget("x")
    with pytest.raises(Refused, match="INVALID_PRODUCER_ID_MAPPING"):
        broker.end_transaction("x", identity, commit=True)


def test_forks_go_apart() -> None:
    broker = SimulatedBroker()
    identity = broker.initialise("x")
    fork = broker.fork()
    assert fork.key() == broker.key()
    fork.write("x", identity, "out", 0, key=None, value=1)
    assert fork.key() != broker.key()
    assert broker.end("out", 0) == 0
