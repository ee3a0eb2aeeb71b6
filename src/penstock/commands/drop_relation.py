"""DROP TABLE and DROP SCHEMA (dependency.c, tablecmds.c).

In: a parsed statement, the catalog, the scope with its warehouse. Out: rows of the catalog and
Delta tables that are gone. A table that a subscription fills leaves it first, in a transaction of
its own: a worker that missed one of its tables would stop for good, and one that misses what it
does not fill any more begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Namespace
from penstock.commands.aclchk import check_owner
from penstock.commands.column_types import columns_of_types
from penstock.commands.depend import (
    DEPENDENT_OBJECTS_STILL_EXIST,
    cascade_notices,
    check_not_being_made,
    check_not_prepared,
    check_not_subscribed,
    leave_subscriptions,
    still_used_error,
)
from penstock.commands.namespace import (
    UNDEFINED_SCHEMA,
    UNDEFINED_TABLE,
    find_schema,
    find_table,
    register_all,
    warehouse_of,
)
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.subscription_targets import check_detached
from penstock.commands.typecmds import check_unused, shown_user
from penstock.enum_type import EnumType
from penstock.errors import NotInPrerequisiteState, UndefinedObject
from penstock.protocol.answers import Notice
from penstock.sql import DropSchema, DropTable, RangeVar
from penstock.sql.builtin.enum_types import enum_name


def drop_table(statement: DropTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """RemoveRelations, all of them or none."""
    warehouse_of(scope)
    notices: list[Notice] = []

    def found(transaction: CatalogTransaction) -> list[LakeTable]:
        notices.clear()
        dropped: dict[int, LakeTable] = {}
        for name in statement.relations:
            table = _table_to_drop(transaction, scope, name, statement.missing_ok, notices)
            if table is not None:
                check_owner(scope.role, table.owner, "table", table.name)
                dropped |= {member.oid: member for member in transaction.tables.family(table)}
        return list(dropped.values())

    _end_subscriptions(catalog, scope, found)
    with catalog.write() as transaction:
        tables = found(transaction)
        _forget(transaction, scope, tables)
        _remove_rows(scope, tables)
    return CommandResult("DROP TABLE", tuple(notices))


def _end_subscriptions(
    catalog: Catalog,
    scope: CommandScope,
    found: Callable[[CatalogTransaction], list[LakeTable]],
) -> None:
    """Before anything of the tables is gone."""
    with catalog.write() as transaction:
        tables = found(transaction)
        check_not_prepared(transaction, tables, "drop")
        for table in tables:
            check_detached(transaction, scope, table)
        leave_subscriptions(transaction, tables)


def _forget(
    transaction: CatalogTransaction, scope: CommandScope, tables: Sequence[LakeTable]
) -> None:
    check_not_prepared(transaction, tables, "drop")
    for table in tables:
        check_not_subscribed(transaction, table, "drop")
        check_detached(transaction, scope, table)
        transaction.delete_table(table)


def _remove_rows(scope: CommandScope, tables: Sequence[LakeTable]) -> None:
    """The last step, before the catalog's commit: a sequencer would find a table again that has
    rows and is in no catalog."""
    for table in tables:
        warehouse_of(scope).remove(*(table.folder_of or (table.schema, table.name)))


def _table_to_drop(
    transaction: CatalogTransaction,
    scope: CommandScope,
    name: RangeVar,
    missing_ok: bool,
    notices: list[Notice],
) -> LakeTable | None:
    """DropErrorMsgNonExistent"""
    missing_schema = name.schema and find_schema(transaction, scope, name.schema) is None
    if missing_schema and missing_ok:
        notices.append(notice(f'schema "{name.schema}" does not exist, skipping'))
        return None
    found = find_table(transaction, scope, name)
    if found is None and missing_ok:
        notices.append(notice(f'table "{name.name}" does not exist, skipping'))
    elif found is None:
        raise UndefinedObject(f'table "{name.name}" does not exist', sqlstate=UNDEFINED_TABLE)
    return found


def drop_schema(statement: DropSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """RemoveObjects for schemas; with CASCADE their tables and types go too."""
    notices: list[Notice] = []
    reported: list[str] = []
    enums: list[EnumType] = []

    def found(transaction: CatalogTransaction) -> list[LakeTable]:
        for gathered in (notices, reported, enums):
            gathered.clear()
        tables: dict[int, LakeTable] = {}
        schemas = _schemas_to_drop(transaction, scope, statement, notices)
        if schemas and scope.warehouse is not None:
            register_all(transaction, scope)
        for namespace in schemas:
            held = [t for t in transaction.tables.all() if t.schema == namespace.name]
            types = [t for t in transaction.types.all() if t.schema == namespace.name]
            shown = _describe_objects(held, types)
            if shown and not statement.cascade:
                raise _still_used(transaction, scope, namespace, held, types)
            tables |= {member.oid: member for t in held for member in transaction.tables.family(t)}
            reported.extend(shown)  # partitions go with their table, without a word
            enums.extend(types)
        return list(tables.values())

    _end_subscriptions(catalog, scope, found)
    with catalog.write() as transaction:
        tables = found(transaction)
        schemas = _schemas_to_drop(transaction, scope, statement, [])
        check_not_being_made(transaction, [schema.name for schema in schemas], enums)
        for namespace in schemas:
            for row in transaction.publications.namespaces():
                if row.schema == namespace.name:
                    transaction.publications.remove_namespace(row.publication, row.schema)
            transaction.namespaces.delete(namespace.oid)
        _forget(transaction, scope, tables)
        check_unused(transaction, scope, enums, cascade=True)
        for enum in enums:
            transaction.types.delete(enum.oid)
        _remove_rows(scope, tables)
    return CommandResult("DROP SCHEMA", (*notices, *cascade_notices(reported)))


def _schemas_to_drop(
    transaction: CatalogTransaction,
    scope: CommandScope,
    statement: DropSchema,
    notices: list[Notice],
) -> list[Namespace]:
    found = []
    for name in statement.names:
        namespace = find_schema(transaction, scope, name)
        if namespace is None and statement.missing_ok:
            notices.append(notice(f'schema "{name}" does not exist, skipping'))
            continue
        if namespace is None:
            raise UndefinedObject(f'schema "{name}" does not exist', sqlstate=UNDEFINED_SCHEMA)
        check_owner(scope.role, namespace.owner, "schema", name)
        if name == "public":
            raise NotInPrerequisiteState(
                "cannot drop schema public because the node requires it",
                sqlstate=DEPENDENT_OBJECTS_STILL_EXIST,
            )
        found.append(namespace)
    return found


def _describe_objects(tables: Sequence[LakeTable], enums: Sequence[EnumType]) -> list[str]:
    """What a schema holds, in the order of oids."""
    found = {table.oid: f"table {table.qualified_name}" for table in tables}
    found |= {enum.oid: f"type {enum_name(enum)}" for enum in enums}
    return [text for _, text in sorted(found.items())]


def _still_used(
    transaction: CatalogTransaction,
    scope: CommandScope,
    namespace: Namespace,
    tables: Sequence[LakeTable],
    enums: Sequence[EnumType],
) -> NotInPrerequisiteState:
    lines = [
        f"{each} depends on schema {namespace.name}" for each in _describe_objects(tables, enums)
    ]
    for table, column, enum in reversed(columns_of_types(transaction, scope, enums)):
        if table.schema != namespace.name:  # the others go with their table
            place = lines.index(f"type {enum_name(enum)} depends on schema {namespace.name}")
            lines.insert(place + 1, shown_user(scope, table, column, enum))
    return still_used_error(f"schema {namespace.name}", lines)
