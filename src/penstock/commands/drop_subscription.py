"""DROP SUBSCRIPTION (subscriptioncmds.c, DropSubscription).

In: a statement, the catalog, a way to the publisher. Out: no subscription, no slot. Delta tables
and cuts stay. A node that runs lets go of the slot first:

1. The row is marked as dropping, which moves the catalog's generation: a running node stops the
   worker; without one nothing needs to be stopped.
2. ``DROP_REPLICATION_SLOT ... WAIT`` returns when nobody streams from the slot any more.
3. The rows go.

When step 2 fails the mark goes and the subscription is as before. When the process dies the mark
stays, and DROP may be said again; then a slot that is gone already is no error.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from penstock.catalog import Catalog, Subscription
from penstock.commands.publisher import Publisher, PublisherFactory
from penstock.commands.result import CommandResult, notice
from penstock.commands.subscriptioncmds import CONNECT_PREFIX
from penstock.errors import ConnectionFailure, PenstockError
from penstock.sql import DropSubscription

_TAG = "DROP SUBSCRIPTION"
_DISASSOCIATE = (
    "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then use "
    "ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from the slot."
)


def drop_subscription(
    statement: DropSubscription, catalog: Catalog, connect: PublisherFactory
) -> CommandResult:
    """Raises UndefinedObject, ConnectionFailure, PublisherError."""
    with catalog.write() as transaction:
        subscription = transaction.subscriptions.find(statement.name)
        if subscription is None and statement.missing_ok:
            missing = notice(f'subscription "{statement.name}" does not exist, skipping')
            return CommandResult(_TAG, (missing,))
        subscription = transaction.subscriptions.get(statement.name)
        transaction.subscriptions.save(replace(subscription, dropping=True))
    notices = []
    if subscription.slot_name is not None:
        try:
            _drop_slot(connect, subscription, subscription.slot_name)
        except BaseException:
            _unmark(catalog, subscription.oid)
            raise
        notices.append(notice(f'dropped replication slot "{subscription.slot_name}" on publisher'))
    with catalog.write() as transaction:
        transaction.relations.delete_all(subscription.oid)
        transaction.subscriptions.delete(subscription.oid)
    return CommandResult(_TAG, tuple(notices))


def _drop_slot(connect: PublisherFactory, subscription: Subscription, slot: str) -> None:
    with closing(_connected(connect, subscription, slot)) as publisher:
        try:
            publisher.drop_slot(slot, missing_ok=subscription.dropping)
        except PenstockError as error:
            error.hint = error.hint or _DISASSOCIATE
            raise


def _connected(connect: PublisherFactory, subscription: Subscription, slot: str) -> Publisher:
    """ReportSlotConnectionError when there is no way to the publisher."""
    try:
        return connect(subscription.conninfo, subscription.name)
    except ConnectionFailure as error:
        raise type(error)(
            "could not connect to publisher when attempting to drop replication slot "
            f'"{slot}": {error.message.removeprefix(CONNECT_PREFIX)}',
            detail=error.detail,
            hint=_DISASSOCIATE,
            sqlstate=error.sqlstate,
        ) from None


def _unmark(catalog: Catalog, oid: int) -> None:
    with catalog.write() as transaction:
        subscription = transaction.subscriptions.find_oid(oid)
        if subscription is not None:
            transaction.subscriptions.save(replace(subscription, dropping=False))
