"""Rows of COPY TO STDOUT, all rows of a batch at once (copyto.c, CopySendOneRow).

In: columns of cells in PostgreSQL's text or binary format. Out: CopyData messages, a row each, as
bytes that go to the client as they are. ``copy_rows`` is the readable form for single rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.wire_rows import counted_prefix, data_of, framed, joined, lengths

_NULL: Final = b"\\N"
_SPECIAL: Final = rb"[\\\x08\t\n\v\f\r]"
_ESCAPES: Final = (
    (b"\\", b"\\\\"),
    (b"\b", b"\\b"),
    (b"\t", b"\\t"),
    (b"\n", b"\\n"),
    (b"\v", b"\\v"),
    (b"\f", b"\\f"),
    (b"\r", b"\\r"),
)
"""Backslash first, since the others bring some."""
BINARY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, flags, length of the header's extension; in front of the first row."""
BINARY_TRAILER: Final = b"\xff\xff"
_HEAD: Final = b"d\0\0\0\0"
_LENGTH_AT: Final = 1
_BINARY_NULL: Final = b"\xff\xff\xff\xff"


def text_rows(columns: Sequence[pa.Array], rows: int) -> bytes:
    """``columns``: Arrow binary, null for NULL; none at all for tables without columns."""
    if rows == 0:
        return b""
    parts: list[pa.Array | bytes] = []
    sizes = np.zeros(rows, np.int64)
    for number, cells in enumerate(columns):
        if number:
            parts.append(b"\t")
        escaped = _escaped(cells)
        if escaped.null_count:
            escaped = pc.fill_null(escaped, _NULL)
        parts.append(escaped)
        sizes += lengths(escaped)
    sizes += max(0, len(columns) - 1) + 1
    return data_of(joined([framed(_HEAD, _LENGTH_AT, _LENGTH_AT, sizes), *parts, b"\n"]))


def binary_rows(columns: Sequence[pa.Array], rows: int) -> bytes:
    """As ``text_rows``, with cells of the send functions; without header and trailer."""
    if rows == 0:
        return b""
    count = struct.pack("!H", len(columns))
    parts: list[pa.Array | bytes] = [count]
    sizes = np.full(rows, len(count), np.int64)
    for cells in columns:
        prefix, size = counted_prefix(cells, b"", _BINARY_NULL)
        parts += [prefix, cells]
        sizes += size
    return data_of(joined([framed(_HEAD, _LENGTH_AT, _LENGTH_AT, sizes), *parts]))


def _escaped(cells: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(cells, _SPECIAL)).as_py():
        return cells
    for plain, escape in _ESCAPES:
        cells = pc.replace_substring(cells, plain, escape)
    return cells
