"""ALTER TABLE ... SET SCHEMA and ALTER SUBSCRIPTION ... RENAME TO (alter.c).

In: a parsed statement, the catalog, the scope with its warehouse. Out: the object under another
name in the catalog. A Delta table stays where it is: readers, writers and slots go on with it, and
the catalog keeps the name whose folder that is, so that nobody takes the folder for that name's
table. A subscription's slot, tables and positions stay too, as other keys tell them; its cuts are
renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from penstock.catalog import Catalog, CatalogTransaction, LakeTable
from penstock.commands.aclchk import check_create_in_schema, check_owner
from penstock.commands.depend import check_not_subscribed
from penstock.commands.namespace import find_table, get_schema, get_table, keep_former, register
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.subscriptioncmds import ALTERED, get_subscription
from penstock.commands.unique_indexes import DUPLICATE_TABLE, is_taken, relation_names
from penstock.errors import DuplicateObject, FeatureNotSupported, ObjectInUse
from penstock.lakehouse.cuts import CutOwner, Cuts
from penstock.sql import RenameSubscription, SetSchema


def set_schema(statement: SetSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Publications of schemas have the tables that are in them then."""
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
    """Raises DuplicateObject (42P07), FeatureNotSupported, ObjectInUse."""
    register(transaction, scope, schema, table.name)
    for name in relation_names(transaction, table):
        if is_taken(transaction, schema, name):
            raise DuplicateObject(
                f'relation "{name}" already exists in schema "{schema}"', sqlstate=DUPLICATE_TABLE
            )
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
    """A subscription that has not copied its table yet makes it in the folder of its name.

    Raises ObjectInUse."""
    for subscription in transaction.subscriptions.all():
        if any(r.table_name == (schema, name) for r in transaction.relations.all(subscription.oid)):
            raise ObjectInUse(
                f'cannot move table "{name}" to schema "{schema}" because subscription '
                f'"{subscription.name}" maintains a table of that name there',
                hint="Take that table out of the publication and refresh the subscription, or "
                "drop the subscription, first.",
            )


def move_to_schema(table: LakeTable, schema: str) -> LakeTable:
    """The table in another schema, which may be the one that its folder was made for."""
    home = table.folder_of or (table.schema, table.name)
    return replace(table, schema=schema, folder_of=None if home == (schema, table.name) else home)


def rename_subscription(
    statement: RenameSubscription, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Raises UndefinedObject, DuplicateObject. A worker that runs starts again by the new name."""
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
