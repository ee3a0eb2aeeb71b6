"""The streams of a node, and how much each has sent (walsender.c, WalSndCtl).

Streams register here while they run. pg_stat_replication shows their states, and
pg_stat_replication_slots the amounts sent from each slot since the node started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of what was sent from a slot. ``bytes`` include the headers of messages.

    ``streamed``, ``blocks`` and ``streamed_bytes`` count large transactions sent in blocks, which
    the other counts include.
    """

    transactions: int = 0
    bytes: int = 0
    streamed: int = 0
    blocks: int = 0
    streamed_bytes: int = 0


class Senders:
    """All running streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, Sender] = {}
        self._ended: dict[str, Totals] = {}

    def all(self) -> tuple[Sender, ...]:
        """Return every running stream, by pid."""
        with self._lock:
            return tuple(self._running[pid] for pid in sorted(self._running))

    def totals(self, slot: str) -> Totals:
        """Return the counts of all streams of a slot, including running ones."""
        with self._lock:
            states = [s.state for s in self._running.values() if s.state.slot == slot]
            return _sum(self._ended.get(slot, Totals()), states)

    def forget(self, slot: str) -> None:
        """Drop the counts of a slot's name, since a new slot has it now."""
        with self._lock:
            self._ended.pop(slot, None)

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
                ended = self._ended.get(state.slot, Totals())
                self._ended[state.slot] = _sum(ended, [state])


def _sum(totals: Totals, states: Iterable[SenderState]) -> Totals:
    for state in states:
        totals = Totals(
            totals.transactions + state.transactions,
            totals.bytes + state.bytes,
            totals.streamed + state.streamed,
            totals.blocks + state.blocks,
            totals.streamed_bytes + state.streamed_bytes,
        )
    return totals
