"""``penstock savepoint diff``: what lies between two savepoints, for people and programs."""

import argparse
from collections.abc import Iterator, Mapping

from penstock.runtime import savepoint_places
from penstock.runtime.shown_text import (
    indented,
    number,
    printed,
    printed_json,
    table,
    width,
    wrapped,
)
from penstock.savepoint.comparing import Comparison, Example, Moved, Rows, compare
from penstock.savepoint.reading import Savepoint

DIFFERENT = 1
MOST_SHOWN = 300
"""Characters of a value in an example; --json has all of them."""
_POSITIONS = ("source", "topic", "partition", "A", "B", "moved by")
_ROWS = ("state", "only in A", "only in B", "different", "equal")
_SIDES = {"a": "only in A", "b": "only in B", "both": "differs"}


def difference(options: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Compare two savepoints; 0 when nothing lies between them, else 1."""
    a = Savepoint.open(savepoint_places.published(options.a, env))
    b = Savepoint.open(savepoint_places.published(options.b, env))
    found = compare(a, b, examples=options.examples)
    if options.json:
        printed_json({"a": a.url, "b": b.url, "equal": found.same, **_builtins(found)})
    else:
        heads = [_head("A", a), _head("B", b)]
        printed("\n".join([*heads, *_page(found)]))
    return 0 if found.same else DIFFERENT


def _builtins(found: Comparison) -> dict[str, object]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _head(side: str, savepoint: Savepoint) -> str:
    manifest = savepoint.manifest
    return f"{side}  {savepoint.url}  ({manifest.app}, checkpoint {manifest.checkpoint})"


def _page(found: Comparison) -> Iterator[str]:
    if found.same:
        rows = sum(each.equal for each in found.rows)
        yield f"\nequal: {number(len(found.rows), 'state')}, {number(rows, 'row')}"
        return
    before, after = found.max_parallelism
    if before != after:
        yield f"\nkey groups: A has {before}, B has {after}"
    for side, names in (("A", found.only_a), ("B", found.only_b)):
        if names:
            yield "\n" + wrapped(f"only in {side}: ", ", ".join(names))
    if found.changes:
        yield "\nchanged"
    for change in found.changes:
        yield f"  {change.name}: {change.what}"
        yield wrapped("    A  ", change.a)
        yield wrapped("    B  ", change.b)
    if found.positions:
        yield f"\npositions moved in {number(len(found.positions), 'partition')}"
        yield indented(
            table(_POSITIONS, [_moved(each) for each in found.positions], right=_POSITIONS[2:])
        )
    if found.rows:
        yield "\nrows"
        yield indented(table(_ROWS, [_counted(each) for each in found.rows], right=_ROWS[1:]))
    for each in found.rows:
        if each.examples:
            yield f"\n{each.operator}.{each.state}, for example"
        for example in each.examples:
            yield from _example(example)


def _counted(each: Rows) -> tuple[object, ...]:
    named = f"{each.operator}.{each.state}"
    return (named, each.only_a, each.only_b, each.different, each.equal)


def _moved(each: Moved) -> tuple[object, ...]:
    by = "-" if each.a is None or each.b is None else f"{each.b - each.a:+,}"
    sides = ("-" if side is None else side for side in (each.a, each.b))
    return (each.source, each.topic, str(each.partition), *sides, by)


def _example(example: Example) -> Iterator[str]:
    yield wrapped(f"  {_SIDES[example.side]:<9}  ", _short(example.key))
    for name, (before, after) in example.columns.items():
        line = f"    {name}: {before} -> {after}"
        if len(line) <= width():
            yield line
        else:
            yield wrapped(f"    {name}: ", _short(before))
            yield wrapped(f"    {'-> ':>{len(name) + 2}}", _short(after))


def _short(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
