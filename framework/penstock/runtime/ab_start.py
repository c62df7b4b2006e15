"""Starting an A/B run: a variant from the state and the positions of a savepoint (L22, L23).

Live, the original goes on wherever it runs and the variant begins beside it. Over a range of
offsets, a copy of the original and the variant both read that range at full speed, and end.
"""

import json
import time
from collections.abc import Mapping
from importlib import import_module

import msgspec

from penstock import application
from penstock.api import Service
from penstock.failure import ConfigurationError
from penstock.ids import checked_name
from penstock.runtime import ab_run, copies
from penstock.runtime.ab_run import AbRun, Positions
from penstock.runtime.child_run import Wanted, run_all
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.copies import check_ahead, ends, loaded, make_sinks, sinks_of
from penstock.runtime.events import say
from penstock.runtime.plan import parallelism_of
from penstock.runtime.ports import Kafka
from penstock.runtime.savepoint_making import complete, default_url, history_of, make, opened


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    files: tuple[str, ...]
    """The original's."""
    savepoint: str
    variant: str
    variant_files: tuple[str, ...]
    """The services that differ; the others are the original's."""
    until: str | None = None
    """As given: ``latest``, JSON or a file; None runs live."""
    parallelism: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    """Further arguments of ``penstock run``."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a run as ``penstock run`` takes it."""

    app: str
    files: tuple[str, ...]
    suffix: str
    """What its outputs end in."""


def start(asked: Start, env: Mapping[str, str]) -> int:
    """Describe the run, begin it, and leave what the report needs; the exit code.

    Raises ConfigurationError for what cannot be compared, RunFailed when a side fails.
    """
    kafka, store = kafka_from(env), store_from(env)
    kafka.check()
    store.check()
    services = loaded(asked.files)
    app = next(iter(services.values())).app
    key = ab_run.key_of(app, asked.variant)
    if key in store.list(f"{app}/ab/"):
        raise ConfigurationError(
            f"variant {asked.variant!r} of application {app!r} was started before: give it another "
            f"name, or forget that run: penstock ab drop {asked.variant} --app {app}"
        )
    b = Side(
        app=checked_name("application id", f"{app}-{asked.variant}"),
        files=_files(services, asked.variant_files, app),
        suffix=f".{asked.variant}",
    )
    is_live = asked.until is None
    a = Side(
        app=app if is_live else checked_name("application id", f"{b.app}-a"),
        files=asked.files,
        suffix="" if is_live else f".{asked.variant}-a",
    )
    run = _described(asked, app, services, (a, b), kafka, env)
    store.put(key, ab_run.encode(run))
    for line in _told(run):
        say("ab", line)
    sides = [b] if is_live else [a, b]
    by_itself = run_all([_wanted(asked, side, run) for side in sides], env)
    if not is_live and by_itself:
        for side, url in ((a, run.final_a), (b, run.final_b)):
            _finish(kafka, side.app, url, env)
        say("ab", f"both sides are done: penstock ab report {run.variant} --app {app}")
    return 0


def _files(
    services: Mapping[str, Service], variant_files: tuple[str, ...], app: str
) -> tuple[str, ...]:
    """The variant's files, and those of the services that it leaves as they are."""
    changed = {file: application.load(file) for file in variant_files}
    for file, service in changed.items():
        if service.app != app:
            raise ConfigurationError(
                f"{file} is of app {service.app!r}, the original of {app!r}; a variant is the same "
                "application, changed: give it app=" + repr(app)
            )
    names = {service.name for service in changed.values()}
    same = [file for file, service in services.items() if service.name not in names]
    return (*variant_files, *same)


def _described(
    asked: Start,
    app: str,
    services: Mapping[str, Service],
    sides: tuple[Side, Side],
    kafka: Kafka,
    env: Mapping[str, str],
) -> AbRun:
    a, b = sides
    specs = [service.spec() for service in services.values()]
    theirs = [service.spec() for service in loaded(b.files).values()]
    reading = import_module("penstock.savepoint.reading")  # Parquet takes time to import
    origin = reading.Savepoint.open(opened(env, asked.savepoint)).manifest
    begin = {source.topic: source.positions for source in origin.sources}
    until = None if asked.until is None else copies.until(asked.until, specs, kafka)
    if until is not None:
        check_ahead(begin, until)
    starts: Positions = {}
    if until is None:
        for topic in sinks_of(specs):
            starts[topic] = dict(enumerate(kafka.positions_at(topic, origin.created_at_ms)))
    else:
        make_sinks(kafka, {topic: topic + a.suffix for topic in sinks_of(specs)})
        starts |= ends(kafka, [topic + a.suffix for topic in sinks_of(specs)])
    make_sinks(kafka, {topic: topic + b.suffix for topic in sinks_of(theirs)})
    starts |= ends(kafka, [topic + b.suffix for topic in sinks_of(theirs)])
    both = [topic for topic in sinks_of(specs) if topic in sinks_of(theirs)]
    names = {service.name for service in services.values()}
    return AbRun(
        variant=asked.variant,
        app=app,
        app_a=a.app,
        app_b=b.app,
        files_a=a.files,
        files_b=b.files,
        savepoint=asked.savepoint,
        until=until,
        sinks={topic + a.suffix: topic + b.suffix for topic in both},
        starts=starts,
        parallelism=parallelism_of(asked.parallelism, sorted(names)),
        final_a=default_url(env, app, f"ab-{asked.variant}-a"),
        final_b=default_url(env, app, f"ab-{asked.variant}-b"),
        created_at_ms=int(time.time() * 1000),
    )


def _wanted(asked: Start, side: Side, run: AbRun) -> Wanted:
    arguments = ["--app-id", side.app, "--from-savepoint", run.savepoint, *asked.arguments]
    if side.suffix:
        arguments += ["--sink-suffix", side.suffix]
    if run.until is not None:
        arguments += ["--until", json.dumps(run.until)]
    for pair in asked.parallelism:
        arguments += ["--parallelism", pair]
    return Wanted(name=side.app, files=side.files, arguments=tuple(arguments))


def _finish(kafka: Kafka, app: str, url: str, env: Mapping[str, str]) -> None:
    """The end state of a side, as a savepoint."""
    checkpoint, manifest = complete(history_of(kafka, app), app)
    say("ab", f"writes the end state of {app!r} (checkpoint {checkpoint})")
    make(store_from(env), manifest, opened(env, url), name=url.rpartition("/")[2])


def _told(run: AbRun) -> list[str]:
    lines = [f"A: {run.app_a!r}, B: {run.app_b!r}, from {run.savepoint}"]
    lines += [f"compares {a} with {b}" for a, b in sorted(run.sinks.items())]
    if run.until is None:
        lines.append("the variant runs live beside the original; Ctrl-C stops it in order")
    return lines
