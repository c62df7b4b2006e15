"""Thrift's compact protocol, as far as the headers of a Parquet file need it.

A struct becomes a dict by field number, a list a list, text and bytes are bytes. What is read may
have been written to harm: nothing is allocated for a length that is only claimed.
"""

from typing import Any

_MOST_DEPTH = 16


class ThriftDamaged(ValueError):
    """Bytes that are no struct of the compact protocol, or too large a one."""


class ThriftReader:
    """Reads structs one after the other.

    Args:
        data: the file.
        at: where the first struct begins.
        stop: where the last one has to end.
        values: at most so many values are read in all.
    """

    def __init__(self, data: bytes, at: int, stop: int, values: int = 1_000_000) -> None:
        self.at = at
        self._data = data
        self._stop = stop
        self._left = values

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The struct that begins here; ``at`` is behind it then. Raises ThriftDamaged."""
        if depth > _MOST_DEPTH:
            raise ThriftDamaged("a header is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ThriftDamaged("a header has too many values")
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                head = self._byte()
                size = head >> 4 if head >> 4 < 15 else self._unsigned()
                return [self._value(head & 15, depth + 1) for _ in range(size)]
            case 12:
                return self.struct(depth + 1)
        raise ThriftDamaged(f"a header has a value of the unknown type {kind}")

    def _byte(self) -> int:
        at = self.at
        if at >= self._stop:
            raise ThriftDamaged("a header ends too late")
        self.at = at + 1
        return self._data[at]

    def _bytes(self, size: int) -> bytes:
        start = self.at
        if size > self._stop - start:
            raise ThriftDamaged("a header ends too late")
        self.at = start + size
        return bytes(self._data[start : self.at])

    def _signed(self) -> int:
        number = self._unsigned()
        return (number >> 1) ^ -(number & 1)

    def _unsigned(self) -> int:
        number = shift = 0
        while shift < 64:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7
        raise ThriftDamaged("a header has a number without end")
