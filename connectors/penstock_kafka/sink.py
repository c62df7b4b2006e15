"""The two-phase-commit sink: one Kafka transaction per checkpoint and producer (L13-L17)."""

import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from penstock.control import Committable
from penstock.failure import ConfigurationError, TransportFailed
from penstock.ids import CheckpointId

from penstock_kafka.client import (
    LOG,
    WATCHDOG,
    Backoff,
    Errors,
    failure,
    producer_config,
    queue_all,
    watched,
)
from penstock_kafka.wire import NONE, PASSING, UNANSWERED, Wire, code_name, refuse

OPEN_S: Final = 60.0
ANNOUNCED: Final = b""
"""The value of a witness record whose checkpoint is not known yet; it proves nothing."""
FLUSH_S: Final = 60.0
COMMIT_S: Final = 60.0
FULL_QUEUE_S: Final = 60.0
NEW_TOPIC_S: Final = 5.0
"""A topic made a moment ago is not known to a broker that lags, or that comes back just now."""

_SETTINGS: Final[dict[str, Any]] = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 128 * 1024,
}


class KafkaSinkProducer:
    """One transactional id of a sink subtask's pool, in the life of one attempt.

    The stored epoch is this producer's own: it is read from the coordinator between this producer's
    initialisation and its first acknowledged record. Epochs of an id only grow, and a record of an
    older epoch is refused, so a transaction that was pre-committed has the epoch that was read.
    """

    def __init__(
        self,
        base: dict[str, Any],
        make_wire: Callable[[float], Wire],
        *,
        topic: str,
        witness_topic: str,
        transactional_id: str,
        timeout_ms: int,
    ) -> None:
        self.transactional_id = transactional_id
        self._topic = topic
        self._witness_topic = witness_topic
        self._make_wire = make_wire
        self._errors = Errors()
        self._config = producer_config(base, self._errors) | watched(self._errors) | _SETTINGS | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "delivery.timeout.ms": min(timeout_ms, 60_000),
            "on_delivery": self._delivered,
        }  # fmt: skip
        self._producer: Producer | None = None
        self._identity = (-1, -1)
        self._partitions: tuple[int, ...] = ()
        self._records = 0
        self._failed: tuple[str, KafkaError] | None = None
        self._indefinite = False

    def open(self) -> None:
        """Blocking: initialise transactions and learn producer id and epoch.

        Raises ConfigurationError (no such topic, not allowed, timeout too large), TransportFailed.
        """
        what = f"transactional id {self.transactional_id}"
        self._producer = producer = Producer(self._config)
        try:
            with WATCHDOG.over(f"opening {what}", 2 * OPEN_S):
                # Connect first: librdkafka looks for the coordinator again only after 500 ms.
                self._partitions = self._found(producer)
                self._open(producer)
        except KafkaException as error:
            inner = error.args[0]
            if inner.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
                raise ConfigurationError(
                    f"{what}: the brokers refuse transaction.timeout.ms="
                    f"{self._config['transaction.timeout.ms']}; raise transaction.max.timeout.ms "
                    "of the brokers or lower the sink's transaction timeout"
                ) from None
            raise failure(f"{what} cannot be initialised", error) from None
        self._identity = self._learn_identity()
        if self._errors.seen:
            LOG.debug("%s: opened after errors: %s", what, self._errors.texts)

    def _found(self, producer: Producer) -> tuple[int, ...]:
        """The partitions of the topic; ConfigurationError when it is not there after a while."""
        backoff = Backoff(NEW_TOPIC_S)
        while True:
            found = producer.list_topics(timeout=OPEN_S).topics.get(self._topic)
            if found is not None and found.error is None and found.partitions:
                return tuple(sorted(found.partitions))
            if not backoff.wait():
                raise ConfigurationError(
                    f"sink topic {self._topic!r} does not exist; create it, or correct the name"
                )

    def _open(self, producer: Producer) -> None:
        backoff = Backoff(OPEN_S)
        while True:
            try:
                producer.init_transactions(OPEN_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or not backoff.wait():
                    raise

    def _learn_identity(self) -> tuple[int, int]:
        backoff = Backoff(OPEN_S)
        with self._make_wire(OPEN_S) as wire:
            while True:
                code, state = wire.describe(self.transactional_id)
                if code == NONE:
                    return state.producer_id, state.producer_epoch
                refuse(f"transactional id {self.transactional_id}", code)
                if code not in PASSING and code != UNANSWERED:
                    break
                if not backoff.wait():
                    break
        raise TransportFailed(
            f"transactional id {self.transactional_id}: its coordinator does not say producer id "
            f"and epoch: {code_name(code)}"
        )

    def begin(self) -> None:
        """Open a transaction; a local step of the client."""
        self._records = 0
        self._failed = None
        try:
            with WATCHDOG.over(f"begin_transaction of {self.transactional_id}", 10.0):
                producer = self._ready()
                producer.begin_transaction()
            # The witness partition joins the transaction now: 1.3 ms less on the checkpoint's path.
            producer.produce(self._witness_topic, ANNOUNCED, self.transactional_id.encode(), 0)
        except (KafkaException, BufferError) as error:
            raise failure(f"{self.transactional_id}: no transaction", error) from None

    def write(
        self, keys: list[bytes | None], values: list[bytes | None], times: list[int] | None
    ) -> None:
        """Queue records of the open transaction; waits only when the client's queue is full.

        Raises TransportFailed when an earlier record of this transaction failed.
        """
        producer = self._ready()
        try:
            queue_all(
                producer, self._topic, keys=keys, values=values, times=times, wait_s=FULL_QUEUE_S
            )
        except KafkaException as error:
            producer.poll(0)
            self._check_deliveries()
            raise failure(f"a record for {self._topic} was refused", error) from None
        self._records += len(values)
        producer.poll(0)
        self._check_deliveries()

    def precommit(self, checkpoint: CheckpointId) -> Committable:
        """Blocking: write the witness, flush, check every delivery (L13, L15).

        The partitions named are all of the topic: which ones were written would cost a step per
        record to know, and EndTxn does not ask.
        """
        producer = self._ready()
        what = f"checkpoint {checkpoint}: transaction of {self.transactional_id}"
        try:
            producer.produce(
                self._witness_topic, str(checkpoint).encode(), self.transactional_id.encode(), 0
            )
            with WATCHDOG.over(f"flush of {self.transactional_id}", FLUSH_S):
                left = producer.flush(FLUSH_S)
        except BufferError:
            left = len(producer)
        except KafkaException as error:
            producer.poll(0)
            self._check_deliveries()
            raise failure(f"{what} cannot be pre-committed", error) from None
        self._check_deliveries()
        self._errors.check(what)
        if left:
            raise TransportFailed(
                f"{what}: {left} records were not written within {FLUSH_S:.0f} s; "
                f"{'; '.join(self._errors.texts[-3:]) or 'look at the brokers'}"
            )
        producer_id, epoch = self._identity
        return Committable(
            transactional_id=self.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            checkpoint=checkpoint,
            topic=self._topic,
            partitions=self._partitions,
            records=self._records,
        )

    def commit(self) -> bool:
        """Blocking: commit. True when this producer may be used again (L17).

        False when it is committed for certain, but a connection of this producer was ever lost or
        an answer came late: a request may still be on its way somewhere, and would end its next
        transaction. Any error since `open` counts, because librdkafka reports a like one only once
        in 30 s. Raises TransportFailed when it is not known to be committed.
        """
        producer = self._ready()
        backoff = Backoff(COMMIT_S)
        with WATCHDOG.over(f"commit_transaction of {self.transactional_id}", 2 * COMMIT_S):
            while True:
                try:
                    producer.commit_transaction(COMMIT_S)
                    break
                except KafkaException as error:
                    self._indefinite = True
                    if not error.args[0].retriable() or not backoff.wait():
                        raise failure(
                            f"the transaction of {self.transactional_id} is not known to be "
                            "committed",
                            error,
                        ) from None
        producer.poll(0)
        return not self._indefinite and not self._errors.seen

    def look(self) -> None:
        """Often: looks arrive in it. TransportFailed when the client can never go on."""
        if self._producer is not None:
            self._producer.poll(0)
            self._errors.check(f"transactional id {self.transactional_id}")

    def close(self) -> None:
        """Give up the client without waiting; an open transaction is left to recovery (L14).

        Producer.close() would abort it, so the client is only let go of, and in a thread, because
        it waits for its own threads to end.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            self._config = {}
            threading.Thread(target=_let_go, args=([producer],), daemon=True).start()

    def _ready(self) -> Producer:
        if self._producer is None or self._identity[0] < 0:
            raise TransportFailed(f"sink producer {self.transactional_id} is not open")
        return self._producer

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = (f"{message.topic()}[{message.partition()}]", error)

    def _check_deliveries(self) -> None:
        if self._failed is not None:
            where, error = self._failed
            raise failure(
                f"{self.transactional_id}: a record for {where} was not written, so its "
                "transaction cannot be committed",
                error,
            )


def _let_go(holder: list[Producer]) -> None:
    holder.clear()
