"""The benchmark's figures as tables: for a terminal, and in Markdown for docs/benchmarks.md."""

import os
import platform
from pathlib import Path
from typing import Any

from confluent_kafka import libversion

LIMITS = {"penstock": "limit", "penstock_process": "limit", "penstock_edge": "limit_edge"}
TITLES = {
    "limit": "by hand, one process",
    "penstock": "Penstock, no edge",
    "limit_edge": "by hand, two processes",
    "penstock_process": "Penstock, no edge, KeyedProcess",
    "penstock_edge": "Penstock, one edge",
}
GOALS = {
    "checkpoint_ms": "p50 under 10 (aim for 5)",
    "sync_pause_ms": "p99 under 2",
    "latency_ms": "p50 under 60, p99 under 200",
}
PROBES = {
    "checkpoint_ms": "checkpoint duration, 5,000 records/s, 1,000 keys, one edge",
    "sync_pause_ms": "synchronous pause, 1,000,000 keys, 20,000 records/s",
    "latency_ms": "end to end, 5,000 records/s, one edge, checkpoint each 50 ms",
    "latency_direct_ms": "the same without an edge",
}
READS = {"scan": "all columns", "column": "one column", "key": "one key"}
READERS = {
    "parquet": "`spark.read.parquet`",
    "fast_lane": "`penstock_spark.native`",
    "data_source": '`format("penstock")`',
}


WRITES = {
    "parquet": "`df.write.parquet`, as the rows come",
    "sorted_parquet": "`df.write.parquet`, keyed and sorted",
    "state": "`with_state`",
    "bootstrap": "`with_operator`",
    "rescale": "`with_max_parallelism`",
    "copy": "a copy",
}


SHAPES = {"values": "a value per key", "timers": "a value and a timer per key"}


def machine() -> dict[str, Any]:
    """The shape of the machine that was measured."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(pages / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "librdkafka": libversion()[0],
    }


def tables(figures: dict[str, Any]) -> str:
    """All figures in Markdown, which a terminal shows well enough."""
    parts = [
        _throughput(figures),
        _probes(figures),
        _savepoints(figures),
        _savepoint_writes(figures),
        _replay(figures),
        _machine(figures),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _throughput(figures: dict[str, Any]) -> str:
    names = [name for name in TITLES if name in figures]
    rows = []
    for interval in ("1000", "100"):
        for name in names:
            if (found := figures[name].get(interval)) is None:
                continue
            ratio = ""
            limit = figures.get(LIMITS.get(name, ""), {}).get(interval)
            if limit:
                ratio = f"{found['records_per_s'] / limit['records_per_s']:.2f}"
            rows.append(
                [
                    TITLES[name],
                    interval,
                    f"{found['records_per_s']:,.0f}",
                    ratio,
                    f"{found['cpu_us_per_record']:.2f}",
                    f"{found['peak_rss_mb']:,.0f}",
                ]
            )
    head = ["", "checkpoint ms", "records/s", "of its limit", "CPU us/record", "peak RSS MB"]
    return _markdown(head, rows)


def _probes(figures: dict[str, Any]) -> str:
    rows = [
        [title, f"{figures[name]['p50']:.2f}", f"{figures[name]['p99']:.2f}", GOALS.get(name, "")]
        for name, title in PROBES.items()
        if name in figures
    ]
    if (memory := figures.get("memory_mb_per_million_keys")) is not None:
        rows.append(["memory of a million keys, MB", f"{memory:,.0f}", "", ""])
    return _markdown(["ms", "p50", "p99", "wanted"], rows)


def _savepoints(figures: dict[str, Any]) -> str:
    found = figures.get("savepoints", {})
    rows = []
    for kind, title in READS.items():
        if kind not in found:
            continue
        base = found[kind]["parquet"]
        for name, by in READERS.items():
            took, cpu = found[kind][name]["s"], found[kind][name]["cpu_s"]
            rows.append(
                [
                    f"{title}, {by}",
                    f"{took:.2f}",
                    "" if kind == "key" else f"{found['rows'] / took:,.0f}",
                    f"{took / base['s']:.2f}",
                    f"{cpu:.2f}",
                    f"{cpu / base['cpu_s']:.2f}",
                ]
            )
    return _markdown(["", "s", "rows/s", "of Parquet's", "CPU s", "of Parquet's"], rows)


def _savepoint_writes(figures: dict[str, Any]) -> str:
    found = figures.get("savepoint_writes", {})
    rows = []
    for kind, title in WRITES.items():
        if kind in found:
            took, cpu, base = found[kind]["s"], found[kind]["cpu_s"], found["sorted_parquet"]
            speed, share = f"{found['rows'] / took:,.0f}", f"{took / base['s']:.2f}"
            rows.append([title, f"{took:.2f}", speed, share, f"{cpu:.2f}"])
            rows[-1].append(f"{cpu / base['cpu_s']:.2f}")
    return _markdown(["", "s", "rows/s", "of sorted", "CPU s", "of sorted"], rows)


def _replay(figures: dict[str, Any]) -> str:
    rows = []
    for shape, found in figures.get("replay", {}).get("shapes", {}).items():
        base = found["plain_savepoint"], found["plain_cpu"]
        for name, title in {"plain": "one plain process", "spark": "Spark, `local[2]`"}.items():
            took, cpu = found[f"{name}_savepoint"], found[f"{name}_cpu"]
            shown = [f"{took:.2f}", f"{took / base[0]:.2f}", f"{cpu:.2f}", f"{cpu / base[1]:.2f}"]
            rows.append([f"{SHAPES[shape]}: {title}", *shown])
    return _markdown(["", "s", "of plain", "CPU s", "of plain"], rows)


def _machine(figures: dict[str, Any]) -> str:
    found = figures.get("machine", {})
    return ", ".join(f"{name}: {value}" for name, value in found.items())


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: list[str]) -> str:
        first = cells[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return f"| {' | '.join([first, *rest])} |"

    rule = "|".join(["", "-" * (widths[0] + 2), *("-" * (w + 1) + ":" for w in widths[1:]), ""])
    return "\n".join([line(head), rule, *map(line, rows)])
