"""A child process that does not outlive its supervisor."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def leashed(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` is gone (Linux; elsewhere nothing).

    A SIGKILL of the supervisor must not leave workers behind that nobody restarts or stops.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before the leash was on
        os._exit(9)
