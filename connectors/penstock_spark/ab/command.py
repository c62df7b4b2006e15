"""What ``penstock ab report`` does: a session of its own, the report, the table on the terminal."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.failure import ConfigurationError

from penstock_spark.ab.reporting import Wishes, report
from penstock_spark.ab.table import table
from penstock_spark.session import session


def run(
    app: str,
    variant: str,
    env: Mapping[str, str],
    *,
    on: Sequence[str] = (),
    ignore: Sequence[str] = (),
    out: str | None = None,
    master: str | None = None,
) -> int:
    """Make the report, write it to a folder and print it; the exit code.

    Args:
        app: the application that the run began from.
        variant: the variant's name.
        env: the settings of the cluster and of the snapshot store.
        on: join columns, each ``OUTPUT=COLUMN,COLUMN``.
        ignore: columns that are not compared, each ``OUTPUT=COLUMN,…`` or ``OPERATOR/STATE=…``.
        out: the folder, ``ab-report-<app>-<variant>`` when None.
        master: Spark's master, this machine's processors when None.
    """
    folder = Path(out or f"ab-report-{app}-{variant}")
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {line}\n")
        sys.stderr.flush()

    wishes = Wishes(
        on=columns("--on", on), ignore=columns("--ignore", ignore), folder=folder, say=say
    )
    say("starting Spark")
    with session("penstock ab report", master) as spark:
        found = report(app, variant, env, spark, wishes)
    sys.stdout.write(f"{table(found, shutil.get_terminal_size((100, 24)).columns)}\n\n")
    sys.stdout.write(f"  {folder / 'report.html'}\n  {folder / 'report.json'}\n")
    return 0


def columns(option: str, given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """``NAME=COLUMN,COLUMN`` as a mapping. Raises ConfigurationError."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, _, names = text.partition("=")
        parts = tuple(part.strip() for part in names.split(","))
        if not name or not all(parts):
            raise ConfigurationError(
                f"{option} {text!r} is not NAME=COLUMN[,COLUMN …], like postings=account,side"
            )
        found[name] = (*found.get(name, ()), *parts)
    return found
