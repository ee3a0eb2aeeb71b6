"""What a subscription gets: its publications combined (get_rel_sync_entry of pgoutput.c).

In: the publications of one subscription, what is in them, the tables with their columns. Out: per
table that has rows, under which name, which columns, which actions and by which filter it is
published; of one publication, which tables a subscriber copies (pg_publication.c). Raises 0A000
where publications contradict one another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import FeatureNotSupported
from penstock.pgtypes.pg_type import BOOL
from penstock.publication.members import (
    Action,
    ColumnRow,
    Members,
    NamespaceRow,
    PublicationRow,
    RelationRow,
    TableRow,
    actions_of,
)
from penstock.publication.row_filter import FilterColumn, RowFilter, compile_row_filter
from penstock.relation import AttGenerated
from penstock.sql.grammar.expressions import BoolOp
from penstock.sql.to_duckdb.duckdb_predicate import conjunction
from penstock.sql.to_duckdb.duckdb_values import (
    Value,
)

FILTERED = (Action.INSERT, Action.UPDATE, Action.DELETE)
"""TRUNCATE is never filtered."""

Schemas = Mapping[int, Sequence[FilterColumn]]
"""Columns by the oid of the table, in their order; a partitioned table may be left out."""


@dataclass(frozen=True)
class RelationSyncEntry:
    """How one table is published (pgoutput.c).

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


def published_tables(
    publications: Sequence[PublicationRow],
    rels: Sequence[RelationRow],
    namespaces: Sequence[NamespaceRow],
    tables: Sequence[TableRow],
    schemas: Schemas,
) -> tuple[RelationSyncEntry, ...]:
    """Every table with rows that the publications publish, in the order of ``tables``."""
    members = Members(publications, rels, namespaces, tables)
    entries = (_entry(members, t, schemas) for t in tables if t.partition_key is None)
    return tuple(entry for entry in entries if entry is not None)


def _entry(members: Members, table: TableRow, schemas: Schemas) -> RelationSyncEntry | None:
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
    return RelationSyncEntry(
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


def columns_without_list(columns: Sequence[ColumnRow], *, stored: bool) -> tuple[str, ...]:
    """What is published where there is no column list; ``stored``: generated columns too."""
    kinds = {AttGenerated.NOT, AttGenerated.STORED} if stored else {AttGenerated.NOT}
    return tuple(column.name for column in columns if column.generated in kinds)


def publication_tables(
    members: Members, publication: PublicationRow, unpublishable: Collection[int] = ()
) -> list[TableRow]:
    """The tables that pg_get_publication_tables gives for one publication: what a subscriber
    copies, sorted by oid.

    ``unpublishable``: oids of tables that no publication has which does not name them.
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
