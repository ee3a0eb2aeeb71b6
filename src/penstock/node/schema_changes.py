"""What ``schema_change = follow`` does about a change that a table cannot follow by itself.

In: a table of a subscription, and the error that has ended its worker's session. Out: the table is
copied again, as by the statement that a user would run: REFRESH TABLE, or REFRESH PUBLICATION where
its name at the publisher means another relation now, or none. What is committed by then is in the
copy; what comes later follows. Each try is recorded with the copy: a node that is killed before
meets the change again.
"""

from __future__ import annotations

import logging

from penstock.catalog import Catalog, SubscriptionRel
from penstock.commands.refresh_table import refresh_tables
from penstock.commands.scope import CommandScope
from penstock.commands.subscriptioncmds import alter_refresh
from penstock.errors import NotInPrerequisiteState
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.session_commands import connect_publisher
from penstock.sql import AlterSubscriptionRefresh, AlterSubscriptionRefreshTables
from penstock.sql.text.object_names import RangeVar

log = logging.getLogger(__name__)


def follow_change(
    catalog: Catalog, warehouse: Warehouse, rel: SubscriptionRel, error: BaseException
) -> None:
    """Raises what the statements raise; NotInPrerequisiteState where the table has left."""
    now = next((r for r in catalog.relations(rel.subid) if r.table_name == rel.table_name), None)
    with catalog.read() as transaction:
        subscription = transaction.subscriptions.find_oid(rel.subid)
    if subscription is None or now is None:
        raise NotInPrerequisiteState(f'table "{rel.qualified_name}" has left its subscription')
    log.info(
        'subscription "%s" follows a change of table "%s", which is copied again: %s',
        subscription.name,
        rel.qualified_name,
        error,
    )
    scope = CommandScope(warehouse=warehouse)
    if now.conflict is None:
        table = RangeVar(rel.table, rel.schema)
        refresh = AlterSubscriptionRefreshTables(subscription.name, (table,))
        try:
            refresh_tables(refresh, catalog, connect_publisher, scope)
            return
        except NotInPrerequisiteState:  # renamed since, or taken out of the publications
            log.info('table "%s" is not published under its name', rel.qualified_name)
    alter_refresh(AlterSubscriptionRefresh(subscription.name), catalog, connect_publisher, scope)
