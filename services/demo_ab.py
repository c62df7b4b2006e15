"""``make demo-ab``: the ledger and its variant with a fee over the same transfers, compared.

Exit code 0 when every figure of the report is what plain counting says, 1 when one is not, 2 when
there is no verdict.
"""

import argparse
import json
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

import msgspec
from ledger_ab.trial import FULL, QUICK, Trial, TrialFailed
from penstock_stack import StackError, start_stack

BUILD = Path(__file__).parents[1] / "build"


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less input, about two minutes")
    parser.add_argument("--seed", type=int, default=20, help="of the transfers (default: 20)")
    parser.add_argument("--out", type=Path, default=BUILD, help="where demo-ab.* are written")
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    """Servers, the trial, the verdict; the exit code."""
    size = QUICK if args.quick else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    folder = args.out / "demo-ab"  # of an earlier run
    shutil.rmtree(folder, ignore_errors=True)
    with start_stack() as stack:
        print(f"Kafka at {stack.bootstrap}, savepoints in {stack.store_url}", flush=True)
        trial = Trial(stack, folder, size, args.seed)
        report, wrong = trial.run()
        shutil.copyfile(folder / "report.html", args.out / "demo-ab.html")
    figures = {
        "verdict": "EQUAL" if not wrong else "DIFFERENT",
        "deviations": wrong,
        "transfers": {"before": size.before, "replayed": size.replayed, "seed": args.seed},
        "seconds": trial.seconds,
        "report": msgspec.to_builtins(report),
    }
    (args.out / "demo-ab.json").write_text(json.dumps(figures, indent=2) + "\n")
    print()
    for line in wrong:
        print(f"  deviation: {line}")
    print(
        "  every figure of the report is what plain counting says"
        if not wrong
        else f"  {len(wrong)} figures of the report are not what plain counting says"
    )
    print(f"\n  {args.out / 'demo-ab.json'}\n  {args.out / 'demo-ab.html'}")
    return 0 if not wrong else 1


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the program as Ctrl-C does: everything is stopped on the way out."""
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; the exit code."""
    signal.signal(signal.SIGTERM, interrupt)
    args = arguments()
    try:
        return run(args)
    except (TrialFailed, StackError) as failure:
        print(f"\nno verdict: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; everything is stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
