"""The rows between two stages of a replay: Arrow batches that Spark shuffles and sorts.

A row is a bundle of records of an edge that have one key group and stand in their order, one behind
the other as msgpack; a record of a sink; or a report (JSON) of a task to the one who started the
replay. Bundles are what makes a shuffle cheap: Spark moves and sorts tens of times fewer rows.
"""

from collections.abc import Callable, Iterator
from itertools import repeat
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from penstock.edge.routing import SEED, UnusableKey, key_bytes
from penstock.failure import ConfigurationError
from penstock.record import OperatorFailed
from penstock.schema import schema_of

from penstock_spark.replay.node import Origins
from penstock_spark.replay.plan import ReplayPlan

REPORT: Final = -1
"""``to`` of a report; records have the number of their edge, or behind these of their sink."""
AT: Final = np.dtype([("time", "<i8"), ("clock", "<i8"), ("place", "<i8"), ("number", "<i8")])
"""Where a record stands: they are ordered by clock, place and number, which is that of the records
that one record became.
"""
SCHEMA: Final = pa.schema(
    [
        ("to", pa.int32()),
        ("key_group", pa.int32()),
        ("owner", pa.int32()),  # the source partition that owns the keys; 0: key groups do
        ("time", pa.int64()),  # these four of the first record
        ("clock", pa.int64()),
        ("place", pa.int64()),
        ("number", pa.int64()),
        ("count", pa.int32()),  # of the records
        ("keys", pa.binary()),  # null where there are none
        ("values", pa.binary()),
        ("at", pa.binary()),  # an AT each
    ]
)
_PLAIN: Final = frozenset({str, int, bytes, bool, float, type(None)})
_SAME_BYTES: Final = frozenset({str, int, bytes, type(None)})
_MOST_BYTES: Final = 1 << 30
_row = attrgetter("row")
_encode = msgspec.msgpack.Encoder().encode
_digest = xxhash.xxh64_intdigest


def report(what: Any) -> pa.RecordBatch:
    """A row for the one who started the replay."""
    said = {"to": REPORT, "values": msgspec.json.encode(what)}
    return pa.RecordBatch.from_pylist([said], schema=SCHEMA)


def bundled(
    to: int,
    groups: Any,
    owner: Any,
    at: Any,
    keys: list[bytes] | None,
    values: list[bytes],
    *,
    bundles: bool,
) -> pa.RecordBatch:
    """The rows of records whose key groups are ``groups``, an array like ``at``.

    With ``bundles`` those of a group make one row, if they come in order; else each has its own.
    """
    count = len(values)
    starts = np.arange(count)
    if bundles:
        order = np.argsort(groups, kind="stable")
        groups, at = groups[order], at[order]
        places = order.tolist()
        values = list(map(values.__getitem__, places))
        keys = None if keys is None else list(map(keys.__getitem__, places))
        owner = owner if np.isscalar(owner) else owner[order]
        changes = np.diff(groups) != 0
        if (changes | ordered(at)).all():
            starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(starts, count)
    first = at[starts]
    rows = len(starts)
    columns = [
        pa.repeat(pa.scalar(to, pa.int32()), rows),
        pa.array(groups[starts].astype(np.int32)),
        pa.array(np.broadcast_to(np.asarray(owner, np.int32), count)[starts]),
        *(pa.array(first[name]) for name in ("time", "clock", "place", "number")),
        pa.array(np.diff(ends).astype(np.int32)),
        pa.nulls(rows, pa.binary()) if keys is None else _joined(keys, ends),
        _joined(values, ends),
        _cut(at.tobytes(), ends * AT.itemsize),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def ordered(at: Any) -> Any:
    """For each record but the first whether it comes behind the one before, as an array."""
    clocks, places, numbers = (at[name] for name in ("clock", "place", "number"))
    later = np.diff(clocks)
    further = np.diff(places)
    return (later > 0) | (
        (later == 0) & ((further > 0) | ((further == 0) & (np.diff(numbers) >= 0)))
    )


def _joined(parts: list[bytes], ends: Any) -> pa.Array:
    sizes = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=sizes[1:])
    return _cut(b"".join(parts), sizes[ends])


def _cut(data: bytes, offsets: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


class Outbox:
    """What a stage has written since it was emptied last.

    Args:
        plan: says who reads what.
        origins: of the records that are under way.
        knows_rows: times are `At`; else they are the rows themselves.
        bundles: neighbours among what is written may share a row. Not for what comes key group by
            key group: each bundle would reach over all of the history, and readers would have to
            hold all of them at once.
    """

    def __init__(
        self, plan: ReplayPlan, origins: Origins, *, knows_rows: bool, bundles: bool
    ) -> None:
        self._numbers = {name: number for number, name in enumerate(plan.edges)}
        self._sinks = {uid: len(self._numbers) + number for number, uid in enumerate(plan.sinks)}
        self._origins = origins
        self._rows_of: Callable[[list[Any]], list[int]] = _rows if knows_rows else _same
        self._plan = plan
        self._bundles = bundles
        self._written = 0
        self._batches: list[pa.RecordBatch] = []
        self.owner = 0
        """The source partition of what is written now."""

    def edge(self, uid: str, name: str, key: Any) -> "EdgeRows":
        """The end of an edge whose keys are of type ``key``."""
        is_owned = any(reader.is_partitioned for reader in self._plan.readers(name))
        groups = self._plan.max_parallelism
        return EdgeRows(self, self._numbers[name], uid, key, groups, is_owned=is_owned)

    def sink(self, uid: str) -> "SinkRows":
        """The end of a sink."""
        return SinkRows(self, self._sinks[uid])

    def take(self) -> Iterator[pa.RecordBatch]:
        """What was written, once."""
        batches, self._batches = self._batches, []
        return iter(batches)

    def put(
        self,
        to: int,
        groups: Any,
        keys: list[bytes] | None,
        values: list[bytes],
        times: list[Any],
        *,
        is_owned: bool = False,
    ) -> None:
        """Records of an edge; ``times`` say which rows they come from."""
        if sum(map(len, values)) > _MOST_BYTES and len(values) > 1:
            middle = len(values) // 2
            for part in (slice(None, middle), slice(middle, None)):
                some = None if keys is None else keys[part]
                self.put(to, groups[part], some, values[part], times[part], is_owned=is_owned)
            return
        owner = self.owner if is_owned else 0
        at = self._at(times)
        found = bundled(to, groups, owner, at, keys, values, bundles=self._bundles)
        self._batches.append(found)

    def put_one_by_one(
        self, to: int, keys: list[bytes | None], values: list[bytes | None], times: list[Any]
    ) -> None:
        """Records of a sink."""
        at = self._at(times)
        count = len(values)
        columns = [
            pa.repeat(pa.scalar(to, pa.int32()), count),
            *(pa.repeat(pa.scalar(0, pa.int32()), count) for _ in range(2)),
            *(pa.array(at[name]) for name in ("time", "clock", "place", "number")),
            pa.repeat(pa.scalar(1, pa.int32()), count),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.nulls(count, pa.binary()),
        ]
        self._batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def _at(self, times: list[Any]) -> Any:
        count = len(times)
        rows = np.asarray(self._rows_of(times), dtype=np.int64)
        at = np.empty(count, AT)
        origins = self._origins
        at["time"] = np.asarray(origins.times, dtype=np.int64)[rows]
        at["clock"] = np.asarray(origins.clocks, dtype=np.int64)[rows]
        at["place"] = np.asarray(origins.places, dtype=np.int64)[rows]
        at["number"] = np.arange(self._written, self._written + count)
        self._written += count
        return at


class EdgeRows:
    """An `EdgePort` whose records become rows."""

    def __init__(
        self, outbox: Outbox, number: int, uid: str, key: Any, key_groups: int, *, is_owned: bool
    ) -> None:
        self._outbox = outbox
        self._number = number
        self._uid = uid
        self._key_groups = key_groups
        self._is_owned = is_owned
        self._is_any = key is Any
        self._has_same_bytes = has_same_bytes(key)

    def write(self, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        """Take a batch. Raises OperatorFailed for a key or value that an edge cannot carry."""
        encoded: list[bytes] | None = None
        groups = np.zeros(len(values), np.int64)
        if keys is not None:
            if self._is_any and not set(map(type, keys)) <= _PLAIN:
                raise self._refused(keys)
            hashed = encoded = list(map(_encode, keys))
            if not self._has_same_bytes and not set(map(type, keys)) <= _SAME_BYTES:
                hashed = self._hashed(keys)
            groups = key_groups(hashed, self._key_groups)
        try:
            raws = list(map(_encode, values))
        except (TypeError, ValueError, OverflowError):
            raws = list(map(self._value, values))
        self._outbox.put(self._number, groups, encoded, raws, times, is_owned=self._is_owned)

    def watermark(self, watermark_ms: int) -> None:
        """Event time travels with the records of a replay."""

    def idle(self, is_idle: bool) -> None:
        """Nobody is idle in a replay."""

    def _value(self, value: Any) -> bytes:
        try:
            return _encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise OperatorFailed(
                self._uid,
                None,
                f"cannot send {value!r:.200}: {error}; send msgspec types, numbers, strings, bytes",
            ) from error

    def _hashed(self, keys: list[Any]) -> list[bytes]:
        known: dict[Any, bytes] = {}
        found = []
        for index, key in enumerate(keys):
            raw = known.get(key)
            if raw is None:
                try:
                    raw = known[key] = key_bytes(key)
                except (UnusableKey, ValueError, TypeError) as error:
                    raise OperatorFailed(
                        self._uid, index, f"cannot use the key {key!r:.200}: {error}"
                    ) from error
            found.append(raw)
        return found

    def _refused(self, keys: list[Any]) -> OperatorFailed:
        index = next(i for i, key in enumerate(keys) if type(key) not in _PLAIN)
        return OperatorFailed(
            self._uid,
            index,
            f"a {type(keys[index]).__name__} does not come back as one from an edge without a key "
            "type; declare it: key_by(..., key=...) or to_edge(..., key_type=...)",
        )


class SinkRows:
    """A `SinkPort` whose records become rows."""

    def __init__(self, outbox: Outbox, number: int) -> None:
        self._outbox = outbox
        self._number = number

    def write(
        self, keys: list[bytes | None], values: list[bytes | None], times: list[int] | None
    ) -> None:
        """Take a batch."""
        if times is None:
            raise ConfigurationError("a replay writes no record without a time")
        self._outbox.put_one_by_one(self._number, keys, values, times)


def has_same_bytes(key: Any) -> bool:
    """Whether the msgpack of every such key is canonical as it is."""
    schema = schema_of(key)
    return schema.kind in ("str", "int", "bytes")


def key_groups(hashed: list[bytes], max_parallelism: int) -> Any:
    """The key groups of keys, given their canonical bytes, as an array."""
    digests = np.fromiter(map(_digest, hashed, repeat(SEED)), np.uint64, len(hashed))
    return digests.view(np.int64) % max_parallelism


def _rows(times: list[Any]) -> list[int]:
    return list(map(_row, times))


def _same(times: list[Any]) -> list[int]:
    return times
