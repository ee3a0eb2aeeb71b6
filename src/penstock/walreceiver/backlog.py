"""Read a backlog by a slot function instead of a stream (logicalfuncs.c).

The messages are the same as in a stream, and end where the publisher's WAL ended at the start. A
walsender sends one message at a time, which takes several times as long as decoding. The rows of a
function are sent 8 kB at a time.

The WAL is cut into windows. Lanes decode windows in parallel and return them in order: while one
window is read, the next one is decoded. A window lies between two LSNs, so its limits are known
before it is decoded. The server decides which transactions lie in it; this file checks that. The
subscription's own slot follows the cuts only (law 1).

Rows are read by COPY from the session's socket. In an encrypted session they are read by a query
that limits the length of values. A longer message raises TooLong; then the whole backlog begins
again, by COPY through libpq, which reads messages one by one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from penstock.errors import ConnectionFailure, PenstockError, ProtocolViolation, PublisherError
from penstock.identifiers import quote_literal
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import MessageChunk
from penstock.pgoutput.options import PgoutputOptions
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.copy_blocks import LibpqCopy, Prefixes, SocketCopy, start_copy
from penstock.walreceiver.libpq_errors import result_failure
from penstock.walreceiver.slots import slot_state

# Rows of one bytea column of a query, many at a time and as they come (libpq's chunked rows mode).
# libpq collects a number of rows of any size, so the query has to limit the size: ``bounded`` turns
# longer values into NULL, which is an error here.

_ROWS: Final = 64
LONGEST: Final = 1 << 20
"""The most bytes of a value. libpq may hold ``_ROWS`` values of this size."""

_LINGER_S: Final = 0.05
"""The most seconds that one call of ``read`` goes on after the first row."""

_PAUSE_S: Final = 0.005
"""Seconds without a byte after which a portion is returned, however small."""


class TooLong(Exception):
    """A value is longer than ``LONGEST``."""


def bounded(value: str) -> str:
    """Return SQL for a bytea value that is NULL if it is too long."""
    return f"CASE WHEN pg_catalog.octet_length({value}) <= {LONGEST} THEN {value} END"


def available() -> bool:
    """Return whether libpq can return chunks of rows."""
    return psycopg.capabilities.has_stream_chunked()


class BinaryRows:
    """The rows of one query. ``ended``: all rows have been returned."""

    def __init__(self, connection: Connection, sql: str, prefix: str) -> None:
        """Send the query. ``prefix``: the words before the server's messages. Raises
        ConnectionFailure."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prefix = prefix
        self._transformer = Transformer()
        self.ended = False
        try:
            self._pgconn.send_query_params(sql.encode(), None, result_format=1)
            self._pgconn.set_chunked_rows_mode(_ROWS)
            connection.flush()
        except psycopg.Error as error:
            raise connection.broken(str(error), prefix) from None

    def read(self, timeout_s: float, *, max_bytes: int, max_rows: int) -> list[bytes]:
        """Return values, up to the limits or a little more; [] after ``timeout_s`` and at the end.

        Raises TooLong, ConnectionFailure, and the query's errors.
        """
        try:
            return self._read(timeout_s, max_bytes, max_rows)
        except psycopg.Error as error:
            raise self._connection.broken(str(error), self._prefix) from None

    def _read(self, timeout_s: float, max_bytes: int, max_rows: int) -> list[bytes]:
        values: list[bytes] = []
        size, now = 0, time.monotonic()
        deadline = now + timeout_s
        while not self.ended and size < max_bytes and len(values) < max_rows:
            if not self._pgconn.is_busy():
                came = self._rows(self._pgconn.get_result())
                if came and not values:
                    deadline = time.monotonic() + _LINGER_S
                size += _size(came)
                values += came
                continue
            wait_s = deadline - time.monotonic()
            if values:
                wait_s = min(wait_s, _PAUSE_S)
            over = values and wait_s < 0  # without values, check the socket at least once
            if over or not self._connection.wait_readable(max(0.0, wait_s)):
                break
            self._pgconn.consume_input()
        return values

    def _rows(self, result: PGresult | None) -> list[bytes]:
        if result is None:
            self.ended = True
            return []
        if result.status == ExecStatus.FATAL_ERROR:
            self._to_the_end()
            raise result_failure(result, self._prefix)
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        return list(chain.from_iterable(rows))

    def _to_the_end(self) -> None:
        while self._connection.next_result() is not None:
            pass
        self.ended = True


def _size(values: list[bytes]) -> int:
    try:
        return sum(map(len, values))
    except TypeError:  # a NULL; a search for it would be slower: it compares every value
        raise TooLong from None


# A lane: one of the sessions that read a backlog, window after window. The slot function consumes
# the changes that it returns, so a lane uses a temporary copy of the slot, which ends with the
# session. The function decodes a window to its end before it sends the first row. When the window's
# turn comes, the server may have decoded and stored all of it.

PREFIX: Final = "could not read the backlog: "
"""The words in front of the server's messages."""
_PREFIXES: Final = Prefixes(PREFIX, PREFIX)

_BLOCK: Final = 8 << 20
_PATIENCE_S: Final = 0.005
"""Seconds without a byte after which a portion is returned, however small."""


@dataclass(frozen=True, slots=True)
class Window:
    """Transactions whose commit records begin at ``start`` or later, and before ``upto``."""

    start: Lsn
    upto: Lsn


class Lane:
    """A session that reads windows. ``by_copy``: read by COPY even in an encrypted session, so that
    values may have any length. A session without encryption reads values of any length anyway, and
    more quickly."""

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
        """The SQL command that returns the messages, for log messages."""
        return "query" if self._by_libpq and not self.by_copy else "COPY"

    @property
    def ended(self) -> bool:
        """True if the last window that was begun has been read to its end."""
        return self._rows is None or self._rows.ended

    @property
    def ready(self) -> bool:
        """True if a row is here: the server has decoded the last window that was begun."""
        return not self.ended and self.connection.wait_readable(0)

    def begin(self, window: Window, messages: int) -> None:
        """Ask for a window, or for its first ``messages`` messages, up to a transaction's end.
        Raises ConnectionFailure."""
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
        """Return the LSN that the function reached. Call it once all rows are read."""
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
        """Cancel, and end the session: a server that decodes notices a closed session only when it
        sends."""
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
    """Return the part of FROM before the function that reads from ``start`` on.

    One statement does it all, so that the client need not wait for the slot to move; each part
    needs the result of the part before. The first pass moves the slot to ``start``. A second pass
    to this LSN, now confirmed, makes restart_lsn as new as possible
    (LogicalIncreaseRestartDecodingForSlot). This pays: the function decodes all WAL from
    restart_lsn on again, while a pass skips the rows.
    """
    advance = "pg_catalog.pg_replication_slot_advance({}, {}) AS a{}"
    first = advance.format(copy, f"'{start}'", 1)
    if passes == 1:
        return first
    return f"{first}, LATERAL " + advance.format(copy, _after("a1", f"'{start}'"), 2)


def _after(moved: str, lsn: str) -> str:
    """Return SQL for an LSN that is NULL unless a slot was moved, so that the move runs first."""
    return f"CASE WHEN {moved}.end_lsn IS NOT NULL THEN {lsn}::pg_catalog.pg_lsn END"


_MESSAGES: Final = 4_000_000
"""The number of messages to ask a lane for. The server keeps them in a temporary file."""

_PREFERRED_MESSAGES: Final = 1_500_000
_PREFERRED_BYTES: Final = 256 << 20
"""The most that a window should return. Small windows cost too much: each decodes again from the
slot's restart_lsn, and decoding a message costs more than half as much as sending it."""

_REST_BYTES: Final = 8 << 20
"""Bytes after which the end of a window also ends a batch."""

_FIRST_WAL: Final = 128 << 20
"""The most bytes of WAL in each window of the first round."""

SMALLEST_WAL: Final = 8 << 20
"""Bytes of WAL below which windows are not made smaller."""

_GROWTH: Final = 4
"""The largest ratio of a window to the window before."""

_PAGES: Final = 64 << 10
"""The largest size of a WAL page (XLOG_BLCKSZ). Windows end where a page ends: no record begins
between a page's end and the end of the record before it."""

_AT_THE_END_S: Final = 0.01
"""The least seconds that ``receive`` waits at the end of the backlog, so that its caller does not
spin."""

_ADVANCE_WAL: Final = 1 << 30
_ADVANCE_S: Final = 60.0
"""Bytes or seconds after which the subscription's slot is moved, so that the publisher recycles its
WAL and does not consider the slot idle. Moving a slot costs a pass over that WAL."""

_LAST_S: Final = 60.0
"""Seconds that the publisher has to move the slot at the end."""

_BEGIN: Final = b"B"
_BEGIN_LSN: Final = slice(1, 9)
_COMMIT: Final = b"C"
_COMMIT_LSN: Final = slice(2, 10)

logger = logging.getLogger(__name__)


class Backlog:
    """The backlog of a slot. It has the reading side of ``ReplicationStream``, and an end."""

    far_behind: Final = True

    def __init__(self, lanes: Sequence[Lane], slot: str, start: Lsn, target: Lsn) -> None:
        """``target``: the LSN at which the backlog ends."""
        self._lanes = lanes
        self._slot = slot
        self._asked: deque[tuple[Lane, Window]] = deque()
        """The windows that lanes work on, in the order of the WAL."""
        self._window_began = start
        """The LSN where the first window in ``_asked`` began; part of it may have been read."""
        self._planned: deque[Window] = deque()
        """The windows of a round that no lane works on yet; each lane gets one."""
        self._end = start
        """The end of the last planned window."""
        self._wal = _FIRST_WAL
        self._messages = self._bytes = self._unrested = 0
        self._done = False
        self._between = True
        """True until the first message of the current window has come."""
        self._woken = threading.Event()
        self._flush = self._advanced = start
        self._advanced_at = time.monotonic()
        for lane in lanes:
            lane.connection.interrupt = self._check_wanted
        self.received_lsn = start
        """The LSN before which everything has arrived. It moves at the end of each window."""
        self.latest_end_lsn = target
        self.last_send_time_us = 0
        """Stays 0: rows of a function carry no time."""
        self.last_receipt_time_us = 0
        self.finished = False
        """True once the whole backlog has been returned."""
        self.ended_early = False
        """True if the function stopped before the end of the backlog."""

    def receive(
        self, timeout_s: float, *, max_bytes: int = 8 << 20, max_frames: int = 65536
    ) -> MessageChunk:
        """Return the messages that are here now, up to the limits; none after ``timeout_s``.

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
        """Return whether a batch should end here: at the end of a window while the next one is
        still being decoded, so that received messages need not wait for it. A pause within a window
        does not end a batch."""
        if not self._done:
            if not self._between or self._unrested < _REST_BYTES:
                return False
            if self._asked and self._asked[0][0].ready:
                return False
        self._unrested = 0
        return self._between

    def confirm(self, lsn: Lsn, frames: int) -> None:
        """Do nothing. ``hold`` gives the LSN, and the slot follows at the next window if it is far
        enough behind."""

    def hold(self, lsn: Lsn | None) -> None:
        """Allow the subscription's slot to move up to ``lsn``; from any thread."""
        if lsn is not None:
            self._flush = lsn

    def wait_at_most(self, status_interval_s: float, timeout_s: float) -> None:
        """Do nothing: no status is due, and the server may take long before it sends."""

    def tick(self) -> None:
        """Do nothing: the publisher waits until its rows are read."""

    def wake(self) -> None:
        """Make the reader stop: end its waits early; from any thread."""
        self._woken.set()

    def _check_wanted(self) -> None:
        if self._woken.is_set():
            raise ConnectionFailure(PREFIX + "the subscription is stopping")

    def stop(self) -> None:
        """Cancel the publisher's work; the temporary slots end with the sessions. If the whole
        backlog was read, move the subscription's slot to the last cut; otherwise the stream would
        have to decode it all again."""
        self._cancel()
        if self._done and self._flush > self._advanced:
            lane = self._lanes[0]
            lane.connection.interrupt = None
            try:
                lane.advance(self._slot, self._flush, timeout_s=_LAST_S)
            except PenstockError as error:
                logger.info("%s; it follows with the stream", error.message)

    def _cancel(self) -> None:
        for lane in self._lanes:
            lane.cancel()

    def close(self) -> None:
        """Close the sessions, even during a command."""
        for lane in self._lanes:
            lane.close()

    def _receive(self, timeout_s: float, max_bytes: int, max_frames: int) -> MessageChunk:
        self._ask()
        lane, window = self._asked[0]
        chunk = lane.read(timeout_s, max_bytes=max_bytes, max_rows=max_frames)
        if len(chunk):
            self.last_receipt_time_us = time.time_ns() // 1000
            self._between = False
            self._check(chunk, window)
        self._messages += len(chunk)
        self._bytes += chunk.size
        self._unrested += chunk.size
        if lane.ended:
            self._end_window(lane, window)
        return chunk

    def _ask(self) -> None:
        """Give work to lanes that have none."""
        if self._asked and self._asked[0][0].ended:
            lane, window = self._asked[0]
            self._advance_slot(lane)
            lane.begin(window, _MESSAGES)  # the rest after the limit
        busy = [lane for lane, _ in self._asked]
        for lane in self._lanes:
            if lane in busy:
                continue
            if not self._planned:
                self._plan()
            if self._planned:
                self._advance_slot(lane)
                window = self._planned.popleft()
                lane.begin(window, _MESSAGES)
                self._asked.append((lane, window))

    def _plan(self) -> None:
        """Plan windows of the same size, so that lanes that begin together end together."""
        rest, lanes = self.latest_end_lsn - self._end, len(self._lanes)
        each = -(-rest // lanes)
        size = max(SMALLEST_WAL, each if each < 2 * self._wal else self._wal)
        for _ in range(lanes):
            end = Lsn(min(-(-(self._end + size) // _PAGES) * _PAGES, self.latest_end_lsn))
            if end > self._end:
                self._planned.append(Window(self._end, end))
                self._end = end

    def _advance_slot(self, lane: Lane) -> None:
        now = time.monotonic()
        due = now - self._advanced_at >= _ADVANCE_S and self._flush > self._advanced
        if due or self._flush - self._advanced >= _ADVANCE_WAL:
            self._advanced, self._advanced_at = self._flush, now
            lane.advance(self._slot, self._flush)

    def _check(self, chunk: MessageChunk, window: Window) -> None:
        """Check that the transactions belong to the window. So no transaction comes in two windows,
        and commits come in the order of the WAL. Raises PublisherError if the server divides the
        WAL differently."""
        first, last = chunk.message(0), chunk.message(len(chunk) - 1)
        if first[:1] == _BEGIN:
            self._check_lsn(first[_BEGIN_LSN], window)
        if last[:1] == _COMMIT:
            self._check_lsn(last[_COMMIT_LSN], window)

    def _check_lsn(self, lsn: bytes, window: Window) -> None:
        commit = int.from_bytes(lsn, "big")
        last_window = window.upto >= self.latest_end_lsn
        if commit < window.start or (commit >= window.upto and not last_window):
            raise PublisherError(
                f"a transaction of {Lsn(commit)} came with those of {window.start} to {window.upto}"
            )

    def _end_window(self, lane: Lane, window: Window) -> None:
        """End a window: ask for the LSN that was reached, and keep the rest of the window."""
        position = lane.end()
        logger.debug(
            "window %s to %s: %d messages, %d kB, up to %s",
            *(window.start, window.upto, self._messages, self._bytes >> 10, position),
        )
        self._between = True
        if window.start < position < window.upto:
            self._asked[0] = lane, Window(position, window.upto)
        else:
            self._asked.popleft()
            self._resize(self._window_began, window.upto)
            # Without progress the flushed WAL has ended, or the slot is a node's, which stays at
            # the last commit. The stream reads the rest.
            self.ended_early = position < min(window.upto, self.latest_end_lsn)
            self._done = position >= self.latest_end_lsn or self.ended_early
        self.received_lsn = max(self.received_lsn, position)
        if self._done:
            self._cancel()

    def _resize(self, start: Lsn, upto: Lsn) -> None:
        """Choose the size of later windows by the size of this window's result."""
        self._window_began = upto
        full = max(
            self._messages / _PREFERRED_MESSAGES, self._bytes / _PREFERRED_BYTES, 1 / _GROWTH
        )
        self._wal = max(SMALLEST_WAL, int((upto - start) / full))
        self._messages = self._bytes = 0
