"""The report as one HTML page that needs nothing but itself."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from penstock_spark.ab import plot
from penstock_spark.ab.model import QUANTILES, AbReport, Compared
from penstock_spark.ab.table import has_key_table, key_text, plain, share, shown

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_MOST_PLOTTED = 12
"""Columns of one comparison that get plots of their own, those that differ most first."""


def page(report: AbReport) -> str:
    """The page's HTML."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_final,
    )
    environment.filters.update(number=shown, key=key_text, share=share)
    environment.tests.update(keyed=has_key_table)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    created = datetime.fromtimestamp(report.created_at_ms / 1000, UTC)
    return template.render(
        report=report,
        created=f"{created:%Y-%m-%d %H:%M} UTC",
        quantiles=[f"p{p}" for p in QUANTILES],
        plots=[_plots(compared) for compared in report.comparisons],
    )


def _final(value: Any) -> Any:
    """Characters that would change how a page reads are replaced, in all text but our drawings."""
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _plots(compared: Compared) -> list[tuple[Markup, bool]]:
    """The drawings of one comparison, and whether each has a row of the page for itself."""
    differing = sorted((c for c in compared.columns if c.rows), key=lambda c: -c.rows)
    found = [(plot.columns_plot(compared), True)] if len(differing) > 1 else []
    for column in differing[:_MOST_PLOTTED]:
        if column.deltas is None:
            continue
        has_keys = len(column.deltas.top) > 1
        found.append((plot.histogram(compared.name, column, column.deltas), not has_keys))
        if has_keys:
            found.append((plot.keys_plot(compared.name, column, column.deltas), False))
    return found
