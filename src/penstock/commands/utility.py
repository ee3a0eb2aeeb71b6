"""Which function executes which statement (utility.c, ProcessUtility).

In: any parsed statement. Out: its result, with the notices of its parsing first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from penstock.catalog import Catalog
from penstock.commands import indexcmds, publicationcmds, tablecmds, typecmds, user
from penstock.commands.aclchk import is_owner
from penstock.commands.alter import rename_subscription, set_schema
from penstock.commands.namespace import get_table
from penstock.commands.refresh_table import refresh_tables
from penstock.commands.scope import CommandResult, CommandScope, PublisherFactory, notice, warning
from penstock.commands.subscriptioncmds import (
    alter_connection,
    alter_enabled,
    alter_options,
    alter_owner,
    alter_publications,
    alter_refresh,
    alter_skip,
    check_rights,
    create_subscription,
    drop_subscription,
)
from penstock.commands.tablecmds import alter_table
from penstock.errors import FeatureNotSupported
from penstock.protocol.answers import Notice
from penstock.sql import (
    AddEnumValue,
    AlterPublicationObjects,
    AlterPublicationOptions,
    AlterPublicationOwner,
    AlterRole,
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionPublications,
    AlterSubscriptionRefresh,
    AlterSubscriptionRefreshTables,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    AlterTable,
    CreateEnum,
    CreateIndex,
    CreatePublication,
    CreateRole,
    CreateSchema,
    CreateSubscription,
    CreateTable,
    DropIndex,
    DropPublication,
    DropRole,
    DropSchema,
    DropSubscription,
    DropTable,
    DropType,
    GrantSelect,
    QueryStatement,
    RenamePublication,
    RenameRole,
    RenameSubscription,
    SetSchema,
    Statement,
)
from penstock.sql.builtin.enum_types import known_enums
from penstock.sql.grammar.vacuum import Vacuum

_NODE_SCOPE: Final = CommandScope()


# VACUUM and ANALYZE (vacuum.c), which clients send as a matter of routine.
#
# In: a parsed statement, the catalog, the scope. Out: that the tables are there, and a notice:
# there are no dead rows to take away, and no statistics to gather. What Delta keeps of former
# versions is Delta's VACUUM's.


def vacuum(statement: Vacuum, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """ExecVacuum. Raises UndefinedObject (42P01)."""
    told: list[Notice] = []
    with catalog.write() as transaction:
        for relation in statement.relations:
            table = get_table(transaction, scope, relation)
            if not is_owner(scope.role, table.owner):
                verb = statement.tag.lower()
                told.append(warning(f'permission denied to {verb} "{table.name}", skipping it'))
    if not statement.relations or len(told) < len(statement.relations):
        told.append(
            notice(
                f"{statement.tag} has no effect on tables of the lake",
                detail="Files that no version of a Delta table needs any more go with VACUUM in "
                "Spark.",
            )
        )
    return CommandResult(statement.tag, tuple(told))


_COMMANDS: Final[dict[type[Statement], Callable[[Any, Catalog, CommandScope], CommandResult]]] = {
    CreatePublication: publicationcmds.create_publication,
    AlterPublicationOptions: publicationcmds.alter_options,
    AlterPublicationObjects: publicationcmds.alter_objects,
    AlterPublicationOwner: publicationcmds.alter_owner,
    RenamePublication: publicationcmds.rename_publication,
    DropPublication: publicationcmds.drop_publication,
    CreateRole: user.create_role,
    AlterRole: user.alter_role,
    RenameRole: user.rename_role,
    DropRole: user.drop_role,
    GrantSelect: user.grant_select,
    CreateTable: tablecmds.create_table,
    DropTable: tablecmds.drop_table,
    AlterTable: alter_table,
    SetSchema: set_schema,
    CreateIndex: indexcmds.create_index,
    DropIndex: indexcmds.drop_index,
    CreateSchema: tablecmds.create_schema,
    DropSchema: tablecmds.drop_schema,
    CreateEnum: typecmds.create_type,
    AddEnumValue: typecmds.add_value,
    DropType: typecmds.drop_type,
    Vacuum: vacuum,
}


def execute(
    statement: Statement,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope = _NODE_SCOPE,
) -> CommandResult:
    """Execute one statement; the catalog's changes are durable when it returns.

    Raises PostgreSQL's errors as PenstockError. ``connect`` is called by statements that need the
    publisher: CREATE with connect = true, REFRESH, DROP of a subscription with a slot. ``scope``:
    who executes it and where; by default the node itself, without a warehouse.
    """
    command = _COMMANDS.get(type(statement))
    if command is not None:
        with catalog.read() as transaction:
            enums = transaction.types.all()
        with known_enums(enums):
            result = command(statement, catalog, scope)
    else:
        result = _subscriptions(statement, catalog, connect, scope)
    parsing = tuple(notice(text, sqlstate="42622") for text in statement.notices)
    return replace(result, notices=parsing + result.notices)


def is_command(statement: Statement) -> bool:
    """Whether ``execute`` knows the statement; the others are the session's."""
    return type(statement) in _COMMANDS or is_subscription_command(statement)


def is_subscription_command(statement: Statement) -> bool:
    """Whether it is about subscriptions."""
    return isinstance(
        statement,
        CreateSubscription
        | AlterSubscriptionEnabled
        | AlterSubscriptionConnection
        | AlterSubscriptionSet
        | AlterSubscriptionSkip
        | AlterSubscriptionRefresh
        | AlterSubscriptionRefreshTables
        | AlterSubscriptionPublications
        | AlterSubscriptionOwner
        | RenameSubscription
        | DropSubscription,
    )


def _subscriptions(
    statement: Statement, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    check_rights(statement, catalog, scope)
    match statement:
        case CreateSubscription():
            return create_subscription(statement, catalog, connect, scope)
        case AlterSubscriptionEnabled():
            return alter_enabled(statement, catalog)
        case AlterSubscriptionConnection():
            return alter_connection(statement, catalog)
        case AlterSubscriptionSet():
            return alter_options(statement, catalog, connect, scope)
        case AlterSubscriptionSkip():
            return alter_skip(statement, catalog, scope)
        case AlterSubscriptionRefresh():
            return alter_refresh(statement, catalog, connect, scope)
        case AlterSubscriptionRefreshTables():
            return refresh_tables(statement, catalog, connect, scope)
        case AlterSubscriptionPublications():
            return alter_publications(statement, catalog, connect, scope)
        case AlterSubscriptionOwner():
            return alter_owner(statement, catalog, scope)
        case RenameSubscription():
            return rename_subscription(statement, catalog, scope)
        case DropSubscription():
            return drop_subscription(statement, catalog, connect, scope)
        case QueryStatement(_, kind):
            raise FeatureNotSupported(
                f"{kind.upper()} of tables of the lake is not supported here",
                hint="Sessions on the node's port query and change them.",
            )
    raise FeatureNotSupported(f"{type(statement).__name__} is not supported")
