"""The report held against what was counted: every figure, exactly."""

from collections.abc import Iterator
from typing import Any

from penstock_spark.ab import AbReport, Compared

from ledger_ab.expectation import PERCENT, TOP


def deviations(report: AbReport, expected: dict[str, dict[str, Any]]) -> list[str]:
    """A line for every figure that is not what it must be; none when the report is right."""
    found = {each.name: figures_of(each) for each in report.comparisons}
    lines = list(_different("", expected, found))
    lines += [f"state only in A: {name}" for name in report.states_only_a]
    lines += [f"state only in B: {name}" for name in report.states_only_b]
    lines += [f"ended apart: {each}" for each in report.positions]
    return [*lines, *(f"not compared: {what}" for what in report.not_compared)]


def figures_of(compared: Compared) -> dict[str, Any]:
    """The figures of the report in the shape of the expectation."""
    differing = {column.name: column for column in compared.columns if column.rows}
    found: dict[str, Any] = {
        "rows_a": compared.rows_a,
        "rows_b": compared.rows_b,
        "equal": compared.equal,
        "different": compared.different,
        "only_a": compared.only_a,
        "only_b": compared.only_b,
        "repeated": compared.repeated_a + compared.repeated_b,
        "keys": compared.keys,
        "keys_unequal": compared.keys_unequal,
        "columns": {},
        "top": {},
    }
    for name, column in differing.items():
        deltas = column.deltas
        if deltas is None:
            found["columns"][name] = {"rows": column.rows}
            continue
        found["columns"][name] = {
            "rows": deltas.rows,
            "sum": deltas.sum,
            "mean": deltas.mean,
            "min": deltas.min,
            "max": deltas.max,
            **{f"p{p}": deltas.quantiles[f"p{p}"] for p in PERCENT},
        }
        found["top"][name] = [(str(each.key[0]), each.sum) for each in deltas.top[:TOP]]
        in_bins = sum(each.rows for each in deltas.bins) + deltas.below + deltas.above
        if in_bins != deltas.rows:
            found["columns"][name]["in the histogram"] = in_bins
    if compared.kind == "output":
        found["most"] = [
            (str(each.key[0]), each.different + each.only_a + each.only_b)
            for each in compared.top_keys[:TOP]
        ]
    return found


def _different(where: str, expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted({*expected, *found}):
            at = f"{where} {name}".strip()
            if name not in found:
                yield f"{at}: expected {expected[name]}, found nothing"
            elif name not in expected:
                yield f"{at}: expected nothing, found {found[name]}"
            else:
                yield from _different(at, expected[name], found[name])
    elif expected != found:
        yield f"{where}: expected {expected}, found {found}"
