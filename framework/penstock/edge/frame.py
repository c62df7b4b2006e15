"""One Kafka message of an edge: a fixed header, then the rows as columns in one msgpack call.

The header is read without touching the rows, so that a reader checks attempt and sequence first and
may hold a data frame undecoded (L7). Data payload: ``[(bucket, keys | nil, values, times)...]``.
"""

from enum import IntEnum
from struct import Struct, error
from typing import Any, NamedTuple

import msgspec

from penstock.failure import ProtocolViolation

_HEADER = Struct("<BBqIqqI")
"""magic, kind, attempt, upstream, sequence, value, count."""
MAGIC = 0xE1
HEADER_BYTES = _HEADER.size
_encode = msgspec.msgpack.Encoder().encode


class Kind(IntEnum):
    """What a frame carries; the header's ``value`` is nothing, checkpoint, ms or 0/1 by kind."""

    DATA = 0
    BARRIER = 1
    WATERMARK = 2
    STATUS = 3
    END = 4


KINDS = {int(kind): kind for kind in Kind}


class Frame(NamedTuple):
    """A frame whose header is decoded and whose rows may not be."""

    kind: Kind
    partition: int
    offset: int
    upstream: int
    sequence: int
    value: int
    """Checkpoint of a barrier, ms of a watermark, 1 for idle in a status."""
    rows: int
    data: bytes
    """The whole message; the rows start at HEADER_BYTES."""


def encode_frame(
    kind: int, attempt: int, upstream: int, sequence: int, value: int = 0, count: int = 0
) -> bytes:
    """The header; the whole frame for every kind but data."""
    return _HEADER.pack(MAGIC, kind, attempt, upstream, sequence, value, count)


Rows = list[Any]
"""Tuples (key, value, time)."""


def encode_groups(
    attempt: int, upstream: int, sequence: int, groups: list[tuple[int, Rows]], keyed: bool
) -> bytes:
    """A data frame of the rows of one or more buckets; one msgspec call for all of them."""
    columns = []
    count = 0
    for bucket, rows in groups:
        keys, values, times = zip(*rows, strict=True)
        columns.append((bucket, keys if keyed else None, values, times))
        count += len(rows)
    return _HEADER.pack(MAGIC, 0, attempt, upstream, sequence, 0, count) + _encode(columns)


def decode_header(data: bytes, where: str) -> tuple[int, int, int, int, int, int, int]:
    """(magic, kind, attempt, upstream, sequence, value, count); raises ProtocolViolation."""
    try:
        header = _HEADER.unpack_from(data)
    except error as cause:
        raise ProtocolViolation(
            f"{where}: a message of {len(data)} bytes is no frame of an edge (expected at least "
            f"{HEADER_BYTES}); check that nothing else writes to the topic"
        ) from cause
    if header[0] != MAGIC or header[1] not in KINDS:
        raise ProtocolViolation(
            f"{where}: a message starts with {data[:2].hex()}, expected {MAGIC:02x} and a kind of "
            f"0-{max(KINDS)}; check that nothing else writes to the topic and that all processes "
            "run one version of penstock"
        )
    return header


Group = tuple[int, "list[Any] | None", list[Any], list[int]]
"""(bucket, keys or None, values, times): columns of equal length."""


class RowsCodec:
    """Decodes the rows of one edge's frames with the reader's types."""

    def __init__(self, edge: str, key: Any, value: Any) -> None:
        self._edge = edge
        self._decode = msgspec.msgpack.Decoder(
            list[tuple[int, list[key] | None, list[value], list[int]]]
        ).decode

    def frame(self, data: bytes, partition: int = 0, offset: int = 0) -> Frame:
        """The frame in a message, without the checks of an `EdgeInput`."""
        where = f"edge {self._edge!r}, partition {partition}, offset {offset}"
        _, kind, _, upstream, sequence, value, rows = decode_header(data, where)
        return Frame(KINDS[kind], partition, offset, upstream, sequence, value, rows, data)

    def groups(self, frame: Frame) -> list[Group]:
        """(bucket, keys, values, times) of each bucket; a ProtocolViolation names the frame."""
        try:
            groups: list[Group] = self._decode(memoryview(frame.data)[HEADER_BYTES:])
        except (msgspec.DecodeError, ValueError, RecursionError) as cause:
            raise ProtocolViolation(
                f"{self._where(frame)} has rows of another type: {cause}; give from_edge() the "
                "types that the writer's to_edge() sends"
            ) from cause
        count = 0
        for _, keys, values, times in groups:
            count += len(values)
            if len(times) != len(values) or (keys is not None and len(keys) != len(values)):
                count = -1
                break
        if count != frame.rows:
            raise ProtocolViolation(
                f"{self._where(frame)} says {frame.rows} rows but its columns hold another number; "
                "it is damaged"
            )
        return groups

    def _where(self, frame: Frame) -> str:
        return (
            f"edge {self._edge!r}: the frame at partition {frame.partition}, offset {frame.offset} "
            f"(upstream {frame.upstream}, sequence {frame.sequence})"
        )
