"""Which function executes which statement (utility.c, ProcessUtility).

In: any parsed statement. Out: its result, with the notices of its parsing first.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog
from penstock.commands.drop_subscription import drop_subscription
from penstock.commands.publisher import PublisherFactory
from penstock.commands.result import CommandResult, notice
from penstock.commands.subscriptioncmds import (
    alter_connection,
    alter_enabled,
    alter_options,
    alter_refresh,
    create_subscription,
)
from penstock.commands.views import select
from penstock.errors import FeatureNotSupported
from penstock.sql import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    AlterSubscriptionSet,
    CreateSubscription,
    DropSubscription,
    Select,
    Statement,
)


def execute(statement: Statement, catalog: Catalog, connect: PublisherFactory) -> CommandResult:
    """Execute one statement; the catalog's changes are durable when it returns.

    Raises PostgreSQL's errors as PenstockError. ``connect`` is called by statements that need the
    publisher: CREATE with connect = true, REFRESH, DROP of a subscription with a slot.
    """
    result = _execute(statement, catalog, connect)
    parsing = tuple(notice(text, sqlstate="42622") for text in statement.notices)
    return replace(result, notices=parsing + result.notices)


def _execute(statement: Statement, catalog: Catalog, connect: PublisherFactory) -> CommandResult:
    match statement:
        case CreateSubscription():
            return create_subscription(statement, catalog, connect)
        case AlterSubscriptionEnabled():
            return alter_enabled(statement, catalog)
        case AlterSubscriptionConnection():
            return alter_connection(statement, catalog)
        case AlterSubscriptionSet():
            return alter_options(statement, catalog)
        case AlterSubscriptionRefresh():
            return alter_refresh(statement, catalog, connect)
        case DropSubscription():
            return drop_subscription(statement, catalog, connect)
        case Select():
            return select(statement, catalog)
    raise FeatureNotSupported(f"{type(statement).__name__} is not supported")
