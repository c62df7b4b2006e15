"""Progress lines for anything that takes more than two seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], object]
"""Takes one line of progress, as ``print`` does."""

FIRST_LINE_S = 2.0
NEXT_LINES_S = 15.0


def silent(_line: str) -> None:
    """Say nothing."""


@contextmanager
def step(say: Say, what: str) -> Iterator[None]:
    """Tell of ``what`` when it has taken two seconds, then every 15 s, and at its end."""
    began = time.monotonic()
    done = threading.Event()
    told = threading.Event()

    def tell() -> None:
        wait_s = FIRST_LINE_S
        while not done.wait(wait_s):
            say(f"  … {what} ({time.monotonic() - began:.0f} s)")
            told.set()
            wait_s = NEXT_LINES_S

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
        if told.is_set():
            say(f"  … {what}: {time.monotonic() - began:.1f} s")
