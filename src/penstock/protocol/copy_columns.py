"""Rows of COPY TO STDOUT, all rows of a batch at once (copyto.c, CopySendOneRow).

Columns of cells in PostgreSQL's text or binary format become the bytes of CopyData messages. Each
row is one message, as a server sends it and clients may expect. ``packed`` messages are for readers
that take the contents as one stream of bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from penstock.protocol.backend_messages import copy_data
from penstock.protocol.framing import LENGTH_SIZE
from penstock.wire_rows import Column, Part, messages_of, rows_of

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
BINARY_HEADER: Final = SIGNATURE + struct.pack("!II", 0, 0)
"""Signature, flags (no OIDs), length of the header extension."""
BINARY_END: Final = copy_data(b"\xff\xff")
"""The trailer, as a CopyData message."""

_NULL: Final = b"\\N"
_PACKED: Final = 32 << 10
"""Bytes of rows in a packed message. COPY FROM reads two of them at once (RAW_BUF_SIZE)."""
_HEAD: Final = b"d\0\0\0\0"
_BINARY_NULL: Final = b"\xff\xff\xff\xff"


def text_rows(columns: Sequence[pa.Array], rows: int, *, packed: bool = False) -> bytes:
    """Return rows in text format.

    ``columns``: Arrow binary, null for NULL; none at all for tables without columns.
    """
    if rows == 0:
        return b""
    parts: list[Part] = []
    for number, cells in enumerate(columns):
        if number:
            parts.append(b"\t")
        parts.append(Column(cells, null=_NULL, escaped=True))
    return _messages([*parts, b"\n"], rows, packed)


def binary_rows(columns: Sequence[pa.Array], rows: int, *, packed: bool = False) -> bytes:
    """Return rows in binary format, without header and trailer; cells by the send functions.

    ``columns`` and ``packed``: as for ``text_rows``.
    """
    if rows == 0:
        return b""
    count = struct.pack("!H", len(columns))
    cells = (Column(each, null=_BINARY_NULL, counted=True) for each in columns)
    return _messages([count, *cells], rows, packed)


def _messages(parts: Sequence[Part], rows: int, packed: bool) -> bytes:
    if not packed:
        return messages_of(_HEAD, parts, rows)
    stream = rows_of(parts, rows)[0].tobytes()
    return b"".join(copy_data(stream[at : at + _PACKED]) for at in range(0, len(stream), _PACKED))


def binary_copy(portions: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield portions of ``binary_rows`` with header and trailer, in messages as PostgreSQL's.

    The header is in the first row's message, or in the trailer's if there is no row.
    """
    begun = False
    for rows, messages in portions:
        if messages and not begun:
            begun, messages = True, with_binary_header(messages)
        yield rows, messages
    yield 0, BINARY_END if begun else with_binary_header(BINARY_END)


def with_binary_header(messages: bytes) -> bytes:
    """Put the header into the first message of a binary COPY, which is BINARY_END without rows.

    As in a server, the header shares a message with the first row or the trailer: psycopg cannot
    read a header alone.
    """
    length = int.from_bytes(messages[1 : 1 + LENGTH_SIZE], "big") + len(BINARY_HEADER)
    return b"d" + struct.pack("!I", length) + BINARY_HEADER + messages[1 + LENGTH_SIZE :]
