"""What a workload replicates: its tables, how they are made, what is compared at the end.

In: tables and statements. Out: the tables and the publication on a server; the checksum of a table,
which PostgreSQL and DataFusion (delta-rs) both understand. Rows and changes are left to workloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from servers import Server


@dataclass(frozen=True, slots=True)
class Table:
    """``columns``: empty for a table that is there (pgbench's); ``sums``: whole numbers, or exact
    ones, since the order of the rows is not the same on all sides."""

    name: str
    sums: tuple[str, ...]
    columns: str = ""
    key: str = ""

    def checksum_sql(self, relation: str | None = None) -> str:
        """``relation``: what the table is called there."""
        values = ", ".join(["count(*)", *(f"sum({value})" for value in self.sums)])
        return f"SELECT {values} FROM {relation or self.name}"


Checksum = tuple[Decimal, ...]


@dataclass(frozen=True, slots=True)
class Subject:
    """``name``: of the publication and the subscription. ``fill``: statements on the publisher
    alone, before there are keys. ``touch``: a small transaction in one of the tables."""

    name: str
    tables: tuple[Table, ...]
    touch: str
    fill: tuple[str, ...] = ()

    @property
    def table_names(self) -> str:
        return ", ".join(table.name for table in self.tables)

    def publish(self, publisher: Server) -> None:
        """Make the tables with their rows, and the publication."""
        for table in self._made():
            publisher.execute(f"CREATE TABLE {table.name} ({table.columns})")
        for statement in self.fill:
            publisher.execute(statement)
        for table in self._made():
            publisher.execute(f"ALTER TABLE {table.name} ADD PRIMARY KEY ({table.key})")
        publisher.execute(f"CREATE PUBLICATION {self.name} FOR TABLE {self.table_names}")

    def create_empty(self, subscriber: Server) -> None:
        """With the keys, as it would be in practice."""
        for table in self._made():
            key = f"PRIMARY KEY ({table.key})"
            subscriber.execute(f"CREATE TABLE {table.name} ({table.columns}, {key})")

    def drop(self, publisher: Server, subscriber: Server) -> None:
        publisher.execute(f"DROP PUBLICATION {self.name}")
        for table in self._made():
            publisher.execute(f"DROP TABLE {table.name}")
            subscriber.execute(f"DROP TABLE {table.name}")

    def checksum(self, server: Server) -> Checksum:
        """Rows and sums of all tables."""
        found: list[Decimal] = []
        for table in self.tables:
            found += numbers(server.connection.execute(table.checksum_sql()).fetchone() or ())
        return tuple(found)

    def _made(self) -> list[Table]:
        return [table for table in self.tables if table.columns]


def numbers(row: tuple[Any, ...] | list[Any]) -> Checksum:
    """Of no rows a sum is NULL, here as there."""
    return tuple(Decimal(0 if value is None else value) for value in row)
