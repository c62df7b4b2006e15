"""The input: real text that is on every machine, the source of Python's own standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
"""Foreign code, and the tests, which some distributions leave out."""


def standard_library_lines() -> Iterator[str]:
    """Every line of every module of the standard library, in the order of the files' names."""
    root = Path(sysconfig.get_path("stdlib"))
    for file in sorted(root.rglob("*.py")):
        if LEFT_OUT.isdisjoint(file.relative_to(root).parts):
            yield from file.read_text(encoding="utf-8", errors="replace").splitlines()
