"""ALTER SUBSCRIPTION ... SKIP (AlterSubscription, ALTER_SUBSCRIPTION_SKIP).

In: the statement, and the catalog. Out: a changed catalog, which the worker reads before each
batch: what is skipped, and when it is over, is ``subscription.skipping``'s.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog
from penstock.commands.scope import CommandResult, CommandScope
from penstock.commands.subscription_options import SKIP, parse_subscription_options
from penstock.commands.subscriptioncmds import ALTERED, get_subscription
from penstock.errors import InvalidParameterValue
from penstock.lakehouse.cuts import CutOwner
from penstock.lsn import INVALID
from penstock.sql import AlterSubscriptionSkip


def alter_skip(
    statement: AlterSubscriptionSkip, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """SKIP (...); one that an error has stopped goes on."""
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    lsn = parse_subscription_options(statement.options, SKIP).lsn
    if lsn != INVALID and scope.warehouse is not None:
        cut = scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
        if cut is not None and lsn < cut.lsn:
            raise InvalidParameterValue(
                f"skip WAL location (LSN {lsn}) must be greater than origin LSN {cut.lsn}"
            )
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        transaction.subscriptions.save(replace(subscription, skip_lsn=lsn).healed())
    return CommandResult(ALTERED)
