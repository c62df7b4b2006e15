"""map, filter, flat_map, key_by in place and fan-out: one C-level pass or one loop per batch.

Nothing is paid for knowing where a record failed: the list iterator says how far it came. Whoever
changes the number of records translates the index of a later failure back for its caller.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import chain, compress, count, islice, repeat
from operator import length_hint
from typing import Any

from penstock.record import OperatorFailed, Push, described


def failed(uid: str, total: int, left: Any, error: Exception) -> OperatorFailed:
    """The failure of the record that the iterator ``left`` over ``total`` records gave last."""
    if isinstance(error, OperatorFailed):
        return error
    return OperatorFailed(uid, total - length_hint(left) - 1, described(error))


def nowhere(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
    """Where the results of a step go that nothing follows."""


def fan_out(pushes: list[Push]) -> Push:
    """One push for any number of followers; a single one is called directly."""
    if not pushes:
        return nowhere
    if len(pushes) == 1:
        return pushes[0]

    def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        for follower in pushes:
            follower(bucket, keys, values, times)

    return push


def mapping(uid: str, f: Callable[[Any], Any], follow: Push) -> Push:
    """map: one value for one value."""

    def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        left = iter(values)
        try:
            mapped = list(map(f, left))
        except Exception as error:
            raise failed(uid, len(values), left, error) from error
        follow(bucket, keys, mapped, times)

    return push


def keying(uid: str, f: Callable[[Any], Any], follow: Push) -> Push:
    """key_by without an edge: the source is partitioned by the key."""

    def push(bucket: int, _: list[Any] | None, values: list[Any], times: list[int]) -> None:
        left = iter(values)
        try:
            keys = list(map(f, left))
        except Exception as error:
            raise failed(uid, len(values), left, error) from error
        follow(bucket, keys, values, times)

    return push


def filtering(uid: str, f: Callable[[Any], Any], follow: Push) -> Push:
    """filter: keeps the records for which ``f`` is true."""

    def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        left = iter(values)
        try:
            chosen = list(map(f, left))
        except Exception as error:
            raise failed(uid, len(values), left, error) from error
        kept = list(compress(values, chosen))
        if not kept:
            return
        if len(kept) == len(values):
            follow(bucket, keys, values, times)
            return
        kept_keys = None if keys is None else list(compress(keys, chosen))
        try:
            follow(bucket, kept_keys, kept, list(compress(times, chosen)))
        except OperatorFailed as error:
            if error.index is not None:
                error.index = next(islice(compress(count(), chosen), error.index, None))
            raise

    return push


def flattening(uid: str, f: Callable[[Any], Any], follow: Push) -> Push:
    """flat_map: any number of values for one value."""

    def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        out: list[Any] = []
        ends: list[int] = []
        extend = out.extend
        end = ends.append
        left = iter(values)
        try:
            for value in left:
                extend(f(value))
                end(len(out))
        except Exception as error:
            raise failed(uid, len(values), left, error) from error
        if not out:
            return
        out_keys = None if keys is None else spread(keys, ends)
        try:
            follow(bucket, out_keys, out, spread(times, ends))
        except OperatorFailed as error:
            if error.index is not None:
                error.index = bisect_right(ends, error.index)
            raise

    return push


def spread(column: list[Any], ends: list[int]) -> list[Any]:
    """Each element as often as its record had results; ``ends`` are running counts."""
    starts = [0, *ends]
    sizes = map(int.__sub__, ends, starts)
    return list(chain.from_iterable(map(repeat, column, sizes)))
