"""The tutorial for data people: every command and every cell in order, on real servers."""

from pathlib import Path

import pytest
from penstock_stack import Stack

from tests.docs.pages import ROOT, read
from tests.integration.running import forget_topics
from tests.integration.walking import Terminals, exports, settings, walk

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("spark")
def test_the_tutorial_for_data_people(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_topics(stack, "orders", "receipts")
    (tmp_path / "stack.env").write_text(exports(stack))
    for name, value in settings(stack).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    terminals = Terminals(tmp_path)
    try:
        walk(read(ROOT / "docs" / "tutorial-spark.md").blocks, terminals, tmp_path)
    finally:
        terminals.close()
