"""The cache folder: what is fetched or built once and never again.

Everything in it is published by one rename, so a killed download leaves nothing that looks whole,
and two stacks that start together wait for each other instead of doing the work twice.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """The folder of the cache: ``$XDG_CACHE_HOME/penstock``, by default ``~/.cache/penstock``."""
    home = os.environ.get("XDG_CACHE_HOME")
    root = Path(home) if home else Path.home() / ".cache"
    return root / "penstock"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache, filled by ``make`` when it is not there yet.

    Args:
        name: path below the cache folder; the version belongs in it.
        make: fills the empty folder that it is given, or raises.
    """
    target = cache_folder() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():  # another stack made it while this one waited
            return target
        part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            make(part)
            part.chmod(0o755)
            part.rename(target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return target
