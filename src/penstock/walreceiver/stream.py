"""The change stream of one slot: frames in, status updates out (libpqrcv_startstreaming,
LogicalRepApplyLoop).

A stream begins on a ``Connection`` with a slot, an LSN and the options for pgoutput. It returns raw
XLogData frames with their headers, many at a time (``pgoutput`` decodes them), and answers
keepalives itself. ``Feedback`` decides when a status is due. One thread receives; ``confirm`` and
``hold`` may be called from any thread and wake it.

PostgreSQL: src/backend/replication/libpqwalreceiver/libpqwalreceiver.c
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ConnectionFailure, PenstockError, UndefinedObject
from penstock.identifiers import quote_literal, quoted
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.precedence import NODE, PRECEDENCE
from penstock.walreceiver.backlog import SMALLEST_WAL, Backlog, Lane
from penstock.walreceiver.connection import Connection, wait, wait_any
from penstock.walreceiver.libpq_errors import result_failure
from penstock.walreceiver.slots import slot_state

# Feedback of a stream: status updates for the publisher, and when they are due (worker.c:
# get_flush_position, send_feedback, LogicalRepApplyLoop). Pure: time is passed in (monotonic
# seconds); ``ReplicationStream`` sends. ``flush_lsn`` obeys law 1: it is the last cut while a
# returned message is not in a cut. Once nothing is pending, it is the last received LSN, so that
# idle and filtered streams advance the slot.

STATUS: Final = struct.Struct("!cQQQq?")
"""A standby status update: 'r', write, flush, apply, client time (us since 2000), reply
requested."""


@dataclass(frozen=True, slots=True)
class Status:
    """A standby status update (protocol chapter "Streaming Replication Protocol", 'r')."""

    write: Lsn
    flush: Lsn
    apply: Lsn
    reply_requested: bool = False

    def encode(self, unix_time_us: int) -> bytes:
        """Return the 34 bytes for CopyData."""
        client_time = unix_time_us - EPOCH_MICROSECONDS
        return STATUS.pack(
            b"r", self.write, self.flush, self.apply, client_time, self.reply_requested
        )


class Feedback:
    """The LSNs of one stream, and the decision when a status is due.

    ``status_interval_s``: wal_receiver_status_interval, 0 = only when asked. ``timeout_s``:
    wal_receiver_timeout, 0 = never. ``heartbeat_s``: the longest time that we may stay silent (a
    part of the publisher's wal_sender_timeout), 0 = no limit.
    """

    def __init__(
        self,
        now: float,
        *,
        start: Lsn = INVALID,
        status_interval_s: float = 10.0,
        timeout_s: float = 60.0,
        heartbeat_s: float = 0.0,
    ) -> None:
        self.received = start
        self.frames_received = 0
        self._durable = start
        self._frames_durable = 0
        self._hold: Lsn | None = None
        self.wait_at_most(status_interval_s, timeout_s)
        self._heartbeat = heartbeat_s or math.inf
        self._sent_at = now
        self._sent = Status(INVALID, INVALID, INVALID)
        self._asked = False
        self._listening_since = now
        self._silence = 0.0
        self._ping_sent = False

    def wait_at_most(self, status_interval_s: float, timeout_s: float) -> None:
        """Set the limits from now on."""
        self._interval = status_interval_s
        self._timeout = timeout_s

    @property
    def flush_lsn(self) -> Lsn:
        """The LSN that may be reported as durable: never beyond the last cut while anything is
        pending."""
        pending = self._frames_durable < self.frames_received
        flush = self._durable if pending else max(self._durable, self.received)
        return flush if self._hold is None else min(flush, self._hold)

    def arrived(self, now: float, lsn: Lsn, frames: int = 0) -> None:
        """Note received messages: ``lsn`` from the header, ``frames`` data messages to return."""
        self.received = max(self.received, lsn)
        self.frames_received += frames
        self._listening_since = now
        self._silence = 0.0
        self._ping_sent = False

    def asked(self) -> None:
        """Note that the publisher wants a reply at once."""
        self._asked = True

    def confirm(self, lsn: Lsn, frames: int) -> None:
        """Note that a cut at ``lsn`` is durable. ``frames``: the number of data messages since the
        start of the stream that are in the cut or need no cut."""
        self._durable = max(self._durable, lsn)
        self._frames_durable = max(self._frames_durable, frames)

    def hold(self, lsn: Lsn | None) -> None:
        """Report nothing beyond ``lsn``, even when idle (during copies); None: no limit."""
        self._hold = lsn

    def listens(self, now: float) -> None:
        """Note that reading begins. The timeout counts only while somebody reads."""
        self._listening_since = now

    def waited(self, now: float) -> None:
        """Note that nothing has come since ``listens`` or the last ``waited``. Raises
        ConnectionFailure after wal_receiver_timeout."""
        self._silence += now - self._listening_since
        self._listening_since = now
        if self._timeout > 0 and self._silence >= self._timeout:
            raise ConnectionFailure(
                "terminating logical replication worker due to timeout",
                detail=f"Nothing came from the publisher for {self._silence:.0f} s.",
                hint="Check the network and the publisher's load; see wal_receiver_timeout.",
            )

    def due(self, now: float) -> Status | None:
        """Return the status to send now, if any. Call ``sent`` when sending it."""
        ping = self._timeout > 0 and not self._ping_sent and self._silence >= self._timeout / 2
        positions = self._positions(ping)
        if ping or self._asked or now - self._sent_at >= self._heartbeat:
            return positions
        if self._interval <= 0:
            return None
        moved = (positions.write, positions.flush) != (self._sent.write, self._sent.flush)
        return positions if moved or now - self._sent_at >= self._interval else None

    def _positions(self, ping: bool) -> Status:
        flush = self.flush_lsn
        if self._sent.flush > flush:
            flush = self._sent.flush
        return Status(max(self.received, flush), flush, flush, ping)

    def sent(self, now: float, status: Status) -> None:
        self._sent = status
        self._sent_at = now
        self._asked = False
        self._ping_sent = self._ping_sent or status.reply_requested

    def wake_in(self, now: float) -> float:
        """Return the seconds until something is due if nothing arrives; at least 0, perhaps
        infinite."""
        interval = self._interval if self._interval > 0 else math.inf
        waits = [self._sent_at + min(interval, self._heartbeat) - now]
        if self._timeout > 0:
            waits.append(self._timeout - self._silence)
            if not self._ping_sent:
                waits.append(self._timeout / 2 - self._silence)
        return max(0.0, min(waits))


_DATA: Final = ord("w")
_KEEPALIVE: Final = ord("k")
_HEADER: Final = struct.Struct("!xQQq")
_KEEPALIVE_BODY: Final = struct.Struct("!xQq?")
_RECEIVE_PREFIX: Final = "could not receive data from WAL stream: "
_SEND_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 10.0
_SILENT_S: Final = 2.0
"""Seconds without a byte after which the end of a stream is not waited for."""

logger = logging.getLogger(__name__)


class ReplicationStream:
    """A stream from a logical slot (START_REPLICATION). After ``stop`` the connection takes
    commands again."""

    far_behind: Final = False

    def __init__(
        self,
        connection: Connection,
        *,
        status_interval_s: float = 10.0,
        timeout_s: float = 60.0,
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._reader = CopyReader(connection.pgconn)
        self._status_interval_s = status_interval_s
        self._timeout_s = timeout_s
        self._end_timeout_s = min(timeout_s or _END_TIMEOUT_S, _END_TIMEOUT_S)
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._feedback = Feedback(time.monotonic())
        self._streaming = False
        self._failure: PenstockError | None = None
        self.latest_end_lsn = Lsn(0)
        """The publisher's LSN, from its last keepalive or message."""
        self.last_send_time_us = 0
        """The time at which the publisher sent the last message, us since 1970."""
        self.last_receipt_time_us = 0

    def start(self, slot: str, lsn: Lsn, options: str) -> None:
        """Begin streaming at ``lsn``. ``options``: START_REPLICATION's list, without parentheses.

        Raises ObjectInUse (the slot is active), UndefinedObject (no such slot), PublisherError,
        ConnectionFailure.
        """
        heartbeat = _heartbeat_s(self._connection)
        command = f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {lsn}"
        if options:
            command += f" ({options})"
        try:
            result = self._connection.execute(command, prefix="could not start WAL streaming: ")
        except UndefinedObject as error:
            error.hint = error.hint or (
                "Make the slot on the publisher: SELECT pg_create_logical_replication_slot"
                f"({quote_literal(slot)}, 'pgoutput')"
            )
            raise
        if result.status != ExecStatus.COPY_BOTH:
            raise ConnectionFailure(f'slot "{slot}" did not start to stream')
        with self._lock:
            self._feedback = Feedback(
                time.monotonic(),
                start=lsn,
                status_interval_s=self._status_interval_s,
                timeout_s=self._timeout_s,
                heartbeat_s=heartbeat,
            )
        self._reader = CopyReader(self._pgconn)
        self._streaming = True

    @property
    def received_lsn(self) -> Lsn:
        """The last LSN that the publisher sent; everything before it has arrived."""
        return self._feedback.received

    @property
    def frames_received(self) -> int:
        """The number of data frames returned since ``start``, to which ``confirm`` refers."""
        return self._feedback.frames_received

    @property
    def flush_lsn(self) -> Lsn:
        """The LSN that is or will be reported to the publisher as durable."""
        with self._lock:
            return self._feedback.flush_lsn

    def confirm(self, lsn: Lsn, frames: int) -> None:
        """Note that a cut at ``lsn`` is durable and contains the first ``frames`` frames of this
        stream, some of which may have changed nothing.

        Once a cut contains all frames, the stream counts as idle, and keepalives move the slot.
        May be called from any thread.
        """
        with self._lock:
            self._feedback.confirm(lsn, frames)
        self.wake()

    def hold(self, lsn: Lsn | None) -> None:
        """Acknowledge nothing beyond ``lsn`` until ``hold(None)``, not even when idle."""
        with self._lock:
            self._feedback.hold(lsn)
        self.wake()

    def wait_at_most(self, status_interval_s: float, timeout_s: float) -> None:
        """Set another wal_receiver_status_interval and wal_receiver_timeout from now on."""
        with self._lock:
            self._feedback.wait_at_most(status_interval_s, timeout_s)
        self.wake()

    def rests(self, came: bool) -> bool:
        """Return whether a batch should end here: it should if nothing more has come."""
        return not came

    def wake(self) -> None:
        """End a waiting ``receive`` early; from any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups
            if self._wake_write >= 0:
                os.write(self._wake_write, b"\0")

    def receive(
        self, timeout_s: float, *, max_bytes: int = 8 << 20, max_frames: int = 65536
    ) -> list[bytes]:
        """Return the XLogData frames that are here now, up to the limits; [] after ``timeout_s`` or
        a wake-up.

        Answers keepalives and sends status updates that are due. Raises ConnectionFailure (the
        stream ended, the connection broke, wal_receiver_timeout), PublisherError (an error in the
        stream).
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._feedback.listens(time.monotonic())
        frames: list[bytes] = []
        if self._failure is None:
            frames = self._drain(max_bytes, max_frames)
        while not frames:
            now = time.monotonic()
            self._send_due(now)
            if self._failure is not None:
                raise self._failure
            wait_s = min(deadline - now, self._feedback.wake_in(now))
            readable, woken = self._wait(max(0.0, wait_s))
            with PRECEDENCE.work(NODE):
                if readable:
                    frames = self._drain(max_bytes, max_frames)
                else:
                    with self._lock:
                        self._feedback.waited(time.monotonic())
            if woken or time.monotonic() >= deadline:
                break
        with PRECEDENCE.work(NODE):
            self._send_due(time.monotonic())
        return frames  # the next call raises a failure that came after these frames

    def tick(self) -> None:
        """Send a status if one is due, without reading: for a receiver that pauses.

        The next ``receive`` reports a broken connection.
        """
        with self._lock:
            self._feedback.listens(time.monotonic())
        self._send_due(time.monotonic())

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the stream cleanly: CopyDone both ways, then two command completions.

        A publisher in the middle of a large transaction first sends all of it; after ``timeout_s``,
        or two seconds without a byte, the connection is closed instead.
        """
        if not self._streaming:
            return
        self._streaming = False
        deadline = time.monotonic() + timeout_s
        try:
            self._pgconn.put_copy_end()
            self._connection.flush(timeout_s)
            self._discard_copy(deadline)
            while (result := self._connection.next_result(deadline)) is not None:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise result_failure(result, "error reading result of streaming command: ")
        except (psycopg.Error, PenstockError) as error:
            logger.info("stream not ended in order: %s", error)
            self._connection.close()

    def close(self) -> None:
        """Close the connection, even during a command."""
        self._streaming = False
        self._connection.close()
        with self._lock:
            for descriptor in (self._wake_read, self._wake_write):
                if descriptor >= 0:
                    os.close(descriptor)
            self._wake_read = self._wake_write = -1

    def _drain(self, max_bytes: int, max_frames: int) -> list[bytes]:
        """Return the XLogData frames that are here, and handle the keepalives among them."""
        messages = self._reader.read(max_bytes=max_bytes, max_messages=max_frames)
        frames = [message for message in messages if message[0] == _DATA]
        if len(frames) < len(messages):
            for message in messages:
                if message[0] == _KEEPALIVE:
                    self._keepalive(message)
        if self._reader.ended or self._reader.error is not None:
            self._failure = self._ended(
                self._reader.error or psycopg.OperationalError("end of copy")
            )
        self._arrived(frames)
        return frames

    def _discard_copy(self, deadline: float) -> None:
        while True:
            length, _ = self._pgconn.get_copy_data(1)
            if length < 0:
                return
            if length == 0:
                remaining = deadline - time.monotonic()
                wait_s = min(remaining, _SILENT_S)
                if remaining <= 0 or not self._connection.wait_readable(wait_s):
                    raise ConnectionFailure("the publisher did not end the stream in time")
                self._pgconn.consume_input()

    def _arrived(self, frames: list[bytes]) -> None:
        if not frames:
            return
        self.last_receipt_time_us = time.time_ns() // 1000
        # The server puts an LSN only into the last message of a callback; a Relation message has 0.
        for frame in reversed(frames):
            start, end, sent = _HEADER.unpack_from(frame)
            if end:
                break
        with self._lock:
            self._feedback.arrived(time.monotonic(), Lsn(max(start, end)), len(frames))
        self.last_send_time_us = sent + EPOCH_MICROSECONDS
        self.latest_end_lsn = max(self.latest_end_lsn, Lsn(end).storable())

    def _keepalive(self, frame: bytes) -> None:
        end, sent, asks = _KEEPALIVE_BODY.unpack_from(frame)
        with self._lock:
            self._feedback.arrived(time.monotonic(), Lsn(end))
            if asks:
                self._feedback.asked()
        self.last_send_time_us = sent + EPOCH_MICROSECONDS
        self.last_receipt_time_us = time.time_ns() // 1000
        self.latest_end_lsn = max(self.latest_end_lsn, Lsn(end).storable())

    def _ended(self, error: psycopg.Error) -> PenstockError:
        """Return why the copy is over: the server's error, its shutdown, or a broken socket."""
        self._streaming = False
        completed = False
        deadline = time.monotonic() + self._end_timeout_s
        try:
            while (result := self._last_result(deadline)) is not None:
                if result.status == ExecStatus.FATAL_ERROR:
                    return result_failure(result, _RECEIVE_PREFIX)
                completed = True
        except psycopg.Error as broken:
            error = broken
        finally:
            self._connection.close()
        if completed:  # a shutdown completes the command and closes the connection
            return ConnectionFailure("data stream from publisher has ended")
        return self._connection.broken(str(error), _RECEIVE_PREFIX)

    def _last_result(self, deadline: float) -> PGresult | None:
        """Return the next result; None after the last one, or if nothing comes any more: a host
        that goes away may leave the connection open."""
        while self._pgconn.is_busy():
            if not self._connection.wait_readable(max(0.0, deadline - time.monotonic())):
                logger.info("the publisher has ended the stream, and not closed the connection")
                return None
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _wait(self, timeout_s: float) -> tuple[bool, bool]:
        """Wait for the publisher's bytes or a wake-up; return (readable, woken)."""
        ready = wait_any((self._pgconn.socket, self._wake_read), timeout_s)
        woken = self._wake_read in ready
        if woken:
            os.read(self._wake_read, 4096)
        return self._pgconn.socket in ready, woken

    def _send_due(self, now: float) -> None:
        if self._failure is not None:
            return
        with self._lock:
            status = self._feedback.due(now)
            if status is not None:
                self._feedback.sent(now, status)
        if status is not None:
            self._send(status)

    def _send(self, status: Status) -> None:
        frame = status.encode(time.time_ns() // 1000)
        try:
            self._pgconn.put_copy_data(frame)
            self._connection.flush(_SEND_TIMEOUT_S)
        except psycopg.Error as error:
            self._failure = self._ended(error)
        except ConnectionFailure as error:
            self._failure = error


def _heartbeat_s(connection: Connection) -> float:
    """Return, in seconds, a third of wal_sender_timeout, after which the publisher ends silent
    streams; 0 if it never does."""
    rows = connection.query("SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")
    return int(rows[0][0] or 0) / 3000 if rows else 0.0


# CopyData messages of a connection, many at a time (libpqrcv_receive reads them one by one).
#
# The caller waits for the first byte, answers, and handles the end of the copy. The reader only
# pauses between reads, to read in large portions.
#
# A walsender sends each message by itself. If the reader takes every message as it comes, the
# kernel sends, wakes and acknowledges for each; if the reader comes back a little later, it finds
# several messages joined. With 1 M small transactions over loopback TCP the pauses save 8 of 13 s
# of the walsender's time.

_FULL_READ: Final = 15_000
"""Bytes above which a read may have left something in the socket: libpq reads 16 kB at once. With
TLS it reads one record of at most 8 kB, so the size shows nothing."""

_COPY_DATA_HEADER: Final = 1 + 4
"""The bytes of each message that libpq reads and does not return: type and length."""

_BUSY_S: Final = 0.005
"""A stream is worth a pause only within this many seconds after its last message."""

_PAUSE_S: Final = 0.0005
_LOCAL_PAUSE_S: Final = 0.0001
"""The pause for a unix socket, which holds only some 280 messages of any size: with a longer pause
the sender would wait."""

_LINGER_S: Final = 0.02
"""The most seconds in which one call of ``read`` makes pauses."""


class CopyReader:
    """The messages of a copy. ``error``: the reason if the connection broke; earlier messages are
    still returned."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._pause_s = _LOCAL_PAUSE_S if pgconn.host[:1] in (b"/", b"@") else _PAUSE_S
        self._encrypted = pgconn.ssl_in_use or pgconn.used_gssapi
        self._last_at = -_BUSY_S
        self.error: psycopg.Error | None = None
        self.ended = False
        """True once the copy has come to its end (CopyDone, or an error of the server)."""

    def read(self, *, max_bytes: int, max_messages: int) -> list[bytes]:
        """Return the messages that libpq has or that the socket holds, up to the limits; perhaps
        none."""
        messages: list[bytes] = []
        if self.ended or self.error is not None:
            return messages
        began = time.monotonic()
        try:
            self._fill(messages, max_bytes, max_messages, began)
        except psycopg.Error as error:
            self.error = error
        if messages:
            self._last_at = time.monotonic()
        return messages

    def _fill(self, messages: list[bytes], max_bytes: int, max_messages: int, began: float) -> None:
        busy = began - self._last_at < _BUSY_S
        size = came = 0
        before = -1
        get, append = self._pgconn.get_copy_data, messages.append
        while size < max_bytes and len(messages) < max_messages:
            length, data = get(1)
            if length > 0:
                append(bytes(data))
                size += length
                came += length + _COPY_DATA_HEADER
                continue
            if length < 0:
                self.ended = True
                return
            if before >= 0 and came - before < _FULL_READ and not self._more_is_here(came - before):
                if came == before or not busy or time.monotonic() - began >= _LINGER_S:
                    return
                time.sleep(self._pause_s)
            before = came
            self._pgconn.consume_input()

    def _more_is_here(self, came: int) -> bool:
        return self._encrypted and came > 0 and bool(wait(self._pgconn.socket, select.POLLIN, 0))


# The sessions by which a backlog is fetched, unless a stream is better.
#
# A backlog has one lane or two, whose sessions lead to the same server; ``backlog`` decides what
# they read.

_LANES: Final = 2
"""The number of windows that the publisher decodes at the same time, one for each session."""

_FEWER: Final = "by fewer sessions"

_SPARE_SLOTS: Final = 2
"""The number of slots that a second session must leave free for others."""

_AGAIN_AT_MOST: Final = 16
_AGAIN_BESIDE: Final = 4
"""Limits for the WAL before the backlog that has to be decoded again, as a multiple of the backlog:
above the first the backlog is streamed, above the second it is fetched by one session. A stream
decodes that WAL once, each window decodes it again."""

_LITTLE: Final = 64 << 20
"""Bytes of WAL that may be decoded again in any case: that takes almost no time."""


def open_backlog(
    connection: Connection,
    slot: str,
    start: Lsn,
    options: PgoutputOptions,
    *,
    threshold: int,
    session: Callable[[], Connection] | None = None,
) -> Backlog | None:
    """Return the backlog of ``slot`` after ``start``, if it is more than ``threshold`` bytes of WAL
    and the publisher lets us copy the slot. Otherwise close the connection and return None.

    ``session``: opens an ordinary session to the same address as ``connection``; None: the backlog
    is fetched by COPY on ``connection``. Raises ConnectionFailure: a connection that breaks here is
    no reason to stream the whole backlog.
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
            again = begin - (state.restart_lsn or begin)
            if target - begin > threshold and not _is_dear(connection, slot, target - begin, again):
                ordinary = (
                    None
                    if session is None
                    else _connect_to_same_server(connection, session, "by COPY")
                )
                if ordinary is not None:
                    connection.close()
                    connection = ordinary
                lanes = [Lane(connection, slot, options, by_copy=ordinary is None)]
                beside = again <= _AGAIN_BESIDE * (target - begin) and target - begin > SMALLEST_WAL
                if session is not None and ordinary is not None and beside:
                    lanes += _more_lanes(connection, slot, options, session)
                _say(slot, target - begin, lanes)
                return Backlog(lanes, slot, begin, target)
    except ConnectionFailure:
        connection.close()
        raise
    except PenstockError as error:
        # A free slot or a right may be missing: the stream needs neither.
        logger.warning("%s; streaming it instead", error.message)
    connection.close()
    return None


def _is_dear(connection: Connection, slot: str, behind: int, again: int) -> bool:
    """Return whether a stream is better: if each window would decode much again, as after a long
    transaction, or if a stream would wait for standbys (StandbySlotsHaveCaughtup), which a copy of
    the slot does not."""
    if again > max(_LITTLE, _AGAIN_AT_MOST * behind):
        logger.info(
            'slot "%s" is %d MB behind, with %d MB to be decoded before that: streaming it',
            *(slot, behind >> 20, again >> 20),
        )
        return True
    if connection.server_version < 170000:
        return False
    ((waits,),) = connection.query(
        "SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"
        f" WHERE slot_name = {quote_literal(slot)} AND failover"
        " AND pg_catalog.current_setting('synchronized_standby_slots', true) <> ''"
    )
    return waits != "0"


def _say(slot: str, behind: int, lanes: Sequence[Lane]) -> None:
    beside = f", {len(lanes)} at once" if len(lanes) > 1 else ""
    logger.info(
        'slot "%s" is %d MB behind: fetching the backlog by %s%s',
        slot,
        behind >> 20,
        lanes[0].way,
        beside,
    )


def _more_lanes(
    connection: Connection, slot: str, options: PgoutputOptions, session: Callable[[], Connection]
) -> list[Lane]:
    """Open the lanes that the publisher allows in addition to the first one."""
    lanes: list[Lane] = []
    while len(lanes) < _LANES - 1:
        ((free,),) = connection.query(
            "SELECT pg_catalog.current_setting('max_replication_slots')::pg_catalog.int4"
            " - pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"
        )
        if int(free or 0) <= _SPARE_SLOTS:
            break
        beside = _connect_to_same_server(connection, session, _FEWER)
        if beside is None:
            break
        try:
            lanes.append(Lane(beside, slot, options, by_copy=False))
        except PenstockError as error:
            logger.info("%s; fetching the backlog %s instead", error.message, _FEWER)
            beside.close()
            break
        except BaseException:
            beside.close()
            raise
    return lanes


def _connect_to_same_server(
    connection: Connection, session: Callable[[], Connection], instead: str
) -> Connection | None:
    """Open an ordinary session on the same server; return None if that fails. A host name or a list
    of hosts may lead to another server each time, which may have a slot of the same name."""
    asked = (
        "SELECT datid, backend_start, pg_catalog.current_database()"
        f" FROM pg_catalog.pg_stat_get_activity({connection.backend_pid})"
        " WHERE backend_start IS NOT NULL"
    )
    try:
        ordinary = session()
    except PenstockError as error:
        logger.info("%s; fetching the backlog %s instead", error.message, instead)
        return None
    try:
        expected = connection.query(asked)
        if expected and ordinary.query(asked) == expected:
            return ordinary
        logger.info(
            "another session led to another server; fetching the backlog %s instead", instead
        )
    except PenstockError as error:
        logger.info("%s; fetching the backlog %s instead", error.message, instead)
    except BaseException:
        ordinary.close()
        raise
    ordinary.close()
    return None
