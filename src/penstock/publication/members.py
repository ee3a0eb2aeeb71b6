"""The members of publications: the catalog's rows as Protocols, for the rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol


class Operation(Enum):
    """A kind of change that a publication may publish (PublicationActions)."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


class PublicationRow(Protocol):
    """A row of pg_publication; ``generated_columns`` is n or s."""

    @property
    def oid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def all_tables(self) -> bool: ...
    @property
    def insert(self) -> bool: ...
    @property
    def update(self) -> bool: ...
    @property
    def delete(self) -> bool: ...
    @property
    def truncate(self) -> bool: ...
    @property
    def via_root(self) -> bool: ...
    @property
    def generated_columns(self) -> str: ...


class RelationRow(Protocol):
    """A row of pg_publication_rel. ``columns`` is None without a list; ``row_filter`` is SQL."""

    @property
    def publication(self) -> int: ...
    @property
    def relation(self) -> int: ...
    @property
    def columns(self) -> tuple[str, ...] | None: ...
    @property
    def row_filter(self) -> str | None: ...


class NamespaceRow(Protocol):
    """A row of pg_publication_namespace."""

    @property
    def publication(self) -> int: ...
    @property
    def schema(self) -> str: ...


class TableRow(Protocol):
    """A table. ``parent`` is the oid of the partitioned table above it.

    ``partition_key`` is set for a partitioned table. ``identity`` holds the columns of the replica
    identity: () for FULL, None if there is none.
    """

    @property
    def oid(self) -> int: ...
    @property
    def schema(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> int | None: ...
    @property
    def partition_key(self) -> str | None: ...
    @property
    def identity(self) -> tuple[str, ...] | None: ...


def operations_of(publication: PublicationRow) -> frozenset[Operation]:
    """Return the operations that a publication publishes."""
    return frozenset(operation for operation in Operation if getattr(publication, operation.value))


@dataclass(frozen=True)
class Members:
    """Publications with all their members, and all tables that exist."""

    publications: Sequence[PublicationRow]
    relations: Sequence[RelationRow]
    namespaces: Sequence[NamespaceRow]
    tables: Sequence[TableRow]

    @cached_property
    def table_by_oid(self) -> Mapping[int, TableRow]:
        """Tables by oid."""
        return {table.oid: table for table in self.tables}

    @cached_property
    def _by_key(self) -> Mapping[tuple[int, int], RelationRow]:
        return {(row.publication, row.relation): row for row in self.relations}

    @cached_property
    def _schemas(self) -> frozenset[tuple[int, str]]:
        return frozenset((row.publication, row.schema) for row in self.namespaces)

    def ancestors(self, table: TableRow) -> Iterator[TableRow]:
        """Yield the partitioned tables above, the nearest first (get_partition_ancestors)."""
        while table.parent is not None and table.parent in self.table_by_oid:
            table = self.table_by_oid[table.parent]
            yield table

    def row(self, publication: PublicationRow, table: TableRow) -> RelationRow | None:
        """Return the table's own row in a publication, None without one."""
        if publication.all_tables or self.in_schema(publication, table):
            return None
        return self._by_key.get((publication.oid, table.oid))

    def in_schema(self, publication: PublicationRow, table: TableRow) -> bool:
        """Tell whether the table's schema is in the publication."""
        return (publication.oid, table.schema) in self._schemas

    def by_name(self, publication: PublicationRow, table: TableRow) -> bool:
        """Tell whether the publication names the table or an ancestor of it. A publication of all
        tables or of a schema names no table."""
        family = (table, *self.ancestors(table))
        return any((publication.oid, relation.oid) in self._by_key for relation in family)

    def named(self, publication: PublicationRow, table: TableRow) -> bool:
        """Tell whether the publication has the table or its schema."""
        return (publication.oid, table.oid) in self._by_key or self.in_schema(publication, table)

    def topmost_ancestor(
        self, publication: PublicationRow, table: TableRow
    ) -> tuple[TableRow, int] | None:
        """Return the highest ancestor in the publication, and its level
        (GetTopMostAncestorInPublication)."""
        found = None
        for level, ancestor in enumerate(self.ancestors(table), start=1):
            if self.named(publication, ancestor):
                found = ancestor, level
        return found

    def contains(self, publication: PublicationRow, table: TableRow) -> bool:
        """Tell whether the publication has changes of the table, by name, schema or otherwise."""
        return (
            publication.all_tables
            or self.named(publication, table)
            or self.topmost_ancestor(publication, table) is not None
        )
