"""What ALTER TABLE does to the columns of Delta tables.

In: which columns a statement drops and adds, the table with its partitions. Out: one commit for
each Delta table, in which no row changes for a publication: files are rewritten where rows hold
values of a dropped column, or get the default of an added one, or its generated values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.dead_rows import check_none_dead
from penstock.commands.namespace import (
    UNDEFINED_TABLE,
    delta_uri,
    open_delta,
    table_columns,
    warehouse_of,
)
from penstock.commands.scope import CommandScope
from penstock.commands.subscription_targets import check_between_batches
from penstock.errors import CommitConflict, FeatureNotSupported, ObjectInUse, UndefinedObject
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.defaults import default_value
from penstock.lakehouse.delta_types import delta_type, type_text
from penstock.lakehouse.names import column_names
from penstock.lakehouse.new_columns import check_no_variant
from penstock.lakehouse.row_moves import pending
from penstock.lakehouse.schema import Column
from penstock.lakehouse.table import DeltaTable
from penstock.pgtypes import arrow_type
from penstock.pipeline.generated import generated_columns
from penstock.pipeline.rewrite_columns import DDL_APP_ID, ColumnChange, ColumnRewrites
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.relation import AttGenerated, TableColumn, qualified
from penstock.sqlstate import NotNullViolation


@dataclass
class ColumnChanges:
    """What a statement has done to columns so far, by PostgreSQL's names. Columns are dropped
    before any is added. ``at``: what now() gives to all rows; ``key``: the primary key, where it is
    another one now; ``not_null``: columns that are NOT NULL from now on, or no more."""

    at: datetime
    dropped: list[str] = field(default_factory=list)
    added: list[TableColumn] = field(default_factory=list)
    key: tuple[str, ...] | None = None
    not_null: dict[str, bool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.added or self.key is not None or self.not_null)

    def columns(self, scope: CommandScope, table: LakeTable) -> list[TableColumn]:
        """The columns of a table after them."""
        kept = [c for c in table_columns(scope, table) if c.name not in self.dropped]
        return [*kept, *self.added]

    def drop(self, name: str) -> None:
        """One that the table has."""
        self.dropped.append(name)


def is_made_here(scope: CommandScope, table: LakeTable) -> bool:
    """Whether CREATE TABLE of the node has made all columns."""
    try:
        delta = open_delta(scope, table)
    except FeatureNotSupported:
        return False
    return delta is not None and all(column.local for column in delta.schema.columns)


class FilesFirst(Exception):
    """Files of tables are to be rewritten before the statement can be executed."""

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
    """Commit the changes to a table and its partitions, the table last: until then the statement
    may be executed again. By oid, the versions that have the changes.

    Raises FilesFirst before anything else where files are not rewritten yet, CommitConflict,
    StorageError, UndefinedObject (42P01), FeatureNotSupported, ObjectInUse, NotInPrerequisiteState.
    """
    check_none_dead(scope, members, changes.dropped)
    staged = [_stage(scope, member, changes) for member in members]
    check_between_batches(transaction, scope, members[0])  # what comes after this makes us lose
    _check_nothing_moves(transaction, scope, members, staged)
    incomplete = [change for change in staged if not rewrites.is_complete(change)]
    if incomplete:
        raise FilesFirst(incomplete)
    for change in staged:
        if change.table.is_behind():  # before any of them is changed
            raise CommitConflict(f'table "{change.table.name}" has another version by now')
    kind = "DROP" if changes.dropped else "ADD"
    operation = "SET PRIMARY KEY" if changes.key is not None else "CHANGE COLUMN"
    operation = f"{kind} COLUMNS" if changes.dropped or changes.added else operation
    for change in reversed(staged):
        if not change.table.has_staged:
            continue  # an earlier attempt has changed it
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


def _check_nothing_moves(
    transaction: CatalogTransaction,
    scope: CommandScope,
    members: Sequence[LakeTable],
    staged: Sequence[ColumnChange],
) -> None:
    """Rows on their way to another partition are in files with the columns of before."""
    tables = {
        member.oid: (change.table.uri, change.table.version)
        for member, change in zip(members, staged, strict=True)
    }
    storage, sequenced = warehouse_of(scope).storage, transaction.transactions.versions()
    if pending(storage, sequenced, tables) is not None:
        raise ObjectInUse(
            f'cannot alter table "{members[0].name}" because rows are being moved between its '
            "partitions",
            hint="Try again. The running node finishes an UPDATE that was stopped.",
        )


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
        generated_columns(delta.schema, table.name)  # which may use one
    if dropped and delta.rows and not delta.schema.columns:
        raise FeatureNotSupported(
            f'dropping every column of table "{table.name}", which has rows, is not supported',
            detail="Rows of a Delta table have at least one column.",
        )
    constants = {column.name: default_value(column, changes.at) for column in new}
    return ColumnChange(delta, dropped, constants)


def _check_no_nulls(table: LakeTable, delta: DeltaTable, changes: ColumnChanges) -> None:
    """ATRewriteTable, of columns that become NOT NULL. Raises NotNullViolation."""
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
        Column(
            new_names[c.name],
            c.name,
            arrow_type(c.type_oid, c.typmod),
            c.type_oid,
            c.typmod,
            local=True,
            default=c.default,
            generated=c.generation,
            virtual=c.generated is AttGenerated.VIRTUAL,
            not_null=c.not_null,
        )
        for c in changes.added
        if c.name not in known
    ]


def _open(scope: CommandScope, table: LakeTable, changes: ColumnChanges) -> DeltaTable:
    """Raises UndefinedObject (42P01), FeatureNotSupported: the node does not write such tables."""
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
        raise UndefinedObject(
            f'Delta table of relation "{table.qualified_name}" does not exist',
            sqlstate=UNDEFINED_TABLE,
        )
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


def _spark_type(column: TableColumn) -> str:
    return type_text(delta_type(arrow_type(column.type_oid, column.typmod))).upper()
