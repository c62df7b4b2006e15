"""Every Python block of README and docs/ runs; what needs servers runs in the tutorial's walk."""

import contextlib
import doctest
import io
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.docs.pages import Block, Page, all_pages, matches

PAGES = all_pages()
BIN = Path(sys.executable).parent


def run_python(block: Block, module: types.ModuleType) -> str:
    """Run a block in the module's namespace; what it prints."""
    padded = "\n" * block.line + block.text
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if ">>>" in block.text:
            run_examples(block, module)
        else:
            exec(compile(padded, block.where, "exec"), vars(module))
    return printed.getvalue()


def run_examples(block: Block, module: types.ModuleType) -> None:
    """Check a block of ``>>>`` examples."""
    parsed = doctest.DocTestParser().get_doctest(
        block.text, {}, block.where, str(block.page), block.line
    )
    parsed.globs = vars(module)  # the blocks of a page share their names
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    said = io.StringIO()
    runner.run(parsed, out=said.write, clear_globs=False)
    if runner.failures:
        pytest.fail(f"{block.where}\n{said.getvalue()}", pytrace=False)


def run_file(block: Block, folder: Path) -> str:
    """Write a titled block; a Python file that needs no servers is run, as a user would."""
    assert block.title is not None
    (folder / block.title).write_text(block.text)
    if block.language != "python":
        return ""
    compile(block.text, block.where, "exec")
    if block.needs_stack:
        return ""
    return run_shell(f"{sys.executable} {block.title}", block, folder)


def run_shell(command: str, block: Block, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "COLUMNS": "100"}
    run = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert run.returncode == 0, f"{block.where}: {command}\n{run.stdout}{run.stderr}"
    return run.stdout


def run_block(block: Block, module: types.ModuleType, folder: Path) -> str | None:
    """Run one block; what it printed, None when it is not one that is run here."""
    if block.skip_reason is not None:
        return None
    if block.title is not None:
        return run_file(block, folder)
    if block.language == "sh" and block.how == "run":
        return run_shell(block.text, block, folder)
    if block.language != "python" or block.needs_stack:
        return None
    if block.how.startswith("raises "):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the page names it
            run_python(block, module)
        assert type(raised.value).__name__ == block.how.removeprefix("raises "), block.where
        return f"{type(raised.value).__name__}: {raised.value}\n"
    return run_python(block, module)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_of(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"snippets_{abs(hash(page.name))}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # msgspec looks types up by module
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in page.blocks:
        if block.title is not None:  # a file of the page, not a module of this name seen before
            monkeypatch.delitem(sys.modules, block.title.removesuffix(".py"), raising=False)
    printed: str | None = None
    for block in page.blocks:
        if block.how == "output":
            if printed is not None:
                assert matches(block.text, printed), f"{block.where}: what was printed:\n{printed}"
            continue
        printed = run_block(block, module, tmp_path)


def test_nothing_is_skipped_without_a_reason() -> None:
    for page in PAGES:
        for block in page.blocks:
            reason = block.skip_reason
            assert reason is None or len(reason.split()) >= 3, block.where


def test_every_comment_is_understood() -> None:
    known = ("", "run", "output", "stack", "logged", "interrupt")
    for page in PAGES:
        for block in page.blocks:
            plain = block.how in known
            longer = block.how.startswith(("skip: ", "raises ", 'stack, background until "'))
            assert plain or longer, f"{block.where}: {block.how!r}"


def test_blocks_that_need_servers_are_in_the_tutorials() -> None:
    """Only these pages are walked through on a real stack."""
    for page in PAGES:
        if page.name not in ("docs/tutorial.md", "docs/tutorial-spark.md"):
            assert not [b.where for b in page.blocks if b.needs_stack or b.how == "interrupt"]


def test_every_block_says_its_language() -> None:
    for page in PAGES:
        for block in page.blocks:
            assert block.language or block.how, block.where
