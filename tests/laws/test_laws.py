"""Every law is cited by some test: `grep -rnw L14 tests` finds what watches over it."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_BUILT = {8: "unaligned checkpoints are for later"}
BUILT = [number for number in range(1, 25) if number not in NOT_BUILT]


@cache
def cited(*folders: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            if path == Path(__file__):
                continue
            for law in set(re.findall(r"\bL(\d{1,2})\b", path.read_text())):
                found.setdefault(int(law), []).append(str(path.relative_to(ROOT)))
            for low, high in re.findall(r"\bL(\d{1,2})-L(\d{1,2})\b", path.read_text()):
                for law in range(int(low), int(high) + 1):
                    found.setdefault(law, []).append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("law", BUILT)
def test_a_law_is_cited_by_a_test(law: int) -> None:
    assert cited("tests").get(law), f"no test cites L{law}"


@pytest.mark.parametrize("law", BUILT)
def test_a_law_is_cited_where_it_is_kept(law: int) -> None:
    assert cited("framework", "connectors").get(law), f"no module says that it keeps L{law}"


def test_nobody_cites_a_law_that_is_not_there() -> None:
    assert set(cited("tests", "framework", "connectors")) <= set(range(1, 25))


MACHINES = {
    "B": "framework/penstock/barrier/alignment.py",
    "S": "framework/penstock/sink/transaction.py",
    "T": "framework/penstock/task/subtask.py",
    "C": "framework/penstock/checkpoint/coordinator.py",
    "H": "framework/penstock/checkpoint/history.py",
    "R": "framework/penstock/checkpoint/restore.py",
}


@pytest.mark.parametrize("letter", MACHINES)
def test_every_invariant_of_a_machine_is_cited_by_a_test(letter: str) -> None:
    """Its docstring numbers them; the list of the simulation or a unit test cites each."""
    text = (ROOT / MACHINES[letter]).read_text()
    stated = set(re.findall(rf"^- ({letter}\d)\b", text, re.MULTILINE))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert stated
    assert {number for number in stated if not re.search(rf"\b{number}\b", tests)} == set()
