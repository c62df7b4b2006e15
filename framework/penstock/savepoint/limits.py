"""What a data file may demand of its reader, found out before any of it is decoded.

A small file can ask for a lot of memory: a footer that names more rows than there are, pages that
say they are huge, one long value repeated a million times by a dictionary. Whoever restores a
savepoint may not know who wrote it, and the sums only prove that it is what that person wrote.
"""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.failure import CorruptedObject
from penstock.savepoint.manifest import FileEntry
from penstock.savepoint.pages import BYTE_ARRAY, Footer, Page, footer

MAX_ROWS = 16_000_000
"""Of one file; ours have a million at most."""
MAX_VALUES = 256_000_000
"""Of one column in one row group, elements of lists counted one by one."""
MAX_PAGE_BYTES = 256 * 1024**2
MAX_GROUP_BYTES = 2 * 1024**3
MAX_BATCH_BYTES = 1024**3
"""Of BATCH_ROWS rows, decoded."""
BATCH_ROWS = 16 * 1024
_DELTA_BYTE_ARRAY = 7
"""The encoding that repeats the start of the value before: only a decoder knows the size."""


def damaged(file: FileEntry, where: str, reason: str) -> CorruptedObject:
    """The error for a data file that cannot be used."""
    return CorruptedObject(
        f"file {file.path!r} of savepoint {where} is damaged: {reason}; put the file back from a "
        "copy of the savepoint, or take the savepoint again"
    )


@contextlib.contextmanager
def checked(data: bytes, file: FileEntry, where: str) -> Iterator[pa.BufferReader]:
    """The file as something to read, once it is known to be within all limits.

    Whatever goes wrong with it inside the ``with`` comes out as CorruptedObject naming it.
    """
    try:
        found = footer(data)
        source = pa.BufferReader(_owned(data))
        reason = _excess(found, file) or _repeated(source, found)
        if reason is not None:
            raise damaged(file, where, reason)
        yield source
    except (pa.ArrowException, ValueError, OSError, MemoryError, OverflowError, KeyError) as error:
        raise damaged(file, where, str(error) or type(error).__name__) from error


def _owned(data: bytes) -> pa.Buffer:
    """``data`` in Arrow's memory.

    Arrow's threads may let go of a file as late as while Python ends. Giving back memory of
    Python's then needs the interpreter, which is gone, and aborts the process.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


def _excess(found: Footer, file: FileEntry) -> str | None:
    """What footer and page headers ask for beyond the limits, or against the manifest."""
    if found.rows != file.rows:
        return f"it says {found.rows} rows, the manifest {file.rows}"
    if found.rows > MAX_ROWS:
        return f"it says {found.rows} rows, more than {MAX_ROWS}"
    if sum(group.rows for group in found.groups) != found.rows:
        return "its row groups have other rows than it says"
    for group in found.groups:
        if group.rows < 0:
            return f"a row group says {group.rows} rows"
        for column in group.columns:
            reason = _page_excess(column.pages)
            if reason is not None:
                return f"column {column.path!r} {reason}"
        total = sum(page.size for column in group.columns for page in column.pages)
        if total > MAX_GROUP_BYTES:
            return f"a row group has {total} bytes, more than {MAX_GROUP_BYTES}"
    return None


def _page_excess(pages: tuple[Page, ...]) -> str | None:
    values = sum(page.values for page in pages if not page.is_dictionary)
    if values > MAX_VALUES:
        return f"says {values} values in a row group, more than {MAX_VALUES}"
    for page in pages:
        if page.size > MAX_PAGE_BYTES:
            return f"has a page that says {page.size} bytes, more than {MAX_PAGE_BYTES}"
        if page.encoding == _DELTA_BYTE_ARRAY:
            return "is encoded as DELTA_BYTE_ARRAY, which the format does not have"
    return None


def _repeated(source: pa.BufferReader, found: Footer) -> str | None:
    """What is too large once the dictionaries of text and bytes are spelled out."""
    paths = {
        column.path
        for group in found.groups
        for column in group.columns
        if column.kind == BYTE_ARRAY and any(page.is_dictionary for page in column.pages)
    }
    if not paths:
        return None
    parquet = pq.ParquetFile(source, read_dictionary=sorted(paths))
    for batch in parquet.iter_batches(BATCH_ROWS, columns=sorted(paths)):
        size = sum(_spelled_out(column) for column in batch.columns)
        if size > MAX_BATCH_BYTES:
            return f"{batch.num_rows} of its rows have {size} bytes, more than {MAX_BATCH_BYTES}"
    return None


def _spelled_out(array: pa.Array) -> int:
    """Bytes of the text and bytes in an array, however often a dictionary repeats them."""
    if isinstance(array, pa.DictionaryArray):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    if isinstance(array, pa.StructArray):
        return sum(_spelled_out(part) for part in array.flatten())
    if isinstance(array, pa.MapArray):
        return _spelled_out(array.keys) + _spelled_out(array.items)
    if isinstance(array, pa.ListArray):
        return _spelled_out(array.flatten())
    return 0
