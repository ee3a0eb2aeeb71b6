"""ALTER TABLE (tablecmds.c, ATExecCmd).

In: a parsed statement, the catalog, the scope with its warehouse. Out: key, identity and owner in
the catalog; columns are ``change_columns``'. A key is a promise: that it is unique is checked where
it is relied on, not here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_schema,
    check_owner,
    role_of,
)
from penstock.commands.attach_partition import attach
from penstock.commands.change_columns import (
    ColumnChanges,
    FilesFirst,
    change_columns,
    is_made_here,
)
from penstock.commands.define_relation import (
    DUPLICATE_COLUMN,
    INVALID_TABLE_DEFINITION,
    UNDEFINED_COLUMN,
    build_column,
    check_declarations,
    check_key,
    multiple_primary_keys,
)
from penstock.commands.depend import check_not_prepared
from penstock.commands.drop_column import drop_column
from penstock.commands.generated_columns import check_not_virtual, with_expression
from penstock.commands.namespace import (
    UNDEFINED_TABLE,
    find_table,
    get_schema,
    get_table,
    keep_former,
    names,
    table_columns,
)
from penstock.commands.partition_rows import PartitionRows, RowsFirst
from penstock.commands.scope import CommandResult, CommandScope, notice
from penstock.commands.sequence import has_sequence
from penstock.commands.subscription_targets import check_between_batches
from penstock.commands.unique_indexes import (
    add_constraints,
    detach_indexes,
    drop_index,
    identify_by,
    is_taken,
)
from penstock.errors import (
    CommitConflict,
    DuplicateObject,
    FeatureNotSupported,
    InvalidParameterValue,
    SqlSyntaxError,
    UndefinedObject,
    WrongObjectType,
)
from penstock.pipeline.rewrite_columns import ColumnRewrites
from penstock.protocol.answers import Notice
from penstock.relation import ReplicaIdentity, TableColumn
from penstock.sql import (
    AddColumn,
    AddPrimaryKey,
    AddUnique,
    AlterNotNull,
    AlterTable,
    AlterTableCommand,
    AttachPartition,
    ChangeOwner,
    DetachPartition,
    DropColumn,
    DropConstraint,
    SetReplicaIdentity,
)

log = logging.getLogger(__name__)

_TRIES: Final = 10
"""Times that other writers may commit to the table first."""


def alter_table(statement: AlterTable, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """AlterTable. Files are rewritten with nothing locked, and the statement is begun again."""
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
    """Columns of Delta tables are changed last, when nothing else can fail any more."""
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
    """What is dropped goes first, then columns come, then keys (AlterTablePass), whatever the order
    written."""
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
            check_columns(table, columns, names(known))
            check_key(columns, names(known))
            check_not_virtual(columns, known, "primary keys")
            return _with_key(scope, table, columns, changes)
        case AddUnique(unique):
            known = changes.columns(scope, table)
            check_key(unique.columns, names(known), "unique")
            check_not_virtual(unique.columns, known, "unique constraints")
            return add_constraints(transaction, table, [unique])
        case AlterNotNull(name, not_null):
            check_columns(table, [name], names(changes.columns(scope, table)))
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
    """ATExecDropNotNull"""
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
        raise InvalidParameterValue(reason, sqlstate=INVALID_TABLE_DEFINITION)


def _add_column(
    scope: CommandScope,
    table: LakeTable,
    command: AddColumn,
    new: TableColumn,
    changes: ColumnChanges,
    notices: list[Notice],
) -> LakeTable:
    """ATExecAddColumn"""
    if table.parent is not None:
        raise WrongObjectType("cannot add column to a partition")
    known = changes.columns(scope, table)
    if new.name in names(known):
        message = f'column "{new.name}" of relation "{table.name}" already exists'
        if not command.missing_ok:
            raise DuplicateObject(message, sqlstate=DUPLICATE_COLUMN)
        notices.append(notice(f"{message}, skipping", sqlstate=DUPLICATE_COLUMN))
        return table
    if command.column.primary_key and table.primary_key:
        raise multiple_primary_keys(table.name)
    changes.added.append(with_expression(new, [*known, new], table.name))
    if command.column.primary_key:
        check_not_virtual((new.name,), [new], "primary keys")
    if command.column.unique is not None:
        check_not_virtual((new.name,), [new], "unique constraints")
    return replace(table, primary_key=(new.name,)) if command.column.primary_key else table


def _set_identity(
    transaction: CatalogTransaction,
    scope: CommandScope,
    table: LakeTable,
    command: SetReplicaIdentity,
    changes: ColumnChanges,
) -> LakeTable:
    """ATExecReplicaIdentity; USING KEY names columns where PostgreSQL names an index."""
    if command.index is not None:
        return _by_index(transaction, table, command.index)
    known = changes.columns(scope, table)
    check_columns(table, command.key, names(known))
    check_not_virtual(command.key, known, "indexes")
    for position, name in enumerate(command.key):
        if name in command.key[:position]:
            raise InvalidParameterValue(
                f'column "{name}" appears twice in replica identity',
                sqlstate=INVALID_TABLE_DEFINITION,
            )
    table = identify_by(table, None)
    identity = ReplicaIdentity(command.kind)
    return replace(table, replica_identity=identity, identity_key=command.key)


def _by_index(transaction: CatalogTransaction, table: LakeTable, name: str) -> LakeTable:
    """Raises UndefinedObject (42704), WrongObjectType."""
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
    if is_taken(transaction, table.schema, name):
        raise WrongObjectType(f'"{name}" is not an index for table "{table.name}"')
    raise UndefinedObject(f'index "{name}" for table "{table.name}" does not exist')


def _with_key(
    scope: CommandScope, table: LakeTable, key: tuple[str, ...], changes: ColumnChanges
) -> LakeTable:
    """With another primary key. A Delta table that the node itself has made knows it, too: a
    subscription that fills the table finds rows by it."""
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
    """ATExecDropConstraint, of UNIQUE."""
    for index in table.indexes:
        if index.constraint and index.name == name:
            if index.parent is not None:
                raise InvalidParameterValue(
                    f'cannot drop inherited constraint "{name}" of relation "{table.name}"',
                    sqlstate=INVALID_TABLE_DEFINITION,
                )
            return drop_index(transaction, table, index)
    message = f'constraint "{name}" of relation "{table.name}" does not exist'
    if not missing_ok:
        raise UndefinedObject(message)
    notices.append(notice(f"{message}, skipping"))
    return table


def check_columns(table: LakeTable, wanted: Sequence[str], known: Sequence[str]) -> None:
    """Raises UndefinedObject (42703) for the first that a table has not."""
    for name in wanted:
        if name not in known:
            raise UndefinedObject(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate=UNDEFINED_COLUMN,
            )


def _detach(
    transaction: CatalogTransaction, scope: CommandScope, parent: LakeTable, child: LakeTable
) -> None:
    """ATExecDetachPartition"""
    if parent.partition_key is None:
        raise WrongObjectType(
            f'ALTER action DETACH PARTITION cannot be performed on relation "{parent.name}"',
            detail="This operation is not supported for tables.",
        )
    if child.parent != parent.oid:
        raise UndefinedObject(
            f'relation "{child.name}" is not a partition of relation "{parent.name}"',
            sqlstate=UNDEFINED_TABLE,
        )
    check_between_batches(transaction, scope, parent)
    transaction.tables.save(replace(detach_indexes(child), parent=None, bound=None))
