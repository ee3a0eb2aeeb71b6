"""The streams of a node, and how much was decoded from each slot (walsender.c, WalSndCtl;
pgstat_replslot.c).

Streams register here while they run, and pg_stat_replication shows their states. Streams and SQL
functions count what they decode since the node started, for pg_stat_replication_slots.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.decoding.reorder_buffer import DecodingStats
from penstock.walsender.stream import SenderState


@dataclass(frozen=True, slots=True)
class Sender:
    """A running stream. ``role`` is an oid; ``started`` is in seconds since 1970."""

    pid: int
    role: int
    application_name: str
    address: str
    port: int
    started: float
    state: SenderState


class Senders:
    """All running streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, Sender] = {}
        self._stats: dict[str, DecodingStats] = {}

    def all(self) -> tuple[Sender, ...]:
        """Return every running stream, by pid."""
        with self._lock:
            return tuple(self._running[pid] for pid in sorted(self._running))

    def stats(self, slot: str) -> DecodingStats:
        """Return the counts of a slot; its readers add to them."""
        with self._lock:
            return self._stats.setdefault(slot, DecodingStats())

    def forget(self, slot: str) -> None:
        """Drop the counts of a slot's name, since a new slot has it now."""
        with self._lock:
            self._stats.pop(slot, None)

    @contextmanager
    def running(
        self,
        pid: int,
        state: SenderState,
        *,
        role: int,
        application_name: str,
        address: str,
        port: int,
    ) -> Iterator[None]:
        """Count a stream as running while the ``with`` block runs."""
        sender = Sender(pid, role, application_name, address, port, time.time(), state)
        with self._lock:
            self._running[pid] = sender
        try:
            yield
        finally:
            with self._lock:
                del self._running[pid]
