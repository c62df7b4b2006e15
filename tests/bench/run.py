"""``make bench``: Penstock beside the same work by hand, in one run, every output checked.

Sections: ``engine``, ``savepoints``, ``replay``; ``make bench BENCH_ARGS=replay`` runs one.

All contenders of a repetition run one after the other, so that whatever else the machine does hits
them alike; figures are medians over the repetitions. Nothing here fails for being slow.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import probes
import replay
import savepoint_read
import savepoint_write
from penstock_stack import StackError, start_stack
from processes import Crashed
from report import machine, tables
from throughput import NAMES, Servers, Throughput, measure
from workload import Input, OutputWrong, delete_topics, load

BUILD = Path(__file__).parents[2] / "build"
PROBES = ("checkpoint_ms", "sync_pause_ms", "latency_ms", "latency_direct_ms")
INTERVALS_MS = (1000, 100)
SECTIONS = ("engine", "savepoints", "replay")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; all")
    add("--only", action="append", choices=(*NAMES, *PROBES), help="measure this (repeatable)")
    add("--repetitions", type=int, default=3)
    add("--records", type=int, default=1_000_000)
    add("--keys", type=int, default=100_000, help="of the records that are replayed into state")
    add("--rows", type=int, default=3_000_000, help="of the savepoint that Spark reads and writes")
    add("--reads", type=int, default=5, help="repetitions of each read and write in Spark")
    add("--interval-ms", type=int, action="append", help="checkpoint intervals (1000 and 100)")
    add("--json", type=Path, default=BUILD / "bench.json")
    add("--logs", type=Path, help="keep logs and events in this folder")
    add("--bootstrap", help="a Kafka that runs already; with --store file:///… or PENSTOCK_S3_*")
    add("--store", help="its snapshot store")
    add("--markdown", action="store_true", help="only show the tables of the last run's file")
    args = parser.parse_args()
    if wrong := [name for name in args.sections if name not in SECTIONS]:
        parser.error(f"no section {wrong[0]!r}; there are {', '.join(SECTIONS)}")
    args.sections = args.sections or (["engine"] if args.only else list(SECTIONS))
    return args


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest-rank percentile."""
    ranked = sorted(values)
    return ranked[max(math.ceil(part * len(ranked)) - 1, 0)] if ranked else math.nan


class Bench:
    """One run of the benchmark."""

    def __init__(self, args: argparse.Namespace, servers: Servers) -> None:
        self.args = args
        self.servers = servers
        self.wanted = args.only or [*NAMES, *PROBES]
        self.stamp = f"{time.time():.0f}"
        self.began = time.monotonic()
        self.throughputs: dict[tuple[str, int], list[Throughput]] = {}
        self.percentiles: dict[str, list[tuple[float, float]]] = {}
        self.memory: list[float] = []
        self.wrong: list[str] = []

    def run(self) -> dict[str, Any]:
        names = [name for name in NAMES if name in self.wanted]
        if names:
            given = Input(self.args.records)
            source = f"bench-in-{self.stamp}"
            load(self.servers.bootstrap, source, given)
            given.values.clear()
            self.say(f"loaded {given.records:,} orders of {given.keys:,} accounts")
            for repetition in range(self.args.repetitions):
                for interval_ms in self.args.interval_ms or INTERVALS_MS:
                    for name in names:
                        self.throughput(name, source, given, interval_ms, repetition)
            delete_topics(self.servers.bootstrap, [source])
        for repetition in range(self.args.repetitions):
            for name in PROBES:
                if name in self.wanted:
                    self.probe(name, repetition)
        return self.figures()

    def throughput(
        self, name: str, source: str, given: Input, interval_ms: int, repetition: int
    ) -> None:
        run = f"{name.replace('_', '-')}-{interval_ms}-{repetition}-{self.stamp}"
        found = measure(name, self.servers, source, given, run=run, interval_ms=interval_ms)
        self.throughputs.setdefault((name, interval_ms), []).append(found)
        self.say(
            f"{name:<14} {interval_ms:>5} ms  {found.records_per_s:>9,.0f} records/s  "
            f"{found.cpu_us_per_record:5.2f} us CPU  {found.peak_rss_mb:6,.0f} MB  "
            f"(whole run {found.cpu_s_total:.1f} s CPU)"
        )
        self.judge(found.wrong)

    def probe(self, name: str, repetition: int) -> None:
        run = f"{name.replace('_', '-')}-{repetition}-{self.stamp}"
        what = {
            "checkpoint_ms": probes.CHECKPOINTS,
            "sync_pause_ms": probes.PAUSE,
            "latency_ms": probes.LATENCY,
            "latency_direct_ms": probes.LATENCY_DIRECT,
        }[name]
        seen = probes.probe(what, self.servers, run)
        column = {"checkpoint_ms": "duration_ms", "sync_pause_ms": "sync_ms"}.get(name)
        values = seen.of_checkpoints(column) if column else seen.latencies_ms
        pair = (percentile(values, 0.5), percentile(values, 0.99))
        self.percentiles.setdefault(name, []).append(pair)
        more = ""
        if name == "sync_pause_ms":
            grown = seen.worker_mb["loaded"] - seen.worker_mb["empty"]
            self.memory.append(grown / what.keys * 1e6)
            more = f"; worker {', '.join(f'{k} {v:,.0f} MB' for k, v in seen.worker_mb.items())}"
        elif name == "checkpoint_ms":
            columns = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
            more = "; p50 of " + ", ".join(
                f"{each} {percentile(seen.of_checkpoints(each), 0.5):.2f}" for each in columns
            )
        self.say(f"{name:<18} p50 {pair[0]:.2f} p99 {pair[1]:.2f} ({len(values):,}){more}")
        self.judge(seen.wrong)

    def judge(self, wrong: str | None) -> None:
        """Output that is wrong is said at once, and makes the run fail at its end."""
        if wrong is not None:
            self.wrong.append(wrong)
            self.say(f"OUTPUT WRONG: {wrong}")

    def figures(self) -> dict[str, Any]:
        """What ``build/bench.json`` holds."""
        figures: dict[str, Any] = {"machine": machine()}
        if self.wrong:
            figures["wrong"] = self.wrong
        for (name, interval_ms), found in self.throughputs.items():
            dicts = [each.as_dict() for each in found]
            medians = {key: statistics.median(each[key] for each in dicts) for key in dicts[0]}
            figures.setdefault(name, {})[str(interval_ms)] = medians
        for name, pairs in self.percentiles.items():
            figures[name] = {
                "p50": round(statistics.median(pair[0] for pair in pairs), 3),
                "p99": round(statistics.median(pair[1] for pair in pairs), 3),
            }
        if self.memory:
            figures["memory_mb_per_million_keys"] = round(statistics.median(self.memory), 1)
        return figures

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {line}", flush=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of all sections asked for."""
    figures: dict[str, Any] = {"machine": machine()}
    if "engine" in args.sections:
        figures = run_engine(args)
    if "savepoints" in args.sections:
        figures["savepoints"] = savepoint_read.bench(args.rows, args.reads, print)
        figures["savepoint_writes"] = savepoint_write.bench(args.rows, args.reads, print)
    if "replay" in args.sections:
        figures["replay"] = run_replay(args)
    return figures


def run_replay(args: argparse.Namespace) -> dict[str, Any]:
    given = (args.records, args.keys, args.repetitions, print)
    if args.bootstrap:
        return replay.bench(args.bootstrap, *given)
    with start_stack() as stack:
        return replay.bench(stack.bootstrap, *given)


def run_engine(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        folder = args.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if args.bootstrap:
            store = args.store or (folder / "store").as_uri()
            return Bench(args, Servers(args.bootstrap, store, {}, folder)).run()
        with start_stack() as stack:
            servers = Servers(stack.bootstrap, stack.store_url, stack.store_env, folder)
            return Bench(args, servers).run()


def main() -> int:
    args = arguments()
    if args.markdown:
        print(tables(json.loads(args.json.read_text())), end="")
        return 0
    try:
        figures = run(args)
    except (OutputWrong, Crashed, StackError) as failure:
        print(f"\n{type(failure).__name__}: {failure}", file=sys.stderr)
        return 1
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"\n{tables(figures)}\n{args.json}")
    for wrong in figures.get("wrong", []):
        print(f"OUTPUT WRONG: {wrong}", file=sys.stderr)
    return 1 if "wrong" in figures else 0


if __name__ == "__main__":
    sys.exit(main())
