"""Tokenizer: lines of text in, one record per word out, over the edge ``words``."""

import re

import penstock as ps

WORD = re.compile(r"\w+")


def words_of(line: str) -> list[str]:
    """The words of a line, in lower case, in order."""
    return WORD.findall(line.lower())


service = ps.Service("tokenizer", app="wordcount")

(
    service.source("lines", topic="lines", value=str, serde="string")
    .flat_map("words-of-line", words_of)
    .to_edge("words", key=lambda word: word)
)
