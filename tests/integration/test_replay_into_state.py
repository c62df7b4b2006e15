"""A topic's history replayed by Spark into a savepoint, from which the service goes on live."""

import contextlib
import io
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import penstock as ps
import pytest
from confluent_kafka import Producer
from contract.kafka_broker import create_topic
from integration.running import (
    SERVICES,
    Application,
    Reader,
    environment,
    forget_topics,
    make_topics,
    running,
)
from ledger import accounts, transfers
from ledger.generator import generate
from penstock.failure import ConfigurationError, UserCodeFailed
from penstock.runtime.connectors import store_from
from penstock.savepoint.reading import Savepoint
from penstock.testing import Driver
from penstock_kafka import KafkaCluster
from penstock_spark.replay import replayed
from pyspark.sql import DataFrame, SparkSession

from tests.docs.pages import ROOT, matches, read

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KAFKA_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
)


class Tick(msgspec.Struct, frozen=True):
    key: str
    at: int


class Open(msgspec.Struct, frozen=True):
    """What is open of a window."""

    ticks: int
    first: int | None = None


class Windows(ps.KeyedProcess):
    windows = ps.MapState(int, Open)
    closed = ps.ListState(int)
    total = ps.ValueState(Open, Open(0))

    def process(self, tick: Tick, ctx: ps.Context) -> None:
        end = tick.at // 100 * 100 + 100
        found = self.windows.get(end) or Open(0, tick.at)
        self.windows.put(end, Open(found.ticks + 1, found.first))
        self.total.set(Open(self.total.get().ticks + 1))
        ctx.timers.event(end)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        self.closed.add(timer.ms)
        found = self.windows.get(timer.ms)
        self.windows.remove(timer.ms)
        ctx.emit([ctx.key, timer.ms, 0 if found is None else found.ticks])


class Sum(ps.KeyedProcess):
    ends = ps.ValueState(int, 0)

    def process(self, row: list[Any], ctx: ps.Context) -> None:
        self.ends.set(self.ends.get() + row[2])


def timed(groups: int = 32) -> ps.Service:
    """Windows over event time, and a second stage behind them."""
    service = ps.Service("timed", app="timed", max_parallelism=groups)
    (
        service.source(
            "ticks",
            topic="ticks",
            value=Tick,
            timestamp=lambda tick: tick.at,
            watermark=ps.Watermark(out_of_orderness_ms=20),
        )
        .key_by("by-key", lambda tick: tick.key)
        .process("windows", Windows)
        .key_by("by-end", lambda row: row[1] % 300)
        .process("sum", Sum)
    )
    return service


def ticks(count: int) -> list[tuple[int, Tick]]:
    """(partition, value); the partition of a key is its number's."""
    return [(n % 13 % 3, Tick(f"k{n % 13}", 7 * n - n % 3)) for n in range(count)]


def frame(spark: SparkSession, topic: str, records: Sequence[tuple[int, Any]]) -> DataFrame:
    """The records as a DataFrame with the columns of Spark's Kafka source, in no order."""
    ends: dict[int, int] = {}
    rows = []
    for partition, value in records:
        offset = ends.get(partition, 0)
        ends[partition] = offset + 1
        rows.append((None, msgspec.json.encode(value), topic, partition, offset, None))
    made = spark.createDataFrame(rows[::-1], KAFKA_COLUMNS)
    return made.withColumn("timestamp", made["offset"].cast("timestamp")).repartition(5)


def ends(topic: str, records: Sequence[tuple[int, Any]], partitions: int = 3) -> Any:
    return {topic: {p: sum(at == p for at, _ in records) for p in range(partitions)}}


def entries(url: Path | str, operator: str, state: str, env: Any = None) -> dict[Any, Any]:
    """Key -> value of a state of a savepoint, as msgpack knows them."""
    where = f"file://{url}" if isinstance(url, Path) else url
    savepoint = Savepoint.open(store_from({**(env or {}), "PENSTOCK_STORE": where}))
    layout = savepoint.layout(operator, state)
    return {
        key: msgspec.msgpack.decode(msgspec.msgpack.encode(value), strict=False)
        for _, _, key, value in layout.entries(savepoint.table(operator, state))
    }


def live(service: ps.Service, records: Sequence[tuple[int, Tick]]) -> Driver:
    """The live service, reading the partition that is furthest behind in event time."""
    driver = Driver(service, partitions=3)
    left = {p: [tick for at, tick in records if at == p] for p in range(3)}
    clocks = dict.fromkeys(left, -(2**62))
    while clocks:
        partition = min(clocks, key=lambda p: (clocks[p], p))
        tick = left[partition].pop(0)
        clocks[partition] = max(clocks[partition], tick.at)
        if not left[partition]:
            del clocks[partition]
        driver.send("ticks", tick, partition=partition)
        driver.advance(1)
    return driver


def same(url: Path, driver: Driver) -> None:
    for operator, state in [
        ("windows", "windows"),
        ("windows", "closed"),
        ("windows", "total"),
        ("sum", "ends"),
    ]:
        lived = {
            key: msgspec.msgpack.decode(msgspec.msgpack.encode(value), strict=False)
            for key, value in driver.state(operator, state).items()
        }
        assert lived, f"{operator}.{state}"
        assert entries(url, operator, state) == lived
    timers = {key[1:] for key in entries(url, "windows", "timers")}
    assert timers == {(ms, key) for _, ms, key in driver.state("windows", "timers")} != set()


def test_a_frame_becomes_the_savepoint_that_the_live_service_would_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = ticks(1000)
    until = ends("ticks", records)
    replay = replayed(
        spark, timed(), until=until, reader=frame(spark, "ticks", records), parallelism=4
    )
    manifest = replay.write(f"file://{tmp_path}/one")
    same(tmp_path / "one", live(timed(), records))
    (source,) = manifest.sources
    assert (source.uid, source.stage, source.topic) == ("ticks", "timed.ticks", "ticks")
    assert source.positions == until["ticks"] == replay.positions["ticks"]
    assert {mark.stage: mark.watermark_ms for mark in manifest.watermarks} == dict.fromkeys(
        ("timed.ticks", "timed.by-key", "timed.by-end"),
        min(max(t.at for at, t in records if at == p) for p in range(3)) - 20 - 1,
    )
    # keys without a declared type: all are str here, and all int there
    kinds = {(o.uid, s.name): s.key and s.key.kind for o in manifest.operators for s in o.states}
    assert kinds["windows", "total"] == "str"
    assert kinds["sum", "ends"] == "int"
    assert kinds["ticks", "positions"] is None


def test_a_replay_goes_on_from_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    """In two steps it is the same as in one, timers and unfinished windows included."""
    records = ticks(1200)
    first = replayed(
        spark,
        timed(),
        until=ends("ticks", records[:500]),
        reader=frame(spark, "ticks", records),
        parallelism=3,
    )
    first.write(f"file://{tmp_path}/first")
    second = replayed(
        spark,
        timed(),
        since=f"file://{tmp_path}/first",
        until=ends("ticks", records),
        reader=frame(spark, "ticks", records),
        parallelism=5,
    )
    manifest = second.write(f"file://{tmp_path}/second")
    same(tmp_path / "second", live(timed(), records))
    assert manifest.parent == f"file://{tmp_path}/first"
    with pytest.raises(ConfigurationError, match="where the savepoint is at"):
        replayed(
            spark,
            timed(),
            since=f"file://{tmp_path}/second",
            until=ends("ticks", records[:500]),
            reader=frame(spark, "ticks", records),
        )
    with pytest.raises(ConfigurationError, match="key groups"):
        replayed(
            spark,
            timed(groups=64),
            since=f"file://{tmp_path}/first",
            until=ends("ticks", records),
            reader=frame(spark, "ticks", records),
        )


def test_rows_of_one_state_and_what_was_emitted_are_frames(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = ticks(400)
    driver = live(timed(), records)
    replay = replayed(
        spark,
        timed(),
        until=ends("ticks", records),
        reader=frame(spark, "ticks", records),
        mode="replay",
    )
    with replay.state("windows", "total") as rows:
        assert rows.columns == ["key_group", "key", "key_value", "namespace", "ticks", "first"]
        found = {row.key_value: row.ticks for row in rows.collect()}
    assert found == {key: value.ticks for key, value in driver.state("windows", "total").items()}
    with (
        pytest.raises(ConfigurationError, match=r"no state 'windows\.totals'; there are"),
        replay.state("windows", "totals"),
    ):
        pass
    with pytest.raises(ConfigurationError, match="no output 'sum'"), replay.output("sum"):
        pass


def test_keys_of_several_types_are_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    """Each task sees keys of one type only, and the savepoint has a type for all of them."""
    service = ps.Service("mixed", app="mixed")
    service.source("ticks", topic="ticks", value=Tick).key_by(
        "by", lambda tick: tick.key if tick.at % 2 else tick.at % 11
    ).aggregate("count", ps.Aggregate(lambda: 0, lambda n, _: n + 1, lambda n: n))
    records = ticks(300)
    replay = replayed(
        spark, service, until=ends("ticks", records), reader=frame(spark, "ticks", records)
    )
    replay.write(f"file://{tmp_path}/mixed")
    driver = Driver(service, partitions=3)
    for partition, tick in records:
        driver.send("ticks", tick, partition=partition)
    manifest = Savepoint.open(store_from({"PENSTOCK_STORE": f"file://{tmp_path}/mixed"})).manifest
    there = {str(path.relative_to(tmp_path / "mixed")) for path in tmp_path.rglob("*.parquet")}
    assert there == {file.path for file in manifest.files}  # nothing of the first try is left
    with pytest.raises(ConfigurationError, match=r"a savepoint stands at .* already"):
        replay.write(f"file://{tmp_path}/mixed")
    found = entries(tmp_path / "mixed", "count", "aggregated")
    assert found == driver.state("count", "aggregated")


def test_a_record_that_the_service_cannot_take_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    records: list[tuple[int, Any]] = [*ticks(50), (1, "no tick")]
    replay = replayed(
        spark, timed(), until=ends("ticks", records), reader=frame(spark, "ticks", records)
    )
    offset = ends("ticks", records)["ticks"][1] - 1
    with pytest.raises(
        Exception, match=rf"(?s){UserCodeFailed.__name__}.*partition 1, offset {offset}"
    ):
        replay.write(f"file://{tmp_path}/wrong")
    assert [path for path in (tmp_path / "wrong").rglob("*") if path.is_file()] == []


def test_what_is_refused_before_anything_runs(spark: SparkSession, stack: Any) -> None:
    options = {"kafka.bootstrap.servers": stack.bootstrap}
    topic = f"refused-{secrets.token_hex(4)}"
    cluster = KafkaCluster(stack.bootstrap)
    create_topic(cluster, topic, 2)
    producer = Producer({"bootstrap.servers": stack.bootstrap})
    for i in range(20):
        producer.produce(topic, msgspec.json.encode(Tick("k", i)), partition=i % 2)
    assert producer.flush(30) == 0
    service = ps.Service("some", app="some")
    service.source("ticks", topic=topic, value=Tick).key_by("by", lambda t: t.key).reduce(
        "last", lambda _, tick: tick
    )
    for until, message in (
        ({topic: {0: 5}}, "names partitions"),
        ({topic: {0: 5, 1: 11}}, "11 of .* is not written yet"),
        ({topic: {0: -1, 1: 5}}, "say the NEXT offset"),
        ({"other": {0: 5}}, "until says nothing"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            replayed(spark, service, until=until, options=options)
    cluster.delete_before(topic, {0: 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"begins at offset 3.*allow_truncated"):
        replayed(spark, service, until="latest", options=options)
    replay = replayed(spark, service, until="latest", options=options, allow_truncated=True)
    with replay.state("last", "reduced") as rows:
        assert [(row.key_value, row.at) for row in rows.collect()] == [("k", 19)]


def test_the_ledger_goes_on_live_from_its_replayed_history(
    spark: SparkSession,
    stack: Any,
    app_id: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both services replayed from Kafka, started from the savepoint; every total is right."""
    found = list(generate(4000, seed=11, accounts=200))
    make_topics(stack, f"{app_id}.transfers", f"{app_id}.postings")
    env = environment(stack, app_id)
    monkeypatch.setenv("TEST_APP", app_id)
    history, rest = found[:3000], found[3000:]
    feed(stack, app_id, history)
    replay = replayed(
        spark,
        [SERVICES / "replay_transfers.py", SERVICES / "replay_accounts.py"],
        until="latest",
        env=env,
    )
    url = f"{stack.store_url}/{app_id}-replayed/savepoints/history"
    replay.write(url)
    driver = Driver([transfers.service, accounts.service], partitions=4)
    for transfer in history:
        driver.send("transfers", transfer, partition=int(transfer.debtor[-5:]) % 4)
    for operator in ("debit", "credit"):
        lived = {
            key: msgspec.to_builtins(value) for key, value in driver.state(operator, "book").items()
        }
        assert entries(url, operator, "book", env) == lived
    feed(stack, app_id, rest)
    application = Application(
        stack,
        app_id,
        tmp_path,
        *("--from-savepoint", url, "--checkpoint-interval-ms", "500"),
        services=("replay_transfers.py", "replay_accounts.py"),
    )
    with running(application):
        reader = Reader(stack, f"{app_id}.postings")
        reader.until(2 * len(rest), 60, application)
        reader.settle()
        reader.close()
    postings = [json.loads(value) for value in reader.values]
    assert len(postings) == 2 * len(rest)  # only the rest: the history was not emitted again
    for posting in postings:
        driver_totals = totals(found[:3000], posting["account"], posting["side"])
        assert posting["sequence"] > driver_totals[1]
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for posting in postings:
        place = (posting["account"], posting["side"])
        if place not in last or posting["sequence"] > last[place]["sequence"]:
            last[place] = posting
    for (account, side), posting in last.items():
        total, count = totals(found, account, side)
        assert (posting["total"], posting["sequence"]) == (total, count)


def test_the_page(
    spark: SparkSession, stack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks run one after the other, on a topic of 200 transfers."""
    for name, value in environment(stack, "ledger").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    forget_topics(stack, "transfers")
    make_topics(stack, "transfers", partitions=2)
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    for transfer in generate(200, seed=5, accounts=12):
        producer.produce("transfers", msgspec.json.encode(transfer), partition=transfer.id % 2)
    assert producer.flush(30) == 0
    names: dict[str, Any] = {
        "spark": spark,
        "bootstrap": stack.bootstrap,
        "savepoints": f"file://{tmp_path}/savepoints",
        "archive": f"file://{tmp_path}/archive",
    }
    printed = io.StringIO()
    for block in read(ROOT / "docs" / "howto" / "replay-a-topic-into-state.md").blocks:
        if block.how == "output":
            assert matches(block.text, printed.getvalue()), printed.getvalue()
        elif block.language == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * block.line + block.text, block.where, "exec"), names)
    for operator in ("debit", "credit"):
        one = entries(tmp_path / "savepoints" / "history", operator, "book")
        assert one == entries(tmp_path / "savepoints" / "both", operator, "book")


def totals(found: Sequence[Any], account: str, side: str) -> tuple[int, int]:
    mine = [t.amount for t in found if account == (t.debtor if side == "debit" else t.creditor)]
    return sum(mine) * (-1 if side == "debit" else 1), len(mine)


def feed(stack: Any, app: str, found: Sequence[Any]) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    for transfer in found:
        partition = int(transfer.debtor[-5:]) % 4
        producer.produce(f"{app}.transfers", msgspec.json.encode(transfer), partition=partition)
    assert producer.flush(30) == 0
    time.sleep(0.1)
