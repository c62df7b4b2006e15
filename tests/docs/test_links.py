"""Links, anchors, paths and test names on the pages are there."""

import ast
import functools
import re
import runpy
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Page, all_pages, read

PAGES = all_pages()
NOT_YET: set[str] = set()
"""Pages that a command writes, so that a clone may be without them."""
TREES = ("framework/", "connectors/", "services/", "compose/", "tests/", "docs/", ".ci/")
PATH = re.compile(r"[\w./-]+(::\w+)*")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of(page: Page) -> None:
    for link in page.links:
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        file = (page.path.parent / target).resolve() if target else page.path
        name = str(file.relative_to(ROOT))
        assert file.exists() or name in NOT_YET, f"{page.name}: {link}"
        if anchor and file.exists():
            assert anchor in read(file).anchors, f"{page.name}: {link}"


@functools.cache
def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_named_on(page: Page) -> None:
    for span in page.code_spans:
        if not span.startswith(TREES) or not PATH.fullmatch(span):
            continue
        name, *inside = span.split("::")
        assert (ROOT / name).exists() or name in NOT_YET, f"{page.name}: {span}"
        for part in inside:
            assert part in functions_of(ROOT / name), f"{page.name}: {span}"


def test_every_page_is_linked_from_another() -> None:
    linked = set()
    for page in PAGES:
        for link in page.links:
            target = link.partition("#")[0]
            if target and "://" not in target:
                linked.add((page.path.parent / target).resolve())
    decisions = ROOT / "docs" / "decisions"
    lost = [
        page.name
        for page in PAGES
        if page.path not in linked
        and page.name not in ("README.md", "docs/README.md")
        and page.path.parent != decisions
    ]
    assert lost == []


def test_rows_of_what_survives_what_name_a_test() -> None:
    section = read(ROOT / "README.md").prose.split("## What survives what")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    for row in rows:
        shown_by = row.rstrip(" |").split("|")[-1]
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", shown_by), row


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_picture_is_drawn_by_its_script(name: str) -> None:
    folder = ROOT / "docs" / "pictures"
    script = runpy.run_path(str(folder / "draw.py"))
    drawn = (folder / f"data-path-{name}.svg").read_text()
    assert drawn == script["drawing"](script[name.upper()]), "run docs/pictures/draw.py"
