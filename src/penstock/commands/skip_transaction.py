"""ALTER SUBSCRIPTION ... SKIP (AlterSubscription, ALTER_SUBSCRIPTION_SKIP).

In: the statement, and the catalog. Out: a changed catalog, which the worker reads before each
batch: what is skipped, and when it is over, is ``subscription.skipping``'s. A transaction that is
prepared is named by its PREPARE, whether that has come already (``subscription.prepared``) or not;
once it is committed at the publisher, by its COMMIT PREPARED, as others are.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog, CatalogTransaction, PreparedXact
from penstock.commands.scope import CommandResult, CommandScope
from penstock.commands.subscription_options import SKIP, parse_subscription_options
from penstock.commands.subscriptioncmds import ALTERED, get_subscription
from penstock.errors import InvalidParameterValue
from penstock.lakehouse.cuts import CutOwner
from penstock.lsn import INVALID, Lsn
from penstock.sql import AlterSubscriptionSkip


def alter_skip(
    statement: AlterSubscriptionSkip, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """SKIP (...); one that an error has stopped goes on."""
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    lsn = parse_subscription_options(statement.options, SKIP).lsn
    reached = INVALID
    if lsn != INVALID and scope.warehouse is not None:
        cut = scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
        reached = INVALID if cut is None else cut.lsn
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        prepared = None if lsn == INVALID else _prepared(transaction, subscription.oid, lsn)
        if prepared is not None and (prepared.finish_lsn or reached + 1) > reached:
            lsn = _skip_prepared(transaction, prepared)
        elif lsn != INVALID and lsn < reached:
            raise InvalidParameterValue(
                f"skip WAL location (LSN {lsn}) must be greater than origin LSN {reached}"
            )
        transaction.subscriptions.save(replace(subscription, skip_lsn=lsn).healed())
    return CommandResult(ALTERED)


def _prepared(transaction: CatalogTransaction, subid: int, lsn: Lsn) -> PreparedXact | None:
    """The transaction whose PREPARE finishes there, if it has come."""
    xacts = transaction.prepared_xacts.all(subid)
    return next((xact for xact in xacts if xact.prepare_lsn == lsn), None)


def _skip_prepared(transaction: CatalogTransaction, xact: PreparedXact) -> Lsn:
    """What is still to be skipped by its LSN: nothing of one that only waits, whose rows are left
    out from now on; some tables may have those of one that is committed."""
    if xact.commit_lsn is not None and not xact.skipped:
        return xact.commit_lsn
    transaction.prepared_xacts.put(replace(xact, skipped=True))
    return INVALID
