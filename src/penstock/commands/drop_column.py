"""ALTER TABLE ... DROP COLUMN in the catalog (tablecmds.c, ATExecDropColumn).

In: a table, a column's name, what the statement has done to columns so far. Out: keys without it
and publications that named it emptied of the table, or PostgreSQL's error. The Delta tables are
``change_columns``'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog import CatalogTransaction, LakeTable, PublicationRel
from penstock.commands.change_columns import ColumnChanges
from penstock.commands.define_relation import INVALID_TABLE_DEFINITION, UNDEFINED_COLUMN
from penstock.commands.depend import cascade_notices, shown_name, still_used_error
from penstock.commands.generated_columns import generated_from
from penstock.commands.namespace import names, table_columns
from penstock.commands.scope import CommandScope, notice
from penstock.commands.unique_indexes import without
from penstock.errors import InvalidParameterValue, UndefinedObject
from penstock.protocol.answers import Notice
from penstock.publication.row_filter import compile_row_filter
from penstock.sql import DropColumn
from penstock.sql.grammar.partition_bound import key_columns


def drop_column(
    transaction: CatalogTransaction,
    scope: CommandScope,
    table: LakeTable,
    command: DropColumn,
    only: bool,
    changes: ColumnChanges,
    notices: list[Notice],
) -> LakeTable:
    """The table without the column in its keys; its partitions are saved. ``only``: as written.

    Raises UndefinedObject (42703), InvalidParameterValue (42P16), NotInPrerequisiteState (2BP01).
    """
    gone = command.name not in names(changes.columns(scope, table))
    if gone and not _is_left(transaction, table, command.name):
        message = f'column "{command.name}" of relation "{table.name}" does not exist'
        if not command.missing_ok:
            raise UndefinedObject(message, sqlstate=UNDEFINED_COLUMN)
        notices.append(notice(f"{message}, skipping"))
        return table
    if table.parent is not None:
        raise InvalidParameterValue(
            f'cannot drop inherited column "{command.name}"', sqlstate=INVALID_TABLE_DEFINITION
        )
    members = transaction.tables.family(table)
    _check_partition_key(table, command.name)
    if only and len(members) > 1:
        raise InvalidParameterValue(
            "cannot drop column from only the partitioned table when partitions exist",
            hint="Do not specify the ONLY keyword.",
            sqlstate=INVALID_TABLE_DEFINITION,
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
    """Whether a key or a publication has a column that the Delta tables do not have: the process
    that dropped it was stopped before that was in the catalog, or it went by other means."""
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
    """Raises NotInPrerequisiteState (2BP01), without CASCADE."""
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
        raise InvalidParameterValue(
            f'cannot drop column "{column}" because it is part of the partition key of relation '
            f'"{table.name}"',
            sqlstate=INVALID_TABLE_DEFINITION,
        )


def _without(table: LakeTable, column: str) -> LakeTable:
    """A key or index goes with any of its columns; an identity by it identifies nothing then."""
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
    """Tables whose filter or list names the column leave their publications, with CASCADE only."""
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
    """As PostgreSQL tells of them: the table, then its partitions from the last on."""
    children = [member for member in members if member.parent == table.oid]
    return [table, *(t for child in reversed(children) for t in _last_first(members, child))]


def _named_columns(scope: CommandScope, table: LakeTable, rel: PublicationRel) -> frozenset[str]:
    """The columns that a publication's list and filter name."""
    listed = frozenset(rel.columns or ())
    if rel.row_filter is None:
        return listed
    columns = table_columns(scope, table)
    compiled = compile_row_filter(rel.row_filter, columns, table=table.name)
    return listed | compiled.columns
