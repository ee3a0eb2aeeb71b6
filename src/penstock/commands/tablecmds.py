"""CREATE TABLE and CREATE SCHEMA (tablecmds.c, schemacmds.c); their DROPs are in ``drop_relation``,
ALTER TABLE is in ``alter_table``, partitions in ``partbounds``.

In: a parsed statement, the catalog, the scope with its warehouse. Out: Delta tables and rows in the
catalog. The Delta table is there before its row can be seen, so that what is half made is only a
table that nobody has named yet.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_create_in_schema,
    role_of,
)
from penstock.commands.define_relation import Definition, define
from penstock.commands.namespace import (
    creation_schema,
    find_schema,
    open_delta,
    register,
    warehouse_of,
)
from penstock.commands.partbounds import check_new_partition
from penstock.commands.partition_rows import PartitionRows, RowsFirst
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.subscription_targets import (
    check_between_batches,
    check_joins,
)
from penstock.commands.unique_indexes import (
    add_constraints,
    choose_relation_name,
    inherit_indexes,
    is_taken,
)
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
)
from penstock.lakehouse.schema import TableSchema
from penstock.relation import AttGenerated, Attribute, Relation, ReplicaIdentity
from penstock.sql import CreateSchema, CreateTable
from penstock.sqlstate import ReservedName

log = logging.getLogger(__name__)

_TRIES: Final = 10
"""Times that others may write to a default partition meanwhile."""
_DUPLICATE_TABLE = "42P07"
_SEQUENCE = "seq"
_TYPE_OF_ITS_NAME = (
    "A relation has an associated type of the same name, so you must use a name that doesn't "
    "conflict with any existing type."
)


def create_table(statement: CreateTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """DefineRelation. What a default partition holds is read with nothing locked, and the statement
    is begun again."""
    partition_rows = PartitionRows()
    for _ in range(_TRIES):
        try:
            return _create_table(statement, catalog, scope, partition_rows)
        except RowsFirst as first:
            partition_rows.read(first.unread)
    raise CommitConflict(
        f'others have written to the default partition of "{statement.parent}" {_TRIES} times in a '
        "row",
        hint="Let the writers of the table pause, and run the statement again.",
    )


def _create_table(
    statement: CreateTable, catalog: Catalog, scope: CommandScope, partition_rows: PartitionRows
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
            partition_rows.check(transaction, scope, definition.parent, definition.bound)
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
        for owned in definition.sequences:
            sequence = choose_relation_name(transaction, table, owned.column, _SEQUENCE)
            transaction.sequences.create(
                sequence, table.oid, owned.column, owned.identity, owned.parameters
            )
        if definition.parent is not None:
            inherit_indexes(transaction, definition.parent, table)
        schema = table_schema(namespace.name, name, definition)
        root = None if definition.parent is None else open_delta(scope, definition.parent)
        if root is not None:
            schema = schema.as_leaf_of(root.schema)
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
            not_null=defined[c.source].not_null,
        )
        for c in made.columns
    ]
    return TableSchema(tuple(columns), made.key)


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
