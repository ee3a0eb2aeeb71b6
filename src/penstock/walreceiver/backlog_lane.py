"""A lane: one of the sessions that read a backlog, window after window.

In: a session, a slot, and windows, whose order and size ``backlog`` chooses. Out: the messages of
each window. The slot function consumes what it returns, so a lane works on a temporary copy of the
slot, which ends with the session. The function decodes a window to its end before it sends the
first row: when the window's turn comes, the server may have decoded and stored all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import ConnectionFailure
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgoutput.chunk import MessageChunk
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver.binary_rows import BinaryRows, bounded
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.copy_blocks import start_copy
from penstock.walreceiver.libpq_copy import LibpqCopy
from penstock.walreceiver.slots import slot_state
from penstock.walreceiver.socket_copy import Prefixes, SocketCopy

PREFIX: Final = "could not read the backlog: "
"""The words in front of the server's messages."""
_PREFIXES: Final = Prefixes(PREFIX, PREFIX)

_BLOCK: Final = 8 << 20
_PATIENCE_S: Final = 0.005
"""Seconds without a byte after which a portion is handed out, as large as it is."""


@dataclass(frozen=True, slots=True)
class Window:
    """Transactions whose commit records begin at ``start`` or later, and before ``upto``."""

    start: Lsn
    upto: Lsn


class Lane:
    """Read windows by one session. ``by_copy``: read by COPY even if the session is encrypted, so
    that values of any length come; any session will do then. A session that is not encrypted brings
    values of any length anyway, and more quickly."""

    def __init__(
        self, connection: Connection, slot: str, options: PgoutputOptions, *, by_copy: bool
    ) -> None:
        """Copy the slot. Raises PublisherError (no free slot 53400), ConnectionFailure."""
        self.connection = connection
        self.by_copy = by_copy
        self._options = options
        self._copy = f"{slot[:40]}_backlog_{connection.backend_pid}"
        self._rows: BinaryRows | LibpqCopy | SocketCopy | None = None
        self._by_libpq = connection.is_encrypted()
        names = f"{quote_literal(slot)}, {quote_literal(self._copy)}"
        self._query(f"SELECT pg_catalog.pg_copy_logical_replication_slot({names}, true)")
        self._position = self._confirmed()

    @property
    def way(self) -> str:
        """The SQL command by which messages come, for the log."""
        return "query" if self._by_libpq and not self.by_copy else "COPY"

    @property
    def ended(self) -> bool:
        """True if nothing is left to read of what was begun last."""
        return self._rows is None or self._rows.ended

    @property
    def ready(self) -> bool:
        """True if a row is here, so that the server has decoded what was begun last."""
        return not self.ended and self.connection.wait_readable(0)

    def begin(self, window: Window, messages: int) -> None:
        """Ask for a window, or for as much of it as so many ``messages`` and the end of their last
        transaction bring. Raises ConnectionFailure."""
        copy, upto = quote_literal(self._copy), f"'{window.upto}'"
        options = ", ".join(map(quote_literal, self._options.arguments()))
        changes = "pg_catalog.pg_logical_slot_get_binary_changes({}, {}, {}, {}) AS c"
        if self.by_copy:
            if window.start > self._position:
                self.advance(self._copy, window.start)
            self._rows = self._copied(changes.format(copy, upto, messages, options))
            return
        passes = 1 if window.start <= self._position else 2
        upto = _after(f"a{passes}", upto)
        source = (
            f"{_moved(copy, max(window.start, self._position), passes)}, LATERAL "
            + changes.format(copy, upto, messages, options)
        )
        if self._by_libpq:
            sql = f"SELECT {bounded('c.data')} FROM {source}"
            self._rows = BinaryRows(self.connection, sql, PREFIX)
        else:
            self._rows = self._copied(source)

    def _copied(self, source: str) -> LibpqCopy | SocketCopy:
        return start_copy(
            self.connection,
            f"SELECT c.data FROM {source}",
            1,
            by_libpq=self._by_libpq,
            block_bytes=_BLOCK,
            prefixes=_PREFIXES,
        )

    def read(self, timeout_s: float, *, max_bytes: int, max_rows: int) -> MessageChunk:
        """Return the messages that are here now, up to the limits or a little more; none after
        ``timeout_s``.

        Raises TooLong, ProtocolViolation, ConnectionFailure, and the function's errors."""
        assert self._rows is not None
        if isinstance(self._rows, BinaryRows):
            rows = self._rows.read(timeout_s, max_bytes=max_bytes, max_rows=max_rows)
            return MessageChunk.of_messages(rows)
        (cells,) = self._rows.read(timeout_s, _PATIENCE_S).cells(1)
        return MessageChunk.of_cells(cells)

    def end(self) -> Lsn:
        """Return how far the function came, once all rows are read."""
        self._rows = None
        self._position = self._confirmed()
        return self._position

    def advance(self, slot: str, lsn: Lsn, timeout_s: float | None = None) -> None:
        """Move a slot that nobody streams from, and its restart_lsn with it. After ``timeout_s``
        the session ends, with an error."""
        moved = _moved(quote_literal(slot), lsn, 1 if self.by_copy else 2)
        self.connection.query(f"SELECT 1 FROM {moved}", prefix=PREFIX, timeout_s=timeout_s)

    def cancel(self) -> None:
        """Cancel the running command."""
        if not self.ended:
            self.connection.cancel()

    def close(self) -> None:
        """End the session, and cancel first: a server that decodes notices a closed session only
        when it sends."""
        self.cancel()
        self.connection.close()

    def _confirmed(self) -> Lsn:
        state = slot_state(self.connection, self._copy)
        if state is None or state.confirmed_flush_lsn is None:
            raise ConnectionFailure(PREFIX + f'temporary slot "{self._copy}" is gone')
        return state.confirmed_flush_lsn

    def _query(self, sql: str) -> None:
        self.connection.query(sql, prefix=PREFIX)


def _moved(copy: str, start: Lsn, passes: int) -> str:
    """Return what stands in FROM before the function that reads from ``start`` on.

    All is one statement, so that nobody here waits for the slot to move; each part needs the one
    before. The first pass moves the slot to ``start``. A second pass to the same position, which is
    confirmed by then, makes restart_lsn as new as possible (LogicalIncreaseRestartDecodingForSlot).
    It pays: the function decodes everything from restart_lsn on again, while a pass skips the rows.
    """
    advance = "pg_catalog.pg_replication_slot_advance({}, {}) AS a{}"
    first = advance.format(copy, f"'{start}'", 1)
    if passes == 1:
        return first
    return f"{first}, LATERAL " + advance.format(copy, _after("a1", f"'{start}'"), 2)


def _after(moved: str, lsn: str) -> str:
    """Return SQL for the position that is NULL unless a slot was moved, so that the move runs
    first."""
    return f"CASE WHEN {moved}.end_lsn IS NOT NULL THEN {lsn}::pg_catalog.pg_lsn END"
