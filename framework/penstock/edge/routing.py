"""Which partition of an edge a key belongs to (L20).

``key group = pmod(xxh64(msgpack(key), seed 42) as a signed 64-bit integer, max_parallelism)`` and
``partition = key group * partitions // max_parallelism``: a subtask's contiguous partitions hold a
contiguous range of key groups at every parallelism. Spark's ``pmod(xxhash64(key), n)`` of the same
bytes is the same number (decision 0010).
"""

import math
from collections.abc import Iterable
from datetime import date, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import xxhash

SEED = 42
_encode = msgspec.msgpack.Encoder().encode
_AS_THEY_ARE = frozenset({str, int, bytes, type(None)})


class UnusableKey(ValueError):
    """A value that cannot be a key: two equal keys must have equal bytes, in every process."""


def canonical(key: Any) -> Any:
    """``key`` such that equal keys (1, 1.0 and True are equal) have equal msgpack bytes."""
    kind = type(key)
    if kind in _AS_THEY_ARE:
        return key
    if isinstance(key, Enum):
        return canonical(key.value)
    if isinstance(key, bool):
        return int(key)
    if isinstance(key, float):
        if math.isnan(key):
            raise UnusableKey("nan is not equal to itself; replace it before key_by")
        return int(key) if key.is_integer() and -(2.0**63) <= key < 2.0**64 else key
    if isinstance(key, tuple):
        return [canonical(part) for part in key]
    if isinstance(key, UUID) or (isinstance(key, date) and not isinstance(key, datetime)):
        return key
    if isinstance(key, msgspec.Struct) and key.__struct_config__.frozen:
        return {
            name: canonical(getattr(key, field))
            for field, name in zip(key.__struct_fields__, key.__struct_encode_fields__, strict=True)
        }
    if isinstance(key, str | int | bytes):
        return key
    raise UnusableKey(
        f"a {kind.__name__} cannot be a key: use str, int, bytes, bool, float, UUID, date, an "
        "Enum, "
        "a frozen msgspec.Struct, or a tuple of these"
    )


def key_bytes(key: Any) -> bytes:
    """The bytes of ``key`` that are hashed; equal keys have equal ones. Raises UnusableKey."""
    try:
        return _encode(canonical(key))
    except OverflowError as error:
        raise UnusableKey(f"{error}; use str(number) for larger ones") from error


def group_of_bytes(key: bytes, max_parallelism: int) -> int:
    """The key group of a key, given its `key_bytes`."""
    digest = xxhash.xxh64_intdigest(key, SEED)
    return int(digest - (digest >> 63 << 64)) % max_parallelism


def groups_of_bytes(keys: Iterable[bytes], max_parallelism: int) -> list[int]:
    """`group_of_bytes` of many keys."""
    digests = [xxhash.xxh64_intdigest(key, SEED) for key in keys]
    return [(digest - (digest >> 63 << 64)) % max_parallelism for digest in digests]


def key_group(key: Any, max_parallelism: int) -> int:
    """The key group of ``key``; raises UnusableKey."""
    return group_of_bytes(key_bytes(key), max_parallelism)


def partition_of_group(group: int, partitions: int, max_parallelism: int) -> int:
    """The edge partition that carries a key group."""
    return group * partitions // max_parallelism


def partition_of(key: Any, partitions: int, max_parallelism: int) -> int:
    """The edge partition of ``key``; raises UnusableKey."""
    return key_group(key, max_parallelism) * partitions // max_parallelism


def groups_of_partition(partition: int, partitions: int, max_parallelism: int) -> range:
    """The contiguous key groups that a partition carries."""
    return range(
        -(-partition * max_parallelism // partitions),
        -(-(partition + 1) * max_parallelism // partitions),
    )
