"""What is to be sent, a little ahead of the sending.

In: the log of transactions from a position on, and somebody who turns one into messages. Out: items
in order, through a queue of bounded size that a thread of its own fills, so that a client is
answered while Spark works, and Spark works while a client reads.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.catalog import Catalog, LakeTransaction
from penstock.lsn import Lsn
from penstock.relation import Relation
from penstock.walsender.sequencer import Sequencer

_PIECES: Final = 8
"""Pieces that wait to be sent; a piece is a few megabytes at most."""
_AT_ONCE: Final = 100
"""Transactions read from the catalog at a time."""
_WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Piece:
    """Changes of ``relations`` in a row: whole messages, each a CopyData message with its header.

    ``data`` goes to the client as it is. ``relations``: one, but for TRUNCATE.
    """

    relations: tuple[Relation, ...]
    data: bytes
    changes: int


class ChangeSource(Protocol):
    """Turns transactions into messages; made for one stream."""

    def streams(self, transaction: LakeTransaction) -> bool:
        """Whether it is sent as a streamed transaction: its messages carry its xid."""

    def changes(self, transaction: LakeTransaction) -> Iterator[Piece]:
        """In the order of sending; nothing where nothing of it is published. Raises
        PenstockError."""

    def close(self) -> None:
        """The stream has ended; from any thread."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A transaction has begun; ``streamed``: it is sent in blocks (protocol version 2)."""

    transaction: LakeTransaction
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """All of a transaction has been handed out."""

    transaction: LakeTransaction


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no more."""

    error: BaseException


Item = Begun | Piece | Ended | Failed


class Feed:
    """Items from ``start`` on. ``close`` it."""

    def __init__(
        self, catalog: Catalog, sequencer: Sequencer, source: ChangeSource, start: Lsn
    ) -> None:
        self._catalog = catalog
        self._sequencer = sequencer
        self._source = source
        self._at = start
        self._items: queue.Queue[Item] = queue.Queue(_PIECES)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def next(self, timeout_s: float) -> Item | None:
        """The next item; None when there was none in time."""
        try:
            return self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @property
    def position(self) -> Lsn:
        """Everything before it has been put into the queue."""
        return self._at

    @property
    def drained(self) -> bool:
        """Whether nothing waits in the queue."""
        return self._items.empty()

    def close(self) -> None:
        """End the thread; what it is at is given up."""
        self._stopping.set()
        self._source.close()
        self._sequencer.wake()
        while self._thread.is_alive():
            self.next(0.05)  # it may be waiting for room
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._catalog.read() as t:
                    waiting = t.transactions.after(self._at, _AT_ONCE)
                for transaction in waiting:
                    self._hand_out(transaction)
                    if self._stopping.is_set():
                        return
                if not waiting:
                    self._sequencer.wait(self._at, _WAIT_S)
        except BaseException as error:
            if not self._stopping.is_set():
                self._put(Failed(error))

    def _hand_out(self, transaction: LakeTransaction) -> None:
        self._put(Begun(transaction, self._source.streams(transaction)))
        for piece in self._source.changes(transaction):
            self._put(piece)
            if self._stopping.is_set():
                return
        self._put(Ended(transaction))
        self._at = transaction.end

    def _put(self, item: Item) -> None:
        while not self._stopping.is_set():
            try:
                self._items.put(item, timeout=_WAIT_S)
                return
            except queue.Full:
                continue
