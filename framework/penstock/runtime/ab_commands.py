"""``penstock ab …``: two variants of an application from one savepoint, compared, promoted."""

import argparse
from importlib import import_module
from typing import Any

from penstock.failure import ConfigurationError
from penstock.runtime import ab_run
from penstock.runtime.ab_promote import promote
from penstock.runtime.ab_start import Start, start
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.copies import remove
from penstock.runtime.events import say
from penstock.runtime.ports import SnapshotStore

_INTERVAL = "--checkpoint-interval-ms"


def add_ab_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Register the commands with the parser of ``penstock``."""
    ab = commands.add_parser("ab", help="compare a variant of an application with it")
    parts = ab.add_subparsers(required=True, metavar="COMMAND")
    _add_start(parts.add_parser("start", parents=[shared], help="begin a variant"))
    _add_report(parts.add_parser("report", parents=[shared], help="compare both sides in Spark"))
    _add_promote(
        parts.add_parser(
            "promote", parents=[shared], help="let the variant take over, exactly once"
        )
    )
    drop = parts.add_parser("drop", parents=[shared], help="forget a run and delete its copies")
    _add_run(drop)
    drop.set_defaults(command=_drop)


def _add_start(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help="the original's service files")
    add("--from", dest="savepoint", required=True, metavar="URL", help="savepoint of both sides")
    add(
        "--variant",
        action="append",
        required=True,
        metavar="NAME=FILE",
        help="the variant's name and a service file of it; may be repeated. Services that it does "
        "not name stay the original's",
    )
    add(
        "--until",
        metavar="latest|JSON|FILE",
        help="both sides read up to here, at full speed, on isolated copies; without it the "
        "variant runs live beside the original",
    )
    add("--parallelism", action="append", default=[], metavar="[SERVICE=]N")
    add(_INTERVAL, type=int, metavar="MS", help="as of penstock run")
    add("--allow-non-restored-state", action="store_true", help="as of penstock run")
    parser.set_defaults(command=_start)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("variant", metavar="VARIANT")
    parser.add_argument("--app", metavar="APP", help="its application, where several have one")


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_run(parser)
    add = parser.add_argument
    add(
        "--on",
        action="append",
        default=[],
        metavar="TOPIC=COLUMN,…",
        help="what identifies a record of an output (default: its key and how-manieth it is)",
    )
    add("--ignore", action="append", default=[], metavar="NAME=COLUMN,…", help="not compared")
    add("--out", metavar="DIR", help="folder of the page, the table and the Parquet files")
    add("--master", metavar="URL", help="Spark's master (default: this machine)")
    parser.set_defaults(command=_report)


def _add_promote(parser: argparse.ArgumentParser) -> None:
    _add_run(parser)
    parser.add_argument(_INTERVAL, type=int, metavar="MS", help="as of penstock run")
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="do not run the variant here: tell the command that lets it go on",
    )
    parser.set_defaults(command=_promote)


def _start(options: argparse.Namespace, env: dict[str, str]) -> int:
    pairs = [text.partition("=") for text in options.variant]
    names = {name for name, _, _ in pairs}
    files = tuple(file for _, _, files in pairs for file in files.split(",") if file)
    if len(names) != 1 or not files:
        raise ConfigurationError(
            f"--variant {' '.join(options.variant)} is not NAME=FILE of one variant, like "
            "b=services/fees.py"
        )
    arguments = _interval(options)
    if options.allow_non_restored_state:
        arguments += ("--allow-non-restored-state",)
    asked = Start(
        files=tuple(options.files),
        savepoint=options.savepoint,
        variant=names.pop(),
        variant_files=files,
        until=options.until,
        parallelism=tuple(options.parallelism),
        arguments=arguments,
    )
    return start(asked, env)


def _interval(options: argparse.Namespace) -> tuple[str, ...]:
    given = options.checkpoint_interval_ms
    return () if given is None else (_INTERVAL, str(given))


def _app(options: argparse.Namespace, store: SnapshotStore) -> str:
    """The application whose run is meant; looked for where it was not said."""
    if options.app:
        return str(options.app)
    ending = f"/ab/{options.variant}.json"
    found = [key.removesuffix(ending) for key in store.list("") if key.endswith(ending)]
    apps = [app for app in found if "/" not in app]
    if len(apps) == 1:
        return apps[0]
    told = f"applications {', '.join(apps)} have one each" if apps else f"none is in {store.url}"
    raise ConfigurationError(f"which variant {options.variant!r} is meant? {told}; say --app APP")


def _report(options: argparse.Namespace, env: dict[str, str]) -> int:
    app = _app(options, store_from(env))
    command = import_module(
        "penstock_spark.ab.command"
    )  # needs Spark, which nothing else here does
    code: int = command.run(
        app,
        options.variant,
        env,
        on=options.on,
        ignore=options.ignore,
        out=options.out,
        master=options.master,
    )
    return code


def _promote(options: argparse.Namespace, env: dict[str, str]) -> int:
    return promote(
        _app(options, store_from(env)),
        options.variant,
        env,
        arguments=_interval(options),
        goes_on=not options.no_run,
    )


def _drop(options: argparse.Namespace, env: dict[str, str]) -> int:
    """Delete what the run made; never anything of the original."""
    kafka, store = kafka_from(env), store_from(env)
    app = _app(options, store)
    run = ab_run.load(store, app, options.variant)
    if store.list(ab_run.promoted_key(app, run.variant)):
        raise ConfigurationError(
            f"variant {run.variant!r} of {app!r} was promoted: {run.app_b!r} writes the production "
            "outputs now, and nothing of it is deleted"
        )
    sides = {run.app_b: list(run.sinks.values())}
    if run.app_a != run.app:
        sides[run.app_a] = list(run.sinks)
    for side, sinks in sides.items():
        say("ab", f"deletes {side!r}: its topics, {', '.join(sinks)} and its objects")
        remove(kafka, store, side, sinks)
    finals = [url.rpartition("/")[2] for url in (run.final_a, run.final_b)]
    for name in finals:
        store.delete(store.list(f"{app}/savepoints/{name}/"))
    store.delete([ab_run.key_of(app, run.variant)])
    return 0
