"""What a subscription gets: its publications combined (get_rel_sync_entry of pgoutput.c).

In: the publications of one subscription, what is in them, the tables with their columns. Out: per
table that has rows, under which name, which columns, which actions and by which filter it is
published. Raises 0A000 where publications contradict one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import FeatureNotSupported
from penstock.publication.members import (
    Action,
    Members,
    NamespaceRow,
    PublicationRow,
    RelationRow,
    TableRow,
    actions_of,
)
from penstock.publication.row_filter import FilterColumn, RowFilter, compile_row_filter
from penstock.relation import AttGenerated
from penstock.sql.expressions import BoolOp
from penstock.sql.to_duckdb.duckdb_predicate import conjunction
from penstock.sql.to_duckdb.duckdb_values import BOOL, Value

FILTERED = (Action.INSERT, Action.UPDATE, Action.DELETE)
"""TRUNCATE is never filtered."""

Schemas = Mapping[int, Sequence[FilterColumn]]
"""Columns by the oid of the table, in their order; a partitioned table may be left out."""


@dataclass(frozen=True)
class PublishedTable:
    """How one table is published.

    ``as_oid``: the table under whose name its changes go, itself or an ancestor. ``columns``: in
    the table's order, None for all. ``filters``: DuckDB predicate per INSERT, UPDATE and DELETE
    (``row_filter.RowFilter``), None for all rows. ``filter_columns``: what they read.
    """

    relation_oid: int
    as_oid: int
    columns: tuple[str, ...] | None
    filters: Mapping[Action, str | None]
    actions: frozenset[Action]
    filter_columns: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True)
class PublicationTable:
    """A row of pg_get_publication_tables: ``columns`` in the table's order, ``row_filter`` text."""

    publication: int
    relation_oid: int
    columns: tuple[str, ...]
    row_filter: str | None


def published_tables(
    publications: Sequence[PublicationRow],
    rels: Sequence[RelationRow],
    namespaces: Sequence[NamespaceRow],
    tables: Sequence[TableRow],
    schemas: Schemas,
) -> tuple[PublishedTable, ...]:
    """Every table with rows that the publications publish, in the order of ``tables``."""
    members = Members(publications, rels, namespaces, tables)
    entries = (_entry(members, t, schemas) for t in tables if t.partition_key is None)
    return tuple(entry for entry in entries if entry is not None)


def _entry(members: Members, table: TableRow, schemas: Schemas) -> PublishedTable | None:
    """Actions come from all publications; name, list and filter from the highest ancestor's."""
    actions: set[Action] = set()
    highest, level_of_highest = table, 0
    chosen: list[PublicationRow] = []
    for publication in members.publications:
        if not members.contains(publication, table):
            continue
        actions |= actions_of(publication)
        target, level = _published_as(members, publication, table)
        if level > level_of_highest:
            highest, level_of_highest, chosen = target, level, [publication]
        elif level == level_of_highest:
            chosen.append(publication)
    if not chosen:
        return None
    columns = schemas.get(highest.oid) or schemas.get(table.oid, ())
    filters, used = _filters(members, chosen, highest, columns)
    return PublishedTable(
        relation_oid=table.oid,
        as_oid=highest.oid,
        columns=_columns(members, chosen, highest, columns),
        filters=filters,
        actions=frozenset(actions),
        filter_columns=used,
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
    columns: Sequence[FilterColumn],
) -> tuple[Mapping[Action, str | None], frozenset[str]]:
    """pgoutput_row_filter_init: per action an OR; one publication without a filter lifts it."""
    compiled: dict[Action, dict[str, RowFilter]] = {action: {} for action in FILTERED}
    unfiltered: set[Action] = set()
    for publication in publications:
        row = members.row(publication, table)
        actions = actions_of(publication) & set(FILTERED)
        if row is None or row.row_filter is None:
            unfiltered |= actions
            continue
        row_filter = compile_row_filter(
            row.row_filter, columns, table=f"{table.schema}.{table.name}"
        )
        for action in actions:
            compiled[action][row_filter.text] = row_filter
    kept = {a: list(f.values()) for a, f in compiled.items() if f and a not in unfiltered}
    used = [row_filter.columns for filters in kept.values() for row_filter in filters]
    return {a: any_of(kept[a]) if a in kept else None for a in FILTERED}, frozenset().union(*used)


def any_of(filters: Sequence[RowFilter]) -> str:
    """The predicate of filters joined by OR, from left to right."""
    values = [Value(f"({f.predicate})", BOOL, None, f.may_fail) for f in filters]
    return conjunction(values, BoolOp.OR).sql


def _columns(
    members: Members,
    publications: Sequence[PublicationRow],
    table: TableRow,
    columns: Sequence[FilterColumn],
) -> tuple[str, ...] | None:
    """One list for the table (pgoutput_column_list_init). Raises 0A000."""
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
    every = _without_list(columns, unlisted[0] if unlisted else None)
    sets = {frozenset(every if names is None else names) for names in lists}
    if len(sets) > 1:
        raise FeatureNotSupported(
            f'cannot use different column lists for table "{name}" in different publications'
        )
    if len(unlisted) == len(lists) and len(every) == len(columns):
        return None
    (names,) = sets
    return tuple(column.name for column in columns if column.name in names)


def _without_list(
    columns: Sequence[FilterColumn], publication: PublicationRow | None
) -> tuple[str, ...]:
    kinds = {AttGenerated.NOT}
    if publication is not None and publication.generated_columns == "s":
        kinds.add(AttGenerated.STORED)
    return tuple(column.name for column in columns if column.generated in kinds)


def publication_tables(
    publication: PublicationRow,
    rels: Sequence[RelationRow],
    namespaces: Sequence[NamespaceRow],
    tables: Sequence[TableRow],
    schemas: Schemas,
) -> tuple[PublicationTable, ...]:
    """pg_get_publication_tables of one publication: what a subscriber copies, under which name."""
    members = Members([publication], rels, namespaces, tables)
    return tuple(
        _publication_table(members, publication, table, schemas)
        for table in tables
        if _listed(members, publication, table)
    )


def _listed(members: Members, publication: PublicationRow, table: TableRow) -> bool:
    if not publication.via_root:
        return table.partition_key is None and members.contains(publication, table)
    if publication.all_tables:
        return table.parent is None
    return members.named(publication, table) and not members.topmost_ancestor(publication, table)


def _publication_table(
    members: Members, publication: PublicationRow, table: TableRow, schemas: Schemas
) -> PublicationTable:
    row = members.row(publication, table)
    columns = _columns_of(members, table, schemas)
    names = row.columns if row is not None else None
    listed = set(_without_list(columns, publication) if names is None else names)
    return PublicationTable(
        publication=publication.oid,
        relation_oid=table.oid,
        columns=tuple(column.name for column in columns if column.name in listed),
        row_filter=row.row_filter if row is not None else None,
    )


def _columns_of(members: Members, table: TableRow, schemas: Schemas) -> Sequence[FilterColumn]:
    """Of a partitioned table without columns of its own, those of its first partition."""
    if table.oid in schemas:
        return schemas[table.oid]
    for other in members.tables:
        if other.oid in schemas and table in members.ancestors(other):
            return schemas[other.oid]
    return ()
