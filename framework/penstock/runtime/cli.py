"""The ``penstock`` command: run an application here, or one of its processes."""

import argparse
import json
import logging
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock import application
from penstock.api import Service
from penstock.checkpoint.leadership import Settings
from penstock.failure import ConfigurationError, PenstockError
from penstock.ids import CheckpointId, InvalidName, checked_name
from penstock.runtime import bounds, savepoint_places
from penstock.runtime.ab_commands import add_ab_commands
from penstock.runtime.connectors import kafka_from, store_from
from penstock.runtime.copies import until
from penstock.runtime.events import EventLog, say
from penstock.runtime.leader import Origin, lead
from penstock.runtime.leash import leashed
from penstock.runtime.plan import check_parallelism, parallelism_of
from penstock.runtime.replay_commands import add_replay_command
from penstock.runtime.savepoint_commands import add_savepoint_commands
from penstock.runtime.supervisor import Supervisor
from penstock.runtime.worker import work

_MILLISECONDS = (
    # option, least, default, what it says
    ("--checkpoint-interval-ms", 1, 1000, "from one trigger to the next"),
    ("--checkpoint-timeout-ms", 1, 600_000, "a checkpoint that is not complete by then fails"),
    ("--min-pause-ms", 0, 0, "at least so long from the end of a checkpoint to the next trigger"),
    ("--heartbeat-timeout-ms", 2000, 10_000, "a worker silent for so long is gone"),
)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error here does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"penstock: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit code.

    0 as asked, 2 when something must be configured first, 3 when Kafka or the store failed, 4 when
    the run came to a point where only a person can help.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    if options.leash:
        leashed(options.leash)
    env = dict(os.environ)
    if options.bootstrap:
        env["PENSTOCK_BOOTSTRAP"] = options.bootstrap
    if getattr(options, "store", None):
        env["PENSTOCK_STORE"] = options.store
    try:
        code: int = options.command(options, env)
    except (ConfigurationError, InvalidName) as error:
        sys.stderr.write(f"penstock: {error}\n")
        return 2
    except PenstockError as error:
        say("penstock", str(error))
        return 3
    return code


def _run(options: argparse.Namespace, env: dict[str, str]) -> int:
    services = _loaded(options.files, options)
    application.union(services)
    app = services[0].app
    parallelism = parallelism_of(options.parallelism, [service.name for service in services])
    check_parallelism([service.spec() for service in services], parallelism)
    events = EventLog(options.events)
    _check_reachable(env, services)
    if options.until is not None:
        specs = [service.spec() for service in services]
        options.until = json.dumps(until(options.until, specs, kafka_from(env)))  # for all workers
    supervisor = Supervisor(app, kafka_from(env), events, env)
    shared = ["--events", options.events] if options.events else []
    pairs = [f"{name}={count}" for name, count in parallelism.items()]
    command = ["coordinator", app, *shared, *_settings_arguments(options)]
    command += _origin_arguments(options, env)
    for pair in pairs:
        command += ["--service", pair]
    supervisor.add("coordinator", app, command)
    for path, service in zip(options.files, services, strict=True):
        for slot in range(parallelism[service.name]):
            name = f"{service.name}/{slot}"
            supervisor.add(
                "worker",
                name,
                ["worker", path, "--slot", str(slot), *shared, *_disguise_arguments(options)],
            )
    return supervisor.run()


def _check_reachable(env: dict[str, str], services: list[Service]) -> None:
    """Say at once, before any process starts, what is not there."""
    kafka, store = kafka_from(env), store_from(env)
    kafka.check()
    store.check()
    kafka.transaction_timeout_ms()
    for service in services:
        for topic in application.topics(service.spec()):
            kafka.partitions(topic)
    kafka.ensure_control_topics(services[0].app)


def _coordinator(options: argparse.Namespace, env: dict[str, str]) -> int:
    app = checked_name("application id", options.app)
    if options.from_savepoint and not options.import_token:
        options.import_token, options.import_checkpoint = _import_token(options, env)
    settings = Settings(
        services=parallelism_of(options.service, None),
        interval_ms=options.checkpoint_interval_ms,
        timeout_ms=options.checkpoint_timeout_ms,
        min_pause_ms=options.min_pause_ms,
        tolerable_failures=options.tolerable_failures,
        heartbeat_timeout_ms=options.heartbeat_timeout_ms,
        resume_grace_ms=options.resume_grace_ms,
        retained=options.retained,
        mode=options.mode,
        savepoint=options.import_token,
        savepoint_checkpoint=CheckpointId(options.import_checkpoint),
    )
    kafka, store, events = kafka_from(env), store_from(env), EventLog(options.events)
    if options.leash is None:  # else whoever started us has just looked, and starts us again
        kafka.check()
        store.check()
    return lead(
        app,
        settings,
        kafka,
        store,
        events,
        accept_loss=options.accept_loss,
        allow_dropped=options.allow_non_restored_state,
        stop=options.stop,
        origin=_origin(options, env),
    )


def _worker(options: argparse.Namespace, env: dict[str, str]) -> int:
    (service,) = _loaded([options.file], options)
    return work(
        service,
        kafka_from(env),
        store_from(env),
        worker_id=options.worker_id,
        slot=options.slot,
        supervised=options.leash is not None,
        until=None if options.until is None else bounds.parsed(options.until),
    )


def _loaded(files: Sequence[str], options: argparse.Namespace) -> list[Service]:
    return [
        application.load(path, app=options.app_id, sink_suffix=options.sink_suffix)
        for path in files
    ]


def _savepoint_env(options: argparse.Namespace, env: dict[str, str]) -> dict[str, str]:
    return {**env, "PENSTOCK_STORE": options.from_savepoint}


def _origin(options: argparse.Namespace, env: dict[str, str]) -> Origin | None:
    if not options.from_savepoint:
        return None
    return Origin(store_from(_savepoint_env(options, env)), options.claim_mode == "claim")


def _import_token(options: argparse.Namespace, env: dict[str, str]) -> tuple[str, int]:
    """What the decision log remembers of this start, and the checkpoint the savepoint was.

    The same savepoint gives the same token: a process that is started again goes on from where the
    application has come to, and does not begin anew.
    """
    manifest = savepoint_places.manifest_at(options.from_savepoint, env)
    token = f"{manifest.savepoint_id}@{manifest.sha256[:12]}"
    if options.restore_again:
        token += f"+{secrets.token_hex(4)}"
    return token, manifest.checkpoint


def _origin_arguments(options: argparse.Namespace, env: dict[str, str]) -> list[str]:
    if not options.from_savepoint:
        return []
    token, checkpoint = _import_token(options, env)
    return [
        *("--from-savepoint", options.from_savepoint, "--claim-mode", options.claim_mode),
        *("--import-token", token, "--import-checkpoint", str(checkpoint)),
    ]


def _disguise_arguments(options: argparse.Namespace) -> list[str]:
    pairs = {
        "--app-id": options.app_id,
        "--sink-suffix": options.sink_suffix or None,
        "--until": options.until,
    }
    return [part for name, value in pairs.items() if value is not None for part in (name, value)]


def _settings_arguments(options: argparse.Namespace) -> list[str]:
    names = (
        "checkpoint_interval_ms",
        "checkpoint_timeout_ms",
        "min_pause_ms",
        "tolerable_failures",
        "heartbeat_timeout_ms",
        "retained",
        "mode",
    )
    pairs = [(f"--{name.replace('_', '-')}", str(getattr(options, name))) for name in names]
    arguments = [part for pair in pairs for part in pair]
    flags = {
        "--accept-loss": options.accept_loss,
        "--allow-non-restored-state": options.allow_non_restored_state,
    }
    return [*arguments, *(flag for flag, given in flags.items() if given)]


def _settings_options() -> _Parser:
    settings = _Parser(add_help=False)
    add = settings.add_argument
    for option, least, default, what in _MILLISECONDS:
        told = f"{what} (default: {default})"
        add(option, type=_at_least(least), default=default, metavar="MS", help=told)
    add(
        "--tolerable-failures",
        type=_at_least(0),
        default=3,
        metavar="N",
        help="failed checkpoints in a row that are only counted (default: 3)",
    )
    add(
        "--retained",
        type=_at_least(2),
        default=2,
        metavar="N",
        help="complete checkpoints to keep, at least 2 (default: 2)",
    )
    add(
        "--mode",
        choices=("EXACTLY_ONCE", "AT_LEAST_ONCE"),
        default="EXACTLY_ONCE",
        help="AT_LEAST_ONCE does not hold channels back while aligning (default: EXACTLY_ONCE)",
    )
    add("--accept-loss", action="store_true", help="go on although Kafka lost a transaction")
    add(
        "--allow-non-restored-state",
        action="store_true",
        help="drop state that no operator takes any more",
    )
    _add_origin(settings)
    return settings


def _add_origin(settings: _Parser) -> None:
    add = settings.add_argument
    add(
        "--from-savepoint",
        metavar="URL",
        default="",
        help="start from this savepoint; started again, go on from where the application came to",
    )
    add(
        "--restore-again",
        action="store_true",
        help="begin from the savepoint even if the application has begun from it before",
    )
    add(
        "--claim-mode",
        choices=("no-claim", "claim"),
        default="no-claim",
        help="claim: the application deletes the savepoint when it needs it no more "
        "(default: no-claim)",
    )
    add("--import-token", default="", help=argparse.SUPPRESS)
    add("--import-checkpoint", type=int, default=0, help=argparse.SUPPRESS)


def _disguise_options() -> _Parser:
    disguise = _Parser(add_help=False)
    add = disguise.add_argument
    add("--app-id", metavar="ID", help="run under this application id instead of the files' own")
    add(
        "--sink-suffix",
        default="",
        metavar="SUFFIX",
        help="write to topics of the files' names and this ending",
    )
    add(
        "--until",
        metavar="JSON|FILE",
        help='where the sources end: {"topic": {"partition": offset}}, exclusive; then stop. '
        "penstock run also takes latest: where they end now",
    )
    return disguise


def _at_least(least: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return parsed


def _parser() -> _Parser:
    parser = _Parser(
        prog="penstock",
        description="Exactly-once stateful Kafka microservices.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = _Parser(add_help=False)
    shared.add_argument("--bootstrap", help="Kafka bootstrap servers (PENSTOCK_BOOTSTRAP)")
    shared.add_argument("--store", help="s3://BUCKET/PREFIX or file:///DIR (PENSTOCK_STORE)")
    shared.add_argument("--events", metavar="FILE", help="append one JSON line per event")
    shared.add_argument("--leash", type=int, help=argparse.SUPPRESS)
    settings = _settings_options()
    disguise = _disguise_options()
    run = commands.add_parser(
        "run", parents=[shared, settings, disguise], help="run an application here"
    )
    run.add_argument("files", nargs="+", metavar="FILE", help="a Python file with one service")
    run.add_argument(
        "--parallelism",
        action="append",
        default=[],
        metavar="[SERVICE=]N",
        help="workers of every service, or of one; may be repeated (default: 1)",
    )
    run.set_defaults(command=_run)
    leading = commands.add_parser(
        "coordinator", parents=[shared, settings], help="lead an application"
    )
    leading.add_argument("app", metavar="APP", help="the application id, app= of its services")
    leading.add_argument(
        "--service",
        action="append",
        required=True,
        metavar="SERVICE=N",
        help="a service and its workers; repeat it for each service",
    )
    leading.add_argument("--stop", action="store_true", help=argparse.SUPPRESS)
    leading.add_argument("--resume-grace-ms", type=int, default=3000, help=argparse.SUPPRESS)
    leading.set_defaults(command=_coordinator)
    worker = commands.add_parser(
        "worker", parents=[shared, disguise], help="run one worker of a service"
    )
    worker.add_argument("file", metavar="FILE", help="a Python file with one service")
    worker.add_argument("--slot", type=int, help="subtask index to take (default: any)")
    worker.add_argument("--worker-id", help=argparse.SUPPRESS)
    worker.set_defaults(command=_worker)
    add_ab_commands(commands, shared)
    add_savepoint_commands(commands)
    add_replay_command(commands, shared)
    return parser


if __name__ == "__main__":
    sys.exit(main())
