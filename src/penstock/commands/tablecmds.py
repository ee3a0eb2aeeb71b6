"""CREATE and DROP TABLE, CREATE and DROP SCHEMA (tablecmds.c, schemacmds.c); ALTER TABLE is in
``alter_table``, partitions in ``partbounds``.

In: a parsed statement, the catalog, the scope with its warehouse. Out: Delta tables and rows in the
catalog. The Delta table is there before its row can be seen, so that what is half made is only a
table that nobody has named yet.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Namespace
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_create_in_schema,
    check_owner,
    role_of,
)
from penstock.commands.column_types import columns_of_types
from penstock.commands.default_partition import DefaultRows, RowsFirst
from penstock.commands.define_relation import Definition, define
from penstock.commands.depend import (
    DEPENDENT_OBJECTS_STILL_EXIST,
    cascade_notices,
    check_not_subscribed,
    still_used_error,
)
from penstock.commands.namespace import (
    UNDEFINED_SCHEMA,
    UNDEFINED_TABLE,
    creation_schema,
    find_schema,
    find_table,
    register,
    register_all,
    warehouse_of,
)
from penstock.commands.partbounds import check_new_partition
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.subscription_targets import (
    check_between_batches,
    check_detached,
    check_joins,
)
from penstock.commands.typecmds import check_unused, shown_user
from penstock.commands.unique_indexes import add_constraints, inherit_indexes, is_taken
from penstock.enum_type import EnumType
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
    NotInPrerequisiteState,
    UndefinedObject,
)
from penstock.lakehouse.schema import TableSchema
from penstock.protocol.answers import Notice
from penstock.relation import AttGenerated, Attribute, Relation, ReplicaIdentity
from penstock.sql import CreateSchema, CreateTable, DropSchema, DropTable, RangeVar
from penstock.sql.builtin.enum_types import enum_name
from penstock.sqlstate import ReservedName

log = logging.getLogger(__name__)

_TRIES: Final = 10
"""Times that others may write to a default partition meanwhile."""
_DUPLICATE_TABLE = "42P07"
_TYPE_OF_ITS_NAME = (
    "A relation has an associated type of the same name, so you must use a name that doesn't "
    "conflict with any existing type."
)


def create_table(statement: CreateTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """DefineRelation. What a default partition holds is read with nothing locked, and the statement
    is begun again."""
    default_rows = DefaultRows()
    for _ in range(_TRIES):
        try:
            return _create_table(statement, catalog, scope, default_rows)
        except RowsFirst as first:
            default_rows.read(first.unread)
    raise CommitConflict(
        f'others have written to the default partition of "{statement.parent}" {_TRIES} times in a '
        "row",
        hint="Let the writers of the table pause, and run the statement again.",
    )


def _create_table(
    statement: CreateTable, catalog: Catalog, scope: CommandScope, default_rows: DefaultRows
) -> CommandResult:
    warehouse = warehouse_of(scope)
    with catalog.write() as transaction:
        namespace = creation_schema(transaction, scope, statement.relation)
        check_create_in_schema(scope, namespace.owner, namespace.name)
        name = statement.relation.name
        known = register(transaction, scope, namespace.name, name)
        exists = known is not None or is_taken(transaction, namespace.name, name)
        if exists and statement.missing_ok:
            return _skip_result(f'relation "{name}" already exists, skipping')
        _check_folder_free(transaction, namespace.name, name)
        definition = define(transaction, scope, statement)
        if exists:
            raise DuplicateObject(f'relation "{name}" already exists', sqlstate=_DUPLICATE_TABLE)
        if transaction.types.find(namespace.name, name) is not None:
            raise DuplicateObject(f'type "{name}" already exists', hint=_TYPE_OF_ITS_NAME)
        if definition.parent is not None and definition.bound is not None:
            check_new_partition(
                transaction, scope, definition.parent, statement.relation.name, definition.bound
            )
            check_between_batches(transaction, scope, definition.parent)
            check_joins(transaction, scope, definition.parent, (namespace.name, name))
            default_rows.check(transaction, scope, definition.parent, definition.bound)
        table = transaction.tables.create(
            namespace.name,
            name,
            None if statement.partition_by else warehouse.table_uri(namespace.name, name),
            primary_key=definition.primary_key,
            owner=scope.role.oid,
            parent=definition.parent.oid if definition.parent else None,
            bound=str(definition.bound) if definition.bound else None,
            partition_key=str(statement.partition_by) if statement.partition_by else None,
        )
        table = add_constraints(transaction, table, definition.uniques)
        if definition.parent is not None:
            inherit_indexes(transaction, definition.parent, table)
        schema = table_schema(namespace.name, name, definition)
        warehouse.create(namespace.name, name, schema)
    return CommandResult("CREATE TABLE", definition.notices)


def _check_folder_free(transaction: CatalogTransaction, schema: str, name: str) -> None:
    """A table that was given another schema lies there."""
    other = transaction.tables.in_folder_of(schema, name)
    if other is not None:
        raise FeatureNotSupported(
            f'a table "{name}" in schema "{schema}" is not supported as long as table '
            f'"{other.qualified_name}" lies in its folder',
            hint="Choose another name.",
        )


def _skip_result(message: str) -> CommandResult:
    return CommandResult("CREATE TABLE", (notice(message, sqlstate=_DUPLICATE_TABLE),))


def table_schema(schema: str, name: str, definition: Definition) -> TableSchema:
    """The Delta table's columns, as a subscription would make them for such a relation."""
    attributes = tuple(
        Attribute(
            column.name, column.type_oid, column.typmod, column.name in definition.primary_key
        )
        for column in definition.columns
    )
    relation = Relation(0, schema, name, ReplicaIdentity.DEFAULT, attributes)
    made = TableSchema.of_relation(relation, key=definition.primary_key)
    defined = {column.name: column for column in definition.columns}
    columns = [
        replace(
            c,
            local=True,
            primary=c.source in definition.primary_key,
            default=defined[c.source].default,
            generated=defined[c.source].generation,
            virtual=defined[c.source].generated is AttGenerated.VIRTUAL,
        )
        for c in made.columns
    ]
    return TableSchema(tuple(columns), made.key)


def drop_table(statement: DropTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """RemoveRelations, all of them or none.

    Rows go before the catalog forgets the table, or a sequencer would find it again.
    """
    warehouse = warehouse_of(scope)
    notices: list[Notice] = []
    with catalog.write() as transaction:
        dropped: dict[int, LakeTable] = {}
        for name in statement.relations:
            table = _table_to_drop(transaction, scope, name, statement.missing_ok, notices)
            if table is not None:
                check_owner(scope.role, table.owner, "table", table.name)
                dropped |= {member.oid: member for member in transaction.tables.family(table)}
        for table in dropped.values():
            check_not_subscribed(transaction, table, "drop")
            check_detached(transaction, scope, table)
            transaction.delete_table(table)
        for table in dropped.values():
            warehouse.remove(*(table.folder_of or (table.schema, table.name)))
    return CommandResult("DROP TABLE", tuple(notices))


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


def create_schema(statement: CreateSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """CreateSchemaCommand"""
    with catalog.write() as transaction:
        owner = scope.role
        if statement.owner is not None:
            owner = role_of(transaction, statement.owner, scope)
        name = owner.name if statement.name is None else statement.name
        check_create_in_database(scope)
        check_can_set_role(scope, owner)
        if name.startswith("pg_"):
            raise ReservedName(
                f'unacceptable schema name "{name}"',
                detail='The prefix "pg_" is reserved for system schemas.',
            )
        if statement.missing_ok and find_schema(transaction, scope, name) is not None:
            message = f'schema "{name}" already exists, skipping'
            return CommandResult("CREATE SCHEMA", (notice(message, sqlstate="42P06"),))
        transaction.namespaces.create(name, owner.oid)
    return CommandResult("CREATE SCHEMA")


def drop_schema(statement: DropSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """RemoveObjects for schemas; with CASCADE their tables and types go too."""
    notices: list[Notice] = []
    reported: list[str] = []
    tables: list[LakeTable] = []
    enums: list[EnumType] = []
    with catalog.write() as transaction:
        found = _schemas_to_drop(transaction, scope, statement, notices)
        if found and scope.warehouse is not None:
            register_all(transaction, scope)
        for namespace in found:
            held = [t for t in transaction.tables.all() if t.schema == namespace.name]
            types = [t for t in transaction.types.all() if t.schema == namespace.name]
            shown = _describe_objects(held, types)
            if shown and not statement.cascade:
                raise _still_used(transaction, scope, namespace, held, types)
            dropped = {member.oid: member for t in held for member in transaction.tables.family(t)}
            for table in dropped.values():
                check_not_subscribed(transaction, table, "drop")
                check_detached(transaction, scope, table)
                transaction.delete_table(table)
            reported += shown  # partitions go with their table, without a word
            tables += dropped.values()
            enums += types
            for row in transaction.publications.namespaces():
                if row.schema == namespace.name:
                    transaction.publications.remove_namespace(row.publication, row.schema)
            transaction.namespaces.delete(namespace.oid)
        check_unused(transaction, scope, enums, cascade=True)
        for enum in enums:
            transaction.types.delete(enum.oid)
        for table in tables:
            warehouse_of(scope).remove(*(table.folder_of or (table.schema, table.name)))
    notices += cascade_notices(reported)
    return CommandResult("DROP SCHEMA", tuple(notices))


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
