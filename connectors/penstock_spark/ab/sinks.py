"""What the services of a side write: serde and type of each sink topic, read from its files.

The files are loaded in a process of their own (``python -m penstock_spark.ab.sinks FILE…``): those
of A and B often define modules of the same names.
"""

import subprocess
import sys
from collections.abc import Sequence

import msgspec
from penstock import application
from penstock.failure import ConfigurationError, PenstockError
from penstock.schema import Schema, schema_of

_TIMEOUT_S = 60


class SinkType(msgspec.Struct, frozen=True):
    """The form of a topic's values."""

    serde: str
    value: Schema


def sink_types(files: Sequence[str]) -> dict[str, SinkType]:
    """Topic -> what is written to it; ``any`` where two sinks write different types.

    Raises ConfigurationError when the files cannot be loaded here.
    """
    command = [sys.executable, "-m", "penstock_spark.ab.sinks", *files]
    try:
        run = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"loading {', '.join(files)} took more than {_TIMEOUT_S} s; a service file should "
            "define its service and do nothing else"
        ) from None
    if run.returncode != 0:
        said = run.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise ConfigurationError(said[-1])
    return msgspec.json.decode(run.stdout, type=dict[str, SinkType])


def _found(files: Sequence[str]) -> dict[str, SinkType]:
    types: dict[str, SinkType] = {}
    for file in files:
        for service in application.load_all(file):
            for step in (step for stage in service.stages() for step in stage.root.walk()):
                if step.kind != "sink":
                    continue
                found = SinkType(step.serde, schema_of(step.value))
                before = types.setdefault(step.topic, found)
                if before != found:
                    types[step.topic] = SinkType(step.serde, Schema("any"))
    return types


def main() -> int:
    """Print the sinks of the files as JSON; the exit code."""
    out, sys.stdout = sys.stdout, sys.stderr  # what a service file prints is not ours
    try:
        types = _found(sys.argv[1:])
    except PenstockError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    out.write(msgspec.json.encode(types).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
