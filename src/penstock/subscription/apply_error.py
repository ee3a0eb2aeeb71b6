"""Where an error of applying came up, and how an error is told (worker.c, apply_error_callback).

In: a batch of one transaction, and the table at which it failed, where it is known. Out: the
CONTEXT of PostgreSQL's error, which names the transaction by the LSN that SKIP takes. Changes are
worked together here, so the kind of message is named only where the transaction has one kind of
that table.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Final

from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.publisher_identity import alter
from penstock.errors import PenstockError, ReplicationConflict, ValueNotRepresentable
from penstock.lsn import Lsn
from penstock.pgoutput.chunk import XLOGDATA_HEADER
from penstock.subscription.inbox import Batch

log = logging.getLogger(__name__)

_BEGIN: Final = ord("B")
_BEGIN_FIELDS: Final = struct.Struct("!QqI")
_OID: Final = struct.Struct("!I")
_KINDS: Final = {ord("I"): "INSERT", ord("U"): "UPDATE", ord("D"): "DELETE", ord("T"): "TRUNCATE"}
_BODY: Final = XLOGDATA_HEADER + 1
_TRUNCATED: Final = _BODY + 4 + 1

_PASSED_BY: Final = (ReplicationConflict, ValueNotRepresentable)
"""Errors of a transaction's rows; others come again with the next transaction."""


def with_context(
    error: Exception, batch: Batch, subscription: str, subid: int, rel: SubscriptionRel | None
) -> Exception:
    """The error of the only transaction in a batch, with the way past it in its hint."""
    for frame in _frames(batch):
        if frame[XLOGDATA_HEADER] == _BEGIN:
            final_lsn, _, xid = _BEGIN_FIELDS.unpack_from(frame, _BODY)
            break
    else:
        return error
    at = "" if rel is None else _where(batch, rel)
    finished = Lsn(final_lsn)
    context = (
        f'processing remote data for replication origin "pg_{subid}"{at} in transaction {xid}, '
        f"finished at {finished}"
    )
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


def _where(batch: Batch, rel: SubscriptionRel) -> str:
    kinds = set() if rel.relid is None else set(_kinds(batch, rel.relid))
    during = f' during message type "{_KINDS[kinds.pop()]}"' if len(kinds) == 1 else ""
    return f'{during} for replication target relation "{rel.qualified_name}"'


def _kinds(batch: Batch, relid: int) -> Iterator[int]:
    """Of the messages that change a relation."""
    for frame in _frames(batch):
        kind = frame[XLOGDATA_HEADER]
        if kind == ord("T"):
            oids = [oid for (oid,) in _OID.iter_unpack(frame[_TRUNCATED:])]
        elif kind in _KINDS:
            oids = [_OID.unpack_from(frame, _BODY)[0]]
        else:
            continue
        if relid in oids:
            yield kind


def _frames(batch: Batch) -> Iterator[bytes]:
    for piece in batch.pieces:
        yield from piece.spooled.load() if piece.spooled else piece.frames


def log_stop(error: Exception, subscription: str, disables: bool) -> None:
    """Of a subscription that stops. As a server's, the error ends with its CONTEXT; what to do
    comes after it."""
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


def text_of(error: Exception) -> str:
    """As a server's log has it."""
    if isinstance(error, PenstockError):
        return error.report()
    return "\n".join([f"ERROR:  {error}", *getattr(error, "__notes__", ())])
