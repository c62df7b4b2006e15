"""The input of a source stage: raw Kafka columns to typed columns with event times."""

from collections.abc import Callable
from operator import length_hint
from typing import Any

from penstock.failure import ConfigurationError
from penstock.record import OperatorFailed, Push, described
from penstock.serde import Serde
from penstock.source.watermark import SourceWatermarks, Watermark


class SourceInput:
    """Decodes the batches of one source subtask and pushes them into its chain.

    Args:
        uid: the source step, named in errors.
        value: serde of the values.
        key: serde of the keys; None leaves them out.
        timestamp: event time of a value in ms; None takes Kafka's.
        policy: how watermarks are made; None makes none.
        partitions: the partitions of this subtask.
        follow: the chain.
    """

    def __init__(
        self,
        uid: str,
        value: Serde,
        key: Serde | None,
        timestamp: Callable[[Any], int] | None,
        policy: Watermark | None,
        partitions: range,
        follow: Push,
    ) -> None:
        self.watermarks = None if policy is None else SourceWatermarks(partitions, policy)
        self._uid = uid
        self._value = value
        self._key = key
        self._timestamp = timestamp
        self._follow = follow

    def push(self, partition: int, keys: list[Any], raws: list[Any], times: list[int]) -> None:
        """One run of records of a partition. Raises OperatorFailed with the record's index."""
        if not raws:
            return
        values = self._value.decode_all(raws)
        typed = None if self._key is None else self._key.decode_all(keys)
        if self._timestamp is not None:
            times = self._event_times(values)
        if self.watermarks is not None:
            self.watermarks.observed(partition, max(times))
        self._follow(partition, typed, values, times)

    def _event_times(self, values: list[Any]) -> list[int]:
        assert self._timestamp is not None
        left = iter(values)
        try:
            times = list(map(self._timestamp, left))
        except Exception as error:
            index = len(values) - length_hint(left) - 1
            raise OperatorFailed(self._uid, index, f"timestamp: {described(error)}") from error
        if type(times[0]) is not int:
            raise ConfigurationError(
                f"source {self._uid!r}: timestamp= gave {times[0]!r:.100}, expected an int, ms "
                "since "
                "the epoch"
            )
        return times
