"""Slots read by SQL functions (logicalfuncs.c, pg_logical_slot_get_changes_guts).

A call returns the plugin's writes as record batches, which are made as they are read. The slot is
held until the call is closed, and moves when the statement has succeeded. A peek does not move it.
Streams get their contexts and sources from ``LogicalReading``, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final, Protocol

import pyarrow as pa

from penstock.catalog import Catalog, LakeTransaction, Slot
from penstock.decoding import (
    DecodedDatabase,
    DecodedSlot,
    LogicalDecodingContext,
    MemoryLimits,
    Output,
    OutputPlugin,
    OutputReader,
    OutputType,
)
from penstock.decoding.logical import Options
from penstock.decoding.output import as_text
from penstock.decoding.plugins.pgoutput import Pgoutput
from penstock.decoding.publication_rules import AsPublished
from penstock.decoding.reorder_buffer import Catalogs, DecodingStats
from penstock.errors import FeatureNotSupported, ObjectInUse
from penstock.lsn import Lsn
from penstock.pgtypes.text_output import text_output
from penstock.protocol.answers import Notice
from penstock.sqlstate import NullValueNotAllowed
from penstock.walsender.bundles import Bundles
from penstock.walsender.decoding_options import Context, DecodingOptions
from penstock.walsender.feed import ChangeSource
from penstock.walsender.lake_transactions import LakeTransactions
from penstock.walsender.sequencer import Sequencer
from penstock.walsender.slots import Slots

_BUNDLE_BYTES: Final = 16 << 20
"""Bytes of WAL that are decoded together, roughly."""


Process = Callable[[Sequence[LakeTransaction]], Generator[Output | Lsn, None, None]]
"""A function that yields the output of each transaction, and then the transaction's end."""


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A call of ``function``. ``binary``: it returns bytes. ``confirm``: it moves the slot. Without
    ``upto_lsn`` it reads to the end, without ``upto_nchanges`` any number of rows."""

    function: str
    binary: bool
    confirm: bool
    slot_name: str
    upto_lsn: Lsn | None
    upto_nchanges: int | None
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LogicalReading:
    """The node's parts that calls and streams need. ``plugin`` finds a plugin by name or raises
    PenstockError. ``version`` is the major version that the node reports. ``catalogs`` returns a
    function through which output plugins see the catalogs at a transaction."""

    catalog: Catalog
    sequencer: Sequencer
    slots: Slots
    plugin: Callable[[str], OutputPlugin]
    version: int
    work_mem: Callable[[], int]
    decoding: Callable[[DecodingOptions, Context], ChangeSource]
    """A function that makes the source for one call or one stream."""
    catalogs: Callable[[], Callable[[LakeTransaction], Catalogs]]
    stats: Callable[[str], DecodingStats] = lambda slot: DecodingStats()
    """A function that returns the counts of a slot."""

    def context(
        self,
        slot: Slot,
        options: Options,
        *,
        interrupt: Callable[[], None],
        warn: Callable[[Notice], None],
    ) -> LogicalDecodingContext:
        """CreateDecodingContext: return a context manager. Its reader takes bytes: as on a server,
        nobody checks that a plugin's text is valid. Raises PenstockError if the plugin is gone or
        may not be used any more."""
        return LogicalDecodingContext(
            self.plugin(slot.plugin),
            DecodedSlot(slot.name, slot.plugin, slot.two_phase),
            options,
            database=DecodedDatabase(self.version, lambda names: AsPublished(self._type_name)),
            reader=OutputReader(as_bytes=True, interrupt=interrupt, warn=warn),
            limits=MemoryLimits(work_mem=self.work_mem()),
            stats=self.stats(slot.name),
        )

    def transactions(
        self, context: LogicalDecodingContext, slot: Slot, start: Lsn
    ) -> LakeTransactions:
        """Return the source for a started context, which reads a held slot from ``start`` on."""
        at = self.slots.two_phase_at(slot, start, twophase=context.twophase)
        plugin, options = context.plugin, DecodingOptions(None, at, context.streaming)
        if isinstance(plugin, Pgoutput):
            options = replace(options, pgoutput=plugin.options)
        source = self.decoding(options, context.message_context)
        catalogs = self.catalogs() if options.as_rows else None
        return LakeTransactions(source, at, catalogs, lambda notice: context.warn(notice))

    def _type_name(self, oid: int) -> tuple[str, str] | None:
        """Return schema and name of a type of the node's own."""
        with self.catalog.read() as t:
            found = next((type_ for type_ in t.types.all() if type_.oid == oid), None)
        return None if found is None else (found.schema, found.name)

    def open(
        self,
        request: SlotRequest,
        pid: int,
        cancelled: Callable[[], None],
        warn: Callable[[Notice], None],
        others: Sequence[SlotCall] = (),
    ) -> SlotCall:
        """Begin a call; ``others`` are the query's other calls. ``cancelled`` raises if the
        statement must end; ``warn`` takes the plugin's warnings. Raises PenstockError if there is
        no such slot, another session has it, or its plugin refuses."""
        name = request.slot_name
        held = (call.hold for call in others if call.hold.is_held)
        same = next((hold for hold in held if hold.slot.name == name), None)
        hold = same or SlotHold(self.slots, name, pid, self.version)
        return SlotCall(self, request, hold, cancelled, warn)


class SlotCall:
    """The ``pg_catalog.row_streams.RowStream`` of one call, with LSN, xid and data."""

    def __init__(
        self,
        reading: LogicalReading,
        request: SlotRequest,
        hold: SlotHold,
        cancelled: Callable[[], None],
        warn: Callable[[Notice], None],
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
            self._process = self._started(held, cancelled, warn)
            self._held = held.pop_all()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the function."""
        data = pa.binary() if self._request.binary else pa.string()
        return pa.schema([("o1", pa.uint64()), ("o2", pa.int64()), ("o3", data)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises PenstockError, as decoding and the plugin do."""
        for output in self._drawn():
            data = output.data if self._request.binary else as_text(output.data)
            columns = [output.lsns, output.xids.cast(pa.int64()), data]
            yield pa.record_batch(columns, schema=self.schema)

    def texts(self) -> Iterator[list[pa.Array]]:
        """Yield the rows as a client gets them. A plugin's text is sent as it is."""
        for output in self._drawn():
            lsns = output.lsns.dictionary_encode()  # rows of a transaction have few
            shown = pa.array([str(Lsn(lsn)) for lsn in lsns.dictionary.to_pylist()], pa.string())
            data = text_output(output.data) if self._request.binary else output.data
            yield [
                shown.take(lsns.indices).cast(pa.binary()),
                output.xids.cast(pa.string()).cast(pa.binary()),
                data,
            ]

    def _drawn(self) -> Iterator[Output]:
        self._called = True
        for output in self._outputs():
            self._rows += len(output)
            yield output

    def succeed(self) -> None:
        """Move the slot, since the query reads no more rows. Rows that it did not fetch count as
        read, as on a server, whose functions return all rows before the query sees one. A query
        that fetched no row (LIMIT 0, WHERE false) has not called the function; clients ask for the
        columns this way. The new position is durable when the client has the rows."""
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
        """Go on with transactions that were committed since."""
        self._end = self._reading.sequencer.position().lsn
        self._output, self._all = None, False

    def close(self) -> None:
        """Give the slot back."""
        with self._held:
            if self._output is not None:
                self._output.close()

    def _started(
        self,
        held: ExitStack,
        cancelled: Callable[[], None],
        warn: Callable[[Notice], None],
    ) -> Process:
        """Start the plugin with the options, and return the function that processes transactions.
        Raises PenstockError; 0A000 if a function for text gets binary output."""
        request, reading = self._request, self._reading
        context = held.enter_context(
            reading.context(self._slot, request.options, interrupt=cancelled, warn=warn)
        )
        self._check_output(context.output_type)
        source = reading.transactions(context, self._slot, self._at)

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
        """Return the call's one generator of output; a reader continues where the last stopped."""
        if self._output is None:
            self._at = max(self._at, self.hold.start(self))
            self._output = self._whole()
        return self._output

    def _whole(self) -> Generator[Output, None, None]:
        yield from self._decoded()
        self._all = True

    def _decoded(self) -> Generator[Output, None, None]:
        bundles = Bundles(self._reading.catalog, _BUNDLE_BYTES)
        upto, most = self._request.upto_lsn, self._request.upto_nchanges
        if most is not None and most < 0:
            return
        end = min(upto or self._end, self._end)
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
    """Return names and values of a VARIADIC array. Raises PenstockError (22004, 0A000)."""
    if given is None:
        raise NullValueNotAllowed("options array must not be null")
    if any(item is None for item in given):
        raise FeatureNotSupported("array must not contain nulls")
    if len(given) % 2:
        raise FeatureNotSupported("array must have even number of elements")
    texts = [str(item) for item in given]
    return tuple(zip(texts[::2], texts[1::2], strict=True))


# The calls of one query that read the same slot, and hold it together.
#
# Each call begins to read after the rows that earlier calls have read, as in a server, which runs
# one function after the other. The last call to be closed releases the slot.


class Call(Protocol):
    """A call as others of its query see it."""

    @property
    def moves(self) -> bool:
        """True if it moves the slot."""

    @property
    def position(self) -> Lsn:
        """The end of the last transaction that it has read."""

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
        """True until the last call is closed."""
        return bool(self._calls)

    def enter(self, call: Call) -> None:
        """Add a call."""
        self._calls.append(call)

    def leave(self, call: Call) -> None:
        """Remove a closed call; the last one releases the slot."""
        self._calls.remove(call)
        if not self._calls:
            self._stack.close()

    def start(self, call: Call) -> Lsn:
        """Return the position at which a call begins, when its first row is read. Raises
        ObjectInUse if another call has returned only some of its rows, and either of the two moves
        the slot."""
        others: Sequence[Call] = [other for other in self._calls if other is not call]
        if any(other.under_way and (other.moves or call.moves) for other in others):
            raise ObjectInUse(
                f'replication slot "{self.slot.name}" is active for PID {self.pid}',
                hint="The query takes rows of two functions that read the slot by turns: "
                "materialize those of one, by WITH ... AS MATERIALIZED.",
            )
        moved = (other.position for other in others if other.moves)
        return max((self.slot.confirmed_flush_lsn, *moved))
