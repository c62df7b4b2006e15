"""The contract of transactions: what Kafka does with them, so far as L13 to L17 lean on it.

Each function takes a broker on which nobody else works. Run over a real Kafka in
tests/integration/test_kafka_transactions.py, and over the simulated one in the unit tests.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.control import Committable
from penstock.failure import TransportFailed
from penstock.runtime.ports import Outcome

N = 7
"""The checkpoint most of these are about."""


class Owner(Protocol):
    """A live producer of one transactional id: the sink of a subtask."""

    def begin(self) -> None: ...
    def write(self, values: list[str]) -> None: ...
    def precommit(self, checkpoint: int) -> Committable: ...
    def commit(self) -> bool: ...

    def kill(self) -> None:
        """The process dies as by SIGKILL: nothing is said to the broker."""
        ...


class Broker(Protocol):
    """One sink topic, one witness topic, and transactional ids numbered by slot."""

    def open(self, slot: int) -> Owner:
        """A new producer of the slot's id, with its transactions initialised."""
        ...

    def recover(self, transaction: Committable) -> Outcome:
        """The recovery's EndTxn(commit), from a process that never was the owner."""
        ...

    def fence(self, slots: Iterable[int]) -> None: ...
    def witnesses(self) -> dict[int, int]: ...

    def open_transactions(self) -> set[int]:
        """Slots whose transaction is not finished."""
        ...

    def read_committed(self) -> list[str]: ...
    def read_uncommitted(self) -> list[str]: ...

    def forgotten(self) -> Committable:
        """A transaction of an id that this broker has never heard of."""
        ...


Check = Callable[[Broker], None]


@contextmanager
def refused() -> Iterator[None]:
    """What a fenced owner gets, sooner or later."""
    try:
        yield
    except TransportFailed:
        return
    raise AssertionError("a fenced producer was not refused")


def prepared(broker: Broker, slot: int, values: list[str], checkpoint: int = N) -> tuple[
    Owner, Committable
]:  # fmt: skip
    owner = broker.open(slot)
    owner.begin()
    owner.write(values)
    return owner, owner.precommit(checkpoint)


def a_precommitted_transaction_is_hidden_until_its_commit(broker: Broker) -> None:
    owner, transaction = prepared(broker, 0, ["a", "b"])
    assert transaction.checkpoint == N
    assert transaction.records == 2
    assert broker.open_transactions() == {0}
    assert broker.read_committed() == []
    assert broker.read_uncommitted() == ["a", "b"]
    assert owner.commit() is True
    assert broker.read_committed() == ["a", "b"]
    assert broker.witnesses() == {0: N}
    assert broker.open_transactions() == set()


def one_producer_commits_many_transactions_in_turn(broker: Broker) -> None:
    owner = broker.open(0)
    for n in range(1, 6):
        owner.begin()
        owner.write([f"{n}a"])
        owner.write([f"{n}b"])
        assert owner.precommit(n).records == 2
        assert owner.commit() is True
    assert broker.read_committed() == [f"{n}{x}" for n in range(1, 6) for x in "ab"]
    assert broker.witnesses() == {0: 5}


def a_dead_owners_transaction_is_committed_by_another_process(broker: Broker) -> None:
    """L14; E1: SIGKILL after the pre-commit, then EndTxn from here, and again."""
    owner, transaction = prepared(broker, 0, ["a", "b"])
    owner.kill()
    assert broker.read_committed() == []
    for _ in range(3):
        assert broker.recover(transaction) is Outcome.COMMITTED
    assert broker.read_committed() == ["a", "b"]
    assert broker.read_uncommitted() == ["a", "b"]
    assert broker.witnesses() == {0: N}


def recovery_after_the_owners_own_commit_says_committed(broker: Broker) -> None:
    """E1: the double commit, owner first."""
    owner, transaction = prepared(broker, 0, ["a"])
    owner.commit()
    owner.kill()
    assert broker.recover(transaction) is Outcome.COMMITTED
    assert broker.read_committed() == ["a"]


def the_owners_commit_after_recoverys_does_no_harm(broker: Broker) -> None:
    """E1: the double commit, recovery first; a paused owner that wakes."""
    owner, transaction = prepared(broker, 0, ["a"])
    assert broker.recover(transaction) is Outcome.COMMITTED
    owner.commit()
    assert broker.read_committed() == ["a"]


def an_open_transaction_of_a_dead_owner_is_aborted_by_fencing(broker: Broker) -> None:
    """L16: it holds back readers until then, and is never seen."""
    owner = broker.open(0)
    owner.begin()
    owner.write(["lost"])
    owner.precommit(N)
    owner.kill()
    assert broker.open_transactions() == {0}
    broker.fence([0])
    assert broker.open_transactions() == set()
    assert broker.read_committed() == []
    assert broker.witnesses() == {}


def commit_after_fencing_is_ambiguous_and_the_witness_says_lost(broker: Broker) -> None:
    """L15, L16; E3c: why a restore commits before it initialises."""
    owner, transaction = prepared(broker, 0, ["a"])
    owner.kill()
    broker.fence([0])
    assert broker.recover(transaction) is Outcome.AMBIGUOUS
    assert broker.read_committed() == []
    assert broker.witnesses() == {}


def commit_after_fencing_is_ambiguous_and_the_witness_says_committed(broker: Broker) -> None:
    """L15; E3b: the same answer from the broker, the opposite truth."""
    owner, transaction = prepared(broker, 0, ["a"])
    owner.commit()
    owner.kill()
    broker.fence([0])
    assert broker.recover(transaction) is Outcome.AMBIGUOUS
    assert broker.witnesses() == {0: N}
    assert broker.read_committed() == ["a"]


def an_unknown_transactional_id_is_ambiguous(broker: Broker) -> None:
    """E6: expired after seven days, or of another cluster."""
    assert broker.recover(broker.forgotten()) is Outcome.AMBIGUOUS


def opening_an_id_again_fences_its_older_owner(broker: Broker) -> None:
    """E3c, E7a: the older one's transaction is aborted, and it can do nothing more."""
    old, transaction = prepared(broker, 0, ["old"])
    new = broker.open(0)
    with refused():
        old.commit()
    assert broker.recover(transaction) is Outcome.AMBIGUOUS
    new.begin()
    new.write(["new"])
    new.precommit(N + 1)
    assert new.commit() is True
    assert broker.read_committed() == ["new"]
    assert broker.witnesses() == {0: N + 1}


def a_fenced_owner_writes_nothing_more(broker: Broker) -> None:
    """L16; E7b: a paused owner wakes after a restore."""
    owner, transaction = prepared(broker, 0, ["a"])
    assert broker.recover(transaction) is Outcome.COMMITTED
    broker.fence([0])
    with refused():
        owner.commit()
        owner.begin()
        owner.write(["zombie"])
        owner.precommit(N + 1)
    assert broker.read_committed() == ["a"]
    assert broker.witnesses() == {0: N}


def a_stale_commit_does_not_touch_the_new_owners_transaction(broker: Broker) -> None:
    """E3: after an initialisation the epoch differs, so a late EndTxn ends nothing (L17)."""
    old, stale = prepared(broker, 0, ["old"])
    old.commit()
    old.kill()
    new, fresh = prepared(broker, 0, ["new"], N + 1)
    assert broker.recover(stale) is Outcome.AMBIGUOUS
    assert broker.read_committed() == ["old"]
    assert broker.open_transactions() == {0}
    assert new.commit() is True
    assert broker.recover(fresh) is Outcome.COMMITTED
    assert broker.read_committed() == ["old", "new"]


def transactions_of_two_producers_are_decided_apart(broker: Broker) -> None:
    """L13: epoch n+1 goes into another producer's transaction, and one can be lost alone."""
    first, one = prepared(broker, 0, ["n"])
    second, two = prepared(broker, 1, ["n+1"], N + 1)
    first.kill()
    second.kill()
    assert broker.open_transactions() == {0, 1}
    assert broker.recover(one) is Outcome.COMMITTED
    assert broker.open_transactions() == {1}
    broker.fence([0, 1])
    assert broker.recover(two) is Outcome.AMBIGUOUS
    assert broker.read_committed() == ["n"]
    assert broker.witnesses() == {0: N}


def fencing_is_idempotent_takes_unknown_ids_and_leaves_others_alone(broker: Broker) -> None:
    owner, _ = prepared(broker, 0, ["kept"])
    other, _ = prepared(broker, 1, ["gone"])
    other.kill()
    for _ in range(3):
        broker.fence([1, 2, 3])
    assert owner.commit() is True
    assert broker.read_committed() == ["kept"]
    again, _ = prepared(broker, 1, ["after"], N + 1)
    assert again.commit() is True
    assert broker.read_committed() == ["kept", "after"]
    assert broker.witnesses() == {0: N, 1: N + 1}


def a_transaction_without_records_has_a_witness(broker: Broker) -> None:
    """E6: an empty transaction could not be told from a lost one."""
    owner, transaction = prepared(broker, 0, [])
    assert transaction.records == 0
    owner.kill()
    assert broker.recover(transaction) is Outcome.COMMITTED
    assert broker.witnesses() == {0: N}
    assert broker.read_committed() == []


CONTRACT: tuple[Check, ...] = (
    a_precommitted_transaction_is_hidden_until_its_commit,
    one_producer_commits_many_transactions_in_turn,
    a_dead_owners_transaction_is_committed_by_another_process,
    recovery_after_the_owners_own_commit_says_committed,
    the_owners_commit_after_recoverys_does_no_harm,
    an_open_transaction_of_a_dead_owner_is_aborted_by_fencing,
    commit_after_fencing_is_ambiguous_and_the_witness_says_lost,
    commit_after_fencing_is_ambiguous_and_the_witness_says_committed,
    an_unknown_transactional_id_is_ambiguous,
    opening_an_id_again_fences_its_older_owner,
    a_fenced_owner_writes_nothing_more,
    a_stale_commit_does_not_touch_the_new_owners_transaction,
    transactions_of_two_producers_are_decided_apart,
    fencing_is_idempotent_takes_unknown_ids_and_leaves_others_alone,
    a_transaction_without_records_has_a_witness,
)
