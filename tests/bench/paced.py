"""The load of the probes, in a process of its own: some orders at once, the rest at an even rate.

Prints a line when it has written what comes at once; the even part begins with a line on stdin.
"""

import argparse
import sys
import time

from workload import Input, Loader

TICK_S = 0.005


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=0)
    parser.add_argument("--rate", type=int, required=True)
    args = parser.parse_args()
    given = Input(args.records, args.keys, each_key_first=args.at_once > 0)
    loader = Loader(args.bootstrap, args.topic, linger_ms=1)
    for start in range(0, args.at_once, 10_000):
        loader.write(given.values[start : min(start + 10_000, args.at_once)])
    loader.finish()
    print("written", flush=True)
    sys.stdin.readline()
    begin = time.time()
    sent = args.at_once
    while sent < args.records:
        due = min(args.at_once + int((time.time() - begin) * args.rate), args.records)
        if due > sent:
            loader.write(given.values[sent:due])
            sent = due
        time.sleep(TICK_S)
    loader.finish()


if __name__ == "__main__":
    main()
