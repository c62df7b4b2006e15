"""Promoting a variant: both sides stop at one set of source offsets, and the variant goes on.

What the original wrote covers every record before those offsets, what the variant writes from then
on every record behind them: nothing is lost or doubled in the production outputs (L5, L14).
"""

import json
import shlex
from collections.abc import Mapping

import msgspec

from penstock.failure import ConfigurationError
from penstock.runtime import ab_run
from penstock.runtime.ab_run import AbRun, Positions
from penstock.runtime.child_run import Wanted, run_all
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.events import say
from penstock.runtime.ports import Kafka, SnapshotStore
from penstock.runtime.savepoint_making import complete, history_of
from penstock.runtime.savepoint_trigger import SavepointTrigger, Wish
from penstock.snapshot import manifest as manifests


def promote(
    app: str,
    variant: str,
    env: Mapping[str, str],
    *,
    arguments: tuple[str, ...] = (),
    goes_on: bool = True,
) -> int:
    """Stop both sides of a live run at one set of offsets and let the variant go on.

    Every step can be done again: after a failure, the same command goes on where it was. With
    ``goes_on`` the variant runs in this process's foreground, else the command to run it is told.
    ``arguments`` are further ones of ``penstock run``. Raises ConfigurationError for a run over a
    range, SavepointFailed when a side does not stop, RunFailed.
    """
    kafka, store = kafka_from(env), store_from(env)
    run = ab_run.load(store, app, variant)
    if run.until is not None:
        raise ConfigurationError(
            f"variant {variant!r} of {app!r} ran over a range of offsets, on copies: there is "
            "nothing live to hand over; start it live (without --until), then promote it"
        )
    for side in (run.app_a, run.app_b):
        _stop(kafka, side)
    meeting = _meeting(_positions(kafka, store, run.app_a), _positions(kafka, store, run.app_b))
    say("ab", f"both sides go on to {json.dumps(meeting)} and stop there")
    wanted = [
        Wanted(name=name, files=files, arguments=(*_names(name, run), *arguments, *until))
        for name, files in ((run.app_a, run.files_a), (run.app_b, run.files_b))
        if _positions(kafka, store, name) != meeting
        for until in [("--until", json.dumps(meeting))]
    ]
    if wanted and not run_all(wanted, env):
        say("ab", "stopped on the way; the same command goes on from here")
        return 4
    _check_met(kafka, store, run, meeting)
    store.put(ab_run.promoted_key(app, variant), msgspec.json.encode(meeting))
    command = ("penstock", "run", *run.files_b, "--app-id", run.app_b, *_counts(run), *arguments)
    say("ab", f"{run.app_a!r} has stopped for good; {run.app_b!r} goes on in its place:")
    say("ab", shlex.join(command))
    if goes_on:
        going = ("--app-id", run.app_b, *_counts(run), *arguments)
        run_all([Wanted(name=run.app_b, files=run.files_b, arguments=going)], env)
    return 0


def _stop(kafka: Kafka, app: str) -> None:
    """Stop an application that runs, everything committed; one that has stopped stays so."""
    if history_of(kafka, app).stopped:
        return
    say("ab", f"stops {app!r}")
    wish = Wish(app=app, stop=True, timeout_s=120)
    SavepointTrigger(wish, kafka, lambda line: say("ab", line)).run(lambda _, manifest: manifest)


def _positions(kafka: Kafka, store: SnapshotStore, app: str) -> Positions:
    """Where the sources of an application that has stopped stand."""
    _, key = complete(history_of(kafka, app), app)
    found: Positions = {}
    for part in manifests.load(store.get(key), key).subtasks:
        for topic, offsets in part.positions.items():
            found.setdefault(topic, {}).update(offsets)
    return found


def _meeting(a: Positions, b: Positions) -> Positions:
    """The first offsets that both sides can stop at: no record before is missing to either."""
    if a.keys() != b.keys():
        raise ConfigurationError(
            f"the sides read different topics: A {sorted(a)}, B {sorted(b)}; a variant that is to "
            "take over reads what the original reads"
        )
    return {
        topic: {p: max(offset, b[topic].get(p, 0)) for p, offset in sorted(offsets.items())}
        for topic, offsets in a.items()
    }


def _check_met(kafka: Kafka, store: SnapshotStore, run: AbRun, meeting: Positions) -> None:
    for app in (run.app_a, run.app_b):
        found = _positions(kafka, store, app)
        if found != meeting:
            raise ConfigurationError(
                f"{app!r} stopped at {json.dumps(found)}, expected {json.dumps(meeting)}; is "
                "another supervisor of it running? Stop that one, and promote again"
            )


def _names(app: str, run: AbRun) -> tuple[str, ...]:
    """What makes a side itself: the original has its own outputs, the variant the run's."""
    if app == run.app_a:
        return ("--app-id", app, *_counts(run))
    return ("--app-id", app, "--sink-suffix", f".{run.variant}", *_counts(run))


def _counts(run: AbRun) -> tuple[str, ...]:
    pairs = (f"{service}={count}" for service, count in sorted(run.parallelism.items()))
    return tuple(part for pair in pairs for part in ("--parallelism", pair))
