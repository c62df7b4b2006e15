"""A process over the rows of each key leaves what it leaves live: without the JVM."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import penstock as ps
import pyarrow as pa
import pytest
from penstock.edge.routing import key_bytes
from penstock.failure import ConfigurationError, UserCodeFailed
from penstock.savepoint.manifest import FileEntry, OperatorEntry, SavepointManifest
from penstock.savepoint.reading import Savepoint
from penstock.savepoint.writing import publish
from penstock.schema import schema_of
from penstock.testing import Driver
from penstock_minio import FileStore
from penstock_spark import KeyedStateBootstrap
from penstock_spark.writing import bootstrap, keying
from penstock_spark.writing.bootstrap import Bootstrapping
from penstock_spark.writing.describing import states_of
from penstock_spark.writing.keying import (
    GROUP,
    RAW,
    TIME,
    Code,
    ColumnKeying,
    ValueKeying,
    key_state,
)
from penstock_spark.writing.output import Target
from penstock_spark.writing.values import Values

from tests.unit.savepoint.every_state import Command, Everything, brought_in, live

KEYS = ["a", "b", "c", "anna", "Ω", ""]
KEY_COLUMN = "__key_value"
GROUPS = 128
TASKS = 3


class Quiet(Everything):
    """Everything, but it emits nothing."""

    def process(self, value: Command, ctx: ps.Context) -> None:
        ctx.emit = lambda _: None
        super().process(value, ctx)


def service(*, partitioned: bool = False) -> ps.Service:
    made = ps.Service("all", app="app")
    stream = made.source("commands", topic="commands", value=Command, partitioned=partitioned)
    stream.key_by("by-key", lambda c: c.key).process("everything", Quiet)
    return made


class Numbered:
    """Stands for Spark's context of a task."""

    def __init__(self, number: int) -> None:
        self.number = number

    def partitionId(self) -> int:  # noqa: N802  # Spark's name
        return self.number


def written(
    folder: Path,
    rows: list[dict[str, Any]],
    process: Callable[[], ps.KeyedProcess] = Quiet,
    *,
    value: Any = Command,
    key: Any = None,
    key_type: Any = str,
    ownership: Any = "key_group",
    batch_rows: int = 7,
    order: str = "number",
) -> Savepoint:
    """What Spark does with the parts of a bootstrap: key, bring together, sort, run."""
    states = tuple(states_of(type(process()), schema_of(key_type)))
    operator = OperatorEntry(
        uid="everything", kind="keyed_process", service="all", stage="all.by-key", parallelism=1,
        ownership=ownership, partitions=4, states=states,
    )  # fmt: skip
    target = Target(folder.as_uri(), "mark", GROUPS)
    code = Code(process, key, key_type, value)
    names = (
        [field.encode_name for field in msgspec.structs.fields(value)] if value else list(rows[0])
    )
    columns = Values(tuple(names), is_single=False)
    table = pa.Table.from_pylist(rows)
    made = (
        ValueKeying("everything", GROUPS, columns, b"")
        if key
        else ColumnKeying(operator, key_state(schema_of(key_type)), KEY_COLUMN, GROUPS)
    )
    with pytest.MonkeyPatch.context() as patch:
        # To land here what was shipped from here would change the very classes.
        patch.setattr(keying, "landed", lambda _: code)
        keyed = pa.Table.from_batches(made.batches(iter(table.to_batches(batch_rows))))
    sorting = [GROUP, *(["partition"] if ownership == "partition" else []), RAW, order]
    keyed = keyed.sort_by([(name, "ascending") for name in sorting])
    job = Bootstrapping(target, operator, columns, 5, b"")
    files: list[FileEntry] = []
    for number in range(TASKS):
        mine = [g * TASKS // GROUPS == number for g in keyed[GROUP].to_pylist()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bootstrap, "landed", lambda _: code)
            patch.setattr(bootstrap.TaskContext, "get", lambda n=number: Numbered(n))
            for out in job.batches(iter(keyed.filter(pa.array(mine)).to_batches(batch_rows))):
                files += [msgspec.json.decode(e, type=FileEntry) for e in out["entry"].to_pylist()]
    store = FileStore(folder)
    publish(
        store,
        SavepointManifest(
            savepoint_id="made", app="app", checkpoint=0, created_at_ms=1, created_by="test",
            max_parallelism=GROUPS, operators=(operator,), files=tuple(files),
        ),
    )  # fmt: skip
    return Savepoint.open(store)


def rows(commands: list[Command], **more: Any) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(c), KEY_COLUMN: c.key, **more} for c in commands]


COMMANDS = [Command(KEYS[n % 6], number=n) for n in range(200)]


@pytest.fixture(params=[1, 16, 100_000])
def flushes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(bootstrap, "FLUSH_ROWS", request.param)
    return int(request.param)


def comparable(driver: Driver) -> dict[str, Any]:
    found = live(driver)
    found["recent"] = sorted(found["recent"])
    found["known"] = sorted(found["known"][0])
    found["rates"] = dict(found["rates"])
    return found


def test_every_kind_of_state_is_as_if_it_had_run(tmp_path, flushes):
    run = Driver(service(), parallelism=1, now_ms=5)
    for command in COMMANDS:
        run.send("commands", command)
    savepoint = written(tmp_path, rows(COMMANDS))
    moved = service()
    again = Driver(moved, checkpoint=brought_in(savepoint, moved), parallelism=1)
    expected = comparable(run)
    assert len(expected["account"]) == 6
    for name, found in comparable(again).items():
        assert found == expected[name], name
    assert savepoint.table("everything", "rates").num_rows == 2, (
        "alike in all tasks, it is there once"
    )


class Waiting(KeyedStateBootstrap):
    """Keeps how many timers are in memory."""

    timers_held = ps.ListState(int)

    def process(self, value: Command, ctx: ps.Context) -> None:
        ctx.timers.event(value.number)
        self.timers_held.add(len(ctx.timers._heaps[0]))


def test_timers_that_are_written_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(bootstrap, "FLUSH_ROWS", 1)
    commands = [Command(f"k{n}", number=n) for n in range(500)]
    savepoint = written(tmp_path, rows(commands), Waiting)
    assert savepoint.table("everything", "timers").num_rows == 500
    assert max(savepoint.table("everything", "timers_held")["value"].to_pylist()) <= 7


def test_keys_that_partitions_own_stay_with_them(tmp_path, flushes):
    """The same key in two partitions is two owners' key."""
    in_two = rows(COMMANDS[:60], partition=1) + rows(COMMANDS[60:], partition=3)
    savepoint = written(tmp_path, in_two, ownership="partition")
    found = {
        (row["partition"], row["key_value"]): row["value_total"]
        if "value_total" in row
        else row["total"]
        for row in savepoint.table("everything", "account").to_pylist()
    }
    for partition, commands in ((1, COMMANDS[:60]), (3, COMMANDS[60:])):
        for key in KEYS:
            total = sum(c.number for c in commands if c.key == key)
            assert found.pop((partition, key)) == total
    assert found == {}
    moved = service(partitioned=True)
    Driver(moved, checkpoint=brought_in(savepoint, moved), parallelism=2)


def test_a_function_gives_the_key(tmp_path):
    upper = written(tmp_path, rows(COMMANDS), key=lambda c: c.key.upper())
    keys = set(upper.table("everything", "account")["key_value"].to_pylist())
    assert keys == {key.upper() for key in KEYS}


class Seen(KeyedStateBootstrap):
    seen = ps.ListState(list[int])

    def process(self, value: Any, ctx: ps.Context) -> None:
        self.seen.add([value["number"], ctx.timestamp, ctx.now_ms])


def test_a_row_has_its_time_and_the_write_has_one(tmp_path):
    savepoint = written(
        tmp_path, [{"number": 3, KEY_COLUMN: 9, TIME: 77}], Seen, value=None, key_type=int
    )
    (row,) = savepoint.lookup("everything", "seen", 9).to_pylist()
    assert row["value"] == [3, 77, 5]
    assert row["key"] == key_bytes(9)


class Fails(KeyedStateBootstrap):
    total = ps.ValueState(int)
    how: Callable[[Any, Any], Any]

    def process(self, value: Command, ctx: ps.Context) -> None:
        type(self).how(self, ctx)


def failing(how: Callable[[Any, Any], Any]) -> type[Fails]:
    return type("Failing", (Fails,), {"how": staticmethod(how)})


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        (lambda p, ctx: ctx.emit("out"), ConfigurationError,
         "operator 'everything', key 'a': its process emits 'out', and a bootstrap has nowhere"),
        (lambda p, ctx: ctx.emit_to("late", 1), ConfigurationError,
         "'everything' emits to side output 'late'"),
        (lambda p, ctx: 1 // 0, UserCodeFailed, "key 'a', Command.*ZeroDivisionError"),
        (lambda p, ctx: p.total.set("x"), ConfigurationError,
         "state 'total' of operator 'everything', key 'a': 'x' is not of the declared type"),
        (lambda p, ctx: p.total.set(1 << 63), ConfigurationError,
         "state 'total' of operator 'everything', key 'a': 9223372036854775808 does not fit"),
    ],
)  # fmt: skip
def test_what_a_process_may_not_do_names_its_key(tmp_path, how, error, message):
    with pytest.raises(error, match=message):
        written(tmp_path, rows([Command("a")]), failing(how))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"key": None},
            r"^operator .everything., key 'a': a row of the DataFrame is no Command: .*`\$.key`",
        ),
        ({KEY_COLUMN: None}, "operator 'everything'.*is null, expected str"),
    ],
)
def test_what_is_no_row_is_named(tmp_path, row, message):
    with pytest.raises(ConfigurationError, match=message):
        written(tmp_path, [*rows(COMMANDS), {**rows(COMMANDS[:1])[0], **row}])


@pytest.mark.parametrize("place", [None, 4])
def test_a_partition_that_does_not_exist_owns_nothing(tmp_path, place):
    column = {"partition": place}
    with pytest.raises(ConfigurationError, match=f"column 'partition' is {place}, expected"):
        written(tmp_path, [{**rows(COMMANDS[:1], partition=0)[0], **column}] * 2
                + rows(COMMANDS, partition=0), ownership="partition")  # fmt: skip
