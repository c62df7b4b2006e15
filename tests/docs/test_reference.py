"""The reference pages and the code say the same."""

import argparse
import inspect
import re
from typing import Any

import penstock
import penstock.testing
import pytest
from penstock.runtime.cli import _parser
from penstock_kafka import settings as kafka_settings

from tests.docs.pages import ROOT, Page, read

API = read(ROOT / "docs" / "reference" / "api.md")
CLI = read(ROOT / "docs" / "reference" / "cli.md")
SETTINGS = read(ROOT / "docs" / "reference" / "settings.md")
FOR_RUNTIMES = {"build", "edge_writer", "run_as", "stage", "stages", "bound", "enter"}


def section(page: Page, heading: str) -> str:
    """The text below a heading, up to the next one of its kind or above."""
    found = re.split(rf"^#+ {re.escape(heading)}$", page.prose, flags=re.MULTILINE)
    assert len(found) == 2, f"{page.name} has no heading {heading!r}, or two"
    return re.split(r"^##? ", found[1], flags=re.MULTILINE)[0]


def own_methods(kind: type) -> list[str]:
    return [
        name
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_") and name not in FOR_RUNTIMES
    ]


@pytest.mark.parametrize("name", penstock.__all__)
def test_public_name(name: str) -> None:
    text = section(API, name)
    member = getattr(penstock, name)
    assert member.__doc__, f"{name} has no docstring"
    for method in own_methods(member):
        assert re.search(rf"`{method}\(|\b{method}\(", text), f"{name}.{method} is not described"


def test_no_name_is_described_that_is_not_public() -> None:
    known = {*penstock.__all__, "State", "penstock.testing"}
    assert set(API.headings(2)) | set(API.headings(3)) == known


@pytest.mark.parametrize("name", penstock.testing.__all__)
def test_testing_name(name: str) -> None:
    text = section(API, "penstock.testing")
    assert f"`{name}" in text
    if name == "Driver":
        for method in own_methods(penstock.testing.Driver):
            assert f"`{method}(" in text, method


@pytest.mark.parametrize("method", ["source", "from_edge"])
def test_arguments_of_inputs(method: str) -> None:
    text = section(API, "Service")
    for argument in inspect.signature(getattr(penstock.Service, method)).parameters:
        assert argument == "self" or re.search(rf"\b{argument}\b", text), argument


# -- the command line


def subcommands(parser: argparse.ArgumentParser | None = None) -> dict[str, Any]:
    """Name -> parser of every command; those of a group by their whole name."""
    found: dict[str, Any] = {}
    for action in (_parser() if parser is None else parser)._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                nested = subcommands(inner)
                found |= {f"{name} {rest}": each for rest, each in nested.items()}
                found |= {} if nested else {name: inner}
    return found


def shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and action.dest != "help"


def places(command: str) -> tuple[str, str]:
    """Where the options of a command have their rows, and where they may also be named."""
    group = f"penstock {command.split(maxsplit=1)[0]}"
    if " " in command:
        own = re.split(rf"^### penstock {command}$", CLI.prose, flags=re.MULTILINE)
        assert len(own) == 2, f"{CLI.name} has no heading 'penstock {command}'"
        introduction = re.split(r"^### ", section(CLI, group), flags=re.MULTILINE)[0]
        return re.split(r"^##", own[1], flags=re.MULTILINE)[0], introduction
    own_rows = section(CLI, group)
    if command == "coordinator":
        return section(CLI, "penstock run") + own_rows, ""
    return own_rows, own_rows


@pytest.mark.parametrize("command", subcommands())
def test_options_of(command: str) -> None:
    rows, prose = places(command)
    for action in filter(shown, subcommands()[command]._actions):
        for option in action.option_strings:
            row = re.search(rf"^\| `{option}` \| (.*?) \|", rows, re.MULTILINE)
            assert row is not None or f"`{option}`" in prose, f"penstock {command} {option}"
            if row is not None and type(action.default) in (int, str):
                assert str(action.default) in row[1], f"{option} is {action.default} by default"


@pytest.mark.parametrize("command", subcommands())
def test_no_option_is_described_that_a_command_lacks(command: str) -> None:
    known = {option for action in subcommands()[command]._actions
             for option in action.option_strings}  # fmt: skip
    if command != "coordinator":  # its section is that of penstock run, too
        described = set(re.findall(r"^\| `(--[a-z-]+)`", places(command)[0], re.MULTILINE))
        assert described <= known


def test_every_command_is_described() -> None:
    assert {f"penstock {name.split()[0]}" for name in subcommands()} <= set(CLI.headings(2))
    nested = {f"penstock {name}" for name in subcommands() if " " in name}
    assert nested <= set(CLI.headings(3))


# -- settings


def test_kafka_settings_are_those_of_the_allow_list() -> None:
    text = section(SETTINGS, "Kafka clients")
    rows = re.findall(r"^\| `([a-z.]+)` \| (.*) \|$", text, re.MULTILINE)
    assert {name for name, _ in rows} == set(kafka_settings._NAMES)
    for name, values in rows:
        for choice in kafka_settings._CHOICES.get(name, ()):
            assert f"`{choice}`" in values, f"{name}={choice}"
        assert ("a secret" in values) == (name in kafka_settings._SECRETS), name


def test_every_setting_of_the_store_is_described() -> None:
    source = (ROOT / "connectors" / "penstock_minio" / "settings.py").read_text()
    for name in set(re.findall(r'"(PENSTOCK_[A-Z0-9_]+)"', source)):
        assert f"`{name}`" in SETTINGS.prose, name
