"""Rows of a query by COPY in binary format, many at a time (libpqrcv_exec of copy_table).

In: an ordinary session and a query. Out: blocks of rows, in which the caller finds columns; or the
error by which the server or the network has ended the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from penstock.protocol.copy_block import CopyBlock
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.libpq_copy import LibpqCopy
from penstock.walreceiver.socket_copy import Prefixes, SocketCopy

_LARGEST: Final = 64 << 20
"""The most bytes of a block, unless a row is larger."""
_LINGER_S: Final = 0.2
"""Seconds without a byte after which the rows that are there are handed out."""


def start_copy(
    connection: Connection,
    query: str,
    fields: int,
    *,
    by_libpq: bool,
    block_bytes: int,
    prefixes: Prefixes,
) -> SocketCopy | LibpqCopy:
    """Start a copy of a query that has so many ``fields``, at least 1.

    ``by_libpq``: what ``is_encrypted`` says. ``block_bytes``: messages are collected up to this,
    at most 64 MB; a larger row makes a larger block. Raises ConnectionFailure, and the query's
    errors.
    """
    block_bytes = min(block_bytes, _LARGEST)
    if by_libpq:
        return LibpqCopy(connection, query, block_bytes=block_bytes, prefixes=prefixes)
    return SocketCopy(connection, query, fields, block_bytes=block_bytes, prefixes=prefixes)


def blocks_of(
    copy: SocketCopy | LibpqCopy, interrupt: Callable[[], None] | None = None
) -> Generator[CopyBlock]:
    """Yield the rows of a copy; each block is valid until the next one is asked for. The caller
    must close the generator.

    ``interrupt`` is called before each read; if it raises, the copy ends. Raises ProtocolViolation,
    ConnectionFailure, and the query's errors.
    """
    try:
        while not copy.ended:
            if interrupt is not None:
                interrupt()
            if len(rows := copy.read(_LINGER_S, _LINGER_S)):
                yield rows
    finally:
        copy.close()
