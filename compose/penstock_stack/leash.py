"""Runs a server that dies with its parent: ``python leash.py PARENT_PID COMMAND…``.

The kernel's parent-death signal holds even when the parent is killed with SIGKILL. It is set in
this small program and survives its ``exec``, so the parent needs no code between fork and exec.
Elsewhere than on Linux the command just runs.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie the signal, see that the parent is still there, become the command."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit(1)  # it died before the signal was tied
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
