"""Reading assigned partitions: positions, and what an error in place of a record means."""

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from penstock.failure import ConfigurationError
from penstock.ids import Position

from penstock_kafka.client import LOG, Errors, consumer_config, failure, passes

_GONE: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


class Reading:
    """A consumer with a static assignment to partitions of one topic."""

    def __init__(
        self, base: dict[str, Any], topic: str, group: str, settings: dict[str, Any]
    ) -> None:
        self.topic = topic
        self.errors = Errors()
        self.started: dict[int, Position] = {}
        """The position that each partition was started from."""
        self.consumer = Consumer(consumer_config(base, self.errors, group) | settings)

    def assign(self, positions: dict[int, Position | None], start: str) -> None:
        """Start from ``positions``; None means ``start``, resolved now: a later look would skip
        records written between the two.
        """
        if start not in ("earliest", "latest"):
            raise ConfigurationError(f"start {start!r} of topic {self.topic}: earliest or latest")
        for partition, position in positions.items():
            if position is None:
                low, high = self.range_of(partition)
                position = Position(low if start == "earliest" else high)
            self.started[partition] = position
        self.consumer.assign(
            [
                TopicPartition(self.topic, partition, position)
                for partition, position in self.started.items()
            ]
        )

    def range_of(self, partition: int, timeout_s: float = 15.0) -> tuple[int, int]:
        """First offset and end of a partition."""
        try:
            found = self.consumer.get_watermark_offsets(
                TopicPartition(self.topic, partition), timeout=timeout_s
            )
        except KafkaException as error:
            inner = error.args[0]
            if isinstance(inner, KafkaError) and inner.code() in _NO_TOPIC:
                raise self._no_topic(partition) from None
            raise failure(
                f"the offsets of {self.topic}[{partition}] cannot be read", error
            ) from None
        if found is None:
            raise failure(f"the offsets of {self.topic}[{partition}]", "no answer")
        return found

    def records(self, messages: list[Message], at: Callable[[int], int]) -> list[Message]:
        """``messages`` without the passing errors among them; raises for the others."""
        kept = []
        for message in messages:
            error = message.error()
            if error is None:
                kept.append(message)
            elif not passes(error):
                raise self._refusal(message.partition(), error, at)
            else:
                LOG.debug("%s: %s", self.topic, error.str())
        return kept

    def _refusal(
        self, partition: int | None, error: KafkaError, at: Callable[[int], int]
    ) -> Exception:
        where = f"{self.topic}[{partition}]"
        if error.code() in _NO_TOPIC:
            return self._no_topic(partition)
        if error.code() not in _GONE or partition is None:
            return failure(f"{where} cannot be read", error)
        position = at(partition)
        low, high = self.range_of(partition)
        if low <= position <= high:
            return failure(f"{where} refused position {position} within {low}..{high}", error)
        cause = "records were deleted by retention" if position < low else "the topic was made anew"
        return ConfigurationError(
            f"position {position} of {where} is gone: the topic holds offsets {low} to {high} "
            f"({cause}); restore from a checkpoint or savepoint whose positions are in that range, "
            "or start the application under a new id, and give the topic a longer retention"
        )

    def _no_topic(self, partition: int | None) -> ConfigurationError:
        return ConfigurationError(
            f"topic {self.topic!r} or its partition {partition} does not exist any more; create it "
            "again, or correct the name in the service"
        )

    def close(self) -> None:
        """Close the consumer; it is in no group, so there is nothing to leave."""
        self.consumer.close()
