"""A report on the ledger and its variant with a fee, against plain counting."""

from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ledger.generator import generate
from ledger_ab.expectation import Expectation
from ledger_ab.trial import Size, Trial
from ledger_ab.verdict import deviations
from penstock import application
from penstock.failure import ConfigurationError
from penstock.runtime.connectors import store_from
from penstock.savepoint.converting import convert
from penstock.savepoint.manifest import MANIFEST_KEY, SavepointManifest, SourceEntry
from penstock.savepoint.reading import Savepoint
from penstock.schema import ANY, schema_of
from penstock.snapshot.chain import ChunkReader
from penstock.testing import Driver
from penstock.testing.store import SimulatedStore
from penstock_minio.folder import FileStore
from penstock_spark import enable
from penstock_spark.ab import AbReport, Wishes, compared, page, read, report, table
from penstock_spark.ab.reporting import typed
from penstock_spark.ab.sinks import SinkType, sink_types
from penstock_spark.ab.states import position_differences, readable, state_pairs
from pyarrow import dataset
from pyspark.sql import DataFrame, SparkSession

from tests.docs import pages
from tests.integration.running import environment, forget_topics
from tests.unit.savepoint import every_state

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

SERVICES = Path(__file__).parents[2] / "services"
FILES_A = [str(SERVICES / "ledger" / "transfers.py"), str(SERVICES / "ledger" / "accounts.py")]
FILES_B = [str(SERVICES / "ledger_ab" / "transfers.py"), FILES_A[1]]
BEFORE, REPLAYED, ACCOUNTS, SEED = 200, 1000, 40, 7
RECORDS = "key binary, value binary, partition int, offset bigint"
ON, IGNORE = ("transfer", "account", "side"), ("total", "sequence")


def driven(
    spark: SparkSession,
    folder: Path,
) -> tuple[list[DataFrame], list[Savepoint]]:
    """Both variants from one checkpoint over the same transfers, without a broker."""
    transfers = generate(BEFORE + REPLAYED, SEED, ACCOUNTS)
    first = Driver([application.load(file) for file in FILES_A])
    first.send("transfers", *islice(transfers, BEFORE))
    checkpoint = first.checkpoint()
    rest = list(transfers)
    frames, savepoints = [], []
    for side, files in (("a", FILES_A), ("b", FILES_B)):
        driver = Driver([application.load(file) for file in files], checkpoint=checkpoint)
        driver.send("transfers", *rest)
        written = [*driver.outputs("debits"), *driver.outputs("credits-booked")]
        records = [(out.key, out.value, 0, offset) for offset, out in enumerate(written)]
        frames.append(spark.createDataFrame(records, RECORDS))
        ended, store = driver.checkpoint(), FileStore(folder / side)
        reader = ChunkReader(SimulatedStore(objects=dict(ended.objects)))
        convert(ended.manifest, reader, store, savepoint_id=side, created_at_ms=0)
        savepoints.append(Savepoint.open(store))
    return frames, savepoints


@pytest.fixture(scope="module")
def ledger_report(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> AbReport:
    folder = tmp_path_factory.mktemp("ab")
    enable(spark)
    (a, b), savepoints = driven(spark, folder)
    types_a, types_b = sink_types(FILES_A), sink_types(FILES_B)
    wishes = Wishes(folder=folder)
    frames = typed((a, types_a["postings"]), (b, types_b["postings"]))
    output = compared(
        *frames, "postings", ON, by=("record_key",),
        order=("record_partition", "record_offset"), ignore=IGNORE, wishes=wishes,
    )  # fmt: skip
    states = [
        compared(
            pair.a, pair.b, pair.name, pair.on,
            kind="state", by=pair.by, ignore=pair.ignore, wishes=wishes,
        )
        for pair in state_pairs(spark, *savepoints)
    ]  # fmt: skip
    return AbReport(
        app="ledger", variant="b", created_at_ms=1_795_000_000_000, comparisons=(output, *states)
    )


def expectation() -> Expectation:
    transfers, expected = generate(BEFORE + REPLAYED, SEED, ACCOUNTS), Expectation()
    expected.before(islice(transfers, BEFORE))
    expected.replay(transfers)
    return expected


def test_every_figure_is_what_plain_counting_says(ledger_report: AbReport) -> None:
    assert deviations(ledger_report, expectation().figures()) == []
    assert len(expectation().fees) > 400


def test_a_figure_that_is_off_by_one_is_a_deviation(ledger_report: AbReport) -> None:
    off = expectation()
    off.fees[0] += 1
    assert any("amount sum" in line for line in deviations(ledger_report, off.figures()))


def test_the_differences_stand_in_parquet(ledger_report: AbReport) -> None:
    output = ledger_report.comparisons[0]
    assert output.differences is not None
    rows = dataset.dataset(output.differences).to_table().to_pylist()
    assert len(rows) == output.unequal
    fees = {row["transfer"]: -row["delta_amount"] for row in rows if row["status"] == "different"}
    credited = {row["transfer"]: row["b_amount"] for row in rows if row["status"] == "only_b"}
    assert fees == credited
    assert sum(fees.values()) == sum(expectation().fees)


def test_the_forms_of_a_real_report(ledger_report: AbReport) -> None:
    assert read(ledger_report.to_json()) == ledger_report
    assert "output postings" in table(ledger_report, 80)
    assert page(ledger_report).count("<svg") == 4


def test_the_notebook_of_the_page(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parents[2] / "docs" / "howto" / "compare-two-variants.md"
    (code,) = (block for block in pages.read(path).blocks if block.language == "python")
    (shown,) = (block for block in pages.read(path).blocks if block.language == "text")
    exec(compile(code.text, code.where, "exec"), {"spark": spark})
    assert sorted(capsys.readouterr().out.split()) == sorted(shown.text.split())


# -- outputs


def frame(spark: SparkSession, *values: bytes | None, key: bytes | None = b"k") -> DataFrame:
    rows = [(key, value, 0, offset) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORDS)


class Money(msgspec.Struct, tag_field="kind", tag="money"):
    cents: int
    price: Decimal
    tags: set[str] = set()
    other: int | str | None = None


def test_values_of_a_known_type_are_columns(spark: SparkSession) -> None:
    sink = SinkType("json", schema_of(Money))
    values = [msgspec.json.encode(Money(5, Decimal("1.20"), {"x"}, "y")), b'{"cents": "no"}', b"7"]
    a, b = typed((frame(spark, *values), sink), (frame(spark, values[0], key=b"\xff"), sink))
    found = [row.asDict() for row in a.orderBy("record_offset").collect()]
    assert found[0] == {
        "record_key": "k", "record_partition": 0, "record_offset": 0, "kind": "money", "cents": 5,
        "price": Decimal("1.2"), "tags": ["x"], "other": "y", "unparsed": None,
    }  # fmt: skip
    assert [row["unparsed"] for row in found[1:]] == ['{"cents": "no"}', "7"]
    assert b.collect()[0]["record_key"] == "0xFF"


def test_a_type_that_nobody_knows_is_inferred_for_both_sides_at_once(spark: SparkSession) -> None:
    unknown = SinkType("json", ANY)
    a, b = typed(
        (frame(spark, b'{"n": 1}'), unknown), (frame(spark, b'{"n": 1.5, "m": 2}'), unknown)
    )
    assert a.schema == b.schema
    assert [(row["n"], row["m"]) for row in (*a.collect(), *b.collect())] == [(1.0, None), (1.5, 2)]
    a, b = typed((frame(spark, b"1", b"2"), unknown), (frame(spark, b"3"), unknown))
    assert [row["value"] for row in a.orderBy("record_offset").collect()] == [1, 2]


def test_msgpack_string_and_bytes(spark: SparkSession) -> None:
    packed = SinkType("msgpack", schema_of(dict[str, int]))
    a, b = typed(
        (frame(spark, msgspec.msgpack.encode({"n": 1}), b"\xc1"), packed),
        (frame(spark, b"text"), SinkType("string", schema_of(str))),
    )
    rows = a.orderBy("record_offset").collect()
    assert rows[0]["value"] == {"n": 1}
    assert rows[1]["unparsed"] == "0xc1"
    assert b.collect()[0]["value"] == "text"
    raw = (frame(spark, b"\xff", None), SinkType("bytes", schema_of(bytes)))
    assert [row["value"] for row in typed(raw, raw)[0].collect()] == [b"\xff", None]


def test_records_without_fields_of_their_own_name_clash(spark: SparkSession) -> None:
    sink = SinkType("json", schema_of(dict[str, int]))
    struct = SinkType("json", schema_of(Clash))
    a, _ = typed((frame(spark, b'{"record_key": 7}'), struct), (frame(spark, b"{}"), sink))
    assert a.collect()[0].asDict()["value_record_key"] == 7


class Clash(msgspec.Struct):
    record_key: int


def test_sinks_are_read_from_the_files_of_each_side(tmp_path: Path) -> None:
    assert sink_types(FILES_B)["postings"].value.name == "Posting"
    for side, kind in (("a", "int"), ("b", "str")):
        folder = tmp_path / side
        folder.mkdir()
        (folder / "model.py").write_text(f"Kind = {kind}\n")
        (folder / "service.py").write_text(
            "import penstock as ps\nfrom model import Kind\nprint('loaded')\n"
            "s = ps.Service('s', app='x')\n"
            "s.source('in', topic='in', value=Kind).sink('out', topic='out')\n"
        )
    found = [sink_types([str(tmp_path / side / "service.py")])["out"].value.kind for side in "ab"]
    assert found == ["int", "str"]
    with pytest.raises(ConfigurationError, match=r"no service file .*gone\.py"):
        sink_types([str(tmp_path / "gone.py")])


# -- states


def test_every_kind_of_state_is_compared_whatever_the_parallelism(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    commands = [every_state.Command(key, number=n) for n, key in enumerate("xxyzx" * 3, 1)]
    ends = []
    for side, parallelism, more in (("a", 1, []), ("b", 3, [every_state.Command("w", number=99)])):
        driver = Driver(every_state.service(), parallelism=parallelism)
        driver.send("commands", *commands, *more)
        ends.append(every_state.savepoint_of(driver.checkpoint(), FileStore(tmp_path / side)))
    enable(spark)
    found = {
        pair.name: readable(
            compared(
                pair.a, pair.b, pair.name, pair.on,
                kind="state", by=pair.by, ignore=pair.ignore,
            ),
            (),
        )
        for pair in state_pairs(spark, *ends)
    }  # fmt: skip
    assert {name.removeprefix("everything/") for name in found} == {*every_state.STATES}
    for name, each in found.items():
        more = 2 if name.endswith("timers") else 0 if name.endswith("rates") else 1
        more -= name.endswith("timers")  # an odd number's processing timer was deleted
        assert (each.different, each.only_a, each.only_b) == (0, 0, more), name
        assert each.equal > 0, name
        assert each.ignored == ()
    assert found["everything/by_day"].on == ("key_value", "map_key")
    assert found["everything/account"].on == ("key_value",)


def test_decimals_of_a_state_have_differences(
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    ends = []
    for side, number in (("a", 4), ("b", 13)):  # both of the same day
        driver = Driver(every_state.service())
        driver.send("commands", every_state.Command("x", number=number))
        ends.append(every_state.savepoint_of(driver.checkpoint(), FileStore(tmp_path / side)))
    enable(spark)
    (pair,) = (p for p in state_pairs(spark, *ends) if p.name == "everything/by_day")
    found = compared(pair.a, pair.b, pair.name, pair.on, kind="state", ignore=pair.ignore)
    (price,) = (column for column in found.columns if column.name == "price")
    assert price.deltas is not None
    assert price.deltas.sum == Decimal("2.25")


def test_positions_at_which_both_ended() -> None:
    def ended(positions: dict[int, int]) -> Savepoint:
        source = SourceEntry(uid="s", stage="t", topic="t", positions=positions)
        manifest = SavepointManifest(
            savepoint_id="x", app="a", checkpoint=1, created_at_ms=0, created_by="t",
            max_parallelism=1, sources=(source,),
        )  # fmt: skip
        return Savepoint(SimulatedStore(), manifest)

    (only,) = position_differences(ended({0: 5, 1: 7}), ended({0: 5, 1: 8}))
    assert (only.partition, only.a, only.b) == (1, 7, 8)


# -- the whole run


def test_a_run_on_real_servers(stack: Any, spark: SparkSession, tmp_path: Path) -> None:
    """savepoint → `ab start` → `ab report`, with the commands; then what the report refuses."""
    forget_topics(stack, "transfers", "postings")
    report_, wrong = Trial(stack, tmp_path, Size(before=200, replayed=2000), SEED).run()
    assert wrong == []
    assert report_.run is not None
    env = environment(stack, "ledger")
    with pytest.raises(ConfigurationError, match=r"no output .* 'nothing'; there are postings"):
        report("ledger", "b", env, spark, Wishes(on={"nothing": ("x",)}))
    store_from({**env, "PENSTOCK_STORE": report_.run.final_b}).delete([MANIFEST_KEY])
    early = report(
        "ledger", "b", env, spark, Wishes(on={"postings": ON}, ignore={"postings": IGNORE})
    )
    (output,) = early.comparisons
    assert (output.equal, output.only_b) == tuple(
        expected_output(Expectation())[name] for name in ("equal", "only_b")
    )
    assert early.not_compared[0].startswith("the states: B has not ended with a savepoint at ")


def expected_output(expected: Expectation) -> dict[str, int]:
    transfers = generate(2200, SEED)
    expected.before(islice(transfers, 200))
    expected.replay(transfers)
    return expected.figures()["postings"]
