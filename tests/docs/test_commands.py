"""The commands that README and docs/ show exist, with these options."""

import re
import shlex
import subprocess
import sys

import pytest
from penstock.runtime.cli import _parser

from tests.docs.pages import ROOT, Block, all_pages, commands

BLOCKS = [b for page in all_pages() for b in page.blocks if b.language == "sh"]
TITLES = {page.name: {b.title for b in page.blocks if b.title is not None} for page in all_pages()}


def words_of(command: str) -> list[str]:
    """The words of a simple command, without variables before it and redirections behind it."""
    words = shlex.split(command)
    while words and re.fullmatch(r"[A-Z0-9_]+=.*", words[0]):
        words.pop(0)
    for mark in ("|", "||", ">", ">>", "&", "&&", "2>"):
        if mark in words:
            words = words[: words.index(mark)]
    return words


def check(words: list[str], block: Block) -> None:
    """Fail when the program, target, file or option is not there."""
    match words:
        case ["penstock", *arguments]:
            _parser().parse_args(arguments)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            for target in targets:
                assert "=" in target or re.search(rf"^{target}:", makefile, re.MULTILINE), target
        case ["python", "-m", "penstock_stack", *arguments]:
            check_stack(arguments)
        case ["python", file, *_] if not file.startswith("-"):
            page = str(block.page.relative_to(ROOT))
            assert file in TITLES[page] or (ROOT / file).is_file(), file
        case ["docker", "compose", "-f", file, *arguments]:
            check_compose(file, arguments)


def check_stack(arguments: list[str]) -> None:
    asked = [sys.executable, "-m", "penstock_stack", arguments[0], "--help"]
    run = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    for option in arguments[1:]:
        assert option in run.stdout, option


def check_compose(file: str, arguments: list[str]) -> None:
    text = (ROOT / file).read_text()
    if "--profile" in arguments:
        profile = arguments[arguments.index("--profile") + 1]
        assert f"[{profile}]" in text, profile
    if "kill" in arguments:
        assert f"\n  {arguments[-1]}:" in text, arguments[-1]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_commands_of(block: Block) -> None:
    for command in commands(block):
        try:
            check(words_of(command), block)
        except (SystemExit, AssertionError) as error:
            pytest.fail(f"{block.where}: {command}: {error}", pytrace=False)


def test_variables_that_pages_set_are_read_somewhere() -> None:
    code = "\n".join(
        file.read_text(errors="replace")
        for folder in (
            "framework",
            "connectors",
            "compose",
            "services",
            "tests/integration",
            "tests/simulation",
        )
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".yaml", ".sh")
    )
    kafka = re.compile(r"PENSTOCK_KAFKA_[A-Z_]+")  # any setting of the allow-list
    for page in all_pages():
        text = page.path.read_text()
        for name in set(re.findall(r"\bPENSTOCK_[A-Z0-9_]+\b", text)):
            known = name in code or name.removesuffix("_FILE") in code
            assert known or kafka.fullmatch(name), f"{page.name}: {name} is read by no code"
