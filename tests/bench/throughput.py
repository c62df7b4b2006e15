"""Records a second, CPU and memory of one contender, with its output checked."""

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from processes import Contender, Sampler
from workload import (
    EDGE_PARTITIONS,
    OUTPUT_PARTITIONS,
    STALL_S,
    Input,
    OutputWrong,
    committed_end,
    create_output,
    create_topics,
    delete_topics,
    read_and_check,
)

HERE = Path(__file__).parent
PENSTOCK = str(Path(sys.executable).with_name("penstock"))
NAMES = ("limit", "penstock", "penstock_process", "limit_edge", "penstock_edge")
FILES = {
    "penstock": ["direct.py"],
    "penstock_process": ["direct_process.py"],
    "penstock_edge": ["split.py", "total.py"],
}


@dataclass(frozen=True)
class Throughput:
    """One measurement; see docs/benchmarks.md for the definitions."""

    records_per_s: float
    cpu_us_per_record: float
    peak_rss_mb: float
    cpu_s_total: float
    """Start-up and end included."""
    wrong: str | None = None
    """What is wrong with the output."""

    def as_dict(self) -> dict[str, float]:
        figures = {name: value for name, value in asdict(self).items() if name != "wrong"}
        return {name: round(value, 3) for name, value in figures.items()}


@dataclass(frozen=True)
class Servers:
    """Where Kafka and the store are, and a folder for logs."""

    bootstrap: str
    store_url: str
    store_env: dict[str, str]
    folder: Path


def penstock_command(
    servers: Servers, files: list[str], interval_ms: int, events: Path
) -> list[str]:
    return [
        *(PENSTOCK, "run", *(str(HERE / "apps" / name) for name in files)),
        *("--bootstrap", servers.bootstrap, "--store", servers.store_url),
        *("--checkpoint-interval-ms", str(interval_ms), "--parallelism", "1"),
        *("--events", str(events)),
    ]


def commands(
    name: str, servers: Servers, source: str, run: str, interval_ms: int
) -> list[list[str]]:
    """The processes of a contender; its sink is the topic ``run``."""
    common = ["--bootstrap", servers.bootstrap, "--source", source, "--sink", run]
    common += ["--interval-ms", str(interval_ms)]
    events = servers.folder / f"{run}.events.jsonl"
    if name == "limit":
        return [[sys.executable, str(HERE / "limit.py"), *common]]
    if name == "limit_edge":
        script = [sys.executable, str(HERE / "limit_edge.py")]
        edge = ["--edge", f"{run}-edge"]
        return [[*script, part, *common, *edge] for part in ("sum", "shuffle")]
    return [penstock_command(servers, FILES[name], interval_ms, events)]


def measure(
    name: str, servers: Servers, source: str, given: Input, *, run: str, interval_ms: int
) -> Throughput:
    """Run one contender over the whole input."""
    create_output(servers.bootstrap, run)
    made = [run]
    if name == "limit_edge":
        create_topics(servers.bootstrap, {f"{run}-edge": EDGE_PARTITIONS}, {})
        made.append(f"{run}-edge")
    env = {**servers.store_env, "BENCH_APP": run, "BENCH_SOURCE": source, "BENCH_SINK": run}
    log = servers.folder / f"{run}.log"
    contender = Contender(commands(name, servers, source, run, interval_ms), log, env)
    with contender:
        sampler = Sampler(contender.pids)
        try:
            wait_for_output(contender, servers.bootstrap, run, given.records)
            time.sleep(0.1)
        finally:
            sampler.stop()
        output = read_and_check(servers.bootstrap, run, given)
        contender.stop()
    again = read_and_check(servers.bootstrap, run, given)  # the end must have added nothing
    begin, end, records = output.steady()
    delete_topics(servers.bootstrap, made)
    return Throughput(
        records_per_s=records / max(end - begin, 0.001),
        cpu_us_per_record=sampler.cpu_between(begin, end) / records * 1e6,
        peak_rss_mb=sampler.peak_rss_mb,
        cpu_s_total=sampler.cpu[-1],
        wrong=again.wrong,
    )


def wait_for_output(contender: Contender, bootstrap: str, topic: str, records: int) -> None:
    """Return when as many records are committed; asks the broker and reads none of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    last, since = -1, time.monotonic()
    while (end := committed_end(admin, topic, OUTPUT_PARTITIONS)) < records:
        contender.check()
        if end != last:
            last, since = end, time.monotonic()
        if time.monotonic() - since > STALL_S:
            raise OutputWrong(f"{topic}: nothing new for {STALL_S:.0f} s after {end:,} records")
        time.sleep(0.1)
