"""The context of one decoding call: it calls a plugin's callbacks and takes its writes (logical.c).

A generator hands the items of a source to the plugin, and yields the plugin's writes in batches. So
memory is bounded by the size of a piece (``MemoryLimits``) and by the writes of one callback. As on
a server, a plugin knows only its context. SQL functions and streams differ only in the source of
the items and in the reader of the writes.

    source                 replay                    context                  plugin

    Transaction       -->  begin, change ...,  -->   call: an LSN and   -->   begin(ctx, txn) ...
    MessageChange          commit: which of them,    an xid for writes,         ctx.prepare_write
    StreamBlock ...        in which order            a CONTEXT for errors       ctx.out, ctx.write
                                                                                    |
                                                     Writes  <----------------------'
                                                       |  a piece is full, or an end has come
                                                       v
                                                     process: Arrow columns, for SQL
                                                     copy_data: CopyData of XLogData, for streams

    made --startup--> started --process, copy_data (again and again)--> started --shutdown--> over

The plugin declares in ``startup`` whether it has binary output, streaming and two-phase. An error
of a callback names slot, plugin, callback and LSN, and ends the call; ``shutdown`` is called
nevertheless. An error of the reader (``interrupt``, ``tell_progress``) is raised unchanged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.decoding.output import MAX_ALLOC_SIZE, Output, Writes
from penstock.decoding.output_plugin import (
    OutputPlugin,
    OutputPluginOptions,
    OutputType,
    check_callbacks,
    check_result,
    registered,
)
from penstock.decoding.plugin_error import as_plugins_error
from penstock.decoding.publication_rules import PublicationRules
from penstock.decoding.reorder_buffer import Catalogs, DecodingStats, Item
from penstock.decoding.replay import Replay
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.lsn import INVALID, Lsn
from penstock.protocol.answers import Notice

Options = Sequence[tuple[str, str | None]]
"""Names and values in the given order; None for a missing value."""
FindPublications = Callable[[Sequence[str]], PublicationRules]
"""A function that takes names of publications and returns their rules."""
UpdateProgress = Callable[[Lsn, int, bool], None]
"""A function of LSN, xid, and whether a transaction was skipped; it may send a keepalive."""

_STREAMING: Final = (
    *("stream_start", "stream_stop", "stream_abort", "stream_commit", "stream_change"),
    *("stream_change_batch", "stream_message", "stream_truncate"),
)
_TWO_PHASE: Final = (
    *("begin_prepare", "prepare", "commit_prepared", "rollback_prepared"),
    *("stream_prepare", "filter_prepare"),
)
_REQUIRED: Final = (("begin",), ("change", "change_batch"), ("commit",))
_SHOWN: Final = {"change_batch": "change", "stream_change_batch": "stream_change"}
_PADDED_SINCE: Final = 19
_LONGEST_WAIT_S: Final = 0.05
"""The longest time that writes wait for more, while the plugin works, in seconds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecodedSlot:
    """The fields of the slot that a context needs (ReplicationSlotPersistentData)."""

    name: str
    plugin: str
    two_phase: bool = False


@dataclass(frozen=True, slots=True)
class DecodedDatabase:
    """The database whose changes are decoded. ``major_version``: the version that its server
    reports. ``publications`` finds publications for pgoutput; None if the database has none."""

    major_version: int = 18
    publications: FindPublications | None = None


@dataclass(frozen=True, slots=True)
class OutputReader:
    """The reader of the output: a call of a slot function, or a stream.

    ``as_bytes``: the reader takes bytes, even if the plugin declares textual output. ``interrupt``
    is called before each callback; its error ends the call. ``warn`` takes a plugin's WARNING.
    """

    as_bytes: bool = False
    interrupt: Callable[[], None] = lambda: None
    warn: Callable[[Notice], None] = lambda notice: log.warning("%s", notice.message)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits in bytes. ``work_mem``: a block of a streamed transaction (logical_decoding_work_mem);
    ``piece``: output that is handed on at once; ``callback``: what one callback may write."""

    work_mem: int = 64 << 20
    piece: int = 1 << 20
    callback: int = MAX_ALLOC_SIZE


class LogicalDecodingContext:
    """The context of one call of a slot function, or of one stream.

    Call ``startup``, ``process`` at least once, and ``shutdown``; ``with`` calls ``startup`` and
    ``shutdown``. Plugins use ``options``, ``slot_name``, ``streaming``, ``twophase``,
    ``two_phase_given``, ``catalogs``, ``major_version``, ``prepare_write``, ``out``, ``write``,
    ``write_batch``, ``write_messages``, ``update_progress``, ``move_to`` and ``warning``.
    """

    def __init__(
        self,
        plugin: OutputPlugin,
        slot: DecodedSlot,
        options: Options = (),
        *,
        database: DecodedDatabase = DecodedDatabase(),
        reader: OutputReader = OutputReader(),
        limits: MemoryLimits = MemoryLimits(),
        stats: DecodingStats | None = None,
    ) -> None:
        """Take the parts of a call, and the counts to add to. Raises PenstockError if a callback is
        missing or does not take its arguments."""
        check_callbacks(plugin)
        for names in _REQUIRED:
            if not any(registered(plugin, name) for name in names):
                raise PenstockError(f"output plugins have to register a {names[0]} callback")
        self.plugin: Final = plugin
        self.slot_name: Final = slot.name
        self.options: Final = tuple(options)
        self.catalogs: Catalogs | None = None
        """The catalogs as of the current transaction, if the source has them."""
        self.stats: Final = stats or DecodingStats()
        self.publications: Final = database.publications
        self.major_version: Final = database.major_version
        self.work_mem: Final = limits.work_mem
        self.output_limit: Final = limits.callback
        self.output = OutputPluginOptions()
        self.streaming = any(registered(plugin, name) for name in _STREAMING)
        self.twophase = any(registered(plugin, name) for name in _TWO_PHASE)
        self.two_phase_given = False
        """True if the client gave the plugin its two-phase option (twophase_opt_given)."""
        self.out: list[str | bytes] = []
        self.tell_progress: UpdateProgress | None = None
        """The stream's function, if a stream reads the output."""
        self.warn = reader.warn
        self._slot = slot
        self._reader = reader
        self._piece_bytes = limits.piece
        self._writes = Writes()
        self._accept_writes = self._prepared_write = False
        self._location: Lsn | NDArray[np.uint64] = INVALID
        self._xid = 0
        self._place = ("", INVALID)  # the callback that runs, and the LSN that its errors name
        self._shut_down = False
        self._from_outside: BaseException | None = None
        self._replay = Replay(self)

    @property
    def output_type(self) -> OutputType:
        """The output type that the plugin declared in ``startup``."""
        return self.output.output_type

    def startup(self, is_init: bool = False) -> None:
        """Call the plugin's ``startup``; ``is_init``: a slot is created. Raises PenstockError."""
        self.call("startup", self.output, is_init, writes=False)
        self.twophase = self.twophase and (self._slot.two_phase or self.two_phase_given)
        self._writes.binary = self._reader.as_bytes or self.output_type is OutputType.BINARY

    @property
    def blocks(self) -> int:
        """The number of blocks of streamed transactions that have begun."""
        return self._replay.blocks

    def process(self, items: Iterable[Item]) -> Generator[Output, None, None]:
        """Yield the plugin's writes for these items; all are yielded before the generator ends.

        Raises PenstockError: the source's errors, and those of callbacks with their context.
        """
        for _ in self._replayed(items):
            yield from self._writes.take()

    def copy_data(self, items: Iterable[Item]) -> Generator[bytes, None, None]:
        """Yield the same writes as CopyData messages with XLogData, for a client."""
        for _ in self._replayed(items):
            yield from self.waiting()

    def waiting(self) -> list[bytes]:
        """Take out the writes that ``copy_data`` has not yielded yet."""
        return self._writes.take_copy_data()

    def _replayed(self, items: Iterable[Item]) -> Iterator[None]:
        """Call the callbacks of items; yield when the caller must take the writes: they are many,
        or they have waited long, since the plugin is slow."""
        taken = time.monotonic()
        for item in items:
            for _ in self._replay.item(item):
                now = time.monotonic()
                if self._writes.nbytes >= self._piece_bytes or now - taken >= _LONGEST_WAIT_S:
                    yield
                    taken = now
        yield

    def shutdown(self) -> None:
        """Call the plugin's ``shutdown``; later calls do nothing. Raises as ``process``."""
        if not self._shut_down:
            self._shut_down = True
            self.call("shutdown", writes=False)

    def __enter__(self) -> Self:
        try:
            self.startup()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.shutdown()
        except PenstockError:
            if error is None:
                raise  # if not, the first error is reported

    # What plugins call.

    def prepare_write(self, last_write: bool = True) -> None:
        """OutputPluginPrepareWrite: empty ``out`` for a write. Raises PenstockError outside of
        callbacks that may write."""
        if not self._accept_writes:
            raise PenstockError("writes are only accepted in commit, begin and change callbacks")
        self._prepared_write = True
        self.out = []

    def write(self, last_write: bool = True) -> None:
        """OutputPluginWrite: take the pieces of ``out`` as one write."""
        if not self._prepared_write:
            raise PenstockError(
                "OutputPluginPrepareWrite needs to be called before OutputPluginWrite"
            )
        self._prepared_write = False
        self._writes.add(self._first_location, self._xid, self.out)
        self.out = []
        self._check_limit()

    def write_batch(self, data: pa.Array, lsns: Lsn | NDArray[np.uint64] | None = None) -> None:
        """Take each string (or binary) of an Arrow array without nulls as a write.

        ``lsns``: one for each string. None means the LSNs of the batch's rows if there is a string
        for each row, otherwise the batch's first LSN.
        """
        self.prepare_write()
        self._prepared_write = False
        places = lsns if lsns is not None else self._location
        if not isinstance(places, Lsn) and len(places) != len(data):
            places = Lsn(int(places[0]))
        self._writes.add_batch(places, self._xid, data)
        self._check_limit()

    def write_messages(self, data: bytes) -> None:
        """Take CopyData messages with XLogData from the source (``RowBatch.messages``)."""
        self.prepare_write()
        self._prepared_write = False
        self._writes.add_messages(data, self._xid)
        self._check_limit()

    def update_progress(self, skipped_xact: bool = False) -> None:
        """OutputPluginUpdateProgress: report the plugin's progress to the stream."""
        if self.tell_progress is None:
            return
        try:
            self.tell_progress(self._first_location, self._xid, skipped_xact)
        except BaseException as error:  # the stream's error, not the plugin's
            self._from_outside = error
            raise

    def move_to(self, lsn: Lsn) -> None:
        """Put this callback's further writes at ``lsn``, for a plugin whose ``change_batch`` writes
        row by row."""
        self._location = lsn

    def warning(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        sqlstate: str = "01000",
    ) -> None:
        """ereport(WARNING): hand a warning on to the client, with the callback's context."""
        context = self.message_context(*self._place)
        try:
            self.warn(Notice("WARNING", message, detail, hint, sqlstate, context))
        except BaseException as error:  # the reader's error, not the plugin's
            self._from_outside = error
            raise

    # What ``replay`` calls.

    def call(
        self,
        callback: str,
        *arguments: Any,
        at: Lsn | NDArray[np.uint64] = INVALID,
        xid: int = 0,
        report: Lsn | None = None,
        writes: bool = True,
    ) -> Any:
        """Call a callback and return its result. Its writes get ``at`` and ``xid``. ``report`` is
        the LSN that errors name, if it is not ``at``. Raises PenstockError with a context."""
        if not self._shut_down:
            self._reader.interrupt()
        self._accept_writes, self._prepared_write = writes, False
        self._location, self._xid = at, xid
        self._place = (callback, self._first_location if report is None else report)
        self._callback_limit = self._writes.nbytes + self.output_limit
        try:
            result = getattr(self.plugin, callback)(self, *arguments)
            check_result(_SHOWN.get(callback, callback), result)
        except BaseException as error:
            if error is self._from_outside:
                raise
            raise self._with_context(error, *self._place) from error
        finally:
            self._accept_writes = False
        return result

    def require(self, callbacks: Sequence[str], what: str, report: Lsn) -> str:
        """Return the first of ``callbacks`` that the plugin has. Raises NotInPrerequisiteState if
        it has none of them."""
        for name in callbacks:
            if registered(self.plugin, name):
                return name
        called = _SHOWN.get(callbacks[0], callbacks[0])
        error = NotInPrerequisiteState(f"{what} requires a {called}_cb callback")
        raise self._with_context(error, called, report)

    @property
    def _first_location(self) -> Lsn:
        at = self._location
        return at if isinstance(at, Lsn) else Lsn(int(at[0]))

    def _check_limit(self) -> None:
        if self._writes.nbytes > self._callback_limit:
            self._writes.drop()
            raise PenstockError(
                f"output plugin wrote more than {self.output_limit} bytes in one callback",
                hint="A plugin writes what belongs to a change when it gets the change.",
                sqlstate="54000",
            )

    def _with_context(self, error: BaseException, callback: str, report: Lsn) -> PenstockError:
        return as_plugins_error(error, self.message_context(callback, report))

    def message_context(self, callback: str, report: Lsn) -> str:
        """output_plugin_error_callback: name slot, plugin, callback and LSN, for a callback's
        errors and warnings. A source calls it, too, for what it does in place of a callback."""
        context = (
            f'slot "{self._slot.name}", output plugin "{self._slot.plugin}", '
            f"in the {_SHOWN.get(callback, callback)} callback"
        )
        if report != INVALID:
            context += f", associated LSN {self._lsn_text(report)}"
        return context

    def _lsn_text(self, lsn: Lsn) -> str:
        if self.major_version >= _PADDED_SINCE:
            return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:08X}"
        return str(lsn)
