"""What a run tells other programs: one JSON line per event, all processes to one file."""

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from penstock.failure import ConfigurationError, PenstockError, UserCodeFailed

_encoder = msgspec.json.Encoder()
_OURS = str(Path(__file__).resolve().parent.parent)


class EventLog:
    """Appends events to ``path`` (None: nowhere). A line is one write, so processes do not mix."""

    def __init__(self, path: str | None) -> None:
        self._fd: int | None = None
        if path is not None:
            try:
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError as error:
                raise ConfigurationError(
                    f"events cannot be written to {path!r}: {error.strerror}; name a file in a "
                    "folder that is there"
                ) from None

    def emit(self, event: str, **fields: Any) -> None:
        """Append ``{"at": epoch seconds, "event": event, **fields}``."""
        if self._fd is not None:
            os.write(
                self._fd, _encoder.encode({"at": time.time(), "event": event, **fields}) + b"\n"
            )

    def process(
        self, role: str, name: str, state: str, *, pid: int, code: int | None = None
    ) -> None:
        """A process of the run started or exited."""
        self.emit("process", role=role, name=name, pid=pid, state=state, code=code)


def say(who: str, text: str) -> None:
    """A line for people on standard error, with the time and who says it."""
    stamp = time.strftime("%H:%M:%S")
    sys.stderr.write(f"{stamp} {who}: {text}\n")
    sys.stderr.flush()


def where_raised(error: BaseException) -> str:
    """The part of a traceback that helps: the frames outside of Penstock for a user's exception,
    all of it for one that nobody raised on purpose, nothing for an error that says all by itself.
    """
    if isinstance(error, PenstockError) and not isinstance(error, UserCodeFailed):
        return ""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)
    if isinstance(error, UserCodeFailed):
        frames[:] = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    return "".join(traceback.format_list(frames)).rstrip()
