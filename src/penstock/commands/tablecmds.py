"""CREATE, ALTER and DROP TABLE, CREATE and DROP SCHEMA (tablecmds.c, schemacmds.c).

A Delta table is created before its row in the catalog is committed, so a crash leaves at most a
Delta table that is not in the catalog. ``partbounds`` compares the bounds of partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.attribute import Attribute, TupleDesc
from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Namespace, PublicationRel, Slot
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_create_in_schema,
    check_owner,
    role_of,
)
from penstock.commands.define_relation import (
    Definition,
    build_column,
    check_declarations,
    check_key,
    check_not_virtual,
    check_same_generation,
    define,
    generated_from,
    multiple_primary_keys,
    with_expression,
)
from penstock.commands.depend import (
    cascade_notices,
    check_not_being_made,
    check_not_prepared,
    check_not_subscribed,
    leave_subscriptions,
    shown_name,
    still_used_error,
)
from penstock.commands.indexcmds import (
    add_constraints,
    choose_relation_name,
    delete_index,
    detach_indexes,
    identify_by,
    inherit_indexes,
    without,
)
from penstock.commands.namespace import (
    columns_of_types,
    creation_schema,
    delta_uri,
    find_schema,
    find_table,
    get_schema,
    get_table,
    keep_former,
    open_delta,
    register,
    register_all,
    table_columns,
    warehouse_of,
)
from penstock.commands.partbounds import check_new_partition
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.sequence import has_sequence
from penstock.commands.subscription_targets import (
    check_between_batches,
    check_detached,
    check_joins,
)
from penstock.commands.typecmds import check_unused, shown_user
from penstock.enum_type import EnumType
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
    InvalidParameterValue,
    NotInPrerequisiteState,
    ObjectInUse,
    SqlSyntaxError,
    UndefinedObject,
    VersionGone,
    WrongObjectType,
)
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.defaults import default_value
from penstock.lakehouse.names import column_names
from penstock.lakehouse.schema import DELETED_AT, Column, TableSchema, delta_type, type_text
from penstock.lakehouse.schema_changes import check_no_variant
from penstock.lakehouse.statistics import bounds
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_changes import table_changes
from penstock.lsn import Lsn
from penstock.pgtypes import arrow_type
from penstock.pgtypes.variant import VARIANT, type_name
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.partition_tree import belonging, routing_of
from penstock.pipeline.rewrite import DDL_APP_ID, ColumnChange, ColumnRewrites
from penstock.pipeline.routing import Level, RangeBound
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.protocol.answers import Notice
from penstock.publication.row_filter import compile_row_filter
from penstock.relation import Relation, ReplicaIdentity, qualified
from penstock.sql import (
    AddColumn,
    AddPrimaryKey,
    AddUnique,
    AlterNotNull,
    AlterTable,
    AlterTableCommand,
    AttachPartition,
    ChangeOwner,
    ConstrType,
    CreateSchema,
    CreateTable,
    DetachPartition,
    DropColumn,
    DropConstraint,
    DropSchema,
    DropTable,
    PartitionBound,
    RangeVar,
    SetReplicaIdentity,
)
from penstock.sql.builtin.enum_types import enum_name
from penstock.sql.grammar.partition_bound import Strategy, key_columns, parse_partition_bound
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import (
    DatatypeMismatch,
    DependentObjectsStillExist,
    DuplicateColumn,
    DuplicateSchema,
    DuplicateTable,
    InvalidSchemaName,
    InvalidTableDefinition,
    NotNullViolation,
    ReservedName,
    UndefinedColumn,
    UndefinedTable,
)

log = logging.getLogger(__name__)

_TRIES: Final = 10
"""The number of attempts at a statement while others write to its tables."""
_SEQUENCE = "seq"
_TYPE_OF_ITS_NAME = (
    "A relation has an associated type of the same name, so you must use a name that doesn't "
    "conflict with any existing type."
)


def create_table(statement: CreateTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run CREATE TABLE (DefineRelation). If rows of a default partition must be read first, read
    them without a lock, and run the statement again."""
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
        exists = known is not None or transaction.is_taken(namespace.name, name)
        if exists and statement.missing_ok:
            return _skip_result(f'relation "{name}" already exists, skipping')
        _check_folder_free(transaction, namespace.name, name)
        definition = define(transaction, scope, statement)
        if exists:
            raise DuplicateTable(f'relation "{name}" already exists')
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
    """Refuse a name if its folder holds a table that was moved to another schema."""
    other = transaction.tables.in_folder_of(schema, name)
    if other is not None:
        raise FeatureNotSupported(
            f'a table "{name}" in schema "{schema}" is not supported as long as table '
            f'"{other.qualified_name}" lies in its folder',
            hint="Choose another name.",
        )


def _skip_result(message: str) -> CommandResult:
    return CommandResult(
        "CREATE TABLE", (notice(message, sqlstate=DuplicateTable.default_sqlstate),)
    )


def table_schema(schema: str, name: str, definition: Definition) -> TableSchema:
    """Return the Delta table's schema, as a subscription would create it for this relation."""
    relation = Relation(0, schema, name, ReplicaIdentity.DEFAULT, definition.columns)
    made = TableSchema.of_relation(relation, key=definition.primary_key)
    columns = [
        replace(c, local=True, primary=c.source in definition.primary_key) for c in made.columns
    ]
    return TableSchema(tuple(columns), made.key)


def create_schema(statement: CreateSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run CREATE SCHEMA (CreateSchemaCommand)."""
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
            return CommandResult(
                "CREATE SCHEMA", (notice(message, sqlstate=DuplicateSchema.default_sqlstate),)
            )
        transaction.namespaces.create(name, owner.oid)
    return CommandResult("CREATE SCHEMA")


# ALTER TABLE (tablecmds.c, ATExecCmd).
#
# ``change_columns`` changes columns. ALTER TABLE does not check that an added key is unique: code
# that needs a unique key checks it.


def alter_table(statement: AlterTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run ALTER TABLE (AlterTable). If files must be rewritten or read first, do so without a lock,
    and run the statement again."""
    at = datetime.now(UTC)
    partition_rows = PartitionRows(attaches=True)
    with ColumnRewrites() as rewrites:
        for _ in range(_TRIES):
            try:
                with catalog.write() as transaction:
                    return _alter(statement, transaction, scope, at, rewrites, partition_rows)
            except FilesFirst as first:
                for change in first.changes:
                    rewrites.prepare(change)
            except RowsFirst as first:
                partition_rows.read(first.unread)
            except CommitConflict as conflict:
                log.info("%s: altering the table again", conflict.message)
    raise CommitConflict(
        f'others have committed to table "{statement.relation}" {_TRIES} times in a row',
        hint="Let the writers of the table pause, and run the statement again.",
    )


def _alter(
    statement: AlterTable,
    transaction: CatalogTransaction,
    scope: CommandScope,
    at: datetime,
    rewrites: ColumnRewrites,
    partition_rows: PartitionRows,
) -> CommandResult:
    """Execute the statement once. Delta tables are changed last, after everything that may fail."""
    notices: list[Notice] = []
    table = find_table(transaction, scope, statement.relation)
    if table is None and statement.missing_ok:
        name = statement.relation.name
        skipped = notice(f'relation "{name}" does not exist, skipping')
        return CommandResult("ALTER TABLE", (skipped,))
    table = get_table(transaction, scope, statement.relation)
    check_owner(scope.role, table.owner, "table", table.name)
    changes, before = ColumnChanges(at=at), transaction.tables.family(table)
    check_not_prepared(transaction, before, "alter")
    committed: Mapping[int, int] = {}
    for command in sorted(statement.commands, key=_pass_of):
        if isinstance(command, DropColumn):
            only = statement.relation.only
            table = drop_column(transaction, scope, table, command, only, changes, notices)
        else:
            table = _execute(transaction, scope, table, command, changes, notices, partition_rows)
        transaction.tables.save(table)
    if changes:
        members = transaction.tables.family(table)
        committed = change_columns(transaction, scope, members, changes, rewrites)
    keep_former(transaction, scope, before, committed)
    return CommandResult("ALTER TABLE", tuple(notices))


def _pass_of(command: AlterTableCommand) -> int:
    """Return the pass of a command (AlterTablePass): drops come first, then new columns, then keys
    and the rest, whatever their order in the statement."""
    match command:
        case DropColumn() | DropConstraint():
            return 0
        case AddColumn():
            return 1
    return 2


def _execute(
    transaction: CatalogTransaction,
    scope: CommandScope,
    table: LakeTable,
    command: AlterTableCommand,
    changes: ColumnChanges,
    notices: list[Notice],
    partition_rows: PartitionRows,
) -> LakeTable:
    match command:
        case AddColumn():
            check_declarations(table.name, command.column)
            if has_sequence(command.column):
                raise FeatureNotSupported(
                    "ALTER TABLE ... ADD COLUMN of a serial or identity column is not supported",
                    hint="Give the rows that are there their values by UPDATE.",
                )
            new = build_column(transaction, scope, command.column)
            before = len(changes.added)
            table = _add_column(scope, table, command, new, changes, notices)
            unique = command.column.unique if len(changes.added) > before else None
            return add_constraints(transaction, table, [unique] if unique else [])
        case AddPrimaryKey(columns):
            if table.primary_key:
                raise multiple_primary_keys(table.name)
            known = changes.columns(scope, table)
            check_columns(table, columns, known.names)
            check_key(columns, known.names)
            check_not_virtual(columns, known, "primary keys")
            return _with_key(scope, table, columns, changes)
        case AddUnique(unique):
            known = changes.columns(scope, table)
            check_key(unique.columns, known.names, "unique")
            check_not_virtual(unique.columns, known, "unique constraints")
            return add_constraints(transaction, table, [unique])
        case AlterNotNull(name, not_null):
            check_columns(table, [name], changes.columns(scope, table).names)
            if not not_null:
                _check_may_be_null(transaction, scope, table, name)
            changes.not_null[name] = not_null
        case DropConstraint(name, missing_ok):
            if name == table.primary_key_name and table.primary_key:
                return _with_key(scope, table, (), changes)
            return _drop_constraint(transaction, table, name, missing_ok, notices)
        case SetReplicaIdentity():
            return _set_identity(transaction, scope, table, command, changes)
        case ChangeOwner(spec):
            owner = role_of(transaction, spec, scope)
            if owner.oid != table.owner and not scope.role.superuser:
                check_can_set_role(scope, owner)
                schema = get_schema(transaction, scope, table.schema)
                check_create_in_schema(replace(scope, role=owner), schema.owner, schema.name)
            return replace(table, owner=owner.oid)
        case AttachPartition(relation, bound):
            child = get_table(transaction, scope, relation)
            check_owner(scope.role, child.owner, "table", child.name)
            attach(transaction, scope, table, child, bound, partition_rows)
        case DetachPartition(relation):
            _detach(transaction, scope, table, get_table(transaction, scope, relation))
    return table


def _check_may_be_null(
    transaction: CatalogTransaction, scope: CommandScope, table: LakeTable, name: str
) -> None:
    """Check that a column allows DROP NOT NULL (ATExecDropNotNull)."""
    reason: str | None = None
    sequences = {s.column: s for s in transaction.sequences.of_table(table.oid)}
    if name in sequences and sequences[name].identity:
        raise SqlSyntaxError(f'column "{name}" of relation "{table.name}" is an identity column')
    parent = None if table.parent is None else transaction.tables.find_oid(table.parent)
    if parent is not None:
        known = {column.name: column.not_null for column in table_columns(scope, parent)}
        if known.get(name) or name in parent.primary_key:
            reason = f'column "{name}" is marked NOT NULL in parent table'
    if reason is None and name in table.primary_key:
        reason = f'column "{name}" is in a primary key'
    by_index = any(index.replica_identity for index in table.indexes)
    if reason is None and by_index and name in table.identity_key:
        reason = f'column "{name}" is in index used as replica identity'
    if reason is not None:
        raise InvalidTableDefinition(reason)


def _add_column(
    scope: CommandScope,
    table: LakeTable,
    command: AddColumn,
    new: Attribute,
    changes: ColumnChanges,
    notices: list[Notice],
) -> LakeTable:
    """Add a column to ``changes``. Return the table, with the column as primary key if the column
    is declared so (ATExecAddColumn)."""
    if table.parent is not None:
        raise WrongObjectType("cannot add column to a partition")
    known = changes.columns(scope, table)
    if new.name in known.names:
        message = f'column "{new.name}" of relation "{table.name}" already exists'
        if not command.missing_ok:
            raise DuplicateColumn(message)
        notices.append(notice(f"{message}, skipping", sqlstate=DuplicateColumn.default_sqlstate))
        return table
    keyed = ConstrType.PRIMARY in command.column.constraints
    if keyed and table.primary_key:
        raise multiple_primary_keys(table.name)
    changes.added.append(with_expression(new, [*known, new], table.name))
    if keyed:
        check_not_virtual((new.name,), [new], "primary keys")
    if command.column.unique is not None:
        check_not_virtual((new.name,), [new], "unique constraints")
    return replace(table, primary_key=(new.name,)) if keyed else table


def _set_identity(
    transaction: CatalogTransaction,
    scope: CommandScope,
    table: LakeTable,
    command: SetReplicaIdentity,
    changes: ColumnChanges,
) -> LakeTable:
    """Return the table with another replica identity (ATExecReplicaIdentity). Penstock's own USING
    KEY names columns instead of an index."""
    if command.index is not None:
        return _by_index(transaction, table, command.index)
    known = changes.columns(scope, table)
    check_columns(table, command.key, known.names)
    check_not_virtual(command.key, known, "indexes")
    for position, name in enumerate(command.key):
        if name in command.key[:position]:
            raise InvalidTableDefinition(f'column "{name}" appears twice in replica identity')
    table = identify_by(table, None)
    identity = ReplicaIdentity(command.kind)
    return replace(table, replica_identity=identity, identity_key=command.key)


def _by_index(transaction: CatalogTransaction, table: LakeTable, name: str) -> LakeTable:
    """Return the table with REPLICA IDENTITY USING INDEX. Raises UndefinedObject (42704),
    WrongObjectType."""
    index = next((own for own in table.indexes if own.name == name), None)
    if index is not None:
        return identify_by(table, index)
    if table.primary_key and name == table.primary_key_name:
        return replace(
            identify_by(table, None),
            replica_identity=ReplicaIdentity.INDEX,
            identity_key=table.primary_key,
        )
    if transaction.tables.find(table.schema, name) is not None:
        raise WrongObjectType(f'"{name}" is not an index')
    if transaction.is_taken(table.schema, name):
        raise WrongObjectType(f'"{name}" is not an index for table "{table.name}"')
    raise UndefinedObject(f'index "{name}" for table "{table.name}" does not exist')


def _with_key(
    scope: CommandScope, table: LakeTable, key: tuple[str, ...], changes: ColumnChanges
) -> LakeTable:
    """Return the table with another primary key. If the node created the Delta table, the key is
    also recorded there: a subscription that fills the table finds rows by it."""
    if is_made_here(scope, table):
        changes.key = key
    return replace(table, primary_key=key)


def _drop_constraint(
    transaction: CatalogTransaction,
    table: LakeTable,
    name: str,
    missing_ok: bool,
    notices: list[Notice],
) -> LakeTable:
    """Drop a UNIQUE constraint (ATExecDropConstraint)."""
    for index in table.indexes:
        if index.constraint and index.name == name:
            if index.parent is not None:
                raise InvalidTableDefinition(
                    f'cannot drop inherited constraint "{name}" of relation "{table.name}"'
                )
            return delete_index(transaction, table, index)
    message = f'constraint "{name}" of relation "{table.name}" does not exist'
    if not missing_ok:
        raise UndefinedObject(message)
    notices.append(notice(f"{message}, skipping"))
    return table


def check_columns(table: LakeTable, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raise UndefinedObject (42703) for the first column in ``wanted`` that the table lacks."""
    for name in wanted:
        if name not in known:
            raise UndefinedColumn(f'column "{name}" of relation "{table.name}" does not exist')


def _detach(
    transaction: CatalogTransaction, scope: CommandScope, parent: LakeTable, child: LakeTable
) -> None:
    """Run DETACH PARTITION (ATExecDetachPartition)."""
    if parent.partition_key is None:
        raise WrongObjectType(
            f'ALTER action DETACH PARTITION cannot be performed on relation "{parent.name}"',
            detail="This operation is not supported for tables.",
        )
    if child.parent != parent.oid:
        raise UndefinedTable(
            f'relation "{child.name}" is not a partition of relation "{parent.name}"'
        )
    check_between_batches(transaction, scope, parent)
    transaction.tables.save(replace(detach_indexes(child), parent=None, bound=None))


# ALTER TABLE ... ATTACH PARTITION (tablecmds.c, ATExecAttachPartition).
#
# ``PartitionRows`` reads the table's rows to check the bound.
#
# A table is refused while a slot has not received all changes of its rows. PostgreSQL decodes a
# change with the catalogs at its time. Here nothing records when a table became a partition, so
# earlier changes would be sent as changes of a partition.

_MAKE_OF_PARENT: Final = "Make the partition from its parent: CREATE TABLE ... PARTITION OF {}."


def attach(
    transaction: CatalogTransaction,
    scope: CommandScope,
    parent: LakeTable,
    child: LakeTable,
    bound: PartitionBound,
    partition_rows: PartitionRows,
) -> None:
    """Make a table a partition. Raises WrongObjectType, UndefinedObject, InvalidParameterValue,
    FeatureNotSupported, and the errors of ``PartitionRows.check``."""
    if parent.partition_key is None:
        raise WrongObjectType(
            f'ALTER action ATTACH PARTITION cannot be performed on relation "{parent.name}"',
            detail="This operation is not supported for tables.",
        )
    if child.parent is not None:
        raise WrongObjectType(f'"{child.name}" is already a partition')
    if parent.oid in {member.oid for member in transaction.tables.family(child)}:
        raise DuplicateTable(
            "circular inheritance not allowed",
            detail=f'"{parent.name}" is already a child of "{child.name}".',
        )
    _check_no_sequence(transaction, child)
    check_new_partition(transaction, scope, parent, child.name, bound)
    check_between_batches(transaction, scope, parent)
    members = transaction.tables.family(child)
    check_not_prepared(transaction, members, "attach")
    for member in members:
        check_joins(transaction, scope, parent, (member.schema, member.name))
        _check_columns(scope, parent, member)
        _check_stored(scope, parent, member)
        check_history_sent(transaction, scope, parent, member)
    partition_rows.check(transaction, scope, parent, bound)
    partition = replace(
        child,
        parent=parent.oid,
        bound=str(bound),
        primary_key=child.primary_key or parent.primary_key,
    )
    below = [
        replace(member, primary_key=member.primary_key or parent.primary_key)
        for member in members
        if member.oid != child.oid
    ]
    partition_rows.check_attached(transaction, scope, parent, [partition, *below])
    for member in (partition, *below):
        transaction.tables.save(member)
    inherit_indexes(transaction, parent, partition)


def _check_no_sequence(transaction: CatalogTransaction, child: LakeTable) -> None:
    """Refuse a table with sequences. PostgreSQL accepts serial columns (ATExecAttachPartition), but
    here rows that are inserted through the parent would get no values from them."""
    for sequence in transaction.sequences.of_table(child.oid):
        if sequence.identity:
            raise NotInPrerequisiteState(
                f'table "{child.name}" being attached contains an identity column '
                f'"{sequence.column}"',
                detail="The new partition may not contain an identity column.",
            )
        raise FeatureNotSupported(
            f'ATTACH PARTITION of table "{child.name}" is not supported, whose column '
            f'"{sequence.column}" has a sequence'
        )


def _check_columns(scope: CommandScope, parent: LakeTable, child: LakeTable) -> None:
    """Check that a table has exactly the parent's columns (MergeAttributesIntoExisting)."""
    theirs, own = table_columns(scope, parent), table_columns(scope, child)
    for column in own:
        if column.name not in theirs.names:
            raise DatatypeMismatch(
                f'table "{child.name}" contains column "{column.name}" not found in parent '
                f'"{parent.name}"',
                detail="The new partition may contain only the columns present in parent.",
            )
    for column in theirs:
        if column.name not in own.by_name:
            raise DatatypeMismatch(f'child table is missing column "{column.name}"')
        mine = own.by_name[column.name]
        if not mine.has_type_of(column):
            raise DatatypeMismatch(
                f'child table "{child.name}" has different type for column "{column.name}"'
            )
        check_same_generation(mine, column)


def _check_stored(scope: CommandScope, parent: LakeTable, child: LakeTable) -> None:
    """Check that a table stores its columns as the parent does: rows are written to partitions in
    the parent's form. Two things may differ: the names in Delta, if two names in PostgreSQL differ
    only in case; and jsonb, which may be stored as a variant or as text."""
    tables = [open_delta(scope, table) for table in (parent, child)]
    if tables[1] is None:
        raise UndefinedObject(f'Delta table of relation "{child.qualified_name}" does not exist')
    root, leaf = (TableSchema(()) if table is None else table.schema for table in tables)
    if dict(root.renamed) != dict(leaf.renamed):
        raise FeatureNotSupported(
            f'ATTACH PARTITION of table "{child.name}" is not supported, whose columns are stored '
            "under other names",
            hint=_MAKE_OF_PARENT.format(quote_identifier(parent.name)),
        )
    for column in root.columns:
        own = leaf.by_source.get(column.source, column)
        if (own.type == VARIANT) != (column.type == VARIANT):
            raise DatatypeMismatch(
                f'child table "{child.name}" has different type for column "{column.source}"',
                detail=f"In Delta it is {type_name(own.type)} there, and {type_name(column.type)} "
                "in the parent.",
                hint=_MAKE_OF_PARENT.format(quote_identifier(parent.name)),
            )


_AT_ONCE: Final = 1000
"""The number of transactions that are read from the node's log at once."""


def check_history_sent(
    transaction: CatalogTransaction, scope: CommandScope, parent: LakeTable, child: LakeTable
) -> None:
    """Raise ObjectInUse if a slot has not received all changes of ``child``'s rows, so that they
    would be sent as changes of a partition. Raises StorageError."""
    delta = open_delta(scope, child)
    slots = [slot for slot in transaction.slots.all() if slot.invalidation_reason is None]
    if delta is None or delta.version == 0 or not slots or not _is_published(transaction, parent):
        return
    lagging = (
        slot
        for slot in slots
        if any(_changes_rows(delta, *span) for span in _unsent(transaction, slot, child, delta))
    )
    slot = next(lagging, None)
    if slot is not None:
        raise ObjectInUse(
            f'cannot attach table "{child.name}" because replication slot "{slot.name}" has not '
            "received all changes of its rows",
            detail=f'They would be sent as changes of a partition of "{parent.name}", which it was '
            "not yet.",
            hint="Try again when the slot's subscriber has caught up. Or drop the table, and make "
            "the partition by CREATE TABLE ... PARTITION OF.",
        )


def _is_published(transaction: CatalogTransaction, parent: LakeTable) -> bool:
    members = transaction.members()
    return any(members.contains(publication, parent) for publication in members.publications)


def _unsent(
    transaction: CatalogTransaction, slot: Slot, child: LakeTable, delta: DeltaTable
) -> Iterator[tuple[int, int]]:
    """Yield (version before, version after) for each change that a slot has not received, including
    changes that are not in the node's log yet."""
    at = slot.confirmed_flush_lsn
    while found := transaction.transactions.after(at, _AT_ONCE):
        for each in found:
            for member in each.members:
                if member.relation == child.oid:
                    yield member.from_version, member.to_version
        at = Lsn(found[-1].end)
    yield transaction.transactions.versions().get(child.oid, -1), delta.version


def _changes_rows(delta: DeltaTable, before: int, after: int) -> bool:
    if before >= after:
        return False
    try:
        changes = table_changes(delta.storage, delta.uri, before, after)
    except VersionGone:
        return True  # the Delta log is gone, so assume that rows changed
    return bool(changes.added or changes.removed or changes.truncated)


# ALTER TABLE ... DROP COLUMN in the catalog (tablecmds.c, ATExecDropColumn).
#
# Keys with the column are dropped, and a table leaves the publications whose filter or column list
# names the column. ``change_columns`` changes the Delta tables.


def drop_column(
    transaction: CatalogTransaction,
    scope: CommandScope,
    table: LakeTable,
    command: DropColumn,
    only: bool,
    changes: ColumnChanges,
    notices: list[Notice],
) -> LakeTable:
    """Return the table without the keys that have the column; save its partitions. ``only``: the
    statement has ONLY.

    Raises UndefinedObject (42703), InvalidParameterValue (42P16), NotInPrerequisiteState (2BP01).
    """
    gone = command.name not in changes.columns(scope, table).names
    if gone and not _is_left(transaction, table, command.name):
        message = f'column "{command.name}" of relation "{table.name}" does not exist'
        if not command.missing_ok:
            raise UndefinedColumn(message)
        notices.append(notice(f"{message}, skipping"))
        return table
    if table.parent is not None:
        raise InvalidTableDefinition(f'cannot drop inherited column "{command.name}"')
    members = transaction.tables.family(table)
    _check_partition_key(table, command.name)
    if only and len(members) > 1:
        raise InvalidTableDefinition(
            "cannot drop column from only the partitioned table when partitions exist",
            hint="Do not specify the ONLY keyword.",
        )
    for member in members[1:]:
        _check_partition_key(member, command.name)
    made_of_it = generated_from(command.name, changes.columns(scope, table), table.name)
    _check_not_generated_from(transaction, scope, members, command, made_of_it)
    for name in (command.name, *made_of_it):
        notices += _leave_publications(transaction, scope, members, replace(command, name=name))
        for member in transaction.tables.family(table)[1:]:
            transaction.tables.save(_without(member, name))
        transaction.sequences.delete_of(table.oid, name)
        changes.drop(name)
        table = _without(table, name)
    shown = shown_name(transaction, scope, table.schema, table.name)
    notices += cascade_notices([f"column {name} of table {shown}" for name in made_of_it])
    return table


def _is_left(transaction: CatalogTransaction, table: LakeTable, column: str) -> bool:
    """Tell whether a key or a publication still has a column that the Delta tables do not have any
    more: DROP COLUMN stopped before the catalog's commit, or another writer dropped the column."""
    members = {member.oid: member for member in transaction.tables.family(table)}
    lists = [r for r in transaction.publications.relations() if r.relation in members]
    return any(_without(member, column) != member for member in members.values()) or any(
        column in (rel.columns or ()) for rel in lists
    )


def _check_not_generated_from(
    transaction: CatalogTransaction,
    scope: CommandScope,
    members: Sequence[LakeTable],
    command: DropColumn,
    made_of_it: Sequence[str],
) -> None:
    """Without CASCADE, raise NotInPrerequisiteState (2BP01) if columns are generated from the
    dropped column."""
    if command.cascade or not made_of_it:
        return
    shown = [
        shown_name(transaction, scope, member.schema, member.name)
        for member in _last_first(members, members[0])
    ]
    lines = [
        f"column {name} of table {table} depends on column {command.name} of table {table}"
        for table in shown
        for name in made_of_it
    ]
    what = f"column {command.name} of table {shown[0]}"
    raise still_used_error(what if len(members) == 1 else None, lines)


def _check_partition_key(table: LakeTable, column: str) -> None:
    if table.partition_key is not None and column in key_columns(table.partition_key):
        raise InvalidTableDefinition(
            f'cannot drop column "{column}" because it is part of the partition key of relation '
            f'"{table.name}"',
        )


def _without(table: LakeTable, column: str) -> LakeTable:
    """Return the table without the keys and indexes that have the column. If one of them was the
    replica identity, rows have no identity any more."""
    for index in table.indexes:
        if column in index.columns:
            table = without(table, index)
    return replace(
        table,
        primary_key=() if column in table.primary_key else table.primary_key,
        identity_key=() if column in table.identity_key else table.identity_key,
    )


def _leave_publications(
    transaction: CatalogTransaction,
    scope: CommandScope,
    members: Sequence[LakeTable],
    command: DropColumn,
) -> list[Notice]:
    """Remove tables from publications whose row filter or column list names the column. Without
    CASCADE, raise an error instead."""
    publications = {p.oid: p.name for p in transaction.publications.all()}
    tables = {member.oid: member for member in members}
    found = [
        rel
        for rel in transaction.publications.relations()
        if rel.relation in tables
        and command.name in _named_columns(scope, tables[rel.relation], rel)
    ]
    tables = {member.oid: member for member in _last_first(members, members[0])}
    found.sort(key=lambda rel: list(tables).index(rel.relation))
    shown = {t.oid: shown_name(transaction, scope, t.schema, t.name) for t in members}
    column = f"column {command.name} of table"
    described = [
        f"publication of table {shown[rel.relation]} in publication {publications[rel.publication]}"
        for rel in found
    ]
    if found and not command.cascade:
        lines = [
            f"{text} depends on {column} {shown[rel.relation]}"
            for text, rel in zip(described, found, strict=True)
        ]
        what = f"{column} {shown[members[0].oid]}"
        raise still_used_error(what if len(members) == 1 else None, lines)
    for rel in found:
        transaction.publications.remove_relation(rel.publication, rel.relation)
    return cascade_notices(described)


def _last_first(members: Sequence[LakeTable], table: LakeTable) -> list[LakeTable]:
    """Return a table and its partitions in the order in which PostgreSQL reports them: the table,
    then its partitions, the last one first."""
    children = [member for member in members if member.parent == table.oid]
    return [table, *(t for child in reversed(children) for t in _last_first(members, child))]


def _named_columns(scope: CommandScope, table: LakeTable, rel: PublicationRel) -> frozenset[str]:
    """Return the columns that a publication's column list and row filter name."""
    listed = frozenset(rel.columns or ())
    if rel.row_filter is None:
        return listed
    columns = table_columns(scope, table)
    compiled = compile_row_filter(rel.row_filter, columns, table=table.name)
    return listed | compiled.columns


# DROP TABLE and DROP SCHEMA (dependency.c, tablecmds.c).
#
# A table that a subscription fills is first removed from the subscription, in a transaction of its
# own: a worker that finds a table missing stops for good, but if the table was removed from the
# subscription, the worker only restarts.


def drop_table(statement: DropTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run DROP TABLE: drop all of the tables or none (RemoveRelations)."""
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
    """Check the tables and remove them from their subscriptions, before anything is dropped."""
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
    """Remove the Delta tables, as the last step before the catalog's commit: afterwards the
    sequencer would register again a Delta table that is not in the catalog."""
    for table in tables:
        warehouse_of(scope).remove(*(table.folder_of or (table.schema, table.name)))


def _table_to_drop(
    transaction: CatalogTransaction,
    scope: CommandScope,
    name: RangeVar,
    missing_ok: bool,
    notices: list[Notice],
) -> LakeTable | None:
    """Return the table to drop, or None with a notice (DropErrorMsgNonExistent)."""
    missing_schema = name.schema and find_schema(transaction, scope, name.schema) is None
    if missing_schema and missing_ok:
        notices.append(notice(f'schema "{name.schema}" does not exist, skipping'))
        return None
    found = find_table(transaction, scope, name)
    if found is None and missing_ok:
        notices.append(notice(f'table "{name.name}" does not exist, skipping'))
    elif found is None:
        raise UndefinedTable(f'table "{name.name}" does not exist')
    return found


def drop_schema(statement: DropSchema, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run DROP SCHEMA (RemoveObjects). CASCADE also drops the schemas' tables and types."""
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
            reported.extend(shown)  # partitions are dropped with their table, without a notice
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
            raise InvalidSchemaName(f'schema "{name}" does not exist')
        check_owner(scope.role, namespace.owner, "schema", name)
        if name == "public":
            raise DependentObjectsStillExist(
                "cannot drop schema public because the node requires it"
            )
        found.append(namespace)
    return found


def _describe_objects(tables: Sequence[LakeTable], enums: Sequence[EnumType]) -> list[str]:
    """Return descriptions of a schema's objects, ordered by oid."""
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
        if table.schema != namespace.name:  # columns of the schema's own tables are not reported
            place = lines.index(f"type {enum_name(enum)} depends on schema {namespace.name}")
            lines.insert(place + 1, shown_user(scope, table, column, enum))
    return still_used_error(f"schema {namespace.name}", lines)


# Change the columns of Delta tables for ALTER TABLE.
#
# A file is rewritten if its rows have values of a dropped column, or need default or generated
# values of an added column.


@dataclass
class ColumnChanges:
    """The changes of columns that a statement has made so far, by PostgreSQL's names. Drops come
    before additions. ``at``: the value of now() for all rows; ``key``: the new primary key; None if
    it does not change; ``not_null``: columns that become NOT NULL (True) or nullable (False)."""

    at: datetime
    dropped: list[str] = field(default_factory=list)
    added: list[Attribute] = field(default_factory=list)
    key: tuple[str, ...] | None = None
    not_null: dict[str, bool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.added or self.key is not None or self.not_null)

    def columns(self, scope: CommandScope, table: LakeTable) -> TupleDesc:
        """Return the columns of a table after these changes."""
        kept = [c for c in table_columns(scope, table) if c.name not in self.dropped]
        return TupleDesc((*kept, *self.added))

    def drop(self, name: str) -> None:
        """Note that a column of the table is dropped."""
        self.dropped.append(name)


def is_made_here(scope: CommandScope, table: LakeTable) -> bool:
    """Tell whether all columns were created by statements on this node."""
    try:
        delta = open_delta(scope, table)
    except FeatureNotSupported:
        return False
    return delta is not None and all(column.local for column in delta.schema.columns)


class FilesFirst(Exception):
    """Signal that files must be rewritten before the statement can be executed."""

    def __init__(self, changes: Sequence[ColumnChange]) -> None:
        super().__init__()
        self.changes = changes


def change_columns(
    transaction: CatalogTransaction,
    scope: CommandScope,
    members: Sequence[LakeTable],
    changes: ColumnChanges,
    rewrites: ColumnRewrites,
) -> dict[int, int]:
    """Commit the changes to a table and its partitions, and return the new versions by oid. The
    table itself is committed last: until then the statement may be executed again.

    Raises CommitConflict, StorageError, UndefinedObject (42P01), FeatureNotSupported, ObjectInUse,
    NotInPrerequisiteState; FilesFirst, before any change, if files must be rewritten first.
    """
    check_none_dead(scope, members, changes.dropped)
    staged = [_stage(scope, member, changes) for member in members]
    check_between_batches(transaction, scope, members[0])  # a later batch makes our commit fail
    incomplete = [change for change in staged if not rewrites.is_complete(change)]
    if incomplete:
        raise FilesFirst(incomplete)
    for change in staged:
        if change.table.is_behind():  # check all tables before the first one is changed
            raise CommitConflict(f'table "{change.table.name}" has another version by now')
    kind = "DROP" if changes.dropped else "ADD"
    operation = "SET PRIMARY KEY" if changes.key is not None else "CHANGE COLUMN"
    operation = f"{kind} COLUMNS" if changes.dropped or changes.added else operation
    for change in reversed(staged):
        if not change.table.has_staged:
            continue  # an earlier attempt has already changed this table
        delta = change.table
        try:
            rewrites.stage(change)
            delta.commit(
                app_id=DDL_APP_ID,
                operation=operation,
                data_change=False,
            )
        except BaseException:
            delta.discard()
            raise
    return {table.oid: change.table.version for table, change in zip(members, staged, strict=True)}


def _stage(scope: CommandScope, table: LakeTable, changes: ColumnChanges) -> ColumnChange:
    delta = _open(scope, table, changes)
    known = delta.schema.by_source
    dropped = frozenset(known[name].name for name in changes.dropped if name in known)
    if dropped:
        delta.drop_columns(dropped)
    new = _new_columns(delta, changes)
    delta.add_columns(new)
    if changes.key is not None:
        keyed = delta.schema.with_primary_key(changes.key)
        check_no_variant(keyed, table=table.name)
        delta.mark(keyed)
    if changes.not_null:
        delta.mark(delta.schema.with_not_null(changes.not_null))
    _check_no_nulls(table, delta, changes)
    if delta.schema.has_variants:
        generated_columns(delta.schema, table.name)  # raises if an expression uses a variant
    if dropped and delta.rows and not delta.schema.columns:
        raise FeatureNotSupported(
            f'dropping every column of table "{table.name}", which has rows, is not supported',
            detail="Rows of a Delta table have at least one column.",
        )
    constants = {column.name: default_value(column, changes.at) for column in new}
    return ColumnChange(delta, dropped, constants)


def _check_no_nulls(table: LakeTable, delta: DeltaTable, changes: ColumnChanges) -> None:
    """Check that columns that become NOT NULL contain no NULL (ATRewriteTable). Raises
    NotNullViolation."""
    added = {c.name for c in changes.added if c.not_null and (c.default or c.generation) is None}
    for column in delta.schema.columns:
        if column.source in added and delta.rows:
            raise _contains_nulls(table, column)
        if changes.not_null.get(column.source) and any(
            _has_null(delta, file, column) for file in delta.files.values() if file.live_rows
        ):
            raise _contains_nulls(table, column)


def _has_null(delta: DeltaTable, file: DataFile, column: Column) -> bool:
    if (file.stats.get("nullCount") or {}).get(column.name) == 0:
        return False
    scanned = [ScanColumn(column.name, column.name, column.type)]
    batches = scan(delta.storage, delta.uri, ScanFile.of(file), scanned)
    return any(batch.column(0).null_count for batch in batches)


def _contains_nulls(table: LakeTable, column: Column) -> NotNullViolation:
    return NotNullViolation(
        f'column "{column.source}" of relation "{table.name}" contains null values',
        objects={"schema": table.schema, "table": table.name, "column": column.source},
    )


def _new_columns(delta: DeltaTable, changes: ColumnChanges) -> list[Column]:
    known = delta.schema.by_source
    taken = {source: column.name for source, column in known.items()}
    new_names = column_names([c.name for c in changes.added], taken)
    return [
        Column(new_names[c.name], c, arrow_type(c.type_oid, c.typmod), local=True)
        for c in changes.added
        if c.name not in known
    ]


def _open(scope: CommandScope, table: LakeTable, changes: ColumnChanges) -> DeltaTable:
    """Open a Delta table to change its columns. Raises UndefinedObject (42P01); FeatureNotSupported
    for a table that the node cannot write."""
    try:
        delta = open_delta(scope, table)
    except FeatureNotSupported as error:
        schema, name = table.folder_of or (table.schema, table.name)
        name = qualified(schema, name)
        reason = error.message.removeprefix(f'target table "{name}" ')
        verb = "DROP" if changes.dropped else "ADD" if changes.added else "ALTER"
        raise FeatureNotSupported(
            f'ALTER TABLE ... {verb} COLUMN is not supported for table "{table.name}"',
            detail=f"Its Delta table {reason}.",
            hint=_by_spark(delta_uri(scope, table), changes),
        ) from None
    if delta is None:
        raise UndefinedTable(f'Delta table of relation "{table.qualified_name}" does not exist')
    return delta


def _by_spark(uri: str, changes: ColumnChanges) -> str:
    statements = []
    if changes.dropped:
        dropped = ", ".join(map(_backquoted, changes.dropped))
        statements.append(f"ALTER TABLE delta.`{uri}` DROP COLUMNS ({dropped});")
    if changes.added:
        added = ", ".join(f"{_backquoted(c.name)} {_spark_type(c)}" for c in changes.added)
        statements.append(f"ALTER TABLE delta.`{uri}` ADD COLUMNS ({added});")
    verb = "Drop" if changes.dropped else "Add"
    return f"{verb} the column by Spark, the node follows: {' '.join(statements)}"


def _backquoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _spark_type(column: Attribute) -> str:
    return type_text(delta_type(arrow_type(column.type_oid, column.typmod))).upper()


# ALTER TABLE ... DROP COLUMN of the column that marks deleted rows (``soft_delete``).


def check_none_dead(
    scope: CommandScope, members: Sequence[LakeTable], dropped: Sequence[str]
) -> None:
    """Refuse to drop the column that marks deleted rows while any row is marked. ``members``: the
    table, then its partitions. Raises NotInPrerequisiteState (55000)."""
    if DELETED_AT not in dropped:
        return
    tables = [_open_or_none(scope, member) for member in members]
    if tables[0] is None or tables[0].schema.deleted_at is None:
        return
    for table in tables:
        if table is not None and DELETED_AT in table.schema.by_source and _has_dead(table):
            name = f"{quote_identifier(members[0].schema)}.{quote_identifier(members[0].name)}"
            raise NotInPrerequisiteState(
                f'cannot drop column "{DELETED_AT}" of relation "{members[0].name}" because it has '
                "rows that the publisher has deleted",
                detail="Nothing else tells them from the others.",
                hint=f"DELETE FROM {name} WHERE {DELETED_AT} IS NOT NULL",
            )


def _open_or_none(scope: CommandScope, table: LakeTable) -> DeltaTable | None:
    try:
        return open_delta(scope, table)
    except FeatureNotSupported:
        return None  # ``_open`` will refuse the statement


def _has_dead(table: DeltaTable) -> bool:
    found = table.schema.by_source[DELETED_AT]
    column = ScanColumn(found.source, found.name, found.type)
    for file in table.files.values():
        nulls = (file.stats.get("nullCount") or {}).get(found.name)
        if file.live_rows and nulls != file.rows:
            for batch in scan(table.storage, table.uri, ScanFile.of(file), [column]):
                if pc.any(pc.is_valid(batch.column(0))).as_py():
                    return True
    return False


# Check existing rows for a new partition (partbounds.c, check_default_partition_contents;
# tablecmds.c, QueuePartitionConstraintValidation).
#
# Files are read without a lock, and then the statement runs again. Most files of a default
# partition need not be read, thanks to their statistics.

_CHECK_VIOLATION: Final = "23514"
_OTHERS: Final = frozenset((1,))
"""The numbers that ``belonging`` gives to rows outside of the bound."""


@dataclass(frozen=True)
class Unread:
    """Files of a table that may have rows that forbid the statement. ``columns``: the partitioned
    table's columns; ``routing``: routes its rows to numbers; ``allowed``: the numbers that rows of
    the files may have; ``error``: the message for a row with another number."""

    table: DeltaTable
    columns: TableSchema
    routing: Level
    allowed: frozenset[int]
    files: Sequence[DataFile]
    error: str

    def check(self, file: DataFile) -> None:
        """Read a file and check to which numbers its rows are routed. Raises InvalidParameterValue
        (23514), StorageError, VersionGone."""
        for rows in _keys(self, file):
            if not self.allowed.issuperset(np.unique(self.routing.find(rows)).tolist()):
                raise InvalidParameterValue(self.error, sqlstate=_CHECK_VIOLATION)


class RowsFirst(Exception):
    """Signal that rows must be read before the statement can be executed."""

    def __init__(self, unread: Sequence[Unread]) -> None:
        super().__init__()
        self.unread = unread


@dataclass
class PartitionRows:
    """The files in which a statement has found no rows that forbid it. ``attaches``: the statement
    is ATTACH PARTITION, for which PostgreSQL's error names the leaf if the default partition is
    partitioned itself."""

    attaches: bool = False
    _known: set[tuple[str, str, int]] = field(default_factory=set)

    def check(
        self,
        transaction: CatalogTransaction,
        scope: CommandScope,
        parent: LakeTable,
        bound: PartitionBound,
    ) -> None:
        """Check that the default partition has no rows of the new partition. Raises
        FeatureNotSupported, StorageError; RowsFirst while files must be read first."""
        if bound.strategy is Strategy.DEFAULT:
            return
        default = _default_of(transaction, parent)
        columns = open_delta(scope, parent)
        if default is None or columns is None:
            return
        found = []
        for member in transaction.tables.family(default):
            table = None if member.partition_key else open_delta(scope, member)
            if table is not None and table.rows:
                taken = belonging(parent, bound, columns.schema)
                files = _candidates(table, columns.schema, taken)
                named = (member if self.attaches else default).name
                error = (
                    f'updated partition constraint for default partition "{named}" would be '
                    "violated by some row"
                )
                found.append(Unread(table, columns.schema, taken, _OTHERS, files, error))
        self._check_read(found)

    def check_attached(
        self,
        transaction: CatalogTransaction,
        scope: CommandScope,
        parent: LakeTable,
        members: Sequence[LakeTable],
    ) -> None:
        """Check the rows of a table that will be attached. ``members``: the table, with its new
        parent and bound, and its partitions.

        Raises FeatureNotSupported, StorageError; RowsFirst while files must be read first.
        """
        root = parent
        while (above := transaction.tables.find_oid(root.parent or 0)) is not None:
            root = above
        columns = open_delta(scope, root)
        if columns is None:
            return
        oids = {member.oid for member in members}
        others = [table for table in transaction.tables.family(root) if table.oid not in oids]
        level, leaves = routing_of([*others, *members], columns.schema)
        found = []
        for number, leaf in enumerate(leaves):
            table = open_delta(scope, leaf) if leaf.oid in oids else None
            if table is not None and table.rows:
                files = [file for file in table.files.values() if file.live_rows]
                error = f'partition constraint of relation "{leaf.name}" is violated by some row'
                own = frozenset((number,))
                found.append(Unread(table, columns.schema, level, own, files, error))
        self._check_read(found)

    def read(self, tables: Sequence[Unread]) -> None:
        """Read files and note that they have no rows that forbid the statement. Raises
        InvalidParameterValue (23514) if they have such rows, StorageError, VersionGone."""
        for unread in tables:
            for file in unread.files:
                unread.check(file)
                self._known.add(_mark(unread.table, file))

    def _check_read(self, tables: Sequence[Unread]) -> None:
        new = [
            replace(each, files=[file for file in each.files if self._is_new(each.table, file)])
            for each in tables
        ]
        if any(unread.files for unread in new):
            raise RowsFirst(new)

    def _is_new(self, table: DeltaTable, file: DataFile) -> bool:
        return _mark(table, file) not in self._known


def _mark(table: DeltaTable, file: DataFile) -> tuple[str, str, int]:
    return table.uri, file.path, file.live_rows


def _default_of(transaction: CatalogTransaction, parent: LakeTable) -> LakeTable | None:
    siblings = [table for table in transaction.tables.all() if table.parent == parent.oid]
    return next((s for s in siblings if s.bound is not None and _is_default(s.bound)), None)


def _is_default(bound: str) -> bool:
    return parse_partition_bound(bound).strategy is Strategy.DEFAULT


def _keys(unread: Unread, file: DataFile) -> Iterator[pa.Table]:
    """Yield the file's columns that are in the partition key, named as in the partitioned table."""
    here = unread.table.schema.by_source
    columns = [
        ScanColumn(column.name, here[column.source].name, column.type)
        for column in unread.columns.columns
        if column.name in unread.routing.columns
    ]
    table = unread.table
    for batch in scan(table.storage, table.uri, ScanFile.of(file), columns):
        yield pa.Table.from_batches([batch])


def _candidates(table: DeltaTable, columns: TableSchema, taken: Level) -> list[DataFile]:
    """Return the files that may have a row within the bound. For a range, skip files by the
    statistics of its first column."""
    files = [file for file in table.files.values() if file.live_rows]
    bound, _ = taken.partitions[0]
    if not isinstance(bound, RangeBound):
        return files
    column = columns.by_source[taken.key[0].name]
    low, high = (_value(side[0]) for side in (bound.lower, bound.upper))
    name = table.schema.by_source[column.source].name

    def may_hold(file: DataFile) -> bool:
        known = bounds(file.stats, name, column.type)
        if known is None or pa.types.is_floating(column.type) or pa.types.is_string(column.type):
            return True
        least, greatest = known
        return (low is None or greatest >= low) and (high is None or least <= high)

    return [file for file in files if may_hold(file)]


def _value(end: object) -> Any:
    return end.as_py() if isinstance(end, pa.Scalar) else None
