"""Blocking work off the loop: uploads, flushes, commits, producers that warm up.

The loop submits a call and goes on; what comes of it is queued as a completion that the loop takes
when it next looks. No lock is shared with the hot path: a deque's append and popleft are atomic.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Background:
    """A few threads and the queue of what they finished.

    The threads are daemons: a call that waits for a server must not keep a process alive whose loop
    has ended, as it would still seem to live (its heartbeats go on) and do nothing.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._signal = threading.Event()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        call: Callable[[], Any],
        then: Callable[[Any], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run ``call`` in a thread; then, in ``drain``, ``then(result)`` or ``failed(error)``."""

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # whatever it is: handed to the loop, not swallowed
                self.post(lambda error=error: failed(error))  # type: ignore[misc]
            else:
                self.post(lambda: then(result))

        self._calls.put(run)

    def post(self, completion: Callable[[], None]) -> None:
        """Queue a completion for the loop, from any thread."""
        self._done.append(completion)
        self._signal.set()

    def drain(self) -> bool:
        """Run queued completions in the calling thread; whether there were any."""
        if not self._done:
            return False
        while self._done:
            self._done.popleft()()
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until something is queued, at most ``timeout_s``."""
        # Cleared before the look: what is queued after the look sets it again. Cleared elsewhere,
        # it could stay set for a completion that ran already, and every wait would end at once.
        self._signal.clear()
        if not self._done:
            self._signal.wait(timeout_s)

    def close(self, *, finish_s: float = 0.0) -> None:
        """Forget what was not begun within ``finish_s``; running calls end by themselves."""
        self._closed = finish_s <= 0
        for _ in self._threads:
            self._calls.put(None)
        give_up = time.monotonic() + finish_s
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        self._closed = True

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if not self._closed:
                call()
