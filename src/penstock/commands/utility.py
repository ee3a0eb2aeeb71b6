"""Dispatch statements to the functions that execute them (utility.c, ProcessUtility).

In the result of a statement, notices from parsing come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from penstock.catalog import BlockCatalog, Catalog, CatalogTransaction, LakeTable
from penstock.commands import indexcmds, publicationcmds, tablecmds, typecmds, user
from penstock.commands.aclchk import check_create_in_schema, check_owner, is_owner
from penstock.commands.depend import check_not_subscribed
from penstock.commands.indexcmds import relation_names
from penstock.commands.namespace import (
    find_schema,
    find_table,
    get_schema,
    get_table,
    keep_former,
    register,
)
from penstock.commands.scope import (
    BlockEnd,
    CommandResult,
    CommandScope,
    PublisherFactory,
    notice,
    warning,
)
from penstock.commands.subscription_targets import between_batches
from penstock.commands.subscriptioncmds import (
    ALTERED,
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
    get_subscription,
    refresh_tables,
)
from penstock.commands.tablecmds import alter_table
from penstock.errors import DuplicateObject, FeatureNotSupported, ObjectInUse
from penstock.lakehouse.cuts import CutOwner, Cuts
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
    RangeVar,
    RenamePublication,
    RenameRole,
    RenameSubscription,
    SetReplicaIdentity,
    SetSchema,
    Statement,
)
from penstock.sql.builtin.enum_types import known_enums
from penstock.sql.grammar.vacuum import Vacuum
from penstock.sqlstate import DuplicateTable
from penstock.walreceiver.publisher import Publisher

_NODE_SCOPE: Final = CommandScope()


# VACUUM and ANALYZE (vacuum.c), which clients send routinely.
#
# A node has no dead rows to remove and no statistics to gather. Spark's own VACUUM removes files of
# older versions.


def vacuum(statement: Vacuum, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run VACUUM or ANALYZE, which have no effect (ExecVacuum). Raises UndefinedObject (42P01)."""
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


# ALTER TABLE ... SET SCHEMA and ALTER SUBSCRIPTION ... RENAME TO (alter.c).
#
# SET SCHEMA leaves a Delta table in its folder, where readers, writers and slots still find it. The
# catalog keeps the name for which the folder was created, so that a new table of this name does not
# use the folder. RENAME leaves a subscription's slot, tables and origin unchanged, because they do
# not depend on its name; its cuts are renamed.


def set_schema(statement: SetSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run ALTER TABLE ... SET SCHEMA. A publication FOR TABLES IN SCHEMA has the tables that are in
    the schema at the time of a change."""
    with catalog.write() as transaction:
        table = find_table(transaction, scope, statement.relation)
        if table is None and statement.missing_ok:
            skipped = notice(f'relation "{statement.relation.name}" does not exist, skipping')
            return CommandResult("ALTER TABLE", (skipped,))
        table = get_table(transaction, scope, statement.relation)
        check_owner(scope.role, table.owner, "table", table.name)
        schema = get_schema(transaction, scope, statement.schema)
        check_create_in_schema(scope, schema.owner, schema.name)
        if schema.name != table.schema:
            _check_movable(transaction, scope, table, schema.name)
            transaction.tables.save(move_to_schema(table, schema.name))
            keep_former(transaction, scope, [table])
    return CommandResult("ALTER TABLE")


def _check_movable(
    transaction: CatalogTransaction, scope: CommandScope, table: LakeTable, schema: str
) -> None:
    """Check that a table can be moved to a schema. Raises DuplicateObject (42P07),
    FeatureNotSupported, ObjectInUse."""
    register(transaction, scope, schema, table.name)
    for name in relation_names(transaction, table):
        if transaction.is_taken(schema, name):
            raise DuplicateTable(f'relation "{name}" already exists in schema "{schema}"')
    if table.partition_key is not None:
        raise FeatureNotSupported(
            "ALTER TABLE ... SET SCHEMA of a partitioned table is not supported"
        )
    _check_not_awaited(transaction, schema, table.name)
    above: LakeTable | None = table
    while above is not None:
        check_not_subscribed(transaction, above, "move")
        above = None if above.parent is None else transaction.tables.find_oid(above.parent)


def _check_not_awaited(transaction: CatalogTransaction, schema: str, name: str) -> None:
    """Refuse a name that a subscription fills: if its table is not copied yet, the copy will create
    it in the folder of this name. Raises ObjectInUse.
    """
    for subscription in transaction.subscriptions.all():
        if any(r.table_name == (schema, name) for r in transaction.relations.all(subscription.oid)):
            raise ObjectInUse(
                f'cannot move table "{name}" to schema "{schema}" because subscription '
                f'"{subscription.name}" maintains a table of that name there',
                hint="Take that table out of the publication and refresh the subscription, or "
                "drop the subscription, first.",
            )


def move_to_schema(table: LakeTable, schema: str) -> LakeTable:
    """Return the table in another schema, perhaps the one for which its folder was created."""
    home = table.folder_of or (table.schema, table.name)
    return replace(table, schema=schema, folder_of=None if home == (schema, table.name) else home)


def rename_subscription(
    statement: RenameSubscription, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run ALTER SUBSCRIPTION ... RENAME TO. A running worker restarts under the new name. Raises
    UndefinedObject, DuplicateObject."""
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        if transaction.subscriptions.find(statement.new_name) is not None:
            raise DuplicateObject(f'subscription "{statement.new_name}" already exists')
        transaction.subscriptions.save(replace(subscription, name=statement.new_name))
        if scope.warehouse is not None:
            owner = CutOwner(statement.new_name, subscription.app_id)
            known = transaction.subscriptions.all()
            living = [CutOwner(one.name, one.app_id) for one in known]
            scope.before_commit(partial(_rename_cuts, scope.warehouse.cuts, owner, living))
    return CommandResult(ALTERED)


def _rename_cuts(cuts: Cuts, owner: CutOwner, living: Sequence[CutOwner]) -> None:
    cuts.forget_others(owner, living)
    cuts.rename(owner)


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

    Raises PostgreSQL's errors as PenstockError. Statements that need the publisher call
    ``connect``: CREATE with connect = true, REFRESH, DROP of a subscription with a slot, and
    others. ``scope``: the context of the statement; by default the node itself, without a
    warehouse.
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
    """Tell whether ``execute`` runs the statement; the session itself runs all others."""
    return type(statement) in _COMMANDS or is_subscription_command(statement)


def is_subscription_command(statement: Statement) -> bool:
    """Tell whether the statement is about subscriptions."""
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
        case QueryStatement():
            raise FeatureNotSupported(
                f"{statement.tag} of tables of the lake is not supported here",
                hint="Sessions on the node's port query and change them.",
            )
    raise FeatureNotSupported(f"{type(statement).__name__} is not supported")


# Run the commands of a transaction block: all of them or none (xact.c). They must not ask a
# publisher, because the catalog is locked while they run.


def takes(statement: Statement) -> bool:
    """Tell whether the statement is allowed in a block: it must only change the catalog."""
    return is_subscription_command(statement)


def execute_block(
    statements: Sequence[Statement],
    catalog: Catalog,
    scope: CommandScope,
    *,
    commit: bool,
) -> CommandResult:
    """Execute statements that ``takes`` accepts, at least one.

    Raises the statements' errors; ActiveSqlTransaction (25001) for a statement that PostgreSQL
    refuses in a block; FeatureNotSupported for a statement that asks the publisher.
    """

    def attempt() -> tuple[CommandResult, BlockEnd]:
        end = BlockEnd()
        within = replace(scope, block_end=end)
        with catalog.one_transaction(commit=commit) as one:
            for statement in statements:
                result = execute(statement, one, _no_publisher, within)
            for action in end.before_commit if commit else ():
                action()
        return result, end

    result, end = between_batches(attempt)
    for action in end.after_commit if commit else ():
        action()
    return result


def _no_publisher(conninfo: str, application_name: str) -> Publisher:
    raise FeatureNotSupported(
        "a command that asks the publisher cannot run inside a transaction block",
        hint="Run it outside of BEGIN ... COMMIT, or, for CREATE SUBSCRIPTION, say connect = "
        "false.",
    )


# CREATE TABLE in a transaction block, and commands on tables that the block has created.
#
# Until COMMIT, new tables are only in the block's own catalog and warehouse. Statements that would
# also change other tables or existing rows are refused by name: partitioned tables and partitions,
# added and dropped columns.

Defines = CreateTable | AlterTable | DropTable


def defines(statement: Statement) -> bool:
    """Tell whether the statement creates a table, or may be about one that the block created."""
    return isinstance(statement, Defines)


def define_in_block(
    statement: Statement, catalog: BlockCatalog, scope: CommandScope
) -> CommandResult:
    """Execute a statement for which ``defines`` is true. Raises FeatureNotSupported, and the errors
    of the statement."""
    match statement:
        case CreateTable(partition_by=None, parent=None):
            pass
        case CreateTable():
            raise _refusal("CREATE TABLE of a partitioned table or a partition")
        case AlterTable(relation=relation, commands=commands):
            if not all(isinstance(command, SetReplicaIdentity) for command in commands):
                raise _refusal("ALTER TABLE other than REPLICA IDENTITY")
            _check_made("ALTER TABLE", relation, catalog, scope)
        case DropTable(relations=relations):
            for relation in relations:
                _check_made("DROP TABLE", relation, catalog, scope)
                _check_not_filled(relation, catalog, scope)
    return execute(statement, catalog, _no_publisher_in_block, scope)


def _check_made(what: str, name: RangeVar, catalog: BlockCatalog, scope: CommandScope) -> None:
    found = _found(name, catalog, scope)
    if found is not None and found.oid not in catalog.tables:
        raise _refusal(f"{what} of a table that the block has not made")


def _found(name: RangeVar, catalog: BlockCatalog, scope: CommandScope) -> LakeTable | None:
    with catalog.write() as transaction:
        if name.schema is not None and find_schema(transaction, scope, name.schema) is None:
            return None  # the statement itself reports the missing schema
        return find_table(transaction, scope, name)


def _check_not_filled(name: RangeVar, catalog: BlockCatalog, scope: CommandScope) -> None:
    """Refuse to drop a table that a subscription fills: the table would leave the subscription at
    once, even if the block is rolled back."""
    found = _found(name, catalog, scope)
    filled = {rel.qualified_name for rel in catalog.relations()}
    if found is not None and found.qualified_name in filled:
        raise _refusal("DROP TABLE of a table that a subscription fills")


def _refusal(what: str) -> FeatureNotSupported:
    return FeatureNotSupported(
        f"{what} cannot run inside a transaction block",
        hint="Run it outside of BEGIN ... COMMIT.",
    )


def _no_publisher_in_block(conninfo: str, application_name: str) -> Publisher:
    raise _refusal("a command that asks a publisher")
