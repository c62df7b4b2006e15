"""The tutorial as a newcomer follows it: every block in order, on a real Kafka and a real store."""

from pathlib import Path

import pytest
from penstock_stack import Stack

from tests.docs.pages import ROOT, read
from tests.integration.walking import Terminals, exports, walk

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_tutorial(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "stack.env").write_text(exports(stack))
    terminals = Terminals(tmp_path)
    try:
        walk(read(ROOT / "docs" / "tutorial.md").blocks, terminals, tmp_path)
    finally:
        terminals.close()
