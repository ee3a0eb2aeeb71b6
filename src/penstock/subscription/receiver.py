"""The receiving thread: reads the stream into the inbox.

In: a started replication stream. Out: whole transactions in the inbox, and ``position``: every
transaction that ended at or below it is in the inbox or was. What is told to the publisher goes
through the stream's ``confirm`` and ``hold``, which the applier calls. When the inbox is full the
thread stops reading and goes on sending status updates, so that the walsender waits instead of
timing out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.failpoint import AFTER_RECEIVE, failpoint
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.chunk import MessageChunk
from penstock.subscription.inbox import Inbox
from penstock.subscription.streamed import StreamedTransactions

_POLL: Final = 0.1
"""Seconds that one wait for frames takes at most: how long a stop may take."""


class FrameSource(Protocol):
    """Where messages come from: a stream, or a backlog that is fetched in one go (walreceiver).

    ``far_behind``: much is to come, so batches should be large. ``rests``: what is here need not
    wait for more; ``came``: whether something has come just now."""

    @property
    def received_lsn(self) -> Lsn: ...

    @property
    def latest_end_lsn(self) -> Lsn: ...

    @property
    def far_behind(self) -> bool: ...

    last_send_time_us: int
    last_receipt_time_us: int

    def receive(self, timeout_s: float) -> Sequence[bytes] | MessageChunk: ...

    def rests(self, came: bool) -> bool: ...

    def confirm(self, lsn: Lsn, frames: int) -> None: ...

    def hold(self, lsn: Lsn | None) -> None: ...

    def wait_at_most(self, status_interval_s: float, timeout_s: float) -> None: ...

    def tick(self) -> None: ...

    def wake(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Receiver:
    """Owns the reading side of the stream from start() to stop()."""

    def __init__(
        self, stream: FrameSource, streamed: StreamedTransactions, inbox: Inbox, idle: float
    ) -> None:
        """``streamed`` takes the frames, for the inbox. ``idle``: seconds without a frame after
        which the stream counts as quiet."""
        self._stream = stream
        self._streamed = streamed
        self._inbox = inbox
        self.idle = idle
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="walreceiver", daemon=True)
        self.position = INVALID
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the stream in good order where it still works, and its connection; never raises."""
        self._stopping.set()
        self._stream.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step()
            self._stream.tick()
            self._stream.stop()
        except BaseException as error:
            self.error = error
        finally:
            self._stream.close()

    def _step(self) -> None:
        if self._inbox.full():
            self._stream.tick()
            self._stopping.wait(_POLL)
            return
        frames = self._stream.receive(_POLL if self._inbox.empty() else self.idle)
        # Read before the frames are handed over: a reader of this position finds every
        # transaction below it in the inbox.
        received = self._stream.received_lsn
        if len(frames):
            self._streamed.add(frames, time.monotonic())
            failpoint(AFTER_RECEIVE)
        if self._stream.rests(len(frames) > 0):
            self._inbox.quiet()
        self.position = Lsn(max(self.position, received))
