"""The pages of the documentation, read into blocks, markers, headings and links.

A comment before a fenced block says how it is tested:

| comment | meaning |
|---|---|
| none, on ``python`` | run in the page's namespace; ``>>>`` examples are checked |
| none, on ``sh`` | its `penstock`, `make`, … commands are checked against the real ones |
| ``<!-- test: run -->`` | a ``sh`` block that is run in the page's folder |
| ``<!-- test: raises NAME -->`` | a ``python`` block that must raise that error |
| ``<!-- test: output -->`` | a ``text`` block: what the block before prints, ``…`` for anything |
| ``<!-- test: stack -->`` | run by tests/integration/walking.py, on real servers |
| ``<!-- test: stack, background until "TEXT" -->`` | the same, left running once it prints TEXT |
| ``<!-- test: logged -->`` | a ``text`` block: lines that what was left running prints, in order |
| ``<!-- test: skip: REASON -->`` | not run, for this reason |

A marker without a block, ``<!-- test: interrupt -->``, is Ctrl-C to what was left running last. A
block with ``title="x.py"`` is a file of the reader's folder.
"""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<fence>```+)(?P<info>.*)$")
_COMMENT = re.compile(r"^<!-- test: (?P<how>.*) -->$")
_TITLE = re.compile(r'title="([^"]+)"')
_HEADING = re.compile(r"^(#+) (.*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HTML_LINK = re.compile(r'(?:href|src|srcset)="([^"]+)"')
_CODE = re.compile(r"`([^`]+)`")
ALONE = ("interrupt",)
"""Markers that stand without a block."""


class Block(NamedTuple):
    """One fenced block, or a marker without one (``language`` is then empty)."""

    page: Path
    line: int
    language: str
    title: str | None
    how: str
    """What the comment before it says, '' when there is none."""
    text: str

    @property
    def where(self) -> str:
        """For people: page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def needs_stack(self) -> bool:
        """It runs in the walk through the tutorial."""
        return self.how == "stack" or self.how.startswith("stack,")

    @property
    def skip_reason(self) -> str | None:
        """Why it is not run; None when it is."""
        return self.how.removeprefix("skip:").strip() if self.how.startswith("skip") else None


class Page(NamedTuple):
    """One Markdown file."""

    path: Path
    prose: str
    """The text without its fenced blocks."""
    blocks: list[Block]

    @property
    def name(self) -> str:
        """Path from the root of the repository."""
        return str(self.path.relative_to(ROOT))

    @property
    def anchors(self) -> set[str]:
        """What a link into this page may point to, as GitHub makes it from headings."""
        seen: dict[str, int] = {}
        found = set()
        for line in self.prose.splitlines():
            heading = _HEADING.match(line)
            if heading is None:
                continue
            slug = slugged(heading[2])
            again = seen.get(slug, 0)
            seen[slug] = again + 1
            found.add(f"{slug}-{again}" if again else slug)
        return found

    @property
    def links(self) -> list[str]:
        """Every target of a link or picture."""
        without_code = _CODE.sub("", self.prose)
        markdown = [one or other for one, other in _LINK.findall(without_code)]
        return markdown + _HTML_LINK.findall(without_code)

    @property
    def code_spans(self) -> list[str]:
        """What stands in backticks."""
        return _CODE.findall(self.prose)

    def headings(self, level: int) -> list[str]:
        """The headings of one level, in order."""
        matches = (_HEADING.match(line) for line in self.prose.splitlines())
        return [m[2] for m in matches if m is not None and len(m[1]) == level]


def slugged(heading: str) -> str:
    """A heading as GitHub's anchor."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    kept = "".join(c for c in text if c in " -_" or unicodedata.category(c)[0] in "LN")
    return kept.replace(" ", "-")


def read(path: Path) -> Page:
    """The page in a file."""
    prose: list[str] = []
    blocks: list[Block] = []
    how, fence, start = "", "", 0
    language, title, body = "", None, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        found = _FENCE.match(line)
        if fence:
            if line == fence:
                text = "\n".join(body) + "\n"
                blocks.append(Block(path, start, language, title, how, text))
                fence, how = "", ""
            else:
                body.append(line)
        elif found is not None:
            fence, start, body = found["fence"], number, []
            language = found["info"].split()[0] if found["info"].strip() else ""
            match = _TITLE.search(found["info"])
            title = None if match is None else match[1]
        elif (comment := _COMMENT.match(line)) is not None:
            if comment["how"] in ALONE:
                blocks.append(Block(path, number, "", None, comment["how"], ""))
            else:
                how = comment["how"]
        else:
            if line.strip() and how:
                raise ValueError(f"{path}:{number}: a test comment stands before no block")
            prose.append(line)
    if fence:
        raise ValueError(f"{path}:{start}: the block is not closed")
    return Page(path, "\n".join(prose), blocks)


def all_pages() -> list[Page]:
    """Every Markdown page at the root and below docs/."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [read(file) for file in sorted(files)]


def commands(block: Block) -> Iterator[str]:
    """The commands of a ``sh`` block, continued lines joined, comments left out."""
    for line in block.text.replace("\\\n", " ").splitlines():
        command = line.split(" #")[0].strip()
        if command and not command.startswith("#"):
            yield command


def matches(expected: str, found: str) -> bool:
    """Whether ``found`` is what a page shows; ``…`` stands for anything."""
    parts = [re.escape(part) for part in expected.strip().split("…")]
    return re.fullmatch(".*?".join(parts), found.strip(), re.DOTALL) is not None
