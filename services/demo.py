"""``make demo``: both applications on a real Kafka and a real store, killed at random, verified.

Exit code 0 when the output is exactly once, 1 when it is not, 2 when there is no verdict.
"""

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from mainjob.failure import JobFailed
from mainjob.job import FULL, QUICK, MainJob
from mainjob.report import EXACTLY_ONCE, Report
from penstock_stack import StackError, start_stack

BUILD = Path(__file__).parents[1] / "build"


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less input, about a minute")
    parser.add_argument("--seed", type=int, help="of the kills and the transfers (default: random)")
    parser.add_argument("--json", type=Path, default=BUILD / "demo.json", help="the figures")
    parser.add_argument("--logs", type=Path, help="keep the applications' logs in this folder")
    return parser.parse_args()


def run(args: argparse.Namespace) -> Report:
    """Servers, both applications, the verdict."""
    seed = random.randrange(1_000_000) if args.seed is None else args.seed
    print(f"seed {seed} (repeat with: make demo DEMO_ARGS='--seed {seed}')", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as scratch, start_stack() as stack:
        folder = args.logs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"Kafka at {stack.bootstrap}, snapshots in {stack.store_url}", flush=True)
        return MainJob(stack, folder, QUICK if args.quick else FULL, seed).run()


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the program as Ctrl-C does: everything is stopped on the way out."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; the exit code."""
    signal.signal(signal.SIGTERM, interrupt)
    args = arguments()
    try:
        report = run(args)
    except (JobFailed, StackError) as failure:
        print(f"\nno verdict: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; everything is stopped", file=sys.stderr)
        return 130
    report.write(args.json)
    print(f"\n{report.table()}\n\n  {args.json}")
    return 0 if report.verdict == EXACTLY_ONCE else 1


if __name__ == "__main__":
    sys.exit(main())
