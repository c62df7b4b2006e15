"""A topic's history as the state of a savepoint: Spark beside one plain process.

Both read the same records from Kafka and run the service's own operators over them. ``plain`` is a
loop in one process that hands each batch on by a call; it has its state when all records are
through, and then writes it with the code that the replay uses, too. The Spark session is there
already. Contenders run in turn, so that whatever else the machine does hits them alike; the states
that they write are compared, and those of the service without timers with sums made at feeding.
"""

import json
import os
import random
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from penstock_spark.replay import replayed
from processes import tree
from pyspark.sql import SparkSession
from savepoint_read import session
from workload import Loader, OutputWrong, create_topics, delete_topics

APPS = Path(__file__).parent / "apps"
PARTITIONS = 4
SHAPES = ("values", "timers")


def bench(
    bootstrap: str,
    records: int,
    keys: int,
    repetitions: int,
    say: Callable[[str], object],
) -> dict[str, Any]:
    """Medians over the repetitions, by shape. Raises OutputWrong."""
    topic = f"replay-{secrets.token_hex(3)}"
    create_topics(bootstrap, {topic: PARTITIONS}, {"retention.ms": "-1"})
    totals = feed(bootstrap, topic, records, keys)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-replay-") as scratch:
        folder = Path(scratch)
        spark = session(folder)
        try:
            figures = {
                shape: _Shape(spark, folder, bootstrap, topic, shape, records, totals).measured(
                    repetitions, say
                )
                for shape in SHAPES
            }
        finally:
            spark.stop()
            delete_topics(bootstrap, [topic])
    return {"records": records, "keys": keys, "shapes": figures}


def feed(bootstrap: str, topic: str, records: int, keys: int) -> dict[str, int]:
    """Write the history, each account in one partition; the total of each account."""
    chance = random.Random(17).random
    encode = msgspec.json.Encoder().encode
    totals: dict[str, int] = {}
    loader = Loader(bootstrap, topic)
    batch: list[tuple[int, bytes]] = []
    for number in range(records):
        key = int(chance() * keys)
        account = f"account-{key:07d}"
        amount = 1 + int(chance() * 1000)
        totals[account] = totals.get(account, 0) + amount
        event = {
            "id": number, "account": account, "amount": amount,
            "at": 1_790_000_000_000 + number, "note": "paid by card",
        }  # fmt: skip
        batch.append((key % PARTITIONS, encode(event)))
        if len(batch) == 10_000:
            loader.write(batch)
            batch = []
    loader.write(batch)
    loader.finish()
    return totals


class _Shape:
    """One service."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        bootstrap: str,
        topic: str,
        shape: str,
        records: int,
        totals: dict[str, int],
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._bootstrap = bootstrap
        self._topic = topic
        self._shape = shape
        self._records = records
        self._totals = totals
        timed = {"REPLAY_TIMED": "1"} if shape == "timers" else {}
        self._env = {**os.environ, "REPLAY_TOPIC": topic, **timed}

    def measured(self, repetitions: int, say: Callable[[str], object]) -> dict[str, float]:
        """Seconds and CPU seconds, medians."""
        found: dict[str, list[float]] = {}
        for repetition in range(-1, repetitions):
            plain = self._plain()
            spark = self._replay()
            self._check()
            if repetition < 0:
                continue
            say(f"replay {self._shape}: plain {plain}, Spark {spark}")
            for name, value in (*plain.items(), *spark.items()):
                found.setdefault(name, []).append(value)
        return {name: round(statistics.median(values), 3) for name, values in found.items()}

    def _plain(self) -> dict[str, float]:
        target = self._folder / "plain"
        shutil.rmtree(target, ignore_errors=True)
        command = [
            *(sys.executable, str(APPS / "replay_plain.py"), self._bootstrap),
            *(str(self._records), str(target)),
        ]
        done = subprocess.run(command, env=self._env, capture_output=True, check=True, text=True)
        said = json.loads(done.stdout)
        return {f"plain_{name}": said[name] for name in ("state", "savepoint", "cpu")}

    def _replay(self) -> dict[str, float]:
        target = self._folder / "replayed"
        shutil.rmtree(target, ignore_errors=True)
        os.environ["REPLAY_TOPIC"] = self._topic
        os.environ.pop("REPLAY_TIMED", None)
        os.environ.update({n: v for n, v in self._env.items() if n == "REPLAY_TIMED"})
        cpu = _cpu()
        began = time.monotonic()
        replay = replayed(
            self._spark,
            APPS / "replay_service.py",
            until="latest",
            options={"kafka.bootstrap.servers": self._bootstrap},
        )
        replay.write(target.as_uri())
        return {"spark_savepoint": time.monotonic() - began, "spark_cpu": _cpu() - cpu}

    def _check(self) -> None:
        plain, replayed_ = (self._rows(self._folder / name) for name in ("plain", "replayed"))
        if plain != replayed_:
            raise OutputWrong(f"replay {self._shape}: the states differ")
        found = {row["key_value"]: row["total"] for row in plain["account"].to_pylist()}
        if found != self._totals:
            raise OutputWrong(f"replay {self._shape}: the totals are not those that were fed")

    def _rows(self, folder: Path) -> dict[str, pa.Table]:
        tables = {}
        for state in sorted((folder / "data" / "totals").iterdir()):
            rows = pa.concat_tables([pq.read_table(file) for file in state.iterdir()])
            names = [name for name in rows.column_names if name != "registration"]
            order = [(n, "ascending") for n in ("key_group", "key", "timestamp_ms") if n in names]
            tables[state.name] = rows.select(names).sort_by(order).replace_schema_metadata(None)
        return tables


def _cpu() -> float:
    """CPU seconds of this process and all that it started, those that are gone included."""
    seconds = 0.0
    for pid in tree(os.getpid()):
        text = Path(f"/proc/{pid}/stat").read_text()
        fields = text[text.rindex(")") + 2 :].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds
