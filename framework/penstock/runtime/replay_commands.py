"""``penstock replay``: a range of an application's input once more, into outputs of its own.

The same files run as an isolated copy, from a savepoint or from nothing at chosen offsets, to the
end of the range; then its outputs are compared with those recorded: a deterministic application
writes the same records again.
"""

import argparse
import json
import secrets
import time
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from typing import Any

import msgspec

from penstock.failure import ConfigurationError
from penstock.graph import SourceSpec
from penstock.ids import checked_name
from penstock.runtime import bounds
from penstock.runtime.child_run import Wanted, run_all
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.copies import (
    Positions,
    check_ahead,
    ends,
    loaded,
    make_sinks,
    remove,
    sinks_of,
    sources_of,
)
from penstock.runtime.events import say
from penstock.runtime.ports import Kafka
from penstock.runtime.savepoint_making import default_url, opened


def add_replay_command(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Register the command with the parser of ``penstock``."""
    replay = commands.add_parser(
        "replay", parents=[shared], help="run a range of the input again, and verify the output"
    )
    add = replay.add_argument
    add("app", metavar="APP", help="the application id, app= of its services")
    add("files", nargs="+", metavar="FILE", help="its service files")
    add(
        "--from",
        dest="origin",
        default="earliest",
        metavar="SAVEPOINT|TIME|JSON|earliest",
        help="state and positions of a savepoint; or no state, and the positions at a time "
        "(2026-11-20T10:00:00Z, or ms since the epoch), as JSON, or the earliest (the default)",
    )
    add(
        "--until",
        default="latest",
        metavar="TIME|JSON|FILE|latest",
        help="where the sources end (default: where they end now)",
    )
    add("--parallelism", action="append", default=[], metavar="[SERVICE=]N")
    add("--checkpoint-interval-ms", type=int, metavar="MS", help="as of penstock run")
    add("--no-verify", action="store_true", help="do not compare the outputs with the recorded")
    add("--keep", action="store_true", help="leave the copy's topics and objects where they are")
    add("--master", metavar="URL", help="Spark's master (default: this machine)")
    replay.set_defaults(command=_replay)


class _Range(msgspec.Struct, frozen=True):
    """What is replayed."""

    begin: Positions
    until: Positions
    savepoint: str
    """Where the copy begins; one without state is made where no savepoint is given."""
    from_nothing: bool


def _replay(options: argparse.Namespace, env: dict[str, str]) -> int:
    kafka, store = kafka_from(env), store_from(env)
    kafka.check()
    store.check()
    specs = [service.spec() for service in loaded(options.files).values()]
    if specs[0].app != options.app:
        raise ConfigurationError(
            f"{', '.join(options.files)} are of app {specs[0].app!r}, not {options.app!r}; name "
            "the files of that application"
        )
    copy = checked_name("application id", f"{options.app}-replay-{secrets.token_hex(4)}")
    suffix = f".{copy.removeprefix(options.app + '-')}"
    topics = sources_of(specs)
    wanted = _range(options, copy, topics, kafka, env)
    bounds.check(wanted.until, specs, kafka.partitions)
    check_ahead(wanted.begin, wanted.until)
    outputs = {topic: topic + suffix for topic in sinks_of(specs)}
    make_sinks(kafka, outputs)
    say("replay", f"{options.app!r} runs as {copy!r} from {json.dumps(wanted.begin)}")
    try:
        if not run_all([_wanted(options, copy, suffix, wanted)], env):
            return 4
        if options.no_verify:
            return 0
        verifying = import_module("penstock_spark.determinism")
        code: int = verifying.run(
            outputs,
            env,
            whole=wanted.from_nothing,
            master=options.master,
        )
        return code
    finally:
        if options.keep:
            say("replay", f"kept: application {copy!r}, topics {', '.join(outputs.values())}")
        else:
            remove(kafka, store, copy, outputs.values())


def _wanted(options: argparse.Namespace, copy: str, suffix: str, wanted: _Range) -> Wanted:
    arguments = ["--app-id", copy, "--sink-suffix", suffix, "--until", json.dumps(wanted.until)]
    arguments += ["--from-savepoint", wanted.savepoint]
    for pair in options.parallelism:
        arguments += ["--parallelism", pair]
    if options.checkpoint_interval_ms is not None:
        arguments += ["--checkpoint-interval-ms", str(options.checkpoint_interval_ms)]
    return Wanted(name=copy, files=tuple(options.files), arguments=tuple(arguments))


def _range(
    options: argparse.Namespace, copy: str, topics: list[str], kafka: Kafka, env: Mapping[str, str]
) -> _Range:
    until = _positions(options.until, topics, kafka, "--until")
    if "://" in options.origin:
        reading = import_module("penstock.savepoint.reading")  # Parquet takes time to import
        found = reading.Savepoint.open(opened(env, options.origin)).manifest
        begin = {source.topic: dict(source.positions) for source in found.sources}
        return _Range(begin, until, options.origin, False)
    begin = _positions(options.origin, topics, kafka, "--from")
    url = default_url(env, copy, "begin")
    making = import_module("penstock.savepoint.writing")
    manifest = import_module("penstock.savepoint.manifest")
    specs = [service.spec() for service in loaded(options.files).values()]
    empty = manifest.SavepointManifest(
        savepoint_id="begin",
        app=options.app,
        checkpoint=0,
        created_at_ms=int(time.time() * 1000),
        created_by="penstock replay",
        max_parallelism=specs[0].max_parallelism,
        sources=tuple(
            manifest.SourceEntry(
                uid=stage.input.uid,
                stage=stage.name,
                topic=stage.input.topic,
                positions=begin[stage.input.topic],
            )
            for spec in specs
            for stage in spec.stages
            if isinstance(stage.input, SourceSpec)
        ),
    )
    making.publish(opened(env, url), empty)
    return _Range(begin, until, url, options.origin == "earliest")


def _positions(given: str, topics: list[str], kafka: Kafka, option: str) -> Positions:
    """``earliest``, ``latest``, a time, JSON or a file of it, as offsets."""
    if given == "earliest":
        return _at(kafka, topics, 0)
    at_ms = _time_ms(given)
    if at_ms is not None:
        return _at(kafka, topics, at_ms)
    try:
        return bounds.parsed(given, lambda: ends(kafka, topics))
    except ConfigurationError as error:
        raise ConfigurationError(f"{option} {given!r} is no time and no offsets: {error}") from None


def _at(kafka: Kafka, topics: list[str], at_ms: int) -> Positions:
    return {topic: dict(enumerate(kafka.positions_at(topic, at_ms))) for topic in topics}


def _time_ms(given: str) -> int | None:
    if given.isdecimal():
        return int(given)
    try:
        found = msgspec.convert(given, type=datetime, strict=False)
    except msgspec.ValidationError:
        return None
    return int(found.timestamp() * 1000)
