"""A backlog, fetched by COPY of a slot function instead of a stream (logicalfuncs.c).

In: a ``Connection``, a slot, an LSN and the options for pgoutput. Out: the messages that a stream
would bring from there on, as XLogData frames, up to where the publisher's WAL ended at the start. A
walsender sends one message at a time, which takes it several times as long as decoding; a function
whose result is copied sends 8 kB at a time.

The function consumes what it returns, so it works on a temporary copy of the slot that ends with
the connection. Windows bound what it holds at once, as it decodes a window to its end before it
sends the first row. The subscription's own slot follows the cuts only (law 1).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from penstock.errors import ConnectionFailure, PenstockError, ProtocolViolation, PublisherError
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.copy_data import CopyReader
from penstock.walreceiver.libpq_errors import result_failure
from penstock.walreceiver.slots import slot_state

_MESSAGES: Final = 1_000_000
"""Messages in a window. Every window decodes again from the slot's restart_lsn."""

_FIRST_WAL: Final = 256 << 20
"""Bytes of WAL in the first window, and in the smallest."""

_FEW_BYTES: Final = 128 << 20
_MANY_BYTES: Final = 512 << 20
"""A window that brought less is followed by a larger one, one that brought more by a smaller."""

_ADVANCE_WAL: Final = 1 << 30
"""Bytes after which the subscription's slot follows, so that the publisher recycles its WAL. Doing
it is a pass over that WAL."""

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_FILE_HEADER: Final = len(_SIGNATURE) + 4 + 4
_ROW: Final = b"\0\1"
_TRAILER: Final = b"\xff\xff"
_DATA_AT: Final = 2 + 4
"""Field count and the length of the only field."""

_XLOGDATA: Final = b"w" + bytes(24)
"""In front of each message, so that it looks like one of a stream; the function has no positions
to tell but those inside the messages."""

_PREFIX: Final = "could not read the backlog: "

logger = logging.getLogger(__name__)


class Backlog:
    """What waits in a slot. Has the reading side of ``ReplicationStream``, and an end."""

    def __init__(
        self, connection: Connection, slot: str, start: Lsn, target: Lsn, options: PgoutputOptions
    ) -> None:
        """``target``: the position at which it ends. Raises PublisherError, ConnectionFailure."""
        self._connection = connection
        self._slot = slot
        self._copy = f"{slot[:40]}_backlog_{connection.backend_pid}"
        self._options = options
        self._reader: CopyReader | None = None
        self._wal = _FIRST_WAL
        self._bytes = 0
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
    ) -> list[bytes]:
        """XLogData frames that are here now, up to the limits; [] after ``timeout_s``.

        Raises PublisherError (whatever the function refuses), ConnectionFailure,
        ProtocolViolation.
        """
        if self._done:
            self.finished = True
            self._woken.wait(timeout_s)
            return []
        try:
            return self._receive(timeout_s, max_bytes, max_frames)
        except (ConnectionFailure, ProtocolViolation):
            raise
        except PenstockError as error:
            raise PublisherError(
                error.message, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate
            ) from error

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
        if self._reader is not None:
            self._connection.cancel()

    def close(self) -> None:
        """Close the connection, whatever is under way."""
        self._connection.close()

    def _receive(self, timeout_s: float, max_bytes: int, max_frames: int) -> list[bytes]:
        reader = self._reader or self._begin_window()
        frames = self._rows(reader, max_bytes, max_frames)
        if not frames and not reader.ended and self._connection.wait_readable(timeout_s):
            frames = self._rows(reader, max_bytes, max_frames)
        if reader.error is not None:
            raise self._connection.broken(str(reader.error), _PREFIX)
        if reader.ended:
            self._end_window()
        return frames

    def _open(self, start: Lsn) -> None:
        slot, copy = quote_literal(self._slot), quote_literal(self._copy)
        self._query(f"SELECT pg_catalog.pg_copy_logical_replication_slot({slot}, {copy}, true)")
        if start > self._position():
            self._query(f"SELECT pg_catalog.pg_replication_slot_advance({copy}, '{start}')")
        logger.info(
            'slot "%s" is %d MB behind: fetching the backlog by COPY',
            self._slot,
            (self.latest_end_lsn - start) >> 20,
        )

    def _begin_window(self) -> CopyReader:
        if self._flush - self._advanced >= _ADVANCE_WAL:
            slot = quote_literal(self._slot)
            self._query(f"SELECT pg_catalog.pg_replication_slot_advance({slot}, '{self._flush}')")
            self._advanced = self._flush
        upto = Lsn(min(self.latest_end_lsn, self.received_lsn + self._wal))
        options = ", ".join(map(quote_literal, self._options.arguments()))
        result = self._connection.execute(
            "COPY (SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes("
            f"{quote_literal(self._copy)}, '{upto}', {_MESSAGES}, {options}))"
            " TO STDOUT (FORMAT binary)",
            prefix=_PREFIX,
        )
        if result.status != ExecStatus.COPY_OUT:
            raise ConnectionFailure(_PREFIX + "COPY did not start")
        self._bytes = 0
        self._reader = CopyReader(self._connection.pgconn)
        return self._reader

    def _rows(self, reader: CopyReader, max_bytes: int, max_frames: int) -> list[bytes]:
        rows = reader.read(max_bytes=max_bytes, max_messages=max_frames)
        if rows and rows[0].startswith(_SIGNATURE):
            rows[0] = rows[0][_FILE_HEADER:]
        if rows and rows[-1] == _TRAILER:
            rows.pop()
        if not all(row.startswith(_ROW) for row in rows):
            raise ProtocolViolation("unexpected row in a copy of changes")
        self._bytes += sum(map(len, rows))
        self.last_receipt_time_us = time.time_ns() // 1000
        return [_XLOGDATA + row[_DATA_AT:] for row in rows]

    def _end_window(self) -> None:
        """See how the copy ended and how far the function came."""
        self._reader = None
        try:
            while (result := self._connection.next_result()) is not None:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise result_failure(result, _PREFIX)
        except psycopg.Error as error:
            raise self._connection.broken(str(error), _PREFIX) from None
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
    connection: Connection, slot: str, start: Lsn, options: PgoutputOptions, *, threshold: int
) -> Backlog | None:
    """What waits in ``slot`` after ``start``; None, and the connection closed, unless it is
    more than ``threshold`` bytes of WAL and the publisher lets us copy the slot.
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
                return Backlog(connection, slot, begin, target, options)
    except PenstockError as error:
        # A free slot may be missing, or a right: the stream needs neither.
        logger.warning("%s; streaming it instead", error.message)
    connection.close()
    return None
