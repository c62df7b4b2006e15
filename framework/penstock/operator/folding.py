"""reduce and aggregate: one fused loop over keys and values, straight on the table's dict."""

from collections.abc import Callable
from typing import Any

from penstock.operator.aggregate import Aggregate
from penstock.operator.isolation import copier, is_immutable, isolating
from penstock.operator.stateless import failed
from penstock.record import Push
from penstock.snapshot.state import SubtaskState
from penstock.snapshot.table import HeapTable

REDUCED = "reduced"
AGGREGATED = "aggregated"


def reducing(
    uid: str, f: Callable[[Any, Any], Any], state: SubtaskState, table: HeapTable, follow: Push
) -> Push:
    """reduce: emits the key's folded value after each record; its first record as it is."""
    tables = (table,)

    def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        assert keys is not None
        if state.encoding is not None:
            state.rescue(tables, bucket, keys)
        entries = table.bucket(bucket)
        get = entries.get
        out: list[Any] = []
        append = out.append
        changeable = bool(values) and copier(type(values[0])) is not None
        emit = isolating(append) if changeable else append
        left = iter(values)
        try:
            for key, value in zip(keys, left, strict=False):
                old = get(key)
                new = value if old is None else f(old, value)
                entries[key] = new
                emit(new)
        except Exception as error:
            raise failed(uid, len(values), left, error) from error
        table.dirty_keys(bucket).update(keys)
        follow(bucket, keys, out, times)

    return push


def aggregating(
    uid: str,
    aggregate: Aggregate[Any, Any, Any],
    state: SubtaskState,
    table: HeapTable,
    follow: Push,
) -> Push:
    """aggregate: emits the result of the key's accumulator after each record."""
    tables = (table,)
    init, add, result = aggregate.init, aggregate.add, aggregate.result
    isolates = not is_immutable(aggregate.accumulator)

    def push(bucket: int, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        assert keys is not None
        if state.encoding is not None:
            state.rescue(tables, bucket, keys)
        entries = table.bucket(bucket)
        get = entries.get
        out: list[Any] = []
        emit = isolating(out.append) if isolates else out.append
        left = iter(values)
        try:
            for key, value in zip(keys, left, strict=False):
                old = get(key)
                new = add(init() if old is None else old, value)
                entries[key] = new
                emit(result(new))
        except Exception as error:
            raise failed(uid, len(values), left, error) from error
        table.dirty_keys(bucket).update(keys)
        follow(bucket, keys, out, times)

    return push
