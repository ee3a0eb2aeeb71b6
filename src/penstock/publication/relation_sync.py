"""Several publications of one subscription, combined (get_rel_sync_entry of pgoutput.c).

``relation_sync_entry`` returns the name, columns, operations and filters with which a table that
has rows is published, ``publication_tables`` the tables that a subscriber copies
(pg_publication.c). Publications that contradict one another raise 0A000.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes.pg_type import BOOL
from penstock.publication.members import (
    Members,
    Operation,
    PublicationRow,
    TableRow,
    operations_of,
)
from penstock.publication.row_filter import RowFilter, compile_row_filter
from penstock.publication.rules import refused_operations
from penstock.sql.grammar.parsenodes import BoolOp
from penstock.sql.to_duckdb.duckdb_predicate import conjunction
from penstock.sql.to_duckdb.duckdb_values import (
    Value,
)

FILTERED = (Operation.INSERT, Operation.UPDATE, Operation.DELETE)
"""TRUNCATE is never filtered."""


@dataclass(frozen=True)
class RelationSyncEntry:
    """The form in which one table is published (pgoutput.c).

    - ``target``: the table under whose name changes are sent, itself or an ancestor.
    - ``columns``: names in the table's order, None for all.
    - ``filters``: a DuckDB predicate for each of INSERT, UPDATE and DELETE
      (``row_filter.RowFilter``), None for all rows.
    - ``refused``: the operations for which its replica identity does not suffice, each with
      PostgreSQL's error.
    """

    target: TableRow
    columns: tuple[str, ...] | None
    filters: Mapping[Operation, str | None]
    operations: frozenset[Operation]
    refused: Mapping[Operation, PenstockError]


def relation_sync_entry(
    members: Members, table: TableRow, columns: Sequence[Attribute]
) -> RelationSyncEntry | None:
    """Return how the publications publish a table with rows, None if they do not.

    All publications contribute operations. Name, column list and filter come only from those that
    publish the table as its highest ancestor.
    """
    operations: set[Operation] = set()
    highest, level_of_highest = table, 0
    chosen: list[PublicationRow] = []
    for publication in members.publications:
        if not members.contains(publication, table):
            continue
        operations |= operations_of(publication)
        target, level = _published_as(members, publication, table)
        if level > level_of_highest:
            highest, level_of_highest, chosen = target, level, [publication]
        elif level == level_of_highest:
            chosen.append(publication)
    if not chosen:
        return None
    return RelationSyncEntry(
        target=highest,
        columns=_columns(members, chosen, highest, columns),
        filters=_filters(members, chosen, highest, columns),
        operations=frozenset(operations),
        refused=refused_operations(members, table, columns),
    )


def _published_as(
    members: Members, publication: PublicationRow, table: TableRow
) -> tuple[TableRow, int]:
    if not publication.via_root:
        return table, 0
    if publication.all_tables:
        above = list(members.ancestors(table))
        return (above[-1], len(above)) if above else (table, 0)
    return members.topmost_ancestor(publication, table) or (table, 0)


def _filters(
    members: Members,
    publications: Sequence[PublicationRow],
    table: TableRow,
    columns: Sequence[Attribute],
) -> Mapping[Operation, str | None]:
    """Join filters by OR for each operation (pgoutput_row_filter_init). A publication without a
    filter publishes all rows."""
    compiled: dict[Operation, dict[str, RowFilter]] = {operation: {} for operation in FILTERED}
    unfiltered: set[Operation] = set()
    for publication in publications:
        row = members.row(publication, table)
        operations = operations_of(publication) & set(FILTERED)
        if row is None or row.row_filter is None:
            unfiltered |= operations
            continue
        row_filter = compile_row_filter(
            row.row_filter, columns, table=f"{table.schema}.{table.name}"
        )
        for operation in operations:
            compiled[operation][row_filter.text] = row_filter
    return {
        operation: any_of(list(filters.values()))
        if filters and operation not in unfiltered
        else None
        for operation, filters in compiled.items()
    }


def any_of(filters: Sequence[RowFilter]) -> str:
    """Return the predicate of filters joined by OR, from left to right, for WHERE: there DuckDB
    takes NULL for false, and would not evaluate what AND joins to it."""
    values = [Value(f"({f.predicate})", BOOL, None, f.may_fail) for f in filters]
    joined = conjunction(values, BoolOp.OR)
    return f"({joined.sql}) IS TRUE" if joined.fails else joined.sql


def _columns(
    members: Members,
    publications: Sequence[PublicationRow],
    table: TableRow,
    columns: Sequence[Attribute],
) -> tuple[str, ...] | None:
    """Return the table's one column list (pgoutput_column_list_init). Raises 0A000."""
    rows = [members.row(publication, table) for publication in publications]
    lists = [None if row is None else row.columns for row in rows]
    unlisted = [p for p, names in zip(publications, lists, strict=True) if names is None]
    name = f"{table.schema}.{table.name}"
    generated = any(column.generated for column in columns)
    if generated and len({p.generated_columns for p in unlisted}) > 1:
        raise FeatureNotSupported(
            "cannot use different values of publish_generated_columns for table"
            f' "{name}" in different publications'
        )
    stored = bool(unlisted) and unlisted[0].generated_columns == "s"
    every = columns_without_list(columns, stored=stored)
    sets = {frozenset(every if names is None else names) for names in lists}
    if len(sets) > 1:
        raise FeatureNotSupported(
            f'cannot use different column lists for table "{name}" in different publications'
        )
    if len(unlisted) == len(lists) and len(every) == len(columns):
        return None
    (names,) = sets
    return tuple(column.name for column in columns if column.name in names)


def columns_without_list(columns: Sequence[Attribute], *, stored: bool) -> tuple[str, ...]:
    """Return the columns published without a column list. With ``stored``, stored generated columns
    are among them."""
    kinds = {AttGenerated.NOT, AttGenerated.STORED} if stored else {AttGenerated.NOT}
    return tuple(column.name for column in columns if column.generated in kinds)


def publication_tables(
    members: Members, publication: PublicationRow, unpublishable: Collection[int] = ()
) -> list[TableRow]:
    """Return the tables that pg_get_publication_tables gives for one publication, sorted by oid.

    A subscriber copies these. ``unpublishable``: oids of tables that are published only by name.
    """
    if publication.all_tables:
        found = [t for t in members.tables if t.oid not in unpublishable]
        if publication.via_root:
            found = [t for t in found if t.parent is None]
        else:
            found = [t for t in found if t.partition_key is None]
    else:
        has = members.named if publication.via_root else members.contains
        found = [
            t
            for t in members.tables
            if has(publication, t)
            and (publication.via_root or t.partition_key is None)
            and (t.oid not in unpublishable or members.by_name(publication, t))
        ]
    if publication.via_root:  # filter_partitions
        oids = {table.oid for table in found}
        found = [t for t in found if not any(a.oid in oids for a in members.ancestors(t))]
    return sorted(found, key=lambda table: table.oid)
