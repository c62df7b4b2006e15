"""Footer and page headers of a Parquet file: what it says of itself, without decoding any page.

Read by ourselves, for two reasons. The sizes that a page claims are in no interface of pyarrow; and
pyarrow 26 ends the process over some footers instead of raising. Only what bounds a reader's memory
is kept.
"""

from typing import Any, NamedTuple

from penstock.savepoint.thrift import ThriftDamaged, ThriftReader

BYTE_ARRAY = 6
"""Parquet's type of text and bytes, which have any length."""
_MAGIC = b"PAR1"
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_HEADERS = {_DATA: (5, 2), _DICTIONARY: (7, 2), _DATA_V2: (8, 4)}
"""By type of page, the field of its own header, and of the encoding inside that."""


class Page(NamedTuple):
    """A page of a column."""

    size: int
    """Bytes once uncompressed."""
    values: int
    encoding: int
    is_dictionary: bool


class Column(NamedTuple):
    """A column of a row group."""

    path: str
    kind: int
    pages: tuple[Page, ...]


class RowGroup(NamedTuple):
    """Some rows, column by column."""

    rows: int
    columns: tuple[Column, ...]


class Footer(NamedTuple):
    """A file as it describes itself."""

    rows: int
    groups: tuple[RowGroup, ...]


def footer(data: bytes) -> Footer:
    """The description of the file ``data``, page by page. Raises ThriftDamaged."""
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise ThriftDamaged("it is no Parquet file")
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if start < 4:
        raise ThriftDamaged("its footer is longer than the file")
    fields = ThriftReader(data, start, len(data) - 8).struct()
    groups = [_row_group(data, start, group) for group in _list(fields, 4)]
    return Footer(_number(fields, 3), tuple(groups))


def _row_group(data: bytes, stop: int, group: Any) -> RowGroup:
    fields = _struct(group)
    columns = [_column(data, stop, column) for column in _list(fields, 1)]
    return RowGroup(_number(fields, 3), tuple(columns))


def _column(data: bytes, stop: int, chunk: Any) -> Column:
    if 1 in _struct(chunk):
        raise ThriftDamaged("a column is in another file")
    fields = _struct(chunk.get(3))
    start = _number(fields, 9)
    dictionary = fields.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    end = start + _number(fields, 7)
    if not 4 <= start <= end <= stop:
        raise ThriftDamaged("a column lies outside of the file")
    path = b".".join(part for part in _list(fields, 3) if isinstance(part, bytes))
    return Column(path.decode(), _number(fields, 1), tuple(_pages(data, start, end)))


def _pages(data: bytes, start: int, stop: int) -> list[Page]:
    reader = ThriftReader(data, start, stop)
    found: list[Page] = []
    while reader.at < stop:
        header = reader.struct()
        page = _page(header)
        stored = _number(header, 3)
        if min(stored, page.size, page.values) < 0 or stored > stop - reader.at:
            raise ThriftDamaged("a page leaves its column")
        reader.at += stored
        found.append(page)
    return found


def _page(header: dict[int, Any]) -> Page:
    kind = _number(header, 1)
    if kind not in _HEADERS:
        raise ThriftDamaged(f"a page is of the unknown type {kind}")
    own, encoding = _HEADERS[kind]
    fields = _struct(header.get(own))
    return Page(
        _number(header, 2), _number(fields, 1), _number(fields, encoding), kind == _DICTIONARY
    )


def _struct(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise ThriftDamaged("a header has no struct where one belongs")
    return value


def _list(fields: dict[int, Any], number: int) -> list[Any]:
    value = fields.get(number)
    if not isinstance(value, list):
        raise ThriftDamaged(f"a header has no list in field {number}")
    return value


def _number(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int:
        raise ThriftDamaged(f"a header has no number in field {number}")
    return value
