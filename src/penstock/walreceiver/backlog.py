"""A backlog, fetched by a slot function instead of a stream (logicalfuncs.c).

In: sessions, a slot, an LSN and the options for pgoutput. Out: the messages that a stream would
bring from there on, up to where the publisher's WAL ended at the start. A walsender sends one
message at a time, which takes it several times as long as decoding. The rows of a function are sent
8 kB at a time.

The WAL is cut into windows, which lanes (``backlog_lane``) decode side by side and hand out in
order: while one is read, the next one is decoded. A window lies between two positions, so its
limits are known before it is decoded. The server decides which transactions lie in it; this file
checks that. The subscription's own slot follows the cuts only (law 1).

Rows come by COPY, from the session's socket. If the session is encrypted, they come by a query,
whose values are of bounded length. A longer message raises TooLong; then the whole backlog begins
again, by COPY through libpq, which reads messages one by one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.errors import ConnectionFailure, PenstockError, ProtocolViolation, PublisherError
from penstock.lsn import Lsn
from penstock.pgoutput.chunk import MessageChunk
from penstock.walreceiver.backlog_lane import PREFIX, Lane, Window

_MESSAGES: Final = 4_000_000
"""The number of messages that a lane is asked for at once. The server keeps them in a temporary
file."""

_PREFERRED_MESSAGES: Final = 1_500_000
_PREFERRED_BYTES: Final = 256 << 20
"""The most that a window should bring. A window should not bring little either: each decodes again
from the slot's restart_lsn, which costs more than half as much a message as sending it."""

_REST_BYTES: Final = 8 << 20
"""Bytes after which the end of a window also ends a batch."""

_FIRST_WAL: Final = 128 << 20
"""The most bytes of WAL in each window of the first round."""

SMALLEST_WAL: Final = 8 << 20
"""Bytes of WAL below which windows are not made smaller."""

_GROWTH: Final = 4
"""The most times that a window may be as large as the one before."""

_PAGES: Final = 64 << 10
"""The largest size of a WAL page (XLOG_BLCKSZ). Windows end where a page ends: no record begins
between a page's end and the end of the record before it."""

_AT_THE_END_S: Final = 0.01
"""The least seconds that ``receive`` waits at the end of the backlog, so that its caller does not
spin."""

_ADVANCE_WAL: Final = 1 << 30
_ADVANCE_S: Final = 60.0
"""Bytes or seconds after which the subscription's slot follows, so that the publisher recycles its
WAL and does not take the slot for an idle one. Moving a slot costs a pass over that WAL."""

_LAST_S: Final = 60.0
"""Seconds that the publisher has to move the slot at the end."""

_BEGIN: Final = b"B"
_BEGIN_LSN: Final = slice(1, 9)
_COMMIT: Final = b"C"
_COMMIT_LSN: Final = slice(2, 10)

logger = logging.getLogger(__name__)


class Backlog:
    """Read the backlog of a slot. It has the reading side of ``ReplicationStream``, and an end."""

    far_behind: Final = True

    def __init__(self, lanes: Sequence[Lane], slot: str, start: Lsn, target: Lsn) -> None:
        """``target``: the position at which the backlog ends."""
        self._lanes = lanes
        self._slot = slot
        self._asked: deque[tuple[Lane, Window]] = deque()
        """The windows that lanes work on, in the order of the WAL."""
        self._window_began = start
        """The position where the first of them began; only a rest of it may be left."""
        self._planned: deque[Window] = deque()
        """The windows of a round that no lane works on yet; each lane gets one."""
        self._end = start
        """The end of the last planned window."""
        self._wal = _FIRST_WAL
        self._messages = self._bytes = self._unrested = 0
        self._done = False
        self._between = True
        """True while nothing has come of the window whose turn it is."""
        self._woken = threading.Event()
        self._flush = self._advanced = start
        self._advanced_at = time.monotonic()
        for lane in lanes:
            lane.connection.interrupt = self._check_wanted
        self.received_lsn = start
        """The position before which everything has arrived. It moves at the end of each window."""
        self.latest_end_lsn = target
        self.last_send_time_us = 0
        """Stays 0: rows of a function carry no time."""
        self.last_receipt_time_us = 0
        self.finished = False
        """True once the whole backlog has been handed out."""
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
        """Tell whether a batch should end here: at the end of a window while the next one is still
        being decoded, so that what has come need not wait for it. A pause amid a window does not
        end a batch."""
        if not self._done:
            if not self._between or self._unrested < _REST_BYTES:
                return False
            if self._asked and self._asked[0][0].ready:
                return False
        self._unrested = 0
        return self._between

    def confirm(self, lsn: Lsn, frames: int) -> None:
        """Do nothing. ``hold`` gives the position, and the slot follows at the next window if it is
        far enough behind."""

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
        """Cancel what the publisher is doing; the temporary slots end with the sessions. If the
        whole backlog was read, move the subscription's slot to the last cut: else the stream would
        have to decode all of it again."""
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
        """Close the sessions, even if something is under way."""
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
        """Plan windows of the same size, so that lanes which begin together end together."""
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
        """Check that the transactions belong to the window. So none comes in two windows, and
        commits come in the order of the WAL. Raises PublisherError if the server divides the WAL in
        another way than we do."""
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
        """End a window: ask how far the function came, and keep the rest if it was cut short."""
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
            # the commit before. The stream reads the rest.
            self.ended_early = position < min(window.upto, self.latest_end_lsn)
            self._done = position >= self.latest_end_lsn or self.ended_early
        self.received_lsn = max(self.received_lsn, position)
        if self._done:
            self._cancel()

    def _resize(self, start: Lsn, upto: Lsn) -> None:
        """Choose the size of later windows by what this one has brought."""
        self._window_began = upto
        full = max(
            self._messages / _PREFERRED_MESSAGES, self._bytes / _PREFERRED_BYTES, 1 / _GROWTH
        )
        self._wal = max(SMALLEST_WAL, int((upto - start) / full))
        self._messages = self._bytes = 0
