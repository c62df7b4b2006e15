"""The Java runtime that Kafka needs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from penstock_stack.failure import StackError

OLDEST = 17


def find_java() -> str:
    """The path of a ``java`` of version 17 or newer, of JAVA_HOME or of PATH.

    Raises:
        StackError: there is none; says how to get it.
    """
    home = os.environ.get("JAVA_HOME")
    tried = []
    for java in (str(Path(home) / "bin" / "java") if home else None, shutil.which("java")):
        if java is None or not Path(java).is_file():
            continue
        version = _version(java)
        if version is not None and version >= OLDEST:
            return java
        tried.append(f"{java} (version {version or 'unknown'})")
    found = ", ".join(tried) or "none"
    raise StackError(
        f"Kafka needs Java {OLDEST} or newer on PATH or in JAVA_HOME; found: {found}. "
        f"Debian or Ubuntu: apt-get install openjdk-{OLDEST}-jre-headless; "
        f"Fedora: dnf install java-{OLDEST}-openjdk-headless; macOS: brew install openjdk."
    )


def _version(java: str) -> int | None:
    run = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', run.stderr)
    return int(match[1]) if match else None
