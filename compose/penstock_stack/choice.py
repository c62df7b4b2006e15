"""Which kind of stack a program gets when it does not mind: the one that lacks nothing."""

import importlib.util
import shutil

from penstock_stack.cache import cache_folder
from penstock_stack.failure import StackError
from penstock_stack.java import find_java
from penstock_stack.progress import Say
from penstock_stack.stack import Stack, start_stack
from penstock_stack.store import MINIO_VERSION


def start_any_stack(*, progress: Say = print) -> Stack:
    """Plain processes where Java and MinIO can be had, else containers, else what there is.

    Raises:
        StackError: neither kind can run a Kafka here; says what is missing.
    """
    lack = _what_processes_lack()
    if lack is None or importlib.util.find_spec("testcontainers") is None:
        return start_stack(progress=progress)
    # testcontainers is a development tool, and slow to load
    from penstock_stack.containers import start_containers, why_no_containers  # noqa: PLC0415

    if why_no_containers() is not None:
        return start_stack(progress=progress)
    progress(f"Servers run on containers: {lack}")
    return start_containers(progress=progress)


def _what_processes_lack() -> str | None:
    try:
        find_java()
    except StackError as missing:
        return str(missing)
    if (cache_folder() / "minio" / MINIO_VERSION).is_dir() or shutil.which("go") is not None:
        return None
    return "there is no Go to build MinIO as a plain process"
