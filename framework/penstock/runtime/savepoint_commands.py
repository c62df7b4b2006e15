"""``penstock savepoint …`` and ``penstock checkpoint …``: what the command line takes.

The work is done elsewhere and imported when it is asked for: Parquet takes its time to import, and
every worker would wait for it.
"""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import Any

Command = Callable[[argparse.Namespace, dict[str, str]], int]


def add_savepoint_commands(commands: Any) -> None:
    """Add both to the subcommands of ``penstock``."""
    savepoint = commands.add_parser("savepoint", help="take, look at and delete savepoints")
    parts = savepoint.add_subparsers(required=True, metavar="COMMAND")
    _add_trigger(parts)
    _add_convert(parts)
    _add_list(parts)
    _add_inspect(parts)
    _add_diff(parts)
    _add_dispose(parts)
    checkpoint = commands.add_parser("checkpoint", help="look at checkpoints")
    parts = checkpoint.add_subparsers(required=True, metavar="COMMAND")
    listing = _added(parts, "list", "complete checkpoints that are retained", kafka=True)
    listing.add_argument("app", metavar="APP", help="the application id, app= of its services")
    _add_json(listing)
    listing.set_defaults(command=_later("penstock.runtime.savepoint_listing", "checkpoints"))


def _added(parts: Any, name: str, what: str, *, kafka: bool = False) -> argparse.ArgumentParser:
    """A command with the options that say where things are."""
    parser: argparse.ArgumentParser = parts.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}."
    )
    if kafka:
        parser.add_argument(
            "--bootstrap", metavar="HOST:PORT", help="Kafka bootstrap servers (PENSTOCK_BOOTSTRAP)"
        )
    parser.add_argument(
        "--store", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIR (PENSTOCK_STORE)"
    )
    parser.set_defaults(leash=None, bootstrap=None)
    return parser


def _later(module: str, function: str) -> Command:
    def command(options: argparse.Namespace, env: dict[str, str]) -> int:
        found: Command = getattr(import_module(module), function)
        return found(options, env)

    return command


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the result as JSON")


def _add_place(parser: argparse.ArgumentParser, name: str) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--name", help=f"its name, below STORE/APP/savepoints/ (default: {name})")
    where.add_argument("--to", metavar="URL", help="another folder, of its own")


def _add_trigger(parts: Any) -> None:
    parser = _added(parts, "trigger", "ask a running application for a savepoint", kafka=True)
    parser.add_argument("app", metavar="APP", help="the application id, app= of its services")
    _add_place(parser, "the time, UTC")
    add = parser.add_argument
    add("--stop", action="store_true", help="stop the application with it, its output committed")
    add("--drain", action="store_true", help="fire all timers before; stops, too")
    add(
        "--timeout-s",
        type=_seconds,
        default=600,
        metavar="N",
        help="how long its checkpoint may take (default: 600)",
    )
    _add_json(parser)
    parser.set_defaults(command=_later("penstock.runtime.savepoint_taking", "trigger"))


def _add_convert(parts: Any) -> None:
    parser = _added(parts, "convert", "make a savepoint of a checkpoint in the store", kafka=True)
    parser.add_argument("app", metavar="APP", help="the application id, app= of its services")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--checkpoint", type=int, metavar="N", help="which (default: the newest complete)"
    )
    which.add_argument(
        "--manifest", metavar="KEY", help="which, by its manifest in the store; asks no Kafka"
    )
    _add_place(parser, "checkpoint-N")
    _add_json(parser)
    parser.set_defaults(command=_later("penstock.runtime.savepoint_taking", "convert"))


def _add_list(parts: Any) -> None:
    parser = _added(parts, "list", "savepoints of an application, or below a URL")
    parser.add_argument("place", metavar="APP|URL", help="an application id, or a folder")
    _add_json(parser)
    parser.set_defaults(command=_later("penstock.runtime.savepoint_listing", "listing"))


def _add_inspect(parts: Any) -> None:
    parser = _added(parts, "inspect", "what is in a savepoint")
    parser.add_argument("url", metavar="URL", help="the savepoint's folder")
    add = parser.add_argument
    add("--verify", action="store_true", help="read every file: sums, and keys in their groups")
    add("--rows", type=_count, metavar="N", help="show the first rows of a state instead")
    add("--operator", metavar="UID", help="whose state, with --rows")
    add("--state", metavar="NAME", help="which state, with --rows")
    _add_json(parser)
    parser.set_defaults(command=_later("penstock.runtime.savepoint_page", "inspect"))


def _add_diff(parts: Any) -> None:
    parser = _added(parts, "diff", "what lies between two savepoints; exit code 1 if anything")
    parser.add_argument("a", metavar="URL", help="one savepoint's folder, A")
    parser.add_argument("b", metavar="URL", help="the other's, B")
    parser.add_argument(
        "--examples",
        type=_count,
        default=3,
        metavar="N",
        help="rows to show of each state and kind of difference (default: 3)",
    )
    _add_json(parser)
    parser.set_defaults(command=_later("penstock.runtime.savepoint_difference", "difference"))


def _add_dispose(parts: Any) -> None:
    parser = _added(parts, "dispose", "delete a savepoint")
    parser.add_argument("url", metavar="URL", help="the savepoint's folder")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(command=_later("penstock.runtime.savepoint_listing", "disposal"))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a time that one can wait")
    return value


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)
