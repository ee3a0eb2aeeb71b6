"""The feed of a stream: items to send, made a little ahead.

``Feed`` reads the log of transactions from a position on, and has a source turn them into messages.
A thread of its own puts items in order into a queue of bounded size. So a client is answered while
Spark works, and Spark works while a client reads.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.catalog import Catalog, LakeTransaction
from penstock.decoding import MessageChange, RelationData
from penstock.decoding.reorder_buffer import CHANGE_BYTES
from penstock.lsn import Lsn
from penstock.protocol.answers import Notice
from penstock.publication.members import Operation
from penstock.relation import Relation
from penstock.walsender.bundles import Bundles
from penstock.walsender.sequencer import Sequencer

_PORTIONS: Final = 8
"""Portions that wait to be sent."""
_WAITING_BYTES: Final = 32 << 20
"""Bytes of all portions that wait; a single row may be larger."""
_BUNDLE_BYTES: Final = 4 << 20
"""Bytes of WAL that are decoded together, roughly."""
_WAIT_S: Final = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Portion:
    """Changes of ``relations`` that follow one another.

    There is one relation, except for TRUNCATE and messages of sessions. ``data`` has the rows. For
    pgoutput ``data`` is whole messages, each a CopyData message with its header; for another output
    plugin (``as_rows``) it is a stream of ``pipeline.change_columns``. ``described`` has the
    relations by oid, for plugins that need more than pgoutput.
    """

    relations: tuple[Relation, ...]
    data: bytes
    changes: int
    operation: Operation = Operation.INSERT
    message: MessageChange | None = None
    as_rows: bool = False
    described: Mapping[int, RelationData] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of rows and of a message."""
        return len(self.data) + (0 if self.message is None else len(self.message.content))

    @property
    def memory(self) -> int:
        """The memory that the changes would take on a server, roughly."""
        return self.nbytes + CHANGE_BYTES * self.changes


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """The begin of a transaction, or of a message outside of transactions. ``streamed``: it is sent
    in blocks (protocol version 2). ``warnings``: those of its first change."""

    transaction: LakeTransaction
    streamed: bool = False
    warnings: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction, after all its portions."""

    transaction: LakeTransaction


@dataclass(frozen=True, slots=True)
class FeedFailure:
    """The error that ends the feed."""

    error: BaseException


FeedChange = TransactionBegin | Portion | TransactionEnd
Changes = Generator[FeedChange, None, None]
Item = FeedChange | FeedFailure


class ChangeSource(Protocol):
    """A source that turns transactions into messages, made for one stream."""

    def changes(self, transactions: Sequence[LakeTransaction]) -> Changes:
        """Yield each transaction from TransactionBegin to TransactionEnd, in the order of sending.

        A transaction without published changes has no portions. The work is done before the first
        item is yielded. Raises PenstockError after the end of the last transaction that can be
        sent. The caller closes the generator.
        """


@dataclass(frozen=True, slots=True)
class _Started:
    """Changes whose work is done, and the seconds that it took."""

    first: tuple[FeedChange, ...]
    rest: Changes
    seconds: float


def _start(changes: Changes) -> _Started:
    began = time.monotonic()
    first = tuple(itertools.islice(changes, 1))
    return _Started(first, changes, time.monotonic() - began)


def _succeeded(future: Future[_Started]) -> bool:
    """Wait for the work and tell whether it succeeded."""
    return future.exception() is None


class _Waiting(queue.Queue[Item]):
    """A queue that is also full once its portions have too many bytes."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._bytes = 0

    def _qsize(self) -> int:
        return max(len(self.queue), self._bytes * _PORTIONS // _WAITING_BYTES)

    def _put(self, item: Item) -> None:
        self._bytes += item.nbytes if isinstance(item, Portion) else 0
        super()._put(item)

    def _get(self) -> Item:
        item: Item = super()._get()
        self._bytes -= item.nbytes if isinstance(item, Portion) else 0
        return item


class Feed:
    """Items from the position ``start`` on. The caller closes the feed."""

    def __init__(
        self, catalog: Catalog, sequencer: Sequencer, source: ChangeSource, start: Lsn
    ) -> None:
        self._sequencer = sequencer
        self._source = source
        self._at = start
        self._items = _Waiting(_PORTIONS)
        self._stopping = threading.Event()
        self._waited_s = 0.0
        self._bundles = Bundles(catalog, _BUNDLE_BYTES)
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def next(self, timeout_s: float) -> Item | None:
        """Return the next item, None after the timeout."""
        try:
            return self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None

    @property
    def position(self) -> Lsn:
        """The position up to which everything has been put into the queue."""
        return self._at

    def close(self) -> None:
        """End the thread, which gives up its current work."""
        self._stopping.set()
        self._sequencer.wake()
        while self._thread.is_alive():
            self.next(0.05)  # the thread may be waiting for room in the queue
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(1, "decoding ahead") as executor:
            try:
                self._hand_out_all(executor)
            except BaseException as error:
                if not self._stopping.is_set():
                    self._put(FeedFailure(error))

    def _hand_out_all(self, executor: ThreadPoolExecutor) -> None:
        """Decode a bundle of transactions while the previous bundle is handed out."""
        decoded_to = self._at
        coming: Future[_Started] | None = None
        try:
            while not self._stopping.is_set():
                current, coming = coming, None
                goes_on = current is None or _succeeded(current)
                bundle = self._bundles.after(decoded_to) if goes_on else []
                if bundle:
                    coming = executor.submit(_start, self._source.changes(bundle))
                    decoded_to = bundle[-1].end
                if current is not None:
                    self._hand_out(current.result())
                elif coming is None:
                    self._sequencer.wait(self._at, _WAIT_S, self._stopping)
                    self._bundles.begin_again()
        finally:
            # Nobody takes these changes; closing them removes their files in the staging area.
            if coming is not None and _succeeded(coming):
                coming.result().rest.close()

    def _hand_out(self, started: _Started) -> None:
        began, count, sent = time.monotonic(), 0, 0
        self._waited_s = 0.0
        with closing(started.rest):
            for item in itertools.chain(started.first, started.rest):
                self._put(item)
                if isinstance(item, Portion):
                    count, sent = count + item.changes, sent + item.nbytes
                elif isinstance(item, TransactionEnd):
                    self._at = item.transaction.end
                if self._stopping.is_set():
                    return
        log.debug(
            "handed out changes=%d bytes=%d decoding=%.3f total=%.3f waiting=%.3f",
            count,
            sent,
            started.seconds,
            time.monotonic() - began,
            self._waited_s,
        )

    def _put(self, item: Item) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._items.put(item, timeout=_WAIT_S)
                break
            except queue.Full:
                continue
        self._waited_s += time.monotonic() - began
