"""A backlog, fetched by a slot function instead of a stream (logicalfuncs.c).

In: a ``Connection``, a slot, an LSN and the options for pgoutput. Out: the messages that a stream
would bring from there on, up to where the publisher's WAL ended at the start. A walsender sends one
message at a time, which takes it several times as long as decoding; the rows of a function are sent
8 kB at a time.

The function consumes what it returns, so it works on a temporary copy of the slot that ends with
the connection. Windows bound what it holds at once, as it decodes a window to its end before it
sends the first row. The subscription's own slot follows the cuts only (law 1).

Its rows come by a query, whose values are of bounded length. Longer messages come by COPY, one by
one; that is for the whole backlog, which then begins again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.errors import ConnectionFailure, PenstockError, ProtocolViolation, PublisherError
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgoutput.chunk import MessageChunk
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver.binary_rows import BinaryRows, bounded
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.copied_rows import CopiedRows
from penstock.walreceiver.slots import slot_state

_MESSAGES: Final = 1_000_000
"""Messages in a window. Every window decodes again from the slot's restart_lsn."""

_FIRST_MESSAGES: Final = 250_000
"""Of the first window: until it is decoded there is nothing to do here."""

_REST_BYTES: Final = 8 << 20
"""When so much has come, the end of a window is the end of a batch, too."""

_FIRST_WAL: Final = 256 << 20
"""Bytes of WAL in the first window, and in the smallest."""

_FEW_BYTES: Final = 128 << 20
_MANY_BYTES: Final = 512 << 20
"""A window that brought less is followed by a larger one, one that brought more by a smaller."""

_AT_THE_END_S: Final = 0.01
"""Seconds between two looks of who asks for more at the end, at least."""

_ADVANCE_WAL: Final = 1 << 30
"""Bytes after which the subscription's slot follows, so that the publisher recycles its WAL. Doing
it is a pass over that WAL."""

_PREFIX: Final = "could not read the backlog: "

logger = logging.getLogger(__name__)


class Backlog:
    """What waits in a slot. Has the reading side of ``ReplicationStream``, and an end."""

    far_behind: Final = True

    def __init__(
        self,
        connection: Connection,
        slot: str,
        start: Lsn,
        target: Lsn,
        options: PgoutputOptions,
        *,
        by_copy: bool,
    ) -> None:
        """``target``: the position at which it ends. ``connection``: an ordinary session, unless
        it is ``by_copy``. Raises PublisherError, ConnectionFailure."""
        self._connection = connection
        self._slot = slot
        self._copy = f"{slot[:40]}_backlog_{connection.backend_pid}"
        self._options = options
        self._by_copy = by_copy
        self._window: BinaryRows | CopiedRows | None = None
        self._wal, self._messages = _FIRST_WAL, _FIRST_MESSAGES
        self._bytes = self._unrested = 0
        self._done = False
        self._woken = threading.Event()
        self._flush = self._advanced = start
        self.received_lsn = start
        """Everything before it has arrived. Moves at the end of each window."""
        self.latest_end_lsn = target
        self.last_send_time_us = 0
        """Not told: rows of a function have no time."""
        self.last_receipt_time_us = 0
        self.finished = False
        """All of it has been handed out, and there is no more."""
        self._open(start)

    def receive(
        self, timeout_s: float, *, max_bytes: int = 8 << 20, max_frames: int = 65536
    ) -> MessageChunk:
        """Messages that are here now, up to the limits; none after ``timeout_s``.

        Raises PublisherError (whatever the function refuses), ConnectionFailure,
        ProtocolViolation, TooLong.
        """
        if self._done:
            self.finished = True
            self._woken.wait(max(timeout_s, _AT_THE_END_S))
            return MessageChunk.of_messages(())
        try:
            return self._receive(timeout_s, max_bytes, max_frames)
        except (ConnectionFailure, ProtocolViolation):
            raise
        except PenstockError as error:
            raise PublisherError(
                error.message, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate
            ) from error

    def rests(self, came: bool) -> bool:
        """At the end of a window, which the next one follows when it is decoded: what has come
        until then need not wait. Pauses amid a window mean nothing."""
        if self._window is not None or (self._unrested < _REST_BYTES and not self._done):
            return False
        self._unrested = 0
        return True

    def confirm(self, lsn: Lsn, frames: int) -> None:
        """As of a stream. The slot follows at the next window, if it is far enough behind."""

    def hold(self, lsn: Lsn | None) -> None:
        """The subscription's slot may move up to ``lsn``; from any thread."""
        if lsn is not None:
            self._flush = lsn

    def wait_at_most(self, status_interval_s: float, timeout_s: float) -> None:
        """No status is due, and the server may think for long before it sends."""

    def tick(self) -> None:
        """Nothing is due: the publisher waits until its rows are read."""

    def wake(self) -> None:
        """End a wait at the end early; from any thread."""
        self._woken.set()

    def stop(self) -> None:
        """Cancel what the publisher is doing; the temporary slot ends with the connection."""
        if self._window is not None:
            self._connection.cancel()

    def close(self) -> None:
        """Close the connection, whatever is under way."""
        self._connection.close()

    def _receive(self, timeout_s: float, max_bytes: int, max_frames: int) -> MessageChunk:
        window = self._window or self._begin_window()
        messages = window.read(timeout_s, max_bytes=max_bytes, max_rows=max_frames)
        if messages:
            self.last_receipt_time_us = time.time_ns() // 1000
        chunk = MessageChunk.of_messages(messages)
        self._bytes += chunk.size
        self._unrested += chunk.size
        if window.ended:
            self._end_window()
        return chunk

    def _open(self, start: Lsn) -> None:
        slot, copy = quote_literal(self._slot), quote_literal(self._copy)
        self._query(f"SELECT pg_catalog.pg_copy_logical_replication_slot({slot}, {copy}, true)")
        if start > self._position():
            self._query(f"SELECT pg_catalog.pg_replication_slot_advance({copy}, '{start}')")
        logger.info(
            'slot "%s" is %d MB behind: fetching the backlog by %s',
            self._slot,
            (self.latest_end_lsn - start) >> 20,
            "COPY" if self._by_copy else "query",
        )

    def _begin_window(self) -> BinaryRows | CopiedRows:
        if self._flush - self._advanced >= _ADVANCE_WAL:
            slot = quote_literal(self._slot)
            self._query(f"SELECT pg_catalog.pg_replication_slot_advance({slot}, '{self._flush}')")
            self._advanced = self._flush
        upto = Lsn(min(self.latest_end_lsn, self.received_lsn + self._wal))
        options = ", ".join(map(quote_literal, self._options.arguments()))
        changes = (
            "pg_catalog.pg_logical_slot_get_binary_changes("
            f"{quote_literal(self._copy)}, '{upto}', {self._messages}, {options})"
        )
        self._bytes, self._messages = 0, _MESSAGES
        if self._by_copy:
            sql = f"SELECT data FROM {changes}"
            self._window = CopiedRows(self._connection, sql, _PREFIX)
        else:
            sql = f"SELECT {bounded('data')} FROM {changes}"
            self._window = BinaryRows(self._connection, sql, _PREFIX)
        return self._window

    def _end_window(self) -> None:
        """See how far the function came."""
        self._window = None
        position = self._position()
        # At the end of what is flushed: the rest is for the stream.
        self._done = position >= self.latest_end_lsn or position <= self.received_lsn
        self.received_lsn = max(self.received_lsn, position)
        if self._bytes < _FEW_BYTES:
            self._wal *= 2
        elif self._bytes > _MANY_BYTES:
            self._wal = max(_FIRST_WAL, self._wal // 2)

    def _position(self) -> Lsn:
        state = slot_state(self._connection, self._copy)
        if state is None or state.confirmed_flush_lsn is None:
            raise ConnectionFailure(_PREFIX + f'temporary slot "{self._copy}" is gone')
        return state.confirmed_flush_lsn

    def _query(self, sql: str) -> None:
        self._connection.query(sql, prefix=_PREFIX)


def open_backlog(
    connection: Connection,
    slot: str,
    start: Lsn,
    options: PgoutputOptions,
    *,
    threshold: int,
    session: Callable[[], Connection] | None = None,
) -> Backlog | None:
    """What waits in ``slot`` after ``start``; None, and the connection closed, unless it is
    more than ``threshold`` bytes of WAL and the publisher lets us copy the slot.

    ``session``: opens an ordinary one as ``connection`` was opened; None: it is fetched by COPY.
    """
    try:
        ((end,),) = connection.query(
            "SELECT CASE WHEN pg_catalog.pg_is_in_recovery()"
            " THEN pg_catalog.pg_last_wal_replay_lsn()"
            " ELSE pg_catalog.pg_current_wal_flush_lsn() END"
        )
        state = slot_state(connection, slot)
        if state is not None and state.confirmed_flush_lsn is not None:
            target, begin = Lsn.parse(str(end)), max(start, state.confirmed_flush_lsn)
            if target - begin > threshold:
                ordinary = None if session is None else _beside(connection, session)
                if ordinary is None:
                    return Backlog(connection, slot, begin, target, options, by_copy=True)
                connection.close()
                connection = ordinary
                return Backlog(connection, slot, begin, target, options, by_copy=False)
    except PenstockError as error:
        # A free slot may be missing, or a right: the stream needs neither.
        logger.warning("%s; streaming it instead", error.message)
    connection.close()
    return None


def _beside(connection: Connection, session: Callable[[], Connection]) -> Connection | None:
    """An ordinary session on the same server: a name, or a list of hosts, may lead to another one
    each time, and it would have the slot's name, too. None where there is none to be had."""
    asked = (
        "SELECT datid, backend_start, pg_catalog.current_database()"
        f" FROM pg_catalog.pg_stat_get_activity({connection.backend_pid})"
        " WHERE backend_start IS NOT NULL"
    )
    try:
        ordinary = session()
    except PenstockError as error:
        logger.info("%s; fetching the backlog by COPY instead", error.message)
        return None
    try:
        expected = connection.query(asked)
        if expected and ordinary.query(asked) == expected:
            return ordinary
        logger.info("another session led to another server; fetching the backlog by COPY instead")
    except PenstockError as error:
        logger.info("%s; fetching the backlog by COPY instead", error.message)
    except BaseException:
        ordinary.close()
        raise
    ordinary.close()
    return None
