"""One word per idea, and no word that belongs elsewhere."""

import re

import pytest

from tests.docs.pages import ROOT, Page, all_pages, read

PAGES = all_pages()
GLOSSARY = read(ROOT / "docs" / "concepts" / "glossary.md")
OTHER_WORDS = {
    r"job ?managers?": "coordinator",
    r"task ?managers?": "worker",
    r"task slots?": "slot",
    r"check[- ]points?": "checkpoint",
    r"save[- ]points?": "savepoint",
    r"snap[- ]shots?": "snapshot",
    r"sub-tasks?|sub tasks?": "subtask",
    r"water[- ]marks?": "watermark",
    r"key-groups?": "key group",
    r"pre commit|precommit(ted|s)?": "pre-commit",
    r"exactly once semantics": "exactly-once",
    r"two phase commit": "two-phase commit",
    r"state store": "state, or snapshot store",
    r"check ?pointing": "taking a checkpoint",
    r"roll(s|ed|ing)? back": "abort (a transaction), restore (state)",
    r"fail(s|ed|ing)? ?-?over": "restore, or a new attempt",
    r"acks?": "acknowledge",
    r"offset commits?": "positions",
    r"master|slave|whitelist|blacklist": "another word",
}
ALLOWED = {
    "acks": "`acks=all` is Kafka's setting",
    "offset commit": "what Penstock is set against, in README",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_words_of(page: Page) -> None:
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|<[^>]*>", " ", page.prose)
    for pattern, word in OTHER_WORDS.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", prose, re.IGNORECASE):
            assert found[0].lower() in ALLOWED, f"{page.name}: {found[0]!r}; the word is {word}"


def test_the_glossary_is_in_order_and_explains_each_term_once() -> None:
    terms = re.findall(r"^\| ([a-z][\w -]*) \| \S", GLOSSARY.prose, re.MULTILINE)
    terms.remove("term")  # the head of the table, and a term of its own
    assert len(terms) > 30
    assert terms == sorted(set(terms), key=str.casefold)


def test_words_of_the_protocol_are_in_the_glossary() -> None:
    terms = set(re.findall(r"^\| ([a-z][\w -]*) \|", GLOSSARY.prose, re.MULTILINE))
    expected = {
        *("application", "attempt", "barrier", "channel", "checkpoint", "commit", "edge", "frame"),
        *("key group", "manifest", "operator", "position", "service", "snapshot", "stage"),
        *("subtask", "term", "trigger", "watermark", "witness", "worker", "coordinator"),
    }
    assert expected <= terms


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_outside_the_repository_is_named(page: Page) -> None:
    text = page.path.read_text()
    assert "../shared" not in text
    assert "/work/" not in text
    for link in page.links:
        if "://" not in link and link.partition("#")[0]:
            assert (page.path.parent / link.partition("#")[0]).resolve().is_relative_to(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headings_of(page: Page) -> None:
    assert len(page.headings(1)) == 1, "a page has one title"
