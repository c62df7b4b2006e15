"""The options of ``spark.read.format("penstock")``: what a person wrote, checked and typed."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.failure import ConfigurationError

NAMES = (
    "path",
    "operatorUid",
    "stateName",
    "metadata",
    "keyGroups",
    "key",
    "columns",
    "readTimers",
    "pushFilters",
    "app",
    "checkpointId",
)
METADATA = ("operators", "states", "files", "offsets", "timers", "watermarks")
LATEST = "latest"
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


class ReadOptions(NamedTuple):
    """What is to be read."""

    url: str
    """Of the savepoint, or of the snapshot store when a checkpoint is read."""
    operator: str | None = None
    state: str | None = None
    metadata: str | None = None
    """One of METADATA: a table about the savepoint instead of a state."""
    key_groups: range | None = None
    key: str | None = None
    """A key as text: as it is for a str, else JSON."""
    columns: tuple[str, ...] = ()
    """Columns to read, in this order; all when empty."""
    timers: bool = False
    """Read the timers of the operator instead of a state."""
    push_filters: bool = False
    """Read only what the query's filters leave: the DataFrame is then good for one query."""
    app: str | None = None
    """Set when the newest or a given checkpoint of this application is read."""
    checkpoint: int | None = None
    """None: the newest one."""


def parsed(options: Mapping[str, str]) -> ReadOptions:
    """The options as Spark hands them over, whose names have lost their case.

    Raises ConfigurationError naming the option, what was expected and what was found.
    """
    known = {name.lower(): name for name in NAMES}
    given: dict[str, str] = {}
    for name, text in options.items():
        if name.lower() not in known:
            raise ConfigurationError(
                f"data source penstock has no option {name!r}; it has {', '.join(NAMES)}"
            )
        given[known[name.lower()]] = text
    if not given.get("path"):
        raise ConfigurationError(
            "data source penstock was given no path: .load('s3://BUCKET/PREFIX/APP/savepoints/"
            "NAME'), .load('file:///DIR/…'), or OPTIONS (path '…') in SQL"
        )
    read = ReadOptions(
        url=given["path"],
        operator=given.get("operatorUid"),
        state=given.get("stateName"),
        metadata=_choice(given, "metadata", METADATA),
        key_groups=_groups(given.get("keyGroups")),
        key=given.get("key"),
        columns=_columns(given.get("columns")),
        timers=_choice(given, "readTimers", ("true", "false")) == "true",
        push_filters=_choice(given, "pushFilters", ("true", "false")) == "true",
        app=given.get("app"),
        checkpoint=_checkpoint(given.get("checkpointId")),
    )
    _agreed(read, given)
    return read


def _agreed(read: ReadOptions, given: Mapping[str, str]) -> None:
    """Refuse options that contradict each other: none is ignored in silence."""
    if "checkpointId" in given and read.app is None:
        raise ConfigurationError("option checkpointId needs option app, whose checkpoint it is")
    if read.app is not None and (read.metadata == "files" or read.push_filters):
        raise ConfigurationError(
            "a checkpoint has chunks and no files: option app takes no metadata=files and no "
            "pushFilters; convert the checkpoint to a savepoint for these"
        )
    if read.timers and read.state is not None:
        raise ConfigurationError(
            "options readTimers and stateName exclude each other: timers belong to the operator"
        )
    if read.metadata is not None:
        refused = ["stateName", "key", "readTimers", "pushFilters"]
        if read.metadata != "timers":
            refused += ["operatorUid", "keyGroups"]
        if wrong := [name for name in refused if name in given]:
            raise ConfigurationError(
                f"option metadata={read.metadata} is a table of its own and takes no option "
                f"{wrong[0]}; filter the DataFrame instead"
            )


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str | None:
    text = given.get(name)
    if text is None:
        return None
    if text.lower() not in choices:
        raise ConfigurationError(f"option {name} is {text!r}; expected {' or '.join(choices)}")
    return text.lower()


def _groups(text: str | None) -> range | None:
    if text is None:
        return None
    found = _RANGE.fullmatch(text.strip())
    first = int(found[1]) if found is not None else 0
    last = int(found[2] or first) if found is not None else -1
    if last < first:
        raise ConfigurationError(
            f"option keyGroups is {text!r}; expected FIRST-LAST, both included, such as 0-63"
        )
    return range(first, last + 1)


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"option columns is {text!r}; expected different names with commas between"
        )
    return names


def _checkpoint(text: str | None) -> int | None:
    if text is None or text.lower() == LATEST:
        return None
    if not text.isdecimal():
        raise ConfigurationError(
            f"option checkpointId is {text!r}; expected a checkpoint's number or {LATEST!r}"
        )
    return int(text)
