"""The report as a table for a terminal of any width from 80 columns on."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from penstock_spark.ab.comparison import ONLY_A, ONLY_B
from penstock_spark.ab.model import (
    QUANTILES,
    AbReport,
    ColumnDifference,
    Compared,
    Deltas,
    KeyRows,
    Number,
)

LEAST_WIDTH = 60
_BARS = " ▁▂▃▄▅▆▇█"
_MOST_KEYS = 5
_HEAD = ("", "rows A", "rows B", "equal", "different", "only A", "only B")


def table(report: AbReport, width: int = 80) -> str:
    """The report in lines of at most ``width`` characters, without control characters."""
    width = max(width, LEAST_WIDTH)
    lines = [*_title(report), "", *_overview(report.comparisons, width)]
    for compared in report.comparisons:
        lines += ["", *_details(compared, width)]
    lines += list(_rest(report))
    return "\n".join(_cut(plain(line), width) for line in lines)


def plain(text: str) -> str:
    """The text without what a terminal would obey instead of show."""
    return "".join(char if char.isprintable() else "�" for char in text)


def shown(value: Number) -> str:
    """A number for people: thousands apart, few digits behind the point."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Decimal):
        text = f"{value:,f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.4g}"


def share(part: int, whole: int) -> str:
    """A part of a whole in per cent, never 0 % nor 100 % when it is not."""
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    percent = 100 * part / whole
    if percent < 0.01:
        return "<0.01 %"
    return ">99.99 %" if percent > 99.99 else f"{percent:.2f} %"


def key_text(key: Sequence[str | None]) -> str:
    """A key for people."""
    return " · ".join("(null)" if part is None else part or "(empty)" for part in key)


def has_key_table(compared: Compared) -> bool:
    """Whether keys have several rows, so that it says something which of them have most."""
    return bool(compared.top_keys) and compared.keys < compared.pairs


def _title(report: AbReport) -> Iterator[str]:
    yield f"A/B report: {report.app}, variant {report.variant}"
    if report.run is not None:
        run = report.run
        yield f"A is {run.app_a}, B is {run.app_b}; both from {run.savepoint}"
        mode = "replay of a range of offsets" if run.until else "both running live"
        yield mode
    yield "no difference" if report.is_equal else "there are differences"


def _overview(comparisons: Sequence[Compared], width: int) -> list[str]:
    rows = [
        (f"{each.kind} {each.name}", each.rows_a, each.rows_b, each.equal, each.different,
         each.only_a, each.only_b)
        for each in comparisons
    ]  # fmt: skip
    return _grid([_HEAD, *([name, *map(shown, numbers)] for name, *numbers in rows)], width)


def _details(compared: Compared, width: int) -> Iterator[str]:
    title = f"{compared.kind} {compared.name}"
    yield f"── {title} " + "─" * max(0, width - len(title) - 4)
    yield f"   joined on {', '.join(compared.on)}, {compared.pairs:,} rows or pairs"
    if compared.ignored:
        yield f"   not compared: {', '.join(compared.ignored)}"
    for side, names in (("A", compared.columns_only_a), ("B", compared.columns_only_b)):
        if names:
            yield f"   columns only in {side}: {', '.join(names)}"
    if compared.repeated_a or compared.repeated_b:
        again = f"{compared.repeated_a:,} of A, {compared.repeated_b:,} of B"
        yield f"   rows that repeat the join columns, paired in their order: {again}"
    if not compared.unequal:
        yield "   all rows are equal"
        return
    differing = [column for column in compared.columns if column.rows]
    if differing:
        yield ""
        yield from _columns(differing, compared, width)
    for column in differing:
        if column.deltas is not None:
            yield ""
            yield from _distribution(column, column.deltas, width)
    if has_key_table(compared):
        yield ""
        yield from _keys(compared, compared.top_keys, width)
    for status, words in ((ONLY_A, "only in A"), (ONLY_B, "only in B")):
        keys = [key_text(e.key) for e in compared.examples if e.status == status]
        if keys:
            yield f"   {words}, such as {'; '.join(keys[:3])}"
    if compared.differences is not None:
        yield f"   every row that is not equal: {compared.differences}"


def _columns(columns: Iterable[ColumnDifference], compared: Compared, width: int) -> list[str]:
    both = compared.equal + compared.different
    head = ("column", "type", "rows", "of pairs")
    rows = [
        (column.name, _types(column), f"{column.rows:,}", share(column.rows, both))
        for column in columns
    ]
    return _indented(_grid([head, *rows], width - 3, texts=2))


def _types(column: ColumnDifference) -> str:
    same = column.type_a == column.type_b
    return column.type_a if same else f"{column.type_a} / {column.type_b}"


def _distribution(column: ColumnDifference, deltas: Deltas, width: int) -> Iterator[str]:
    yield (
        f"   {column.name}: B − A in {deltas.rows:,} rows, sum {shown(deltas.sum)}, "
        f"mean {shown(deltas.mean)}"
    )
    values = [deltas.min, *(deltas.quantiles[f"p{p}"] for p in QUANTILES), deltas.max]
    cells = list(zip(("min", *(f"p{p}" for p in QUANTILES), "max"), map(shown, values)))
    yield from _indented(_flowing(cells, width - 3))
    most = max(1, *(each.rows for each in deltas.bins))
    bars = "".join(_BARS[-(-each.rows * (len(_BARS) - 1) // most)] for each in deltas.bins)
    yield f"   {shown(deltas.bins[0].low)} │{bars}│ {shown(deltas.bins[-1].high)}"
    if deltas.below or deltas.above:
        yield f"   {deltas.below:,} rows below, {deltas.above:,} above"
    for top in deltas.top[:_MOST_KEYS]:
        rows = f"in {top.rows:,} rows" if top.rows > 1 else "in 1 row"
        yield f"     {_cut(key_text(top.key), width // 2)}: {shown(top.sum)} {rows}"


def _keys(compared: Compared, keys: Sequence[KeyRows], width: int) -> Iterator[str]:
    names = ", ".join(compared.by)
    yield f"   {compared.keys_unequal:,} of {compared.keys:,} keys ({names}) differ"
    head = ("most", "equal", "different", "only A", "only B")
    rows = [
        (key_text(k.key), f"{k.equal:,}", f"{k.different:,}", f"{k.only_a:,}", f"{k.only_b:,}")
        for k in keys[:_MOST_KEYS]
    ]
    yield from _indented(_grid([head, *rows], width - 3))


def _rest(report: AbReport) -> Iterator[str]:
    if report.states_only_a or report.states_only_b:
        yield ""
    for side, names in (("A", report.states_only_a), ("B", report.states_only_b)):
        if names:
            yield f"states only in {side}: {', '.join(names)}"
    if report.positions:
        yield ""
        yield "A and B ended at different positions:"
    for each in report.positions:
        yield f"   {each.topic}[{each.partition}]: A {each.a}, B {each.b}"
    if report.not_compared:
        yield ""
    for what in report.not_compared:
        yield f"not compared: {what}"


def _grid(rows: Sequence[Sequence[str]], width: int, texts: int = 1) -> list[str]:
    """Columns side by side: the first ``texts`` to the left and cut when there is no room."""
    sizes = [max(len(plain(cell)) for cell in column) for column in zip(*rows)]
    room = width - sum(sizes[1:]) - 2 * (len(sizes) - 1)
    sizes[0] = max(min(sizes[0], room), 8)
    return [
        "  ".join(
            _cut(plain(cell), size).ljust(size) if n < texts else cell.rjust(size)
            for n, (cell, size) in enumerate(zip(row, sizes))
        ).rstrip()
        for row in rows
    ]


def _flowing(cells: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Names above values, in as many pairs of lines as the width needs."""
    size = max(len(part) for cell in cells for part in cell) + 2
    each = max(width // size, 1)
    lines = []
    for first in range(0, len(cells), each):
        some = cells[first : first + each]
        lines += ["".join(part.rjust(size) for part in parts) for parts in zip(*some)]
    return lines


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"   {line}" for line in lines]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
