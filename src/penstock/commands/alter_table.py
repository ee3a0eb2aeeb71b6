"""ALTER TABLE (tablecmds.c, ATExecCmd).

In: a parsed statement, the catalog, the scope with its warehouse. Out: columns in the Delta table,
and key, identity and owner in the catalog. A key is a promise: that it is unique is checked where
it is relied on, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, ReplicaIdentity
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_schema,
    check_owner,
    role_of,
)
from penstock.commands.attach_partition import attach
from penstock.commands.define_relation import (
    DUPLICATE_COLUMN,
    INVALID_TABLE_DEFINITION,
    UNDEFINED_COLUMN,
    check_declarations,
    check_key,
    column,
    multiple_primary_keys,
)
from penstock.commands.generated_columns import with_expression
from penstock.commands.namespace import (
    UNDEFINED_TABLE,
    find_table,
    get_schema,
    get_table,
    names,
    table_columns,
    warehouse_of,
)
from penstock.commands.result import CommandResult, Notice, notice
from penstock.commands.scope import Scope, TableColumn
from penstock.commands.subscription_targets import check_between_batches
from penstock.errors import (
    DuplicateObject,
    FeatureNotSupported,
    InvalidParameterValue,
    UndefinedObject,
    WrongObjectType,
)
from penstock.lakehouse.delta_types import delta_type, type_text
from penstock.lakehouse.names import column_names
from penstock.lakehouse.schema import Column
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes import arrow_type
from penstock.relation import qualified
from penstock.sql import (
    AddColumn,
    AddPrimaryKey,
    AlterTable,
    AlterTableCommand,
    AttachPartition,
    ChangeOwner,
    DetachPartition,
    DropConstraint,
    SetReplicaIdentity,
)

_APP_ID = "penstock_ddl"
"""The transaction marker of commits that change columns."""


def alter_table(statement: AlterTable, catalog: Catalog, scope: Scope) -> CommandResult:
    """AlterTable. Columns are added last, when nothing else can fail any more."""
    notices: list[Notice] = []
    with catalog.write() as transaction:
        table = find_table(transaction, scope, statement.relation)
        if table is None and statement.missing_ok:
            name = statement.relation.name
            skipped = notice(f'relation "{name}" does not exist, skipping')
            return CommandResult("ALTER TABLE", (skipped,))
        table = get_table(transaction, scope, statement.relation)
        check_owner(scope.role, table.owner, "table", table.name)
        added: list[TableColumn] = []
        for command in _in_passes(statement.commands):
            table = _execute(transaction, scope, table, command, added, notices)
            transaction.tables.save(table)
        if added:
            opened = [_open(scope, member, added) for member in _family(transaction, table)]
            _check_no_rows(opened, added)
            check_between_batches(transaction, scope, table)
            for delta in reversed(opened):  # the table last: until then it can be run again
                _add_to_delta(delta, added)
    return CommandResult("ALTER TABLE", tuple(notices))


def _in_passes(commands: Sequence[AlterTableCommand]) -> list[AlterTableCommand]:
    """Columns come before keys (AT_PASS_ADD_COL), whatever the order written."""
    return sorted(commands, key=lambda command: not isinstance(command, AddColumn))


def _execute(
    transaction: CatalogTransaction,
    scope: Scope,
    table: LakeTable,
    command: AlterTableCommand,
    added: list[TableColumn],
    notices: list[Notice],
) -> LakeTable:
    match command:
        case AddColumn():
            check_declarations(table.name, command.column)
            new = column(transaction, scope, command.column)
            return _add_column(scope, table, command, new, added, notices)
        case AddPrimaryKey(columns):
            if table.primary_key:
                raise multiple_primary_keys(table.name)
            known = [*names(table_columns(scope, table)), *names(added)]
            check_columns(table, columns, known)
            check_key(columns, known)
            return replace(table, primary_key=columns)
        case DropConstraint(name, missing_ok):
            return _drop_constraint(table, name, missing_ok, notices)
        case SetReplicaIdentity():
            return _set_identity(scope, table, command, added)
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
            attach(transaction, scope, table, child, bound)
        case DetachPartition(relation):
            _detach(transaction, scope, table, get_table(transaction, scope, relation))
    return table


def _add_column(
    scope: Scope,
    table: LakeTable,
    command: AddColumn,
    new: TableColumn,
    added: list[TableColumn],
    notices: list[Notice],
) -> LakeTable:
    """ATExecAddColumn"""
    if table.parent is not None:
        raise WrongObjectType("cannot add column to a partition")
    known = [*table_columns(scope, table), *added]
    if new.name in names(known):
        message = f'column "{new.name}" of relation "{table.name}" already exists'
        if not command.missing_ok:
            raise DuplicateObject(message, sqlstate=DUPLICATE_COLUMN)
        notices.append(notice(f"{message}, skipping", sqlstate=DUPLICATE_COLUMN))
        return table
    if command.column.primary_key and table.primary_key:
        raise multiple_primary_keys(table.name)
    added.append(with_expression(new, [*known, new], table.name))
    return replace(table, primary_key=(new.name,)) if command.column.primary_key else table


def _set_identity(
    scope: Scope, table: LakeTable, command: SetReplicaIdentity, added: Sequence[TableColumn]
) -> LakeTable:
    """ATExecReplicaIdentity; USING KEY names columns where PostgreSQL names an index."""
    identity = ReplicaIdentity(command.kind)
    if command.index is not None:
        return replace(table, replica_identity=identity, identity_key=_index(table, command.index))
    known = [*names(table_columns(scope, table)), *names(added)]
    check_columns(table, command.key, known)
    for position, name in enumerate(command.key):
        if name in command.key[:position]:
            raise InvalidParameterValue(
                f'column "{name}" appears twice in replica identity',
                sqlstate=INVALID_TABLE_DEFINITION,
            )
    return replace(table, replica_identity=identity, identity_key=command.key)


def _index(table: LakeTable, name: str) -> tuple[str, ...]:
    """The columns of an index: there is the primary key's alone. Raises FeatureNotSupported."""
    if name != table.primary_key_name or not table.primary_key:
        raise FeatureNotSupported(
            "REPLICA IDENTITY USING INDEX is supported for the primary key only, because Delta "
            "tables have no indexes",
            hint="Name the columns: ALTER TABLE ... REPLICA IDENTITY USING KEY (column, ...).",
        )
    return table.primary_key


def _drop_constraint(
    table: LakeTable, name: str, missing_ok: bool, notices: list[Notice]
) -> LakeTable:
    """ATExecDropConstraint; the primary key is the one constraint that there is."""
    if name == table.primary_key_name and table.primary_key:
        return replace(table, primary_key=())
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
    transaction: CatalogTransaction, scope: Scope, parent: LakeTable, child: LakeTable
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
    transaction.tables.save(replace(child, parent=None, bound=None))


def _family(transaction: CatalogTransaction, table: LakeTable) -> list[LakeTable]:
    """A table with its partitions and theirs."""
    found = [table]
    for child in transaction.tables.all():
        if child.parent == table.oid:
            found += _family(transaction, child)
    return found


def _open(scope: Scope, table: LakeTable, added: Sequence[TableColumn]) -> DeltaTable:
    """Raises UndefinedObject (42P01), FeatureNotSupported: the node does not write such tables."""
    warehouse = warehouse_of(scope)
    try:
        delta = warehouse.open(table.schema, table.name)
    except FeatureNotSupported as error:
        name = qualified(table.schema, table.name)
        reason = error.message.removeprefix(f'target table "{name}" ')
        uri = warehouse.table_uri(table.schema, table.name)
        columns = ", ".join(f"{_backquoted(c.name)} {_spark_type(c)}" for c in added)
        raise FeatureNotSupported(
            f'ALTER TABLE ... ADD COLUMN is not supported for table "{table.name}"',
            detail=f"Its Delta table {reason}.",
            hint="Add the column by Spark, the node follows: "
            f"ALTER TABLE delta.`{uri}` ADD COLUMNS ({columns});",
        ) from None
    if delta is None:
        raise UndefinedObject(
            f'Delta table of relation "{table.qualified_name}" does not exist',
            sqlstate=UNDEFINED_TABLE,
        )
    return delta


def _check_no_rows(opened: Sequence[DeltaTable], added: Sequence[TableColumn]) -> None:
    """Defaults and expressions are for rows to come; those that are there would hold NULL."""
    with_default = [column.name for column in added if column.default is not None]
    if with_default and any(delta.rows for delta in opened):
        raise FeatureNotSupported(
            "ADD COLUMN with DEFAULT is not supported for a table with rows",
            hint=f'Add the column without it, and UPDATE the rows: "{with_default[0]}".',
        )
    generated = [column.name for column in added if column.generation is not None]
    if generated and any(delta.rows for delta in opened):
        raise FeatureNotSupported(
            "ADD COLUMN with GENERATED ALWAYS is not supported for a table with rows",
            hint=f'Make a table that has the column "{generated[0]}", and INSERT the rows there.',
        )


def _backquoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _spark_type(column: TableColumn) -> str:
    return type_text(delta_type(arrow_type(column.type_oid, column.typmod))).upper()


def _add_to_delta(delta: DeltaTable, added: Sequence[TableColumn]) -> None:
    known = delta.schema.by_source
    taken = {source: column.name for source, column in known.items()}
    new_names = column_names([c.name for c in added], taken)
    new = [
        Column(
            new_names[c.name],
            c.name,
            arrow_type(c.type_oid, c.typmod),
            c.type_oid,
            c.typmod,
            local=True,
            default=c.default,
            generated=c.generation,
        )
        for c in added
        if c.name not in known
    ]
    if not new:
        return
    delta.add_columns(new)
    delta.commit(app_id=_APP_ID, version_marker=delta.version + 1, operation="ADD COLUMNS")
