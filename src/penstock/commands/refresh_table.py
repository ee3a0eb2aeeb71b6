"""ALTER SUBSCRIPTION ... REFRESH TABLE: copy single tables again (ours; PostgreSQL has none).

In: a statement, the catalog, a way to the publisher. Out: rows of pg_subscription_rel in state i,
and notices. Each copy replaces the table's rows in one commit; until then readers see the old ones.
If anything is wrong with one of the tables, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
)
from penstock.catalog.publisher_identity import alter
from penstock.commands.recopy import copy_notice
from penstock.commands.scope import CommandResult, CommandScope, PublisherFactory, notice
from penstock.commands.subscriptioncmds import (
    ALTERED,
    ask_published,
    check_enabled,
    check_unchanged,
    get_subscription,
)
from penstock.commands.two_phase import check_copy_of_table
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState
from penstock.protocol.answers import Notice
from penstock.relation import TableName, qualified
from penstock.sql import AlterSubscriptionRefreshTables
from penstock.sql.grammar.parsenodes import RangeVar
from penstock.sqlstate import UndefinedTable

_COPIED_NOW = (SubscriptionRelState.INIT, SubscriptionRelState.DATASYNC)
_ASKED_FOR = "You have asked for it."


def refresh_tables(
    statement: AlterSubscriptionRefreshTables,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Have each table copied again, and start the subscription if one of them has stopped it.

    Raises UndefinedObject for a table that is not in the subscription, NotInPrerequisiteState for
    one that is not published, and the errors of connecting.
    """
    names = list(dict.fromkeys(map(_table_name, statement.tables)))
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
        _members(transaction, subscription, names)
    check_enabled(subscription, "REFRESH TABLE")
    check_copy_of_table(subscription)
    scope.prevent_in_block("ALTER SUBSCRIPTION ... REFRESH TABLE")
    found = ask_published(subscription, connect)
    for name in names:
        _check_published(subscription, name, found.tables)
    with catalog.write() as transaction:
        subscription = check_unchanged(transaction, subscription, found)
        rels = _members(transaction, subscription, names)
        if subscription.stopped_by in {rel.sync_id for rel in rels}:
            transaction.subscriptions.save(subscription.healed())
        notices = tuple(_refresh(transaction, rel, found.tables[rel.table_name]) for rel in rels)
    return CommandResult(ALTERED, notices)


def _refresh(transaction: CatalogTransaction, rel: SubscriptionRel, oid: int) -> Notice:
    if rel.state in _COPIED_NOW:
        return notice(f'table "{rel.qualified_name}" is being copied already, skipping')
    transaction.relations.copy_again(rel, oid)
    return copy_notice(rel, _ASKED_FOR)


def _table_name(table: RangeVar) -> TableName:
    if table.catalog is not None:
        raise FeatureNotSupported(
            f'cross-database references are not implemented: "{table.catalog}.{table.schema}.'
            f'{table.name}"'
        )
    return table.schema or "public", table.name


def _members(
    transaction: CatalogTransaction, subscription: Subscription, names: list[TableName]
) -> list[SubscriptionRel]:
    known = {rel.table_name: rel for rel in transaction.relations.all(subscription.oid)}
    for name in names:
        if name not in known:
            raise UndefinedTable(
                f'relation "{qualified(*name)}" is not part of the subscription',
                hint=f"{alter(subscription.name)} REFRESH PUBLICATION takes in what is published.",
            )
    return [known[name] for name in names]


def _check_published(
    subscription: Subscription, name: TableName, found: Mapping[TableName, int]
) -> None:
    if name not in found:
        raise NotInPrerequisiteState(
            f'relation "{qualified(*name)}" is not published',
            detail="It was dropped, renamed, or taken out of the publications: "
            f"{', '.join(subscription.publications)}.",
            hint=f"{alter(subscription.name)} REFRESH PUBLICATION takes it out of the "
            "subscription, and in what is published under another name.",
        )
