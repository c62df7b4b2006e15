"""The plots of a report as SVG that stands inside the page and takes the page's colours."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock_spark.ab.model import ColumnDifference, Compared, Deltas
from penstock_spark.ab.table import key_text, plain, shown

WIDTH_IN = 5.4
"""At 72 points an inch the plot is 389 wide: on a phone, text keeps the size it has here."""
_COLOURS = {"ink": "#010101", "muted": "#020202", "grid": "#030303", "bar": "#040404",
            "less": "#050505", "different": "#060606"}  # fmt: skip
"""Variable of the page's style sheet -> the colour that stands for it while we draw."""
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, to be found and read out
    "svg.hashsalt": "penstock",
    "text.parse_math": False,  # a key may hold dollar signs
    "font.size": 10,
    "axes.edgecolor": _COLOURS["grid"],
    "axes.labelcolor": _COLOURS["muted"],
    "text.color": _COLOURS["ink"],
    "xtick.color": _COLOURS["grid"],
    "ytick.color": _COLOURS["grid"],
    "xtick.labelcolor": _COLOURS["muted"],
    "ytick.labelcolor": _COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MOST_LABEL = 24
_PROLOGUE = re.compile(r"^.*?(?=<svg )", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>|<style [^>]*>.*?</style>", re.DOTALL)
_SIZE = re.compile(r' (?:width|height)="[\d.]+pt"', re.ASCII)
_FONT = re.compile(r"(font: [\d.]+px )[^;\"]+")


def columns_plot(compared: Compared) -> Markup:
    """How many rows differ, by column."""
    columns = sorted((c for c in compared.columns if c.rows), key=lambda c: -c.rows)[:15]
    with _figure(len(columns)) as (figure, axes):
        _bars(axes, [c.name for c in columns], [c.rows for c in columns], "different")
        axes.set_xlabel("rows that differ")
        return _svg(figure, f"{compared.name}: rows that differ, by column")


def histogram(name: str, column: ColumnDifference, deltas: Deltas) -> Markup:
    """How b - a is distributed."""
    with _figure(6) as (figure, axes):
        lows = [float(each.low) for each in deltas.bins]
        widths = [float(each.high) - float(each.low) for each in deltas.bins]
        if _is_whole(deltas):  # [5, 6) holds the fives: its bar stands around them
            widths = [widths[0] or 1.0] * len(lows)
            lows = [low - 0.5 for low in lows]
        elif len(lows) == 1:
            widths = [1.0]
            lows = [lows[0] - 0.5]
        heights = [each.rows for each in deltas.bins]
        axes.bar(lows, heights, widths, align="edge", color=_COLOURS["bar"], linewidth=0)
        axes.set_xlabel(f"{plain(column.name)}: B − A")
        axes.set_ylabel("rows")
        axes.grid(visible=True, axis="y", color=_COLOURS["grid"], linewidth=0.6)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=_is_whole(deltas)))
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(_tick))
        figure.subplots_adjust(left=0.17, right=0.97, bottom=0.22, top=0.97)
        return _svg(figure, f"{name}: histogram of {column.name}, B − A")


def keys_plot(name: str, column: ColumnDifference, deltas: Deltas) -> Markup:
    """The keys whose sums of b - a are furthest from zero."""
    with _figure(len(deltas.top)) as (figure, axes):
        labels = [key_text(each.key) for each in deltas.top]
        _bars(axes, labels, [float(each.sum) for each in deltas.top], "bar")
        axes.set_xlabel(f"{plain(column.name)}: sum of B − A")
        return _svg(figure, f"{name}: keys with the largest differences of {column.name}")


def _is_whole(deltas: Deltas) -> bool:
    return all(isinstance(each.low, int) and isinstance(each.high, int) for each in deltas.bins)


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float], colour: str) -> None:
    """Horizontal bars, the first on top, each with its value."""
    places = range(len(names))
    colours = [_COLOURS[colour if value >= 0 else "less"] for value in values]
    bars = axes.barh(places, values, height=0.66, color=colours, linewidth=0)
    axes.bar_label(bars, [_number(value) for value in values], padding=4, fontsize=9)
    labels = [plain(name) for name in names]
    cut = [n if len(n) <= _MOST_LABEL else f"{n[: _MOST_LABEL - 1]}…" for n in labels]
    axes.set_yticks(places, cut)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=_COLOURS["grid"], linewidth=0.8)
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.margins(x=0.18)
    low, high = min(0.0, *values), max(0.0, *values)
    room = 0.24 * ((high - low) or 1.0)
    axes.set_xlim(low - (room if low < 0 else 0), high + (room if high > 0 else 0))


def _number(value: float) -> str:
    return shown(int(value)) if float(value).is_integer() else shown(value)


def _tick(value: float, _: object = None) -> str:
    """A short number for an axis: 1.2M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:g}"


@contextmanager
def _figure(bars: int) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # glyphs that the measuring font lacks; the browser has them
        figure = Figure(figsize=(WIDTH_IN, 0.75 + 0.3 * bars))
        axes = figure.add_subplot()
        height = figure.get_figheight()
        figure.subplots_adjust(left=0.34, right=0.97, bottom=0.55 / height, top=1 - 0.08 / height)
        yield figure, axes


def _svg(figure: Figure, title: str) -> Markup:
    """The drawing with the page's variables for colours, and a name for who cannot see it."""
    out = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = _METADATA.sub("", _PROLOGUE.sub("", out.getvalue()))
    head, rest = text.split(">", 1)
    head = _SIZE.sub("", head).replace("<svg", '<svg role="img"', 1)
    text = f"{head}><title>{escape(plain(title))}</title>{rest}"
    for name, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(_FONT.sub(r"\1var(--font)", text))  # noqa: S704  (text in it is escaped)
