"""The report as JSON, as a table and as a page, for values that mean harm."""

import re
from decimal import Decimal
from html.parser import HTMLParser

import msgspec
import pytest
from penstock.failure import ConfigurationError
from penstock.runtime.ab_run import AbRun
from penstock_spark.ab import AbReport, Compared, page, read, table
from penstock_spark.ab.command import columns
from penstock_spark.ab.model import (
    Bin,
    ColumnDifference,
    Deltas,
    Example,
    KeyDelta,
    KeyRows,
    PositionDifference,
)
from penstock_spark.ab.table import key_text, share, shown

HARM = "</title><script>alert('x')</script>\x1b[31m$\\alpha$\u202e\0&\""
NAMES = ("p1", "p5", "p25", "p50", "p75", "p95", "p99")


def deltas(**changed: object) -> Deltas:
    plain = Deltas(
        rows=5,
        sum=-1_234_567,
        mean=-246_913.4,
        min=-1_000_000,
        quantiles={name: -n for n, name in enumerate(NAMES)},
        max=7,
        bins=(Bin(-10, -5, 3), Bin(-5, 0, 0), Bin(0, 7, 1)),
        below=1,
        above=0,
        top=(KeyDelta((HARM, None), -1_000_000, 2), KeyDelta(("$\\alpha$",), 7, 1)),
    )
    return msgspec.structs.replace(plain, **changed)


def compared(**changed: object) -> Compared:
    plain = Compared(
        kind="output",
        name="postings",
        a="postings.b-a",
        b="postings.b",
        on=("transfer", HARM),
        by=("record_key",),
        ignored=("total",),
        rows_a=20,
        rows_b=21,
        equal=12,
        different=6,
        only_a=2,
        only_b=3,
        repeated_a=1,
        repeated_b=0,
        columns=(
            ColumnDifference(name="amount", type_a="bigint", type_b="int", rows=6, deltas=deltas()),
            ColumnDifference(name=HARM, type_a="string", type_b="string", rows=2),
            ColumnDifference(name="same", type_a="string", type_b="string", rows=0),
        ),
        columns_only_a=(),
        columns_only_b=("fee",),
        keys=9,
        keys_unequal=4,
        top_keys=(KeyRows(key=(HARM,), equal=1, different=2, only_a=3, only_b=4),),
        examples=(
            Example(
                key=(HARM, None), occurrence=2, status="different", values=((HARM, None, HARM),)
            ),
            Example(key=("k", "l"), occurrence=1, status="only_b", values=()),
        ),
        differences="out/differences/postings",
    )
    return msgspec.structs.replace(plain, **changed)


RUN = AbRun(
    variant="b", app="ledger", app_a="ledger-b-a", app_b="ledger-b",
    files_a=("a.py",), files_b=(HARM,), savepoint="s3://bucket/ledger/savepoints/one",
    until={"transfers": {0: 7}}, sinks={}, starts={}, parallelism={},
    final_a="x", final_b="y", created_at_ms=1,
)  # fmt: skip
REPORT = AbReport(
    app="ledger",
    variant="b",
    created_at_ms=1_795_000_000_000,
    run=RUN,
    comparisons=(compared(), compared(kind="state", name=HARM, columns=(), different=0)),
    states_only_b=("fees/book",),
    positions=(PositionDifference(topic="transfers", partition=0, a=1, b=None),),
    not_compared=(HARM,),
)


def test_json_gives_the_report_back_exactly() -> None:
    exact = deltas(sum=Decimal("123456789012345678901234.56"), max=2.5, min=-(2**63))
    column = ColumnDifference(name="x", type_a="t", type_b="t", rows=1, deltas=exact)
    report = msgspec.structs.replace(REPORT, comparisons=(compared(columns=(column,)),))
    again = read(report.to_json())
    assert again == report
    found = again.comparisons[0].columns[0].deltas
    assert found is not None
    assert (type(found.sum), type(found.min), type(found.max)) == (Decimal, int, float)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_of_the_table_is_longer_than_the_terminal(width: int) -> None:
    lines = table(REPORT, width).splitlines()
    assert max(map(len, lines)) <= width


def test_the_table_gives_the_terminal_no_orders() -> None:
    text = table(REPORT, 400)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "alert('x')" in text


def test_the_table_says_what_was_found() -> None:
    text = table(REPORT, 100)
    for expected in (
        r"rows A +rows B +equal +different +only A +only B",
        r"output postings +20 +21 +12 +6 +2 +3",
        r"not compared: total",
        r"columns only in B: fee",
        r"amount +bigint / int +6 +33\.33 %",
        r"amount: B − A in 5 rows, sum -1,234,567",
        r"1 rows below, 0 above",
        r"4 of 9 keys \(record_key\) differ",
        r"only in B, such as k · l",
        r"states only in B: fees/book",
        r"transfers\[0\]: A 1, B None",
        r"replay of a range of offsets",
    ):
        assert re.search(expected, text), expected
    assert "same" not in text


class Outline(HTMLParser):
    """What a browser would see: elements, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "use", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("use", "path"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def outline() -> Outline:
    found = Outline()
    found.feed(page(REPORT))
    found.close()
    return found


def test_the_page_runs_nothing_and_asks_for_nothing(outline: Outline) -> None:
    assert outline.open == []
    assert not {"script", "link", "img", "iframe", "object", "image", "foreignobject"} & {
        *outline.tags
    }
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    for name, value in outline.attributes:
        if name in ("href", "xlink:href", "src", "action"):
            assert value is not None
            assert value.startswith("#"), value
    assert "url(http" not in page(REPORT)
    policy = [value for name, value in outline.attributes if name == "content"]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policy


def test_harmful_text_is_shown_as_text(outline: Outline) -> None:
    assert outline.text.count("<script>alert('x')</script>") >= 8
    assert not re.search(r"[\0\x1b\u202e]", page(REPORT))


def test_every_plot_has_a_name_and_takes_the_colours_of_the_page(outline: Outline) -> None:
    html = page(REPORT)
    drawings = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        assert 'role="img"' in drawing
        assert "<title>" in drawing
        assert not re.search(r"#[0-9a-f]{6}", drawing), "a colour that dark mode does not change"
    assert ">$\\alpha$<" in drawings[2], "a plot took dollar signs for mathematics"


def test_every_table_has_headings(outline: Outline) -> None:
    assert outline.tags.count("table") >= 4
    scopes = [value for name, value in outline.attributes if name == "scope"]
    assert set(scopes) == {"col", "row", "rowgroup"}


def test_a_report_without_differences_says_so() -> None:
    same = compared(
        equal=20, different=0, only_a=0, only_b=0, columns=(), columns_only_b=(),
        top_keys=(), examples=(), differences=None,
    )  # fmt: skip
    report = AbReport(app="a", variant="b", created_at_ms=0, comparisons=(same,))
    assert report.is_equal
    assert "no difference" in table(report)
    assert "No difference" in page(report)
    assert not REPORT.is_equal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (-5, "-5"),
        (Decimal("1234.500"), "1,234.5"),
        (Decimal("0.000000000000000001"), "0.000000000000000001"),
        (0.1 + 0.2, "0.3"),
        (1.5e300, "1.5e+300"),
    ],
)
def test_numbers_for_people(value: float | Decimal, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 %"), (0, 5, "0 %"), (5, 5, "100 %"), (1, 3, "33.33 %"), (1, 10**6, "<0.01 %"),
     (10**6 - 1, 10**6, ">99.99 %")],
)  # fmt: skip
def test_shares_for_people(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


def test_null_and_empty_keys_are_told_apart() -> None:
    assert key_text((None, "", "x")) == "(null) · (empty) · x"


def test_columns_of_the_command_line() -> None:
    assert columns("--on", ["p=a, b", "q=c", "p=d"]) == {"p": ("a", "b", "d"), "q": ("c",)}
    for wrong in ("p", "p=", "=a", "p=a,,b"):
        with pytest.raises(ConfigurationError, match="--on"):
            columns("--on", [wrong])
