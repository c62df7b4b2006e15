"""The command ``python -m penstock_stack``: bring the stack up, or make what it needs."""

import argparse
import shlex
import signal
import sys

from penstock_stack.failure import StackError
from penstock_stack.images import build_images
from penstock_stack.stack import Stack, start_stack
from penstock_stack.supplies import fetch


def main() -> int:
    """Run the command line; 0 when it did what was asked."""
    parser = argparse.ArgumentParser(prog="python -m penstock_stack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start Kafka and MinIO in the foreground")
    up.add_argument("--containers", action="store_true", help="on Docker instead of as processes")
    commands.add_parser("fetch", help="fetch and build once what the stack needs")
    commands.add_parser("images", help="build the images of Kafka, MinIO and the application")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if arguments.command == "images":
            build_images(print)
        elif arguments.command == "fetch":
            fetch(print)
        else:
            _stay_up(_containers() if arguments.containers else start_stack(progress=_comment))
    except StackError as failure:
        print(f"penstock_stack: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped")
    return 0


def _containers() -> Stack:
    # testcontainers is a development tool, and slow to load
    from penstock_stack.containers import start_containers  # noqa: PLC0415

    return start_containers(progress=_comment)


def _stay_up(stack: Stack) -> None:
    """Print what to export and hold the stack until Ctrl-C or SIGTERM."""
    with stack:
        environment = {"PENSTOCK_BOOTSTRAP": stack.bootstrap, "PENSTOCK_STORE": stack.store_url}
        for name, value in {**environment, **stack.store_env}.items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        print("# up; Ctrl-C stops it and deletes its data", flush=True)
        signal.pause()


def _comment(line: str) -> None:
    print(f"# {line.strip()}", flush=True)  # the output can be given to `eval`


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
