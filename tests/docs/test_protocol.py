"""The protocol's page: every law, kept somewhere and watched by something that cites it."""

import re

import pytest

from tests.docs.pages import ROOT, read

PAGE = read(ROOT / "docs" / "PROTOCOL.md")
LAWS = [f"L{number}" for number in range(1, 25)]
ROWS = {
    match[1]: (match[2], match[3])
    for match in re.finditer(r"^\| (L\d+) \| (.*?) \| (.*?) ?\|$", PAGE.prose, re.MULTILINE)
}


@pytest.mark.parametrize("law", LAWS)
def test_law(law: str) -> None:
    assert re.search(rf"\*\*[^*]*\b{law}\b", PAGE.prose), f"{law} is not stated"
    kept, watched = ROWS[law]
    if kept == "not built":
        return
    for column in (kept, watched):
        files = re.findall(r"`([^`]+)`", column)
        assert files, f"{law} names nobody"
        for file in files:
            text = (ROOT / file).read_text()
            assert re.search(rf"\b{law}\b", text), f"{file} does not cite {law}"


def test_no_other_laws() -> None:
    assert sorted(ROWS) == sorted(LAWS)
