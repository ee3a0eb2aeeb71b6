"""Rows of COPY TO STDOUT (copyto.c; File Formats of COPY).

In: cells as bytes, in the client's encoding for text, in the type's send format for binary. Out:
the data of CopyData messages. One message a row, as the server does it and psql expects it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

from penstock.protocol.backend_messages import copy_data
from penstock.protocol.framing import LENGTH_SIZE

TEXT_NULL: Final = b"\\N"
BINARY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack("!II", 0, 0)
"""Signature, flags (no OIDs), length of the header extension."""
BINARY_END: Final = copy_data(b"\xff\xff")
"""The trailer, as a CopyData message."""

_SPECIAL: Final = re.compile(rb"[\x08-\x0d\\]")
_ESCAPES: Final = {
    b"\b": rb"\b",
    b"\t": rb"\t",
    b"\n": rb"\n",
    b"\v": rb"\v",
    b"\f": rb"\f",
    b"\r": rb"\r",
    b"\\": rb"\\",
}
_MINUS_ONE: Final = b"\xff\xff\xff\xff"
_PACK_LENGTH: Final = struct.Struct("!I").pack


def escape_text(cell: bytes) -> bytes:
    """A cell in text format with the default delimiter, tab (CopyAttributeOutText)."""
    if _SPECIAL.search(cell) is None:
        return cell
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], cell)


def text_row(cells: Sequence[bytes | None]) -> bytes:
    """One row with its line end; None is NULL. No cells at all is an empty line."""
    return b"\t".join([TEXT_NULL if c is None else escape_text(c) for c in cells]) + b"\n"


def binary_row(cells: Sequence[bytes | None]) -> bytes:
    """One row; None is NULL."""
    parts = [struct.pack("!H", len(cells))]
    for cell in cells:
        parts += (_MINUS_ONE,) if cell is None else (_PACK_LENGTH(len(cell)), cell)
    return b"".join(parts)


def text_messages(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    """A CopyData message for each row, joined."""
    return b"".join([copy_data(text_row(row)) for row in rows])


def binary_messages(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    """A CopyData message for each row, joined; see ``with_binary_header``."""
    return b"".join([copy_data(binary_row(row)) for row in rows])


def with_binary_header(messages: bytes) -> bytes:
    """The first CopyData messages of a binary COPY, or its BINARY_END where it has no row.

    The header shares a message with what comes first, as the server does it: psycopg cannot read
    one that comes alone.
    """
    length = int.from_bytes(messages[1 : 1 + LENGTH_SIZE], "big") + len(BINARY_HEADER)
    return b"d" + _PACK_LENGTH(length) + BINARY_HEADER + messages[1 + LENGTH_SIZE :]
