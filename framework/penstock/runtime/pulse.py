"""A thread that says that the process lives, whatever its loop is busy with.

Restoring a large state, a slow handler or a cluster that does not answer hold the loop up for
longer than any heartbeat timeout; none of them is the death of the process.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from penstock.failure import PenstockError
from penstock.runtime.events import say

SLOW_S = 60.0
"""A loop that does not turn for so long is told about, and again after as long."""


class Pulse:
    """Calls ``beat`` every ``every_s`` until closed; ``turned`` is the loop's sign of life."""

    def __init__(self, who: str, every_s: float, beat: Callable[[], None]) -> None:
        self._who = who
        self._every_s = every_s
        self._beat = beat
        self._closed = threading.Event()
        self._turned_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def turned(self, now: float) -> None:
        """The loop has come round, at ``now`` of the steady clock."""
        self._turned_at = now

    def close(self) -> None:
        """Beat no more, when this returns."""
        self._closed.set()
        self._thread.join(2 * self._every_s)

    def _run(self) -> None:
        told = 0
        while not self._closed.wait(self._every_s):
            with contextlib.suppress(PenstockError):  # the loop meets the same error, and tells it
                self._beat()
            held_up = int((time.monotonic() - self._turned_at) / SLOW_S)
            if held_up > told:
                say(
                    self._who,
                    f"one turn of the loop lasts for {held_up * SLOW_S:.0f} s already: a slow "
                    "handler, a large restore, or Kafka takes no records; checkpoints wait for it",
                )
            told = held_up
