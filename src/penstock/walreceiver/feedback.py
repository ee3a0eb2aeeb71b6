"""Feedback of a stream: status updates for the publisher, and when they are due (worker.c:
get_flush_position, send_feedback, LogicalRepApplyLoop).

In: what arrived, what is durable, and the time. Out: standby status updates that are due, and the
timeout error. Pure: time is passed in (monotonic seconds); ``stream`` sends.

``flush_lsn`` obeys law 1: it is the last cut while anything handed out is not in a cut. Once
nothing is pending it is what was received last, so that idle and filtered streams advance the slot.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ConnectionFailure
from penstock.lsn import INVALID, Lsn

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
    """Hold the positions of one stream.

    ``status_interval_s``: wal_receiver_status_interval, 0 = only when asked. ``timeout_s``:
    wal_receiver_timeout, 0 = never. ``heartbeat_s``: the longest time that we may stay silent (a
    part of the publisher's wal_sender_timeout), 0 = any.
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
        """Set other limits from now on."""
        self._interval = status_interval_s
        self._timeout = timeout_s

    @property
    def flush_lsn(self) -> Lsn:
        """The position that may be reported as durable: never beyond the last cut while anything is
        pending."""
        pending = self._frames_durable < self.frames_received
        flush = self._durable if pending else max(self._durable, self.received)
        return flush if self._hold is None else min(flush, self._hold)

    def arrived(self, now: float, lsn: Lsn, frames: int = 0) -> None:
        """Note that something came: ``lsn`` from its header, ``frames`` data messages to be handed
        out."""
        self.received = max(self.received, lsn)
        self.frames_received += frames
        self._listening_since = now
        self._silence = 0.0
        self._ping_sent = False

    def asked(self) -> None:
        """Note that the publisher wants a reply at once."""
        self._asked = True

    def confirm(self, lsn: Lsn, frames: int) -> None:
        """Note that a cut at ``lsn`` is durable. ``frames`` counts the data messages since the
        start of the stream which the cut covers or which need none."""
        self._durable = max(self._durable, lsn)
        self._frames_durable = max(self._frames_durable, frames)

    def hold(self, lsn: Lsn | None) -> None:
        """Report nothing beyond ``lsn`` even when idle (tables are being copied); None lifts it."""
        self._hold = lsn

    def listens(self, now: float) -> None:
        """Note that reading begins. Silence counts only while somebody listens."""
        self._listening_since = now

    def waited(self, now: float) -> None:
        """Note that nothing came since ``listens`` or the last call. Raises ConnectionFailure after
        wal_receiver_timeout."""
        self._silence += now - self._listening_since
        self._listening_since = now
        if self._timeout > 0 and self._silence >= self._timeout:
            raise ConnectionFailure(
                "terminating logical replication worker due to timeout",
                detail=f"Nothing came from the publisher for {self._silence:.0f} s.",
                hint="Check the network and the publisher's load; see wal_receiver_timeout.",
            )

    def due(self, now: float) -> Status | None:
        """Return the status to send now, if any. Call ``sent`` once it is on its way."""
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
        """Return the seconds until something is due though nothing arrives; at least 0, perhaps
        infinite."""
        interval = self._interval if self._interval > 0 else math.inf
        waits = [self._sent_at + min(interval, self._heartbeat) - now]
        if self._timeout > 0:
            waits.append(self._timeout - self._silence)
            if not self._ping_sent:
                waits.append(self._timeout / 2 - self._silence)
        return max(0.0, min(waits))
