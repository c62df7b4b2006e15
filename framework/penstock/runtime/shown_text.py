"""Results for people: tables, sizes and times as plain text that fits a terminal.

What comes out of a savepoint or a store was written by others: no character of it reaches the
terminal that could steer it.
"""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

GAP = 2
LEAST_WIDTH = 8
"""A column is never cut shorter than this."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return max(shutil.get_terminal_size((80, 24)).columns, 40)


def printed(text: str) -> None:
    """Write a result to standard output."""
    _written(plain(text))


def printed_json(value: Any) -> None:
    """Write a result to standard output as one JSON document."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    _written("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def plain(text: str) -> str:
    """The text with every control character but the newline spelled out."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Collection[str] = (),
    cut: int | None = None,
) -> str:
    """Rows under their heads; columns named in ``right`` are numbers.

    With ``cut`` the table fits into so many columns of the terminal: long texts lose their ends.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    if cut is not None:
        _shrink(widths, cut - GAP * (len(widths) - 1))
    lines = []
    for row in [list(head), *cells]:
        parts = []
        for name, text, size in zip(head, row, widths, strict=True):
            short = text if len(text) <= size else text[: size - 1] + "…"
            parts.append(short.rjust(size) if name in right else short.ljust(size))
        lines.append((" " * GAP).join(parts).rstrip())
    return "\n".join(lines)


def wrapped(first: str, text: str) -> str:
    """A text behind its name, further lines below the text."""
    return textwrap.fill(
        plain(text),
        width(),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def indented(text: str, by: int = GAP) -> str:
    """The text further to the right."""
    return textwrap.indent(text, " " * by)


def size(count: int) -> str:
    """Bytes: ``532 B``, ``35.2 KiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def number(count: int, one: str, many: str | None = None) -> str:
    """A count and its noun: ``1 row``, ``1,204 rows``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def moment(ms: int) -> str:
    """Milliseconds since the epoch as UTC, to the second."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{ms} ms"


def _written(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # who reads it has gone: | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return plain(text.replace("\n", "\\n"))


def _shrink(widths: list[int], room: int) -> None:
    """Take from the widest columns until all fit."""
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= LEAST_WIDTH:
            return
        widths[widest] -= 1
