import json
import random
from pathlib import Path

import pytest
from ledger.generator import generate
from mainjob.chaos import plan, portions
from mainjob.report import Report, percentile
from wordcount.lines import standard_library_lines
from wordcount.tokenizer import words_of


@pytest.mark.parametrize("seed", range(200))
def test_a_plan_kills_workers_and_the_coordinator_in_order(seed: int):
    strikes = plan(random.Random(seed), kills=4, rescale=True)
    whats = [strike.what for strike in strikes]
    assert sorted(whats) == ["coordinator", "rescale", "worker", "worker", "worker"]
    assert whats[0] != "rescale"
    fractions = [strike.fraction for strike in strikes]
    assert fractions == sorted(fractions)
    # A strike waits for no more than the portions that were released before it.
    released = 1
    for strike in strikes:
        assert strike.fraction < released / portions(strikes)
        released += strike.releases
    assert released == portions(strikes) == 5


def test_a_plan_comes_from_its_seed():
    assert plan(random.Random(5), kills=4, rescale=False) == plan(
        random.Random(5), kills=4, rescale=False
    )


def test_transfers_come_from_their_seed_and_never_stay_on_an_account():
    transfers = list(generate(1000, seed=1, accounts=3))
    assert transfers == list(generate(1000, seed=1, accounts=3))
    assert transfers != list(generate(1000, seed=2, accounts=3))
    assert [transfer.id for transfer in transfers] == list(range(1000))
    assert all(t.debtor != t.creditor and t.amount > 0 for t in transfers)


def test_words():
    assert words_of("def Words_of(line: str) -> 2") == ["def", "words_of", "line", "str", "2"]


def test_the_standard_library_is_some_hundred_thousand_lines():
    assert sum(1 for _ in standard_library_lines()) > 200_000


def test_percentiles_are_of_the_nearest_rank():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.99) == 1.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0


def test_the_file_has_the_fields_that_were_promised(tmp_path: Path):
    report = Report(records=10, kills=8, rescales=1, recoveries_s=[1.0, 3.0])
    report.take_checkpoints(
        [
            {"event": "process"},
            {"event": "checkpoint", "status": "completed", "duration_ms": 5.0},
            {"event": "checkpoint", "status": "failed", "reason": "worker left"},
        ]
    )
    file = tmp_path / "build" / "demo.json"
    report.write(file)
    written = json.loads(file.read_text())
    assert written == {
        "verdict": "exactly-once",
        "records": 10,
        "duplicates": 0,
        "lost": 0,
        "open_transactions": 0,
        "kills": 8,
        "rescales": 1,
        "checkpoints": {"completed": 1, "failed": 1, "p50_ms": 5.0, "p99_ms": 5.0},
        "recovery_s": {"p50": 1.0, "max": 3.0},
        "records_per_s": 0,
    }
    assert "exactly-once" in report.table()


def test_the_verdict_names_what_went_wrong():
    report = Report(deviations=["words: counts that never came: 1 (('to', 3))"])
    assert report.verdict == "words: counts that never came: 1 (('to', 3))"
    assert "never came" in report.table()
