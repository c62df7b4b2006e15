"""The records of a key group in their order, out of bundles that come by their first record.

Mostly one bundle ends before the next begins. Where partitions are read side by side, or a
DataFrame has no order, bundles overlap: then records wait until no later bundle can have one before
them.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from penstock.failure import ConfigurationError
from penstock.serde import type_name

from penstock_spark.replay.rows import AT, ordered

PIECE_RECORDS = 20_000
Bound = tuple[int, int, int]
"""Clock, place and number of a record."""


class Piece(NamedTuple):
    """Some records of a key group."""

    keys: list[Any] | None
    values: list[Any]
    at: Any
    """An array of AT."""


class Merging:
    """The records of one key group that wait."""

    def __init__(self) -> None:
        self._waiting: list[Piece] = []

    def add(self, piece: Piece) -> None:
        """More records; none of them is before what was taken."""
        self._waiting.append(piece)

    def take(self, bound: Bound | None) -> Piece | None:
        """Those before ``bound``, or all, in their order; None when there are none."""
        if not self._waiting:
            return None
        whole = _sorted(_joined(self._waiting))
        self._waiting = []
        if bound is None:
            return whole
        cut = _before(whole.at, bound)
        if cut < len(whole.at):
            self._waiting.append(_sliced(whole, cut, None))
        return _sliced(whole, 0, cut) if cut else None


class ListOf:
    """Decodes msgpack values that stand one behind the other, in one call."""

    def __init__(self, stage: str, what: str, kind: Any) -> None:
        self._what = f"stage {stage!r}: its {what} are declared as {type_name(kind)}"
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode

    def decoded(self, column: pa.Array, count: int) -> list[Any]:
        """The ``count`` values in all rows of a column.

        Raises ConfigurationError when they are of another type.
        """
        rows = len(column)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: rows + 1]
        data = column.buffers()[2]
        body = b"" if data is None else memoryview(data)[int(offsets[0]) : int(offsets[-1])]
        try:
            found: list[Any] = self._decode(b"\xdd" + count.to_bytes(4, "big") + body)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(
                f"{self._what}, but what is sent is not: {error}; give both ends of the edge the "
                "same types"
            ) from error
        return found


def piece_of(batch: pa.RecordBatch, keys: ListOf | None, values: ListOf) -> Piece:
    """The records of some rows."""
    at = np.frombuffer(b"".join(batch["at"].to_pylist()), AT)
    column = batch["keys"]
    found = None
    if keys is not None and not column.null_count:
        found = keys.decoded(column, len(at))
    return Piece(found, values.decoded(batch["values"], len(at)), at)


def pieces(counts: Any, start: int, end: int) -> list[tuple[int, int]]:
    """Rows ``start`` to ``end`` in ranges of about PIECE_RECORDS records."""
    sums = np.cumsum(counts[start:end])
    total = int(sums[-1])
    cuts = {start, end}
    for records in range(PIECE_RECORDS, total, PIECE_RECORDS):
        cuts.add(start + 1 + int(np.searchsorted(sums, records)))
    return list(pairwise(sorted(cut for cut in cuts if cut <= end)))


def _joined(found: list[Piece]) -> Piece:
    if len(found) == 1:
        return found[0]
    keys: list[Any] | None = None
    if all(piece.keys is not None for piece in found):
        keys = [key for piece in found for key in piece.keys or ()]
    values = [value for piece in found for value in piece.values]
    return Piece(keys, values, np.concatenate([piece.at for piece in found]))


def _sorted(piece: Piece) -> Piece:
    at = piece.at
    if ordered(at).all():
        return piece
    order = np.lexsort((at["number"], at["place"], at["clock"]))
    places = order.tolist()
    keys = None if piece.keys is None else list(map(piece.keys.__getitem__, places))
    return Piece(keys, list(map(piece.values.__getitem__, places)), at[order])


def _before(at: Any, bound: Bound) -> int:
    """How many of these records, which are in order, come before ``bound``."""
    clock, place, number = bound
    clocks, places, numbers = at["clock"], at["place"], at["number"]
    earlier = (places < place) | ((places == place) & (numbers < number))
    return int(np.count_nonzero((clocks < clock) | ((clocks == clock) & earlier)))


def _sliced(piece: Piece, start: int, end: int | None) -> Piece:
    keys = None if piece.keys is None else piece.keys[start:end]
    return Piece(keys, piece.values[start:end], piece.at[start:end])
