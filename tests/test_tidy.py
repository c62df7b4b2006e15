"""The house rules that a tool can hold: sizes, names, dead modules, what guards data."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("framework", "connectors", "services", "compose")
GUARDED = ("framework", "connectors")
MOST_LINES, MOST_FUNCTION_LINES, MOST_COLUMNS = 500, 60, 100
NOT_A_NOUN = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
A_NOUN_HERE = {
    "framework/penstock/snapshot/base.py": "a base is a full chunk, the first of a chain"
}
STARTED_BY_PATH = {
    "services/ledger/accounts.py": "services/mainjob starts each service of an application",
    "services/ledger/transfers.py": "services/mainjob starts each service of an application",
    "compose/app/input.py": "compose/app/Dockerfile copies it, compose.yaml starts it",
    "compose/penstock_stack/leash.py": "penstock_stack.server starts it as a script",
}
"""Files that nothing imports because somebody starts them, and who."""


@cache
def tracked() -> tuple[Path, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(
        path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()
    )


def python(*folders: str) -> Iterator[Path]:
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in (
            folders or (*CODE, "tests")
        ):
            yield path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_modules_are_short() -> None:
    long = {name(p): n for p in python() if (n := len(p.read_text().splitlines())) > MOST_LINES}
    assert {path: n for path, n in long.items() if not path.startswith("tests/unit/")} == {}


def test_functions_are_short() -> None:
    long = {
        f"{name(path)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in python()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MOST_FUNCTION_LINES
    }
    assert long == {}


def test_lines_are_short() -> None:
    pragma = re.compile(r"  # (type: ignore|noqa|fmt:|pragma:).*")
    long = [
        f"{name(path)}:{number}"
        for path in python()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(pragma.sub("", line)) > MOST_COLUMNS
    ]
    assert long == []


def test_nothing_is_left_to_do() -> None:
    word = re.compile(r"\b(" + "TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    left = [
        f"{name(path)}:{number}"
        for path in tracked()
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".yml", ".sh") or path.name == "Makefile"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if word.search(line)
    ]
    assert left == []


def test_a_module_is_a_noun_of_the_glossary() -> None:
    found = [
        name(path)
        for path in python()
        if NOT_A_NOUN & {path.stem, *path.relative_to(ROOT).parts[:-1]}
        and name(path) not in A_NOUN_HERE
    ]
    assert found == []


def test_no_module_is_dead() -> None:
    used = _imported() | _entry_points()
    dead = [
        name(path)
        for path in python(*CODE)
        if path.stem not in ("__init__", "__main__")
        and _module(path) not in used
        and name(path) not in STARTED_BY_PATH
        and not _is_named_by_an_asset(path)
    ]
    assert dead == []


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(part for part in parts if part != "__init__")


def _imported() -> set[str]:
    found: set[str] = set()
    for path in python():
        package = _module(path).split(".")
        package = package if path.stem == "__init__" else package[:-1]
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*start, *([node.module] if node.module else [])])
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def _entry_points() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {target.partition(":")[0] for target in project.get("scripts", {}).values()}


@cache
def _assets() -> str:
    """Makefile, compose files, docs and strings of code: who else may start a file by its name."""
    kinds = (".yaml", ".yml", ".sh", ".md", ".toml")
    texts = [p.read_text() for p in tracked() if p.suffix in kinds or p.name in ("Makefile", "run")]
    strings = [
        node.value
        for path in python()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(texts + strings)


def _is_named_by_an_asset(path: Path) -> bool:
    """``services/ledger/service.py`` and ``-m package.module`` are started by name."""
    short = "/".join(path.relative_to(ROOT).parts[-2:])
    dotted = rf"(?<![\w.]){re.escape(_module(path))}(?!\w)"
    return short in _assets() or bool(re.search(dotted, _assets()))


def test_no_assert_guards_data() -> None:
    """-O removes asserts: what comes from outside is checked by an if and a clear error.

    An assert may say what we know of ourselves: that something of ours is there, or is of a kind.
    """
    about_us = re.compile(r"[\w.]+ is not None|isinstance\(self\.[\w.]+, \w+\)")
    found = [
        f"{name(path)}:{node.lineno}"
        for path in python(*GUARDED)
        if "testing" not in path.parts
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Assert) and not about_us.fullmatch(ast.unparse(node.test))
    ]
    assert found == []


UNSAFE = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
SHIPS_CODE = "connectors/penstock_spark/shipping.py"
"""Takes the user's own code from the driver to its tasks, as Spark does; it sees no state."""


def test_loading_data_runs_no_code() -> None:
    """L21: no pickle, no eval, no yaml.load, no import by a name taken from data."""
    found = []
    for path in python(*CODE):
        if name(path) == SHIPS_CODE:
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Import):
                bad = any(alias.name.partition(".")[0] in UNSAFE for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                bad = (node.module or "").partition(".")[0] in UNSAFE
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                bad = called in ("eval", "exec", "yaml.load", "yaml.unsafe_load")
            else:
                continue
            if bad:
                found.append(f"{name(path)}:{node.lineno}")
    assert found == []


def test_the_project_stands_alone() -> None:
    """Nothing names a folder that a clone does not have; a test may look for such a name."""
    outside = re.compile(r"\.\./shared|/work/|SPEC\.md")
    looks_for_it = {name(Path(__file__)), "tests/docs/test_terms.py"}
    found = [
        name(path)
        for path in tracked()
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".yml", ".sh") or path.name == "Makefile"
        if name(path) not in looks_for_it and outside.search(path.read_text(errors="replace"))
    ]
    assert found == []


def test_decisions_are_numbered_once_and_without_gaps() -> None:
    numbers = [
        int(path.name[:4])
        for path in tracked()
        if path.parent == ROOT / "docs" / "decisions" and path.name[:4].isdigit()
    ]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_decision_says_its_number_and_its_consequences() -> None:
    for path in tracked():
        if path.parent == ROOT / "docs" / "decisions" and path.name[:4].isdigit():
            text = path.read_text()
            assert text.startswith(f"# {path.name[:4]}: "), name(path)
            for part in ("**Context.**", "**Choice.**", "**Consequences.**"):
                assert part in text, f"{name(path)} has no {part}"


@pytest.mark.parametrize("folder", CODE)
def test_every_package_says_what_it_is(folder: str) -> None:
    silent = [
        name(path)
        for path in python(folder)
        if path.read_text().strip() and ast.get_docstring(tree(path)) is None
    ]
    assert silent == []
