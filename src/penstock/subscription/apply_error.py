"""Where an error of applying came up, and how an error is told (worker.c, apply_error_callback).

In: a batch with an error, which is divided until one transaction is left that has it, and the table
at which it failed, where it is known. Out: the CONTEXT of PostgreSQL's error, which names the
transaction by the LSN that SKIP takes. Changes are worked together here, so the kind of message is
named only where the transaction has one kind of that table.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.publisher_identity import alter
from penstock.errors import PenstockError, ReplicationConflict, ValueNotRepresentable
from penstock.lsn import Lsn
from penstock.subscription.parking import Parking
from penstock.subscription.piece import Batch
from penstock.subscription.retry import max_tries

log = logging.getLogger(__name__)

_BEGIN: Final = ord("B")
_BEGIN_FIELDS: Final = struct.Struct("!QqI")
_OID: Final = struct.Struct("!I")
_KINDS: Final = {ord("I"): "INSERT", ord("U"): "UPDATE", ord("D"): "DELETE", ord("T"): "TRUNCATE"}
_BODY: Final = 1
_TRUNCATED: Final = _BODY + 4 + 1

_PASSED_BY: Final = (ReplicationConflict, ValueNotRepresentable)
"""Errors of a transaction's rows; others come again with the next transaction."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Applies a batch. ``whole``: not in parts. ``staged``: whether its error has come up when
    everything was staged, and is no single transaction's. ``take_back``: brings tables that have
    more than the last cut back to it; whether there were any."""

    subscription: Subscription
    parking: Parking
    staged: Callable[[], bool]
    take_back: Callable[[], bool]
    whole: bool

    def apply(self, batch: Batch, at_once: Callable[[Batch], bool]) -> bool:
        """Of several transactions one may have an error of its own: those before it are applied,
        as by a server, and the error names it. ``at_once`` applies a batch; False: the session
        ends. So it does where tables had more of the transactions than others: they are all at the
        last cut then, the next session meets the error again, and nothing of its transaction is in
        any table."""
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
    """The error of the only transaction in a batch, with the way past it in its hint."""
    try:
        column = error.column if isinstance(error, PenstockError) else None
        context, finished = _context(batch, subid, rel, column)
    except struct.error:
        return error  # it is about a broken message
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
    """And the finish LSN. Raises struct.error."""
    begin = next((message for message in _messages(batch) if message[0] == _BEGIN), b"")
    final_lsn, _, xid = _BEGIN_FIELDS.unpack_from(begin, _BODY)
    at, finished = "" if rel is None else _where(batch, rel, column), Lsn(final_lsn)
    told = f'processing remote data for replication origin "pg_{subid}"{at} in transaction {xid}'
    return f"{told}, finished at {finished}", finished


def _where(batch: Batch, rel: SubscriptionRel, column: str | None) -> str:
    kinds = set() if rel.relid is None else set(_kinds(batch, rel.relid))
    during = f' during message type "{_KINDS[kinds.pop()]}"' if len(kinds) == 1 else ""
    at = "" if column is None else f' column "{column}"'
    return f'{during} for replication target relation "{rel.qualified_name}"{at}'


def _kinds(batch: Batch, relid: int) -> Iterator[int]:
    """Of the messages that change a relation."""
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
        yield from piece.chunk().messages()


def log_stop(error: Exception, subscription: str, disables: bool) -> Exception:
    """Of a subscription that stops; the error to be recorded. As a server's, it ends with its
    CONTEXT; what to do comes after it."""
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
        'subscription "%s" has stopped because of this error; after the remedy: %s ENABLE%s',
        subscription,
        alter(subscription),
        "" if hint is None else f"\nHINT:  {hint}",
    )
    return error


def text_of(error: Exception) -> str:
    """As a server's log has it."""
    if isinstance(error, PenstockError):
        return error.report()
    return "\n".join([f"ERROR:  {error}", *getattr(error, "__notes__", ())])
