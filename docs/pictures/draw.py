#!/usr/bin/env python3
"""Draws the data path of README, once for light and once for dark pages.

Run it after a change: ``python docs/pictures/draw.py``. tests/docs holds the files to it.
"""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
WIDTH, HEIGHT = 1000, 452
LEFT, RIGHT = 188, 812
"""Edges of what stands above and below the two workers."""


class Palette(NamedTuple):
    """Colours of one background."""

    text: str
    quiet: str
    line: str
    topic: str
    topic_line: str
    worker: str
    worker_line: str
    control: str
    control_line: str
    store: str
    store_line: str
    barrier: str
    on_barrier: str


LIGHT = Palette(
    text="#1f2328",
    quiet="#59636e",
    line="#59636e",
    topic="#ddf4ff",
    topic_line="#0969da",
    worker="#dafbe1",
    worker_line="#1a7f37",
    control="#fbefff",
    control_line="#8250df",
    store="#fff8c5",
    store_line="#9a6700",
    barrier="#bc4c00",
    on_barrier="#ffffff",
)
DARK = Palette(
    text="#f0f6fc",
    quiet="#9198a1",
    line="#9198a1",
    topic="#0c2d6b",
    topic_line="#58a6ff",
    worker="#0f3d21",
    worker_line="#3fb950",
    control="#331a5c",
    control_line="#bc8cff",
    store="#3b2a05",
    store_line="#d29922",
    barrier="#f0883e",
    on_barrier="#0d1117",
)


def text(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    """One line of text; ``style`` names classes."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{style}">{words}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rounded box of a kind."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="9" class="box {kind}"/>'


def arrow(points: str, kind: str = "data") -> str:
    """A line with a head at its end."""
    return f'<polyline points="{points}" class="{kind}" marker-end="url(#{kind}-head)"/>'


def number(x: float, y: float, n: int) -> str:
    """A step's number in a disc."""
    return f'<circle cx="{x}" cy="{y}" r="10.5" class="disc"/>' + text(x, y + 4.2, str(n), "step")


def topic(x: float, y: float, width: float, name: str, barrier_at: int | None = None) -> str:
    """A topic: a log of cells, one of which may be a barrier."""
    cells = 6
    step = (width - 16) / cells
    parts = [box(x, y, width, 86, "topic")]
    for cell in range(cells):
        left = x + 8 + cell * step + 2
        kind = "barrier" if cell == barrier_at else "record"
        parts.append(
            f'<rect x="{left:.1f}" y="{y + 13}" width="{step - 4:.1f}" height="28" rx="2" '
            f'class="{kind}"/>'
        )
    parts.append(text(x + width / 2, y + 60, name, "name"))
    return "".join(parts)


def worker(x: float, title: str, first: str, second: str) -> str:
    """A column of worker processes: three boxes behind each other."""
    shadows = "".join(box(x + d, 184 - d, 176, 104, "worker") for d in (12, 6))
    return (
        shadows
        + box(x, 184, 176, 104, "worker")
        + text(x + 88, 211, title, "title")
        + text(x + 88, 237, first, "line")
        + text(x + 88, 257, second, "line")
        + text(x + 88, 277, "0, 1, … N−1", "quiet")
    )


def body() -> list[str]:
    """Everything that is drawn, back to front."""
    middle = (LEFT + RIGHT) / 2
    return [
        # above: who decides
        box(LEFT, 26, RIGHT - LEFT, 78, "control"),
        text(middle, 56, "coordinator", "title"),
        text(middle, 80, "decides by appending to the topic payments.decisions", "line"),
        # below: what survives
        box(LEFT, 362, RIGHT - LEFT, 66, "store"),
        text(middle, 390, "snapshot store: S3, MinIO or a folder", "title"),
        text(middle, 413, "chunks of state, one manifest per checkpoint", "line"),
        # the path of a record
        arrow("128,236 182,236"),
        arrow("370,236 424,236"),
        arrow("576,236 618,236"),
        arrow("806,236 866,236"),
        topic(10, 193, 118, "orders"),
        text(69, 268, "your topic", "quiet"),
        worker(LEFT, "source subtasks", "decode · map · key_by", "positions are state"),
        topic(430, 193, 146, "payments.edge…", barrier_at=3),
        text(503, 268, "the shuffle is a topic", "quiet"),
        worker(624, "keyed subtasks", "process · timers", "state per key"),
        topic(872, 193, 118, "balances"),
        text(931, 268, "your topic", "quiet"),
        # a checkpoint, step by step
        arrow("236,104 236,164", "decision"),
        number(236, 134, 1),
        text(252, 139, "trigger", "label", "start"),
        arrow("340,172 340,112", "report"),
        number(340, 142, 4),
        text(356, 147, "acknowledge", "label", "start"),
        number(503, 174, 2),
        text(519, 179, "barrier", "label", "start"),
        arrow("276,288 276,354", "snapshot"),
        number(276, 322, 3),
        text(292, 327, "snapshot", "label", "start"),
        arrow("712,288 712,354", "snapshot"),
        number(712, 322, 3),
        text(728, 327, "snapshot", "label", "start"),
        arrow("660,172 660,112", "report"),
        number(660, 142, 4),
        text(644, 147, "acknowledge", "label", "end"),
        arrow("764,104 764,164", "decision"),
        number(764, 134, 5),
        text(780, 139, "complete", "label", "start"),
        number(844, 212, 6),
        text(848, 186, "commit", "label"),
    ]


def style(p: Palette) -> str:
    """The classes in one palette."""
    heads = "".join(
        f'<marker id="{kind}-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7.5" '
        f'markerHeight="7.5" orient="auto"><path d="M0,0.8 L10,5 L0,9.2 z" fill="{colour}"/>'
        "</marker>"
        for kind, colour in (
            ("data", p.line),
            ("decision", p.control_line),
            ("report", p.control_line),
            ("snapshot", p.store_line),
        )
    )
    return f"""<defs>{heads}</defs><style>
text {{ font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
  font-size: 14px; fill: {p.text}; }}
.title {{ font-size: 16px; font-weight: 600; }}
.name {{ font-size: 13.5px; font-weight: 600; }}
.label {{ font-size: 13.5px; }}
.quiet {{ font-size: 12px; fill: {p.quiet}; }}
.step {{ font-size: 12px; font-weight: 700; fill: {p.on_barrier}; }}
.disc, .barrier {{ fill: {p.barrier}; }}
.box {{ stroke-width: 1.5; }}
.topic {{ fill: {p.topic}; stroke: {p.topic_line}; }}
.record {{ fill: {p.topic_line}; opacity: 0.55; }}
.worker {{ fill: {p.worker}; stroke: {p.worker_line}; }}
.control {{ fill: {p.control}; stroke: {p.control_line}; }}
.store {{ fill: {p.store}; stroke: {p.store_line}; }}
polyline {{ fill: none; stroke-width: 2; }}
.data {{ stroke: {p.line}; stroke-width: 2.5; }}
.decision, .report {{ stroke: {p.control_line}; }}
.report {{ stroke-dasharray: 5 4; }}
.snapshot {{ stroke: {p.store_line}; }}
</style>"""


def drawing(palette: Palette) -> str:
    """The whole file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="t"><title id="t">The path of a record through Penstock, and the six '
        "steps of a checkpoint</title>"
    )
    return "\n".join([head, style(palette), *body(), "</svg>", ""])


def main() -> None:
    """Write both files."""
    for name, palette in (("light", LIGHT), ("dark", DARK)):
        (FOLDER / f"data-path-{name}.svg").write_text(drawing(palette), encoding="utf-8")


if __name__ == "__main__":
    main()
