"""Named instants at which a test may kill the process that reaches them.

``PENSTOCK_FAULT=NAME:NTH:DIR[:TIMES]`` kills with SIGKILL the process that reaches the point for
the NTH time since its start, at most TIMES (1) times over all processes that share the folder DIR.
Without the variable a point costs one comparison; none is on the path of a record.

| point | where |
|---|---|
| a1 | before the barrier is written to any edge partition |
| a2 | some edge partitions have the barrier |
| a3 | while aligning |
| a4 | after the snapshot is frozen, before its upload |
| a5 | during an upload |
| a6 | after the upload, before the flush |
| a7 | pre-committed, before the acknowledgement |
| a8 | acknowledged, before Complete is logged (coordinator) |
| a9 | Complete is logged, before any EndTxn |
| a10 | after the first EndTxn of a checkpoint |
| a11 | EndTxn sent, the answer not awaited |
| a12 | all committed, before older checkpoints are dropped (coordinator) |
| a13 | during a restore (worker) |
| a14 | between two EndTxn of a recovery (coordinator) |
"""

import os
import signal
import threading

_SPEC = os.environ.get("PENSTOCK_FAULT", "")
_NAME, _, _REST = _SPEC.partition(":")
_reached = 0
_lock = threading.Lock()


def reached(name: str, *, delay_s: float = 0.0) -> None:
    """The process is at point ``name``: die if asked to, ``delay_s`` later by a timer."""
    if name == _NAME and _is_due():
        if delay_s:
            threading.Timer(delay_s, _die).start()
        else:
            _die()


def is_armed(name: str) -> bool:
    """Whether the point ``name`` was asked for, so that costly detours are made only then."""
    return name == _NAME


def _is_due() -> bool:
    global _reached  # noqa: PLW0603 - one counter a process is the point of it
    nth, folder, times = ([*_REST.split(":"), "1"])[:3]
    with _lock:
        _reached += 1
        return _reached == int(nth) and _claimed(folder, int(times))


def _claimed(folder: str, times: int) -> bool:
    for number in range(times):
        try:
            os.close(os.open(f"{folder}/{_NAME}-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
