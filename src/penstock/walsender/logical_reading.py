"""Slots read by SQL functions (logicalfuncs.c, pg_logical_slot_get_changes_guts).

In: a slot's name, how far to read, the plugin's options. Out: the plugin's writes, as record
batches that are made when they are drawn. The slot is held until the call is closed, and moves when
the statement has succeeded. A peek leaves it where it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from penstock.catalog import Catalog, LakeTransaction, Slot
from penstock.decoding import LogicalDecodingContext, Output, OutputPlugin, OutputType
from penstock.decoding.logical import Options
from penstock.errors import FeatureNotSupported, InvalidParameterValue, ObjectInUse
from penstock.failpoint import AFTER_COMMIT_SENT, INSIDE_TRANSACTION, failpoint
from penstock.lsn import Lsn
from penstock.pgoutput.columnar_encoder import HEADER, XLogDataHeader, xlog_data_messages
from penstock.pgoutput.options import PgoutputOptions, parse_parameters
from penstock.protocol.answers import Duplex
from penstock.protocol.frontend_messages import FrontendMessage
from penstock.sqlstate import NullValueNotAllowed
from penstock.walsender.bundles import Bundles
from penstock.walsender.feed import Begun, ChangeSource, Ended, Feed, FeedFailure, Item, Piece
from penstock.walsender.lake_transactions import Decoded, LakeTransactions
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slot_checks import PGOUTPUT
from penstock.walsender.slots import Slots
from penstock.walsender.stream import TICK_S, SenderState, Stream
from penstock.wire_rows import data_of, lengths

_BUNDLE_BYTES: Final = 16 << 20
"""Bytes of WAL that are decoded together, roughly."""


Process = Callable[[Sequence[LakeTransaction]], Generator[Output | Lsn, None, None]]
"""A function that yields the output of transactions, and each one's end after its output."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A call of ``function``. ``binary``: it gives bytes. ``confirm``: it moves the slot.
    ``upto_lsn`` None reads to the end; ``upto_nchanges`` None reads any number of rows."""

    function: str
    binary: bool
    confirm: bool
    slot_name: str
    upto_lsn: Lsn | None
    upto_nchanges: int | None
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LogicalReading:
    """The parts of the node that calls need. ``transactions`` makes the source for one call, given
    the position from which on PREPAREs are sent (``Wanted.two_phase_at``). ``plugin`` finds a
    plugin by name or raises PenstockError. ``version`` is the major version that the node
    reports."""

    catalog: Catalog
    sequencer: Sequencer
    slots: Slots
    transactions: Callable[[Lsn | None], LakeTransactions]
    plugin: Callable[[str], OutputPlugin]
    version: int
    work_mem: Callable[[], int]
    subscriber: Callable[[PgoutputOptions, Lsn | None], ChangeSource]
    """A function that makes the source for slots of pgoutput, as for a subscriber."""

    def context(
        self, slot: Slot, options: Options, *, binary: bool, interrupt: Callable[[], None]
    ) -> LogicalDecodingContext:
        """CreateDecodingContext: return a context to enter; ``binary``: the reader takes bytes.
        Raises PenstockError if the plugin is gone or may not be used any more."""
        return LogicalDecodingContext(
            self.plugin(slot.plugin),
            plugin_name=slot.plugin,
            slot_name=slot.name,
            options=options,
            two_phase=slot.two_phase,
            as_bytes=binary,
            major_version=self.version,
            work_mem=self.work_mem(),
            interrupt=interrupt,
        )

    def open(
        self,
        request: SlotRequest,
        pid: int,
        cancelled: Callable[[], None],
        beside: Sequence[SlotChanges] = (),
    ) -> SlotChanges:
        """Begin a call; ``beside`` are other calls of its query. ``cancelled`` raises if the
        statement must end. Raises PenstockError if there is no such slot, another session has it,
        or its plugin refuses."""
        name = request.slot_name
        held = (call.hold for call in beside if call.hold.is_held)
        same = next((hold for hold in held if hold.slot.name == name), None)
        hold = same or SlotHold(self.slots, name, pid, self.version)
        return SlotChanges(self, request, hold, cancelled)


class SlotChanges:
    """The ``pg_catalog.row_streams.RowStream`` of one call, with LSN, xid and data."""

    def __init__(
        self,
        reading: LogicalReading,
        request: SlotRequest,
        hold: SlotHold,
        cancelled: Callable[[], None],
    ) -> None:
        self.hold: Final = hold
        self._slot = hold.slot
        self._reading = reading
        self._request = request
        self._check_cancelled = cancelled
        self._rows = 0
        self._called = False
        self._all = False
        self._at = self._slot.confirmed_flush_lsn
        self._output: Generator[Output, None, None] | None = None
        with ExitStack() as held:
            hold.enter(self)
            held.callback(hold.leave, self)
            self._end = reading.sequencer.position().lsn
            self._process = self._started(held, cancelled)
            self._held = held.pop_all()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the function."""
        data = pa.binary() if self._request.binary else pa.string()
        return pa.schema([("o1", pa.uint64()), ("o2", pa.int64()), ("o3", data)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises PenstockError, as decoding and the plugin do."""
        schema = self.schema
        self._called = True
        for output in self._outputs():
            self._rows += len(output)
            columns = [output.lsns, output.xids.cast(pa.int64()), output.data]
            yield pa.record_batch(
                [column.cast(field.type) for column, field in zip(columns, schema, strict=True)],
                schema=schema,
            )

    def succeed(self) -> None:
        """Move the slot, since the query reads nothing more. Rows that it did not draw count as
        read, as with a server, whose functions give all of their rows before the query sees the
        first one. A query that did not begin to draw (LIMIT 0, WHERE false) has not called the
        function; clients ask for the columns this way. The new position is durable when the client
        has the rows."""
        if not self._request.confirm or not self._called:
            return
        for output in self._outputs():
            self._rows += len(output)
        self._reading.slots.read_up_to(self._slot.name, self._at, pid=self.hold.pid)

    @property
    def moves(self) -> bool:
        """True if the call moves the slot."""
        return self._request.confirm

    @property
    def under_way(self) -> bool:
        """True if some of its output was drawn, but not all."""
        return self._output is not None and not self._all

    @property
    def position(self) -> Lsn:
        """The end of the last transaction whose output was drawn."""
        return self._at

    def go_on(self) -> None:
        """Go on with what has been committed since."""
        self._end = self._reading.sequencer.position().lsn
        self._output, self._all = None, False

    def close(self) -> None:
        """Give the slot back."""
        with self._held:
            if self._output is not None:
                self._output.close()

    def _started(self, held: ExitStack, cancelled: Callable[[], None]) -> Process:
        """Start the plugin with the options, and return what processes transactions. Raises
        PenstockError, 0A000 if a function for text gets binary output."""
        request, reading, plugin = self._request, self._reading, self._slot.plugin
        if plugin == PGOUTPUT:
            reading.plugin(plugin)  # raises if it is no longer allowed
            options = parse_parameters(request.options, reading.version)
            self._check_output(OutputType.BINARY)
            wanted = options.two_phase or self._slot.two_phase
            at = reading.slots.two_phase_at(self._slot, self._at, wanted=wanted)
            return PgoutputReading(reading.subscriber(options, at), at).process
        context = held.enter_context(
            reading.context(self._slot, request.options, binary=request.binary, interrupt=cancelled)
        )
        self._check_output(context.output_type)
        at = reading.slots.two_phase_at(self._slot, self._at, wanted=context.twophase)
        source = reading.transactions(at)

        def process(bundle: Sequence[LakeTransaction]) -> Generator[Output | Lsn, None, None]:
            with closing(source.items(bundle)) as transactions:
                for items, end in transactions:
                    yield from context.process(items)
                    yield end

        return process

    def _check_output(self, type_: OutputType) -> None:
        if type_ is OutputType.BINARY and not self._request.binary:
            raise FeatureNotSupported(
                f'logical decoding output plugin "{self._slot.plugin}" produces binary output, but '
                f'function "{_signature(self._request.function)}" expects textual data'
            )

    def _outputs(self) -> Iterator[Output]:
        """Return the one generator of output; every reader goes on where the last one stopped."""
        if self._output is None:
            self._at = max(self._at, self.hold.start(self))
            self._output = self._whole()
        return self._output

    def _whole(self) -> Generator[Output, None, None]:
        yield from self._decoded()
        self._all = True

    def _decoded(self) -> Generator[Output, None, None]:
        bundles = Bundles(self._reading.catalog, _BUNDLE_BYTES)
        upto = self._request.upto_lsn
        end = self._end if upto is None else min(upto, self._end)
        # A transaction is read if its commit record is before the end.
        while bundle := bundles.after(self._at, end):
            with (
                self._reading.slots.decoded(self._slot.name),
                closing(self._process(bundle)) as done,
            ):
                for item in done:
                    self._check_cancelled()
                    if isinstance(item, Output):
                        yield item
                        continue
                    self._at = item
                    if self._enough():
                        return

    def _enough(self) -> bool:
        most = self._request.upto_nchanges
        return most is not None and most != 0 and self._rows >= most


def _signature(function: str) -> str:
    """Return a function as regprocedure prints it."""
    return f"{function}(name,pg_lsn,integer,text[])"


def slot_options(given: Sequence[str | None] | None) -> tuple[tuple[str, str], ...]:
    """Return names and values of a VARIADIC array. Raises PenstockError (22004, 22023)."""
    if given is None:
        raise NullValueNotAllowed("options array must not be null")
    if any(item is None for item in given):
        raise InvalidParameterValue("array must not contain nulls")
    if len(given) % 2:
        raise InvalidParameterValue("array must have even number of elements")
    texts = [str(item) for item in given]
    return tuple(zip(texts[::2], texts[1::2], strict=True))


# The stream of pgoutput as rows of the slot functions: the same messages, without a client.
#
# In: transactions of the log, decoded for a subscriber. Out: each message with its LSN and xid.
# Only ``stream`` decides which messages there are, and in which order.

_OUTPUT_BYTES: Final = 1 << 20


class _Messages(Stream):
    """A stream whose messages are kept until they are taken."""

    def __init__(self, two_phase_at: Lsn | None) -> None:
        self._kept = bytearray()
        super().__init__(
            _Kept(self._kept),
            None,  # type: ignore[arg-type]  # no feed, as items are handed in
            SenderState("", Lsn(0)),
            confirm=lambda flush: flush,
            timeout_s=lambda: 0.0,
            two_phase_at=two_phase_at,
        )

    def take(self, xid: int) -> Output:
        """Take out the messages since the last call."""
        lsns: list[int] = []
        data: list[bytes] = []
        at, kept = 0, bytes(self._kept)
        self._kept.clear()
        while at < len(kept):
            _, length, _, lsn, _, _ = HEADER.unpack_from(kept, at)
            end = at + 1 + length
            lsns.append(lsn)
            data.append(kept[at + HEADER.size : end])
            at = end
        return Output(
            pa.array(lsns, pa.uint64()),
            pa.array([xid] * len(lsns), pa.uint32()),
            pa.array(data, pa.binary()),
        )

    @property
    def size(self) -> int:
        """The bytes that are kept."""
        return len(self._kept)


class _Kept:
    """A ``Duplex`` without a client, which keeps what is sent."""

    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        self._kept += data

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        return None


class PgoutputReading:
    """Process transactions for one call; ``source`` is as for a subscriber's stream."""

    def __init__(self, source: ChangeSource, two_phase_at: Lsn | None) -> None:
        """Take a source; ``two_phase_at`` is as the source has it."""
        self._source = source
        self._messages = _Messages(two_phase_at)

    def process(
        self, transactions: Sequence[LakeTransaction]
    ) -> Generator[Output | Lsn, None, None]:
        """Yield messages, and each transaction's end after them. Raises PenstockError."""
        xid = 0
        with closing(self._source.changes(transactions)) as found:
            for item in found:
                if isinstance(item, Begun):
                    xid = item.transaction.xid
                self._messages.handle(item)
                ended = isinstance(item, Ended)
                if self._messages.size >= _OUTPUT_BYTES or (ended and self._messages.size):
                    yield self._messages.take(xid)
                if isinstance(item, Ended):
                    yield item.transaction.end


# The calls of one query that read one slot, which they hold together.
#
# In: calls as they are opened, drawn and closed. Out: the position at which each begins to read. As
# with a server, which runs one function after the other, it is behind what earlier calls have read.
# The last call that is closed gives the slot back.


class Call(Protocol):
    """A call as others of its query see it."""

    @property
    def moves(self) -> bool:
        """True if it moves the slot."""

    @property
    def position(self) -> Lsn:
        """The end of what it has read."""

    @property
    def under_way(self) -> bool:
        """True if some of its output was drawn, but not all."""


class SlotHold:
    """A slot held for the calls of a query. For one thread at a time."""

    def __init__(self, slots: Slots, name: str, pid: int, version: int) -> None:
        """Hold the slot. Raises PenstockError, as ``Slots.held``."""
        self._stack = ExitStack()
        self.pid: Final = pid
        self._calls: list[Call] = []
        self.slot: Final[Slot] = self._stack.enter_context(slots.held(name, pid, version=version))

    @property
    def is_held(self) -> bool:
        """True until the last call has left."""
        return bool(self._calls)

    def enter(self, call: Call) -> None:
        """Add a call."""
        self._calls.append(call)

    def leave(self, call: Call) -> None:
        """Remove a call that is closed; the last one gives the slot back."""
        self._calls.remove(call)
        if not self._calls:
            self._stack.close()

    def start(self, call: Call) -> Lsn:
        """Return the position at which a call begins, when its first row is drawn. Raises
        ObjectInUse if another call has given only some of its rows, and either of the two moves the
        slot."""
        others: Sequence[Call] = [other for other in self._calls if other is not call]
        if any(other.under_way and (other.moves or call.moves) for other in others):
            raise ObjectInUse(
                f'replication slot "{self.slot.name}" is active for PID {self.pid}',
                hint="The query takes rows of two functions that read the slot by turns: "
                "materialize those of one, by WITH ... AS MATERIALIZED.",
            )
        moved = (other.position for other in others if other.moves)
        return max((self.slot.confirmed_flush_lsn, *moved))


# START_REPLICATION of a slot with an output plugin (walsender.c).
#
# In: a feed of rows (``Wanted.as_rows``), a context of the plugin. Out: each write of the plugin as
# one XLogData message. The client gets earlier writes while the plugin works, and is heard between
# writes, as in any stream.


class _ClientDone(Exception):
    """The client has ended the stream in the middle of a transaction."""


class PluginStream(Stream):
    """A ``Stream`` of one plugin's output."""

    def __init__(
        self,
        context: LogicalDecodingContext,
        lake: LakeTransactions,
        wire: Duplex,
        feed: Feed,
        state: SenderState,
        *,
        confirm: Callable[[Lsn], Lsn],
        timeout_s: Callable[[], float],
        check: Callable[[], None] = lambda: None,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """Take a started ``context``, and the ``lake`` that the feed's source belongs to."""
        super().__init__(
            wire, feed, state, confirm=confirm, timeout_s=timeout_s, check=check, told=told
        )
        self._context, self._lake = context, lake
        self._listened = time.monotonic()
        context.tell_progress = self._progress

    def run(self) -> None:
        """Send until the client is done. Raises as ``Stream.run``, and the plugin's errors."""
        try:
            super().run()
        except _ClientDone:
            return

    def handle(self, item: Item | None) -> None:
        """Send the next item; at the begin of a transaction, all of it."""
        if not isinstance(item, Begun):
            super().handle(item)
            return
        transaction = item.transaction
        self._transaction = transaction
        changes = self._changes(item)
        for output in self._context.process(self._lake.items_of(item, changes)):
            messages = _copy_data(output)
            self._put(messages)
            self._begun = True
            self.state.bytes += len(messages)
        for _ in changes:  # the plugin's filter may have skipped the transaction
            pass
        if self._begun:
            failpoint(AFTER_COMMIT_SENT)
            self.state.transactions += 1
        self._transaction, self._begun = None, False
        self.state.sent = transaction.end

    def _progress(self, lsn: Lsn, xid: int, skipped_xact: bool) -> None:
        """Hear the client while the plugin works (WalSndUpdateProgress)."""
        now = time.monotonic()
        if now - self._listened >= TICK_S:
            self._listened = now
            self._client_done()
            self._check_timeout()
            self._check()

    def _changes(self, begun: Begun) -> Iterator[Decoded]:
        """Yield the feed's changes of the transaction that has begun."""
        while True:
            item = self._feed.next(TICK_S)
            match item:
                case Ended():
                    return
                case FeedFailure(error):
                    raise error
                case Piece():
                    failpoint(INSIDE_TRANSACTION)
                    yield self._lake.piece(item, begun.transaction)
            if self._client_done():
                raise _ClientDone
            self._check_timeout()
            self._check()


def _copy_data(output: Output) -> bytes:
    """Return CopyData messages with XLogData, one for each write."""
    data, at = output.data.cast(pa.binary()), np.asarray(output.lsns)
    send_time = time.time_ns() // 1000
    starts = np.flatnonzero(np.diff(at, prepend=at[:1] + np.uint64(1)))
    out = bytearray()
    for start, stop in zip(starts, [*starts[1:], len(at)], strict=True):
        part = data.slice(start, stop - start)
        header = XLogDataHeader(Lsn(int(at[start])), send_time)
        out += data_of(xlog_data_messages([part], lengths(part), header))
    return bytes(out)
