"""What the rules need to know of publications and tables: the catalog's rows as Protocols.

In: nothing. Out: the shapes of ``penstock.catalog``'s values that this room reads, and a set of
publications with the questions that all rules ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Protocol


class Operation(Enum):
    """What a publication publishes, and what a change is (PublicationActions)."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"


class PublicationRow(Protocol):
    """pg_publication; ``generated_columns``: n or s."""

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
    """pg_publication_rel; ``columns`` None: no list; ``row_filter``: SQL text or None."""

    @property
    def publication(self) -> int: ...
    @property
    def relation(self) -> int: ...
    @property
    def columns(self) -> tuple[str, ...] | None: ...
    @property
    def row_filter(self) -> str | None: ...


class NamespaceRow(Protocol):
    """pg_publication_namespace."""

    @property
    def publication(self) -> int: ...
    @property
    def schema(self) -> str: ...


class TableRow(Protocol):
    """A table; ``parent``: oid of the partitioned table above; ``partition_key``: it is one.

    ``identity``: columns of the replica identity, () for FULL, None without any.
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


class ColumnRow(Protocol):
    """A column of a table; ``generated``: pg_attribute.attgenerated."""

    @property
    def name(self) -> str: ...
    @property
    def generated(self) -> str: ...


def operations_of(publication: PublicationRow) -> frozenset[Operation]:
    """The operations that a publication publishes."""
    return frozenset(operation for operation in Operation if getattr(publication, operation.value))


@dataclass(frozen=True)
class Members:
    """Publications with all that is in them, and the tables that there are."""

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
        """The partitioned tables above, the next one first (get_partition_ancestors)."""
        while table.parent is not None and table.parent in self.table_by_oid:
            table = self.table_by_oid[table.parent]
            yield table

    def row(self, publication: PublicationRow, table: TableRow) -> RelationRow | None:
        """The table's own row in a publication, None where it is there by other means."""
        if publication.all_tables or self.in_schema(publication, table):
            return None
        return self._by_key.get((publication.oid, table.oid))

    def in_schema(self, publication: PublicationRow, table: TableRow) -> bool:
        """Whether the table's schema is in the publication."""
        return (publication.oid, table.schema) in self._schemas

    def by_name(self, publication: PublicationRow, table: TableRow) -> bool:
        """Whether the publication has the table, or what it is a partition of, by its own name; not
        merely with all tables or those of a schema."""
        family = (table, *self.ancestors(table))
        return any((publication.oid, relation.oid) in self._by_key for relation in family)

    def named(self, publication: PublicationRow, table: TableRow) -> bool:
        """Whether the publication has the table or its schema."""
        return (publication.oid, table.oid) in self._by_key or self.in_schema(publication, table)

    def topmost_ancestor(
        self, publication: PublicationRow, table: TableRow
    ) -> tuple[TableRow, int] | None:
        """The highest ancestor in the publication and its level (GetTopMostAncestorIn...)."""
        found = None
        for level, ancestor in enumerate(self.ancestors(table), start=1):
            if self.named(publication, ancestor):
                found = ancestor, level
        return found

    def contains(self, publication: PublicationRow, table: TableRow) -> bool:
        """Whether changes of the table are in the publication by any means."""
        return (
            publication.all_tables
            or self.named(publication, table)
            or self.topmost_ancestor(publication, table) is not None
        )
