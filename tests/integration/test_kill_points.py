"""kill -9 at every named point of the protocol, with a real Kafka and store: output exactly once.

Laws: L2, L3, L4, L6, L10, L12, L13, L14, L15, L16, L17. The points are those of
`penstock.runtime.faultpoint`; the process dies at the instant itself, not near it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_stack import Stack

from tests.integration.running import Application, Reader, check_sums, feed, make_topics, running

KEYS = 40
AT_LEAST = 100
AT_MOST = 3000
RESTORE_EVERY_S = 4.0
POINTS = {
    # point: (nth time it is reached in a process, kills)
    "a1": (4, 1),
    "a2": (7, 1),
    "a3": (3, 1),
    "a4": (4, 1),
    "a5": (2, 1),
    "a6": (3, 1),
    "a7": (4, 1),
    "a8": (4, 1),
    "a9": (3, 1),
    "a10": (3, 1),
    "a11": (3, 1),
    "a12": (4, 1),
    "a13": (1, 2),
    "a14": (1, 2),
}


@pytest.mark.integration
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, stack: Stack, app_id: str, tmp_path: Path) -> None:
    """One process (two for a restore's points) dies right there; nothing is lost or doubled."""
    nth, kills = POINTS[point]
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    marks = tmp_path / "marks"
    marks.mkdir()
    application = Application(
        stack,
        app_id,
        tmp_path,
        *("--parallelism", "2", "--checkpoint-interval-ms", "100"),
        PENSTOCK_FAULT=f"{point}:{nth}:{marks}:{kills}",
        # A chunk that travels inline is never uploaded.
        TEST_PADDING="2000" if point == "a5" else "0",
    )
    reader = Reader(stack, f"{app_id}.sums")
    fed = 0
    restoring = point in ("a13", "a14")
    again = 0.0

    def reached() -> bool:
        """A recovery of a checkpoint without transactions has no a14: there is another one."""
        nonlocal again
        done = len(list(marks.iterdir())) == kills
        if restoring and not done and time.monotonic() > again:
            _kill_one_worker(application)
            again = time.monotonic() + RESTORE_EVERY_S
        return done

    with running(application):
        if restoring:
            fed = _feed_until(stack, app_id, lambda: len(application.checkpoints()) >= 3)
        last = _feed_until(stack, app_id, reached, fed=fed)
        assert len(list(marks.iterdir())) == kills, f"{point} was not reached\n{application.log()}"
        reader.until(KEYS * last, 60, application)
        assert application.stop() == 0, application.log()
    reader.settle()
    reader.close()
    check_sums(reader.values, KEYS, last)
    assert application.open_transactions() == {}


def _feed_until(stack: Stack, app: str, reached: Callable[[], bool], *, fed: int = 0) -> int:
    """Feed until ``reached`` and a little on, so that it happens in the middle of the input."""
    enough = 0
    while fed < AT_LEAST or enough < 3:
        if fed >= AT_MOST:
            break
        feed(stack, f"{app}.numbers", KEYS, fed + 1, fed + 5)
        fed += 5
        time.sleep(0.08)
        enough += reached()
    return fed


def _kill_one_worker(application: Application) -> None:
    """A restore is needed before one can be killed."""
    with contextlib.suppress(StopIteration, ProcessLookupError):
        os.kill(next(iter(application.pids("worker").values())), signal.SIGKILL)
