"""A thread that reads the decision log, so that no loop waits for Kafka to see a decision."""

import threading
from collections import deque

from penstock.control import AnyDecision, decode_decision
from penstock.runtime.background import Background
from penstock.runtime.ports import Kafka


class Follower:
    """Decisions in log order, from offset ``start`` or the beginning of the log.

    ``caught_up`` is False until everything was read that was in the log when the follower started.
    """

    def __init__(
        self, kafka: Kafka, app: str, wake: Background | None = None, *, start: int | None = None
    ) -> None:
        topic = f"{app}.decisions"
        self._end = kafka.end_positions(topic)[0]
        self._reader = kafka.log_reader(topic, "earliest" if start is None else start)
        self._queue: deque[tuple[int, AnyDecision]] = deque()
        self._read_to = 0
        self._wake = wake
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self.caught_up = self._end == 0 or start is not None
        self._thread = threading.Thread(target=self._follow, name="decisions", daemon=True)
        self._thread.start()

    def take(self) -> list[tuple[int, AnyDecision]]:
        """What was read since the last call; raises what stopped the reading."""
        if self._error is not None:
            raise self._error
        queue, taken = self._queue, []
        while queue:
            taken.append(queue.popleft())
        if not self.caught_up:
            self.caught_up = self._read_to >= self._end
        return taken

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()

    def _follow(self) -> None:
        try:
            while not self._closed.is_set():
                for record in self._reader.poll(0.25):
                    self._queue.append((record.offset, decode_decision(record.data)))
                    self._read_to = record.offset + 1
                    if self._wake is not None:
                        self._wake.post(_nothing)
            self._reader.close()
        except BaseException as error:  # handed to the loop, which ends the process
            self._error = error
            if self._wake is not None:
                self._wake.post(_nothing)


def _nothing() -> None:
    """A completion that only wakes the loop."""
