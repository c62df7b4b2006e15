"""The figures of a run: a table for people, a file for programs."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EXACTLY_ONCE = "exactly-once"


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest-rank percentile; NaN of nothing."""
    if not values:
        return math.nan
    ranked = sorted(values)
    return ranked[max(math.ceil(part * len(ranked)) - 1, 0)]


@dataclass
class Report:
    """What a run of the main job came to."""

    deviations: list[str] = field(default_factory=list)
    records: int = 0
    duplicates: int = 0
    lost: int = 0
    open_transactions: int = 0
    kills: int = 0
    rescales: int = 0
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    durations_ms: list[float] = field(default_factory=list)
    recoveries_s: list[float] = field(default_factory=list)
    records_per_s: float = 0.0

    @property
    def verdict(self) -> str:
        """``exactly-once``, or what went wrong."""
        return "; ".join(self.deviations) if self.deviations else EXACTLY_ONCE

    def take_checkpoints(self, events: Sequence[dict[str, Any]]) -> None:
        """Count the checkpoints of an application's events."""
        for event in events:
            if event["event"] != "checkpoint":
                continue
            if event["status"] == "completed":
                self.checkpoints_completed += 1
                if event.get("duration_ms") is not None:
                    self.durations_ms.append(event["duration_ms"])
            else:
                self.checkpoints_failed += 1

    def as_dict(self) -> dict[str, Any]:
        """The fields of ``build/demo.json``."""
        return {
            "verdict": self.verdict,
            "records": self.records,
            "duplicates": self.duplicates,
            "lost": self.lost,
            "open_transactions": self.open_transactions,
            "kills": self.kills,
            "rescales": self.rescales,
            "checkpoints": {
                "completed": self.checkpoints_completed,
                "failed": self.checkpoints_failed,
                "p50_ms": _rounded(percentile(self.durations_ms, 0.5)),
                "p99_ms": _rounded(percentile(self.durations_ms, 0.99)),
            },
            "recovery_s": {
                "p50": _rounded(percentile(self.recoveries_s, 0.5)),
                "max": _rounded(max(self.recoveries_s, default=math.nan)),
            },
            "records_per_s": round(self.records_per_s),
        }

    def write(self, file: Path) -> None:
        """Write the figures as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.as_dict(), indent=2) + "\n")

    def table(self) -> str:
        """The figures as a table."""
        rows = [
            ("output records, committed", f"{self.records:,}"),
            ("records/s, kills included", f"{self.records_per_s:,.0f}"),
            ("duplicates / lost", f"{self.duplicates:,} / {self.lost:,}"),
            ("transactions left open", f"{self.open_transactions}"),
            (
                "checkpoints completed / failed",
                f"{self.checkpoints_completed:,} / {self.checkpoints_failed:,}",
            ),
            (
                "checkpoint duration p50 / p99",
                _pair(percentile(self.durations_ms, 0.5), percentile(self.durations_ms, 0.99), 1)
                + " ms",
            ),
            ("processes killed / rescales", f"{self.kills} / {self.rescales}"),
            (
                "kill to first new output p50 / max",
                _pair(
                    percentile(self.recoveries_s, 0.5), max(self.recoveries_s, default=math.nan), 2
                )
                + " s",
            ),
        ]
        width = max(len(name) for name, _ in rows)
        lines = [f"  {name:<{width}}  {value:>16}" for name, value in rows]
        return "\n".join([*lines, f"  {'verdict':<{width}}  {self.verdict}"])


def _pair(one: float, two: float, digits: int) -> str:
    return f"{one:.{digits}f} / {two:.{digits}f}"


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 3)
