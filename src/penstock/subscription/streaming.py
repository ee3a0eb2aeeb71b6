"""One stream from START_REPLICATION to its end: apply, cut, acknowledge (LogicalRepApplyLoop).

A stream applies batches to the open tables, makes cuts, and acknowledges an LSN that never passes
the last cut (law 1). The receiver thread reads, and this thread applies. The stream ends on
request, or with an error of either thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from penstock.catalog.pg_subscription import Subscription, TwoPhaseState
from penstock.errors import ConnectionFailure, PenstockError, PublisherError
from penstock.failpoint import AFTER_RECEIVE, failpoint
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import MessageChunk
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import RelationMessage
from penstock.pgoutput.options import PgoutputOptions, committed_only, subscriber_options
from penstock.pgtypes import binary_supported
from penstock.pipeline.table_work import ApplyOptions
from penstock.precedence import NODE, PRECEDENCE
from penstock.relation import Relation
from penstock.subscription import origin
from penstock.subscription.apply import Applier, ApplySession
from penstock.subscription.apply_error import Parts, SkipLsns, Skipping
from penstock.subscription.applyparallelworker import ParallelApplyWorker, applies_in_parallel
from penstock.subscription.cut_requests import RequestedCuts
from penstock.subscription.inbox import Batch, Inbox
from penstock.subscription.origin import AdvancedOrigin, advance_to, are_beyond
from penstock.subscription.prepared import PreparedTransactions, TwoPhaseOptions
from penstock.subscription.streamed import StreamedTransactions
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets
from penstock.subscription.upkeep import Upkeep, UpkeepOptions
from penstock.subscription.worker_status import WorkerStatus
from penstock.walreceiver.backlog import Backlog, TooLong, available
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.stream import ReplicationStream, open_backlog

log = logging.getLogger(__name__)

_IDLE_CUT_INTERVAL: Final = 1.0
"""Seconds without a transaction after which the cut moves to the received LSN."""

_TICK: Final = 0.02
"""The most seconds between two checks of an idle inbox, which add to the latency."""


class StreamCatalog(Protocol):
    """The part of the catalog that a stream needs. ``worker.CatalogAccess`` implements it.

    ``requested_cuts``: the cuts that somebody waits for. ``two_phase``: returns a session's present
    two-phase commit settings.
    """

    @property
    def requested_cuts(self) -> RequestedCuts: ...

    @property
    def two_phase(self) -> Callable[[], TwoPhaseOptions]: ...

    @property
    def skip_lsns(self) -> SkipLsns: ...

    @property
    def advanced_origin(self) -> AdvancedOrigin: ...


class ApplyStream:
    """A stream of one subscription. ``run`` is called once."""

    def __init__(
        self,
        session: ApplySession,
        catalog: StreamCatalog,
        *,
        binary: BinaryStream | None,
        options: Callable[[], StreamOptions],
        status: WorkerStatus,
        copy_began_at: Callable[[], Lsn | None],
        joined: Callable[[Sequence[Target], Lsn], None],
        check_connection: Callable[[Connection], None],
        interrupt: Callable[[], None],
    ) -> None:
        """``binary``: None for a text stream. ``options``: returns the present options.
        ``copy_began_at``: returns the cut at which a running copy began. ``joined``: is called with
        tables that have joined the cuts. ``check_connection``: raises StateMismatch for another
        server. ``interrupt``: raises if the worker no longer waits for a silent server."""
        subscription, spark, warehouse = session.subscription, session.spark, session.warehouse
        targets, self._parking = session.targets, session.parking
        self._requested, self._two_phase = catalog.requested_cuts, catalog.two_phase()
        self._check_connection, self._subscription = check_connection, subscription
        self._interrupt = interrupt
        self._targets, self._binary, self._status = targets, binary, status
        self._options_given, self._options = options, options().of(subscription.app_id)
        self._copy_began_at, self._joined, self._advanced_origin = (
            copy_began_at,
            joined,
            catalog.advanced_origin,
        )
        self._applier = Applier(session, self._options.apply)
        self._skipping = Skipping(subscription.name, catalog.skip_lsns, self._applier.last_cut)
        self._upkeep = Upkeep(spark, targets, warehouse.cuts, self._options.upkeep)
        spool_folder, now = self._two_phase.store.spool_folder, self._options
        pieces = {"piece_bytes": now.piece_bytes, "piece_frames": now.piece_frames}
        self._inbox = Inbox(spool_folder, **pieces, memory_bytes=now.queue_bytes)
        prepared = self._prepared = PreparedTransactions(self._two_phase.store)
        worker = ParallelApplyWorker(spark, targets, now.apply, spool_folder)
        self._parallel_worker = worker if applies_in_parallel(subscription) else None
        self._frames, self._parallel, self._taken_back = 0, False, False
        self._backlog_by_copy = not available()
        check = None if binary is None else binary.check
        self._streamed = StreamedTransactions(
            self._inbox, spool_folder, prepared, **pieces, worker=self._parallel_worker, check=check
        )

    def run(self, told_to_end: Callable[[], bool]) -> None:
        """Stream until ``told_to_end`` returns True. Raises errors of the publisher, Spark or the
        warehouse."""

        def ends() -> bool:
            return self._taken_back or told_to_end()

        try:
            self._prepared.begin(self._applier.last_cut)
            if not self._advance():
                return
            self._first_cut()
            self._catch_up(ends)
            if not ends():
                self._follow(self._start(), ends)
        finally:
            self._upkeep.close()
            self._applier.close()
            self._streamed.clear()
            self._inbox.clear()
            if self._parallel_worker is not None:
                self._parallel_worker.close()

    def _follow(self, source: FrameSource, until: Callable[[], bool]) -> None:
        """Receive and apply until ``until`` returns True. Ends the source."""
        self._frames = 0
        self._streamed.clear(parallel=self._parallel)
        receiver = Receiver(source, self._streamed, self._inbox, self._options.batch_idle)
        receiver.start()
        try:
            self._apply_until(until, receiver, source)
        finally:
            receiver.stop()

    def _catch_up(self, told_to_end: Callable[[], bool]) -> None:
        """Fetch the backlog while the subscription is far behind.

        Changes that are written meanwhile are the next backlog. Each backlog ends in a cut, at
        which the next one begins. Changes that the publisher cannot send in this way are streamed.
        """
        while not told_to_end() and (backlog := self._open_backlog()) is not None:
            try:
                self._follow(backlog, _all_of(backlog, self._inbox, told_to_end))
            except TooLong:
                log.info('subscription "%s": a long row in the backlog', self._subscription.name)
                self._backlog_by_copy = True
                self._inbox.clear()
            except PublisherError as error:
                log.warning("%s; streaming it instead", error.message)
                self._inbox.clear()
                return
            if backlog.finished and self._inbox.empty():
                self._idle_cut(backlog.received_lsn, backlog)
            if backlog.ended_early:
                return

    def _open_backlog(self) -> Backlog | None:
        # A copy of the slot does not know which transactions the slot has sent as prepared, and
        # only a stream can enable two-phase commit.
        two_phase = self._two_phase.enable or self._two_phase.state is TwoPhaseState.ENABLED
        if self._options.backlog_threshold < 0 or two_phase:
            return None
        subscription, connection = self._subscription, self._connect()
        conninfo = ConnInfo.parse(subscription.conninfo)
        ordinary = partial(Connection.connect, conninfo, subscription.name, replication=False)
        return open_backlog(
            connection,
            subscription.slot_name or "",
            self._start_lsn(),
            committed_only(self._plugin_options(connection.server_version)),
            threshold=self._options.backlog_threshold,
            session=None if self._backlog_by_copy else ordinary,
        )

    def _connect(self) -> Connection:
        subscription = self._subscription
        connection = Connection.connect(
            ConnInfo.parse(subscription.conninfo), subscription.name, interrupt=self._interrupt
        )
        try:
            self._check_connection(connection)
        except BaseException:
            connection.close()
            raise
        connection.interrupt = None
        return connection

    def _start_lsn(self) -> Lsn:
        return origin.start_lsn(self._applier.last_cut, self._targets.progress())

    def _plugin_options(self, publisher_version: int) -> PgoutputOptions:
        subscription = self._subscription
        return subscriber_options(
            publisher_version,
            subscription.publications,
            binary=self._binary is not None,
            streaming=subscription.streaming,
            two_phase=self._two_phase.enable,  # only once: the slot remembers it
            origin=subscription.origin,
            messages=subscription.messages,
        )

    def _start(self) -> ReplicationStream:
        subscription, start = self._subscription, self._start_lsn()
        connection = self._connect()
        try:
            stream = ReplicationStream(
                connection,
                status_interval_s=self._options.status_interval,
                timeout_s=self._options.receiver_timeout,
            )
            plugin = self._plugin_options(connection.server_version)
            connection.hear_warnings(self._tell_warning)
            stream.start(subscription.slot_name or "", start, plugin.text())
            self._parallel = plugin.streaming == "parallel"
            if plugin.two_phase:
                self._two_phase.enabled()
            self._acknowledge(stream)
        except BaseException:
            connection.close()
            raise
        log.info('subscription "%s": streaming from %s', subscription.name, start)
        return stream

    def _tell_warning(self, text: str) -> None:
        """Log a warning of the publisher, such as PostgreSQL 18's for a missing publication."""
        log.warning('subscription "%s": the publisher warns: %s', self._subscription.name, text)

    def _acknowledge(self, stream: FrameSource) -> None:
        """Acknowledge the last cut to the publisher, and never more than that (law 1)."""
        if self._applier.last_cut is not None:
            self._prepared.forget(self._applier.last_cut)
        flush = origin.flush_lsn(
            self._applier.last_cut, self._targets.progress(), self._copy_began_at()
        )
        stream.hold(flush)
        stream.confirm(flush, self._frames - self._streamed.surplus)

    def _apply_until(
        self, told_to_end: Callable[[], bool], receiver: Receiver, stream: FrameSource
    ) -> None:
        inbox = self._inbox
        self._status.streaming(self._targets, self._applier.last_cut)
        idle_since = time.monotonic()
        while not told_to_end():
            self._take_options(receiver, stream)
            options = self._options
            if receiver.error is not None:
                raise receiver.error
            delay = options.backlog_delay if stream.far_behind else options.batch_delay
            now, position = time.monotonic(), receiver.position
            # A backlog seldom updates its position, so a transaction in the inbox may be newer.
            arrived = max(position, inbox.newest_end_lsn())
            upto = self._targets.half_applied
            inbox.gather(upto is not None)
            if upto is not None:
                # A batch was interrupted between two partitions. It is applied first, to its end.
                if arrived >= upto:
                    self._apply_again(upto, now, stream)
                else:
                    inbox.wait(_TICK)
            elif self._requested.due(now) and self._stands_at_limit(arrived, now, stream):
                inbox.wait(_TICK)
            elif self._targets.definitions.due():  # before batches: one may always be ready
                self._look_at_definitions()
            elif inbox.ready(now, delay=delay, backlog_delay=options.backlog_delay):
                if not self._apply_one(now, stream):
                    inbox.wait(_TICK)
                idle_since = time.monotonic()
            elif now - idle_since >= _IDLE_CUT_INTERVAL and inbox.empty():
                idle_since = now
                self._idle_cut(position, stream)
                self._upkeep.between_batches()
            else:
                inbox.wait(_TICK)
            self._status.received(position, stream, behind=not inbox.empty())
        # A publisher before 18 decodes unacknowledged changes with the publications of their time,
        # and raises an error if the next session names one that did not exist. So cut once more.
        position = receiver.position
        if inbox.empty() and receiver.error is None and self._targets.half_applied is None:
            self._idle_cut(position, stream)

    def _look_at_definitions(self) -> None:
        """Look for changed definitions, between two batches. Raises the error of a table, unless
        the table is parked."""
        targets = self._targets
        applied = self._applier.last_cut or INVALID
        for target, difference in targets.definitions.look_at_all(list(targets), applied):
            error = targets.settle(target, difference)
            if error is not None:
                self._parking.refuse(target.rel, error)
                targets.close(target)

    def _take_options(self, receiver: Receiver, stream: FrameSource) -> None:
        """Take the new options after a reload."""
        now = self._options_given().of(self._subscription.app_id)
        if now == self._options:
            return
        self._options = now
        self._inbox.limit(now.piece_bytes, now.piece_frames, now.queue_bytes)
        self._streamed.limit(now.piece_bytes, now.piece_frames)
        self._upkeep.options = now.upkeep
        receiver.idle = now.batch_idle
        stream.wait_at_most(now.status_interval, now.receiver_timeout)

    def _apply_again(self, upto: Lsn, now: float, stream: FrameSource) -> None:
        batch = self._inbox.take_upto(upto, now)
        if batch is None:
            self._targets.nothing_upto(upto)
        else:
            self._apply_batch(batch, stream, whole=True)

    def _stands_at_limit(self, position: Lsn, now: float, stream: FrameSource) -> bool:
        """Return whether all changes up to a requested cut are applied. If so, make the cut; the
        caller applies nothing more for now.

        ``position``: every change up to this LSN had arrived before the call.
        """
        limit = self._requested.limit(now)
        if limit is None or position < limit or self._inbox.has_upto(limit):
            return False
        self._idle_cut(limit, stream)
        self._requested.reached(limit, now)
        return True

    def _apply_one(self, now: float, stream: FrameSource) -> bool:
        """Return False if there was nothing to apply before the next requested cut."""
        # Read before the call of ``limit``, whose docstring says why.
        newest = self._inbox.newest_end_lsn()
        limit = self._requested.limit(now)
        batch = self._inbox.take(now, newest if limit is None else limit)
        if batch is not None:
            self._apply_batch(batch, stream)
        return batch is not None

    def _apply_batch(self, batch: Batch, stream: FrameSource, *, whole: bool = False) -> None:
        """Apply a batch, in parts if one of its transactions fails. ``whole``: never in parts."""
        subscription, applier = self._subscription, self._applier
        parts = Parts(
            *(subscription, self._parking, lambda: applier.committing),
            *(self._take_back, whole),
        )
        try:
            parts.apply(batch, lambda part: self._apply_at_once(part, stream, whole))
        finally:
            batch.forget()

    def _take_back(self) -> bool:
        """Revert all tables to the last cut. Return True if one was ahead of it: the session ends,
        because the changes since the cut must be sent again."""
        self._taken_back |= self._applier.take_back()
        return self._taken_back

    def _apply_at_once(self, batch: Batch, stream: FrameSource, whole: bool) -> bool:
        """Apply a batch undivided. Return False if the session ends."""
        last_cut, progress = self._applier.last_cut, self._targets.progress()
        if self._skipping.is_in_some(batch, progress, last_cut) and self._take_back():
            return False
        skip = self._skipping.begin(batch, progress, last_cut)
        with PRECEDENCE.work(NODE):
            applied = self._applier.apply(batch, skip, whole=whole)
            if applied is None:
                return False
            self._frames += batch.frames
            if applied.joined:
                self._joined(applied.joined, batch.end_lsn)
            self._acknowledge(stream)
        self._status.applied(
            batch.end_lsn, batch.commit_time / 1e6, batch.transactions, applied, self._targets
        )
        if applied.cut is not None:
            news = last_cut is None or applied.cut > last_cut
            self._skipping.after_cut(applied.cut, batch, news and bool(applied.outcomes))
        # Last: neither readers nor the publisher wait for it.
        self._upkeep.after_cut()
        return True

    def _idle_cut(self, position: Lsn, stream: FrameSource) -> None:
        """Move the cut to ``position``: no change lies between.

        So idle and filtered streams let the publisher recycle its WAL, and readers see how far the
        tables are up to date. If tables join or have left, a cut is made even at the last cut's
        LSN: a publisher without writes sends no other LSN.
        """
        if self._taken_back:
            return
        limit = self._requested.limit(time.monotonic())
        position = position if limit is None else min(position, limit)
        last = self._applier.last_cut or INVALID
        if position == INVALID or position < last:
            return
        if position == last and not self._applier.members_changed():
            self._status.healed()
            return
        if self._cut_at(position):
            self._acknowledge(stream)

    def _cut_at(self, lsn: Lsn) -> bool:
        """Move the cut without a batch; return whether it has moved."""
        if (joined := self._applier.cut(lsn, None)) is None:
            return False
        if joined:
            self._joined(joined, lsn)
        self._skipping.passed(lsn)
        self._status.cut(lsn, self._targets)
        return True

    def _advance(self) -> bool:
        """Go on from the LSN to which the replication origin was advanced. Return False if the
        session ends."""
        wanted, name = self._advanced_origin.read(), self._subscription.name
        if wanted == INVALID:
            return True
        last_cut, progress = self._applier.last_cut, self._targets.progress()
        if are_beyond(wanted, last_cut, progress) and self._take_back():
            return False
        lsn = advance_to(name, wanted, last_cut, progress, prepared=self._prepared.any)
        if lsn is not None and not self._cut_at(lsn):
            return False
        self._advanced_origin.clear(wanted)
        return True

    def _first_cut(self) -> None:
        """Make the first copied tables readable at once, by a cut at their common point.

        This is done only before the first cut and while no copy runs.
        """
        points = {target.marker for target in self._targets}
        if self._applier.last_cut is not None or self._copy_began_at() is not None:
            return
        if len(points) == 1 and (point := points.pop()) is not None:
            self._cut_at(point)


def _all_of(backlog: Backlog, inbox: Inbox, told_to_end: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that returns whether a backlog is applied, or the session has to end."""
    return lambda: told_to_end() or (backlog.finished and inbox.empty())


# The receiving thread: it reads the stream into the inbox.
#
# From a started replication stream it puts whole transactions into the inbox, and updates
# ``position``: every transaction that ended at or before it is, or was, in the inbox. The applier
# acknowledges through the stream's ``confirm`` and ``hold``. When the inbox is full the thread
# stops reading and continues status updates, so that the walsender waits instead of timing out.

_POLL: Final = 0.1
"""The most seconds that one wait for frames takes. A stop may take as long."""


class FrameSource(Protocol):
    """A source of messages: a stream, or a backlog that is fetched in one go (walreceiver).

    ``far_behind``: much is still to come, so batches should be large. ``rests``: returns whether
    the received messages may be applied at once; ``came``: a message has just been received."""

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
    """The thread that owns the reading side of the stream from start() to stop()."""

    def __init__(
        self, stream: FrameSource, streamed: StreamedTransactions, inbox: Inbox, idle: float
    ) -> None:
        """``streamed``: takes the frames, and gives transactions to ``inbox``. ``idle``: seconds
        without a frame after which the stream counts as quiet."""
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
        """End the stream, cleanly if it still works, and close its connection. Never raises."""
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
        # Read before the frames are passed on, so that a reader of ``position`` finds every
        # transaction below it in the inbox.
        received = self._stream.received_lsn
        with PRECEDENCE.work(NODE):
            if len(frames):
                self._streamed.add(frames, time.monotonic())
                failpoint(AFTER_RECEIVE)
            if self._stream.rests(len(frames) > 0):
                self._inbox.quiet()
        self.position = Lsn(max(self.position, received))


# The parameters of a stream. ``node`` makes them for all subscriptions, and ``StreamOptions.of``
# fits them to one.


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Parameters of a stream, in seconds and bytes."""

    apply: ApplyOptions
    track_commit_timestamp: bool
    """Report changes of rows that another origin has written last."""
    upkeep: UpkeepOptions
    spool_folder: Path
    piece_bytes: int
    piece_frames: int
    queue_bytes: int
    batch_delay: float
    batch_idle: float
    backlog_delay: float
    backlog_threshold: int
    """Bytes of WAL that the subscription must be behind before it fetches a backlog instead of
    streaming; -1: it never does."""
    status_interval: float
    receiver_timeout: float

    def of(self, app_id: str) -> StreamOptions:
        """Return the options for the subscription with that app id."""
        if not self.track_commit_timestamp:
            return self
        compact = replace(self.upkeep.compact, own=app_id)
        upkeep = replace(self.upkeep, compact=compact)
        return replace(self, apply=replace(self.apply, own=app_id), upkeep=upkeep)


# Streams in PostgreSQL's binary format: decide whether a session may use it.
#
# At its start, a session of a subscription with binary = true checks its open tables. If a table
# joins the publication or is altered later, its Relation message may have a column that must come
# as text, such as an enum. Then the session ends with NotInBinary, and the next session streams
# text, which suits all columns. The check precedes all other use of the message: the binary rows
# after it could not be read, and a prepared transaction is not sent again once it is kept.


class NotInBinary(Exception):
    """A relation of a binary stream has a column that can only be read as text."""


class BinaryStream:
    """The decision for one session whether its columns can be read in binary."""

    def __init__(self, subscription: Subscription, targets: Targets) -> None:
        self._subscription = subscription
        self._targets = targets

    def begins(self, publisher: Publisher) -> bool:
        """Return whether every published column can be read in binary. Raises ConnectionFailure."""
        for target in self._targets:
            rel = target.rel
            try:
                info = publisher.table_info(self._subscription.publications, rel.schema, rel.table)
            except ConnectionFailure:
                raise
            except PenstockError as error:
                # The table was renamed, dropped or locked. The stream will show which.
                log.info("%s; streaming text", error.message)
                return False
            if (found := self._text_only(info.relation)) is not None:
                log.warning("%s", found)
                return False
        return True

    def check(self, message: bytes) -> None:
        """Raise NotInBinary for a Relation message with a column that must come as text."""
        definition = Decoder().decode(message)
        if isinstance(definition, RelationMessage):
            found = self._text_only(definition.relation)
            if found is not None:
                raise NotInBinary(found)

    def _text_only(self, relation: Relation) -> str | None:
        texts = self._targets.text_readers(relation)
        for attribute in relation.attributes:
            if attribute.name in texts or not binary_supported(attribute.type_oid):
                name, table = self._subscription.name, relation.qualified_name
                return (
                    f'subscription "{name}" streams text although binary = true: column '
                    f'"{attribute.name}" of table "{table}" is kept as PostgreSQL\'s text'
                )
        return None
