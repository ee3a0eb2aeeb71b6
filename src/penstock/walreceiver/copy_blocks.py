"""Rows of a query by COPY in binary format, many at a time (libpqrcv_exec of copy_table).

In: an ordinary session and a query. Out: blocks of rows, in which the caller finds columns; or the
error that the server, or the way to it, has ended the copy with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from penstock.protocol.copy_block import CopyBlock
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.libpq_copy import LibpqCopy
from penstock.walreceiver.socket_copy import Prefixes, SocketCopy

_LARGEST: Final = 64 << 20
"""Bytes of a block, but for a row that is larger."""
_LINGER_S: Final = 0.2
"""Seconds without a byte after which what is there is handed out."""


def start_copy(
    connection: Connection,
    query: str,
    fields: int,
    *,
    by_libpq: bool,
    block_bytes: int,
    prefixes: Prefixes,
) -> SocketCopy | LibpqCopy:
    """A copy of a query of so many columns, 1 at least.

    ``by_libpq``: what ``is_encrypted`` says. ``block_bytes``: of messages, 64 MB at
    most, and what a row has above it. Raises ConnectionFailure, and whatever the query fails with.
    """
    block_bytes = min(block_bytes, _LARGEST)
    if by_libpq:
        return LibpqCopy(connection, query, block_bytes=block_bytes, prefixes=prefixes)
    return SocketCopy(connection, query, fields, block_bytes=block_bytes, prefixes=prefixes)


def blocks_of(
    copy: SocketCopy | LibpqCopy, interrupt: Callable[[], None] | None = None
) -> Generator[CopyBlock]:
    """Its rows, to be closed; a block is there until the next one is asked for.

    ``interrupt``: asked before each look; what it raises ends the copy. Raises ProtocolViolation,
    ConnectionFailure, and whatever the query fails with.
    """
    try:
        while not copy.ended:
            if interrupt is not None:
                interrupt()
            if len(rows := copy.read(_LINGER_S, _LINGER_S)):
                yield rows
    finally:
        copy.close()
