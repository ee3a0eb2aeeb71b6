"""DROP SUBSCRIPTION (subscriptioncmds.c, DropSubscription).

In: a statement, the catalog, a way to the publisher. Out: no subscription, no slot. Delta tables
and cuts stay, and a row of the catalog tells whose the markers in the tables' logs are. A node that
runs lets go of the slot first:

1. The row is marked as dropping, which moves the catalog's generation: a running node stops the
   worker and its copies; without one nothing needs to be stopped. No copy is committed any more.
2. When the temporary slots of its copies are gone, no copy runs.
3. ``DROP_REPLICATION_SLOT ... WAIT`` returns when nobody streams from the slot any more.
4. The rows go, with transactions that are prepared and not committed.

When step 3 fails the mark goes and the subscription is as before. When the process dies the mark
stays, and DROP may be said again; then a slot that is gone already is no error.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

from penstock.catalog import Catalog, Subscription
from penstock.commands.scope import (
    CommandResult,
    CommandScope,
    PublisherFactory,
    PublisherSession,
    notice,
    warning,
)
from penstock.commands.subscriptioncmds import CONNECT_PREFIX
from penstock.errors import ConnectionFailure, PenstockError
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.protocol.answers import Notice
from penstock.sql import DropSubscription

log = logging.getLogger(__name__)

_TAG = "DROP SUBSCRIPTION"
_DISASSOCIATE = (
    "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then use "
    "ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from the slot."
)


_COPIES_END_S = 30.0
"""Spark kills a task within seconds; a session without a client ends by the server's keepalives."""

_LOOK_S = 0.1


def drop_subscription(
    statement: DropSubscription, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    """Raises UndefinedObject, ConnectionFailure, PublisherError."""
    with catalog.write() as transaction:
        subscription = transaction.subscriptions.find(statement.name)
        if subscription is None and statement.missing_ok:
            missing = notice(f'subscription "{statement.name}" does not exist, skipping')
            return CommandResult(_TAG, (missing,))
        subscription = transaction.subscriptions.get(statement.name)
        if subscription.slot_name is not None:
            scope.prevent_in_block("DROP SUBSCRIPTION")
        transaction.subscriptions.save(replace(subscription, dropping=True))
    notices = []
    if subscription.slot_name is not None:
        try:
            running = _drop_slot(connect, subscription, subscription.slot_name)
        except BaseException:
            _unmark(catalog, subscription.oid)
            raise
        notices += [_still_copying(slot) for slot in running]
        notices.append(notice(f'dropped replication slot "{subscription.slot_name}" on publisher'))
    cut = _last_cut(scope, subscription)
    with catalog.write() as transaction:
        transaction.relations.delete_all(subscription.oid)
        if cut is None:
            transaction.subscriptions.delete(subscription.oid)
        else:
            ids = [table.id for table in cut.tables.values() if table.id is not None]
            transaction.subscriptions.delete(subscription.oid, cut.lsn, ids)
        transaction.cut_requests.forget_all(subscription.oid)
        transaction.prepared_xacts.delete_all(subscription.oid)
    if scope.warehouse is not None:
        storage, prepared = scope.warehouse.storage, scope.warehouse.prepared_uri
        scope.after_commit(partial(storage.discard_folder, prepared(subscription.app_id)))
    return CommandResult(_TAG, tuple(notices))


def _last_cut(scope: CommandScope, subscription: Subscription) -> Cut | None:
    """None also where the warehouse does not tell: a subscription can be dropped without it."""
    if scope.warehouse is None:
        return None
    try:
        return scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
    except PenstockError as error:
        log.warning('the last cut of subscription "%s": %s', subscription.name, error.message)
        return None


def _drop_slot(connect: PublisherFactory, subscription: Subscription, slot: str) -> list[str]:
    """Drop it after the copies have ended; the temporary slots of those that have not."""
    with closing(_connect(connect, subscription, slot)) as publisher:
        try:
            running = _wait_for_copies(publisher, subscription.app_id)
            publisher.drop_slot(slot, missing_ok=subscription.dropping)
        except PenstockError as error:
            error.hint = error.hint or _DISASSOCIATE
            raise
    return running


def _wait_for_copies(publisher: PublisherSession, app_id: str) -> list[str]:
    """Wait until no copy runs; the slots of those that still do after a while."""
    deadline = time.monotonic() + _COPIES_END_S
    while (running := publisher.sync_slots(app_id)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return running


def _still_copying(slot: str) -> Notice:
    return warning(
        f'the session of a copy still holds temporary replication slot "{slot}" on the publisher, '
        "which ends with that session; nothing of it will be committed"
    )


def _connect(connect: PublisherFactory, subscription: Subscription, slot: str) -> PublisherSession:
    """ReportSlotConnectionError when there is no way to the publisher."""
    try:
        return connect(subscription.conninfo, subscription.name)
    except ConnectionFailure as error:
        raise error.changed(
            message="could not connect to publisher when attempting to drop replication slot "
            f'"{slot}": {error.message.removeprefix(CONNECT_PREFIX)}',
            hint=_DISASSOCIATE,
        ) from None


def _unmark(catalog: Catalog, oid: int) -> None:
    with catalog.write() as transaction:
        subscription = transaction.subscriptions.find_oid(oid)
        if subscription is not None:
            transaction.subscriptions.save(replace(subscription, dropping=False))
