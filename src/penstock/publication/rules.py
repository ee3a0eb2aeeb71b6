"""Rules about column lists, filters and replica identities (publicationcmds.c, execReplication.c).

Statements (``commands``), writers (``executor``) and streams (``pipeline``) use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import (
    DuplicateObject,
    InvalidParameterValue,
    NotInPrerequisiteState,
    PenstockError,
)
from penstock.publication.members import (
    Members,
    Operation,
    PublicationRow,
    RelationRow,
    TableRow,
    operations_of,
)
from penstock.publication.row_filter import compile_row_filter
from penstock.sqlstate import InvalidColumnReference, UndefinedColumn

_SYSTEM_COLUMNS: Final = frozenset({"ctid", "xmin", "cmin", "xmax", "cmax", "tableoid"})
_COMMANDS: Final = {
    Operation.UPDATE: ("update table", "updates", "updating the table"),
    Operation.DELETE: ("delete from table", "deletes", "deleting from the table"),
}


def column_list(
    names: Sequence[str], columns: Sequence[Attribute], *, table: str
) -> tuple[str, ...]:
    """Return a column list in the table's order (pub_collist_validate). Raises 42703, 42P10,
    42710."""
    known = {column.name: column.generated for column in columns}
    seen: set[str] = set()
    for name in names:
        if name in _SYSTEM_COLUMNS and name not in known:
            raise InvalidColumnReference(
                f'cannot use system column "{name}" in publication column list'
            )
        if name not in known:
            raise UndefinedColumn(f'column "{name}" of relation "{table}" does not exist')
        if known[name] == AttGenerated.VIRTUAL:
            raise InvalidColumnReference(
                f'cannot use virtual generated column "{name}" in publication column list',
            )
        if name in seen:
            raise DuplicateObject(f'duplicate column "{name}" in publication column list')
        seen.add(name)
    return tuple(name for name in known if name in seen)


def check_column_list_allowed(
    publication: PublicationRow, table: TableRow, *, with_schemas: bool
) -> None:
    """Raise InvalidParameterValue for a column list that cannot take effect: beside schemas, or for
    a partitioned table that is published as its leaves (CheckPubRelationColumnList)."""
    if with_schemas:
        detail = (
            "Column lists cannot be specified in publications containing FOR TABLES IN SCHEMA"
            " elements."
        )
    elif table.partition_key is not None and not publication.via_root:
        detail = (
            "Column lists cannot be specified for partitioned tables when"
            " publish_via_partition_root is false."
        )
    else:
        return
    raise InvalidParameterValue(
        f'cannot use column list for relation "{table.schema}.{table.name}"'
        f' in publication "{publication.name}"',
        detail=detail,
    )


def check_schema_allowed(publication: PublicationRow, *, with_column_lists: bool) -> None:
    """Raise InvalidParameterValue if a schema is added although a table has a column list."""
    if with_column_lists:
        raise InvalidParameterValue(
            f'cannot add schema to publication "{publication.name}"',
            detail="Schemas cannot be added if any tables that specify a column list are already"
            " part of the publication.",
        )


def check_row_filter_allowed(publication: PublicationRow, table: TableRow) -> None:
    """Raise InvalidParameterValue for a filter of a partitioned table published as its leaves."""
    if table.partition_key is not None and not publication.via_root:
        raise InvalidParameterValue(
            f'cannot use publication WHERE clause for relation "{table.name}"',
            detail="WHERE clause cannot be used for a partitioned table when"
            " publish_via_partition_root is false.",
        )


def check_leaves_allowed(publication: PublicationRow, table: TableRow, row: RelationRow) -> None:
    """Raise InvalidParameterValue if a partitioned table has a filter or list, which would have no
    effect once its leaves are published instead."""
    if table.partition_key is None or (row.row_filter is None and row.columns is None):
        return
    what = "WHERE clause" if row.row_filter is not None else "column list"
    raise InvalidParameterValue(
        'cannot set parameter "publish_via_partition_root" to false for publication'
        f' "{publication.name}"',
        detail=f'The publication contains a {what} for partitioned table "{table.name}",'
        ' which is not allowed when "publish_via_partition_root" is false.',
    )


def check_identity(
    members: Members, table: TableRow, columns: Sequence[Attribute], command: Operation
) -> None:
    """Raise an error if rows of a table cannot be updated or deleted (CheckCmdReplicaIdentity).

    ``members`` holds all publications. The error is 42P10 with the detail of the first broken rule,
    or 55000 if the command is published and the table has no replica identity.
    """
    if table.partition_key is None and command in _COMMANDS:
        error = _refusal(members, table, columns, command)
        if error is not None:
            raise error


def refused_operations(
    members: Members, table: TableRow, columns: Sequence[Attribute]
) -> Mapping[Operation, PenstockError]:
    """Return the errors that ``check_identity`` would raise to a writer, by operation. ``members``
    holds a stream's publications."""
    errors = {command: _refusal(members, table, columns, command) for command in _COMMANDS}
    return {command: error for command, error in errors.items() if error is not None}


def _refusal(
    members: Members, table: TableRow, columns: Sequence[Attribute], command: Operation
) -> PenstockError | None:
    publications = [
        publication
        for publication in members.publications
        if command in operations_of(publication) and members.contains(publication, table)
    ]
    verb, noun, gerund = _COMMANDS[command]
    detail = _broken_rule(members, table, columns, publications)
    if detail is not None:
        return InvalidColumnReference(f'cannot {verb} "{table.name}"', detail=detail)
    if publications and table.identity is None:
        return NotInPrerequisiteState(
            f'cannot {verb} "{table.name}" because it does not have a replica identity and'
            f" publishes {noun}",
            hint=f"To enable {gerund}, set REPLICA IDENTITY using ALTER TABLE.",
        )
    return None


def _broken_rule(
    members: Members,
    table: TableRow,
    columns: Sequence[Attribute],
    publications: Sequence[PublicationRow],
) -> str | None:
    rows = [members.row(p, _filtered_as(members, p, table)) for p in publications]
    full = table.identity == ()
    identity = frozenset(table.identity or ())
    name = f"{table.schema}.{table.name}"
    for row in rows:
        if row is None or row.row_filter is None or full:
            continue
        if not compile_row_filter(row.row_filter, columns, table=name).columns <= identity:
            return (
                "Column used in the publication WHERE expression is not part of the replica"
                " identity."
            )
    for row in rows:
        if row is not None and row.columns is not None and (full or not identity <= {*row.columns}):
            return "Column list used by the publication does not cover the replica identity."
    generated = frozenset(column.name for column in columns if column.generated)
    virtual = any(column.generated is AttGenerated.VIRTUAL for column in columns)
    needed = generated if full else generated & identity
    for publication, row in zip(publications, rows, strict=True):
        listed = row is not None and row.columns is not None
        unpublished = needed and not listed and publication.generated_columns == "n"
        if unpublished or (full and virtual):
            return "Replica identity must not contain unpublished generated columns."
    return None


def _filtered_as(members: Members, publication: PublicationRow, table: TableRow) -> TableRow:
    """Return the table whose filter and list apply: with via_root the topmost one."""
    above = members.topmost_ancestor(publication, table) if publication.via_root else None
    return table if above is None else above[0]
