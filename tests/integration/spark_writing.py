"""What the tests of writing savepoints share: an application with every kind of state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.verifying import VerifiedState
from penstock.testing import Driver
from penstock_minio import FileStore
from penstock_spark import SavepointWriter
from pyspark.sql import DataFrame, SparkSession

from tests.unit.savepoint.every_state import (
    Command,
    Everything,
    brought_in,
    live,
    savepoint_of,
    service,
)

KEYS = ["a", "b", "c", "anna", "Ω", ""]
COMMANDS = [Command(KEYS[n % 6], number=n) for n in range(60)]


class Quiet(Everything):
    """Everything, but it emits nothing."""

    def process(self, value: Command, ctx: ps.Context) -> None:
        ctx.emit = lambda _: None
        super().process(value, ctx)


def quiet(*, partitioned: bool = False, max_parallelism: int = 128) -> ps.Service:
    made = ps.Service("all", app="app", max_parallelism=max_parallelism)
    stream = made.source("commands", topic="commands", value=Command, partitioned=partitioned)
    stream.key_by("by-key", lambda c: c.key, key=str).process("everything", Quiet)
    return made


def driven(*, partitioned: bool = False) -> Driver:
    run = Driver(service(partitioned=partitioned), parallelism=1, now_ms=5)
    for command in COMMANDS:
        run.send("commands", command)
    run.watermark(500)
    return run


def comparable(driver: Driver) -> dict[str, Any]:
    found = live(driver)
    found["recent"] = sorted(found["recent"])
    found["known"] = sorted(found["known"][0])
    found["rates"] = dict(found["rates"])
    return found


def restored(savepoint: Savepoint, made: ps.Service | None = None, **how: Any) -> Driver:
    made = service() if made is None else made
    return Driver(made, checkpoint=brought_in(savepoint, made, **how), parallelism=2)


def at(folder: Path) -> Savepoint:
    """The savepoint in a folder, every row of it proven."""
    found = Savepoint.open(FileStore(folder))
    prove(found)
    return found


def prove(savepoint: Savepoint) -> None:
    """Sums, order, keys and bounds of all files; and that there are no others."""
    for operator in savepoint.manifest.operators:
        for state in operator.states:
            if state.kind != "positions":
                for _ in VerifiedState(savepoint, operator.uid, state.name).entries():
                    pass
            else:
                assert savepoint.table(operator.uid, state.name).num_rows
    store = savepoint._store
    named = {"manifest.json", *(file.path for file in savepoint.manifest.files)}
    assert set(store.list("")) == named


def every_state(folder: Path) -> Savepoint:
    """A savepoint with all kinds of state, converted from a checkpoint of `driven`."""
    return savepoint_of(driven().checkpoint(), FileStore(folder))


def commands(spark: SparkSession, rows: list[Command] = COMMANDS) -> DataFrame:
    found = [(c.key, c.do, c.number) for c in rows]
    return spark.createDataFrame(found, "key string, do string, number long").repartition(3)


def modified(
    spark: SparkSession,
    base: Savepoint,
    folder: Path,
    change: Callable[[SavepointWriter], SavepointWriter],
    **how: Any,
) -> Savepoint:
    writer = change(SavepointWriter.from_existing(spark, base.url, **how))
    writer.write((folder / "made").as_uri(), tasks=3)
    return at(folder / "made")
