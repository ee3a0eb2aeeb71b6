"""Errors of applying: their transaction, table and report (worker.c, apply_error_callback).

A batch with an error is divided until one transaction with the error is left. The error gets
PostgreSQL's CONTEXT, which names the transaction by the LSN that SKIP takes, and the table if
known. Changes are applied together here, so the CONTEXT names the kind of message only if all
changes of the transaction to that table are of one kind.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.publisher_identity import alter
from penstock.errors import PenstockError, ReplicationConflict, ValueNotRepresentable, report
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.columnar import MessageChunk
from penstock.subscription.inbox import Batch
from penstock.subscription.origin import TableProgress
from penstock.subscription.parking import Parking
from penstock.subscription.retry import max_tries

log = logging.getLogger(__name__)

_BEGIN: Final = ord("B")
_BEGIN_FIELDS: Final = struct.Struct("!QqI")
_OID: Final = struct.Struct("!I")
_KINDS: Final = {ord("I"): "INSERT", ord("U"): "UPDATE", ord("D"): "DELETE", ord("T"): "TRUNCATE"}
_BODY: Final = 1
_TRUNCATED: Final = _BODY + 4 + 1

_PASSED_BY: Final = (ReplicationConflict, ValueNotRepresentable)
"""Errors of a transaction's rows, which SKIP can pass. Other errors would occur again."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The applying of batches, which are divided after an error. ``whole``: never divide.
    ``staged``: returns whether all was staged at the error; then no single transaction caused it.
    ``take_back``: reverts tables ahead of the last cut, and returns whether there were any."""

    subscription: Subscription
    parking: Parking
    staged: Callable[[], bool]
    take_back: Callable[[], bool]
    whole: bool

    def apply(self, batch: Batch, at_once: Callable[[Batch], bool]) -> bool:
        """Apply a batch. If one of several transactions has an error of its own, apply the
        transactions before it, as a server does, and raise an error that names that transaction.
        Return False if the session has to end. ``at_once``: applies a batch undivided, and returns
        False likewise.

        The session also ends if an error leaves some tables ahead of others. Then all tables are
        reverted to the last cut. The next session finds the error again, and no table has changes
        of its transaction.
        """
        self.parking.refused = None
        try:
            return at_once(batch)
        except Exception as error:
            if max_tries(error) is None:
                raise
            staged = self.staged()
            if self.take_back() and not staged:
                return False
            if staged:
                raise
            name, oid = self.subscription.name, self.subscription.oid
            if batch.transactions == 1:
                told = with_context(error, batch, name, oid, self.parking.refused)
                if told is error:
                    raise
                raise told from error
            if self.whole:
                raise
            log.info(
                'subscription "%s": looking for the transaction of an error among %d: %s',
                name,
                batch.transactions,
                error,
            )
        first, second = batch.halves()
        return self.apply(first, at_once) and self.apply(second, at_once)


def with_context(
    error: Exception, batch: Batch, subscription: str, subid: int, rel: SubscriptionRel | None
) -> Exception:
    """Return the error of a batch's only transaction with its CONTEXT, and a hint how to skip the
    transaction."""
    try:
        column = error.column if isinstance(error, PenstockError) else None
        context, finished = _context(batch, subid, rel, column)
    except struct.error:
        return error  # the message is broken, which is what the error is about
    if not isinstance(error, PenstockError):
        error.add_note(f"CONTEXT:  {context}")
        return error
    hint = error.hint
    if isinstance(error, _PASSED_BY):
        begun = alter(subscription)
        skip = (
            f"To skip the transaction: {begun} SKIP (lsn = '{finished}'), and then {begun} ENABLE."
        )
        hint = skip if hint is None else f"{hint} {skip}"
    return error.changed(context=context, hint=hint)


def _context(
    batch: Batch, subid: int, rel: SubscriptionRel | None, column: str | None
) -> tuple[str, Lsn]:
    """Return the CONTEXT and the finish LSN. Raises struct.error."""
    begin = next((message for message in _messages(batch) if message[0] == _BEGIN), b"")
    final_lsn, _, xid = _BEGIN_FIELDS.unpack_from(begin, _BODY)
    at, finished = "" if rel is None else _where(batch, rel, column), Lsn(final_lsn)
    return processing(f"pg_{subid}", at, xid, finished), finished


def processing(origin: str, during: str, xid: int | None, finished: Lsn | None) -> str:
    """Return the CONTEXT of an error or conflict in a transaction (worker.c,
    apply_error_callback). ``during``: as of ``during_message``, or ""."""
    told = f'processing remote data for replication origin "{origin}"{during}'
    return told if xid is None else f"{told} in transaction {xid}, finished at {finished}"


def during_message(kind: str | None, relation: str, column: str | None = None) -> str:
    """Return the part of a CONTEXT that names the message and what it is about. ``kind``: None if
    it is not known."""
    during = "" if kind is None else f' during message type "{kind}"'
    at = "" if column is None else f' column "{column}"'
    return f'{during} for replication target relation "{relation}"{at}'


def _where(batch: Batch, rel: SubscriptionRel, column: str | None) -> str:
    kinds = set() if rel.relid is None else set(_kinds(batch, rel.relid))
    kind = _KINDS[kinds.pop()] if len(kinds) == 1 else None
    return during_message(kind, rel.qualified_name, column)


def _kinds(batch: Batch, relid: int) -> Iterator[int]:
    """Yield the kinds of the messages that change a relation."""
    for message in _messages(batch):
        kind = message[0]
        if kind == ord("T"):
            oids = [oid for (oid,) in _OID.iter_unpack(message[_TRUNCATED:])]
        elif kind in _KINDS:
            oids = [_OID.unpack_from(message, _BODY)[0]]
        else:
            continue
        if relid in oids:
            yield kind


def _messages(batch: Batch) -> Iterator[bytes]:
    for piece in batch.pieces:
        for chunk in piece.chunks():
            yield from chunk.messages()


def log_stop(error: Exception, subscription: str, disables: bool) -> Exception:
    """Log the error of a subscription that stops, and return the error to record. As in a server's
    log, the error ends with its CONTEXT; a second message says what to do."""
    if disables and isinstance(error, PenstockError) and error.hint is not None:
        last = f"Whatever is done, {alter(subscription)} ENABLE comes last: it is disabled now."
        error = error.changed(hint=f"{error.hint} {last}")
    if isinstance(error, PenstockError):
        log.error("%s", error.changed(hint=None).report())
    else:
        log.error("%s", text_of(error), exc_info=error)
    if disables:
        log.info('subscription "%s" has been disabled because of an error', subscription)
    hint = error.hint if isinstance(error, PenstockError) else None
    log.error(
        'subscription "%s" has stopped because of this error%s',
        subscription,
        f"; after the remedy: {alter(subscription)} ENABLE" if hint is None else f"\nHINT:  {hint}",
    )
    return error


def text_of(error: Exception) -> str:
    """Return an error in the form of a server's log."""
    if isinstance(error, PenstockError):
        return error.report()
    return "\n".join([f"ERROR:  {error}", *getattr(error, "__notes__", ())])


# Skipping a transaction: ALTER SUBSCRIPTION ... SKIP (worker.c, is_skipping_changes).
#
# The rows and TRUNCATEs of the transaction that finishes at SKIP's LSN are removed from its batch;
# its Relation messages stay. The transaction is always skipped whole: the catalog records the
# decision before anything of the batch is committed, and keeps it until a cut has passed the
# transaction. So it is skipped again after a crash between two tables' commits, even if SKIP was
# altered meanwhile. If a crash before SKIP has left the transaction in some tables, it is reverted
# there first; if that is not possible, it can no longer be skipped.
#
# As on a server, SKIP is meant for the next transaction: once another transaction has been applied,
# SKIP is cleared with a warning.

_COMMIT: Final = ord("C")
_CHANGES: Final = np.isin(np.arange(256), tuple(b"IUDT"))
_LSN: Final = struct.Struct("!Q")
_FINAL_LSN_AT: Final = 1


@dataclass(frozen=True, slots=True)
class SkipLsns:
    """The SKIP setting of one subscription in the catalog."""

    generation: Callable[[], int]
    """A counter that grows with every change, and is cheap to read."""
    read: Callable[[], tuple[Lsn, Lsn]]
    """``skip_lsn`` and ``skipping_lsn`` of pg_subscription."""
    begin: Callable[[Lsn], bool]
    """Record that the transaction is skipped from now on; return False if SKIP was altered."""
    clear: Callable[[Lsn], object]
    """Record that a cut has passed the transaction."""


class Skipping:
    """The SKIP of one stream, which one thread uses at a time."""

    def __init__(self, subscription: str, lsns: SkipLsns, last_cut: Lsn | None) -> None:
        self._subscription = subscription
        self._lsns = lsns
        self._looked_at = -1
        self._skip = self._skipping = INVALID
        self._look()
        if last_cut is not None:
            self.passed(last_cut)
            if INVALID < self._skip < last_cut:
                self._give_up(f"The last cut, at LSN {last_cut}, is after it.")

    def is_in_some(
        self, batch: Batch, tables: Iterable[TableProgress], last_cut: Lsn | None
    ) -> bool:
        """Return whether the batch has the transaction to skip, and some tables already have it."""
        self._look()
        skip, begun = self._skip, self._skipping != INVALID
        if begun or skip == INVALID or skip not in finish_lsns(batch):
            return False
        return any(_has(table, skip, last_cut or INVALID) for table in tables)

    def begin(self, batch: Batch, tables: Iterable[TableProgress], last_cut: Lsn | None) -> Lsn:
        """Begin to skip a transaction of a batch. Return its finish LSN, or INVALID if none is to
        be skipped."""
        self._look()
        if self._skipping != INVALID:
            return self._skipping if self._skipping in finish_lsns(batch) else INVALID
        skip = self._skip
        if skip == INVALID or skip not in finish_lsns(batch):
            return INVALID
        if self.is_in_some(batch, tables, last_cut):
            self._give_up("Some tables have the transaction already: a crash came between.")
            return INVALID
        if not self._lsns.begin(skip):
            return INVALID
        self._skipping = skip
        log.info("logical replication starts skipping transaction at LSN %s", skip)
        return skip

    def after_cut(self, cut: Lsn, batch: Batch, changes: bool) -> None:
        """Once a batch is in a cut, end SKIP, or give SKIP up with a warning if other changes came.
        ``changes``: some of the batch's changes were not skipped."""
        before = self._skip
        if not self.passed(cut) and changes and before != INVALID:
            finish = max(finish_lsns(batch), default=INVALID)
            self._give_up(
                f"Remote transaction's finish WAL location (LSN) {finish} did not match skip-LSN "
                f"{before}."
            )

    def passed(self, cut: Lsn) -> bool:
        """Return whether a cut has passed the skipped transaction; if so, clear SKIP."""
        skipping = self._skipping
        if skipping == INVALID or skipping >= cut:
            return False
        self._lsns.clear(skipping)
        log.info("logical replication completed skipping transaction at LSN %s", skipping)
        self._skipping = INVALID
        if self._skip == skipping:
            self._skip = INVALID
        return True

    def _give_up(self, detail: str) -> None:
        skip, self._skip = self._skip, INVALID
        if self._lsns.read()[0] != skip:
            return  # SKIP was altered, or its transaction was prepared (``prepared``)
        self._lsns.clear(skip)
        message = f'skip-LSN of subscription "{self._subscription}" cleared'
        log.warning("%s", report("WARNING", message, detail, None))

    def _look(self) -> None:
        now = self._lsns.generation()
        if now != self._looked_at:
            self._skip, self._skipping = self._lsns.read()
            self._looked_at = now


def _has(table: TableProgress, skip: Lsn, last_cut: Lsn) -> bool:
    """Return whether a table is ahead of the last cut and has the transaction."""
    points = (table.marker, table.half_applied) if table.ready else ()
    return any(point is not None and point > max(skip, last_cut) for point in points)


def finish_lsns(batch: Batch) -> set[Lsn]:
    """Return the LSNs where the commit records of a batch's transactions begin."""
    return {Lsn(lsn) for piece in batch.pieces for lsn in piece.finish_lsns.tolist()}


class Passing:
    """A filter for the messages of a batch, in order, that removes one transaction's changes."""

    def __init__(self, skip: Lsn) -> None:
        """``skip``: the transaction's finish LSN; INVALID: nothing is removed."""
        self._skip = skip
        self._inside = False

    def rest(self, chunk: MessageChunk) -> MessageChunk:
        """Return the messages of a chunk that must be applied."""
        if self._skip == INVALID:
            return chunk
        kinds = np.frombuffer(chunk.buffer, np.uint8)[chunk.starts]
        out = np.full(len(chunk), self._inside)
        for index in np.flatnonzero((kinds == _BEGIN) | (kinds == _COMMIT)):
            if kinds[index] == _BEGIN:
                at = int(chunk.starts[index]) + _FINAL_LSN_AT
                final = chunk.buffer[at : min(at + _LSN.size, int(chunk.ends[index]))]
                self._inside = final == _LSN.pack(self._skip)
            else:
                self._inside = False
            out[index:] = self._inside
        kept = ~(out & _CHANGES[kinds])
        return MessageChunk(chunk.buffer, chunk.starts[kept], chunk.ends[kept])
