"""Schemas of the lake (pg_namespace.h).

``public`` always exists. Like a table, a schema becomes known when it is created or first named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sqlalchemy import BigInteger, Column, String

from penstock.catalog import pg_control
from penstock.catalog.metadata import StoredTable, TableAccess
from penstock.sqlstate import DuplicateSchema


@dataclass(frozen=True, slots=True)
class Namespace:
    """A schema. ``owner``: oid of a role, None: the node's own."""

    oid: Annotated[int, Column("oid", BigInteger, primary_key=True, autoincrement=False)]
    name: Annotated[str, Column("nspname", String(64), nullable=False, unique=True)]
    owner: Annotated[int | None, Column("nspowner", BigInteger)] = None


_TABLE: Final = StoredTable("penstock_namespace", Namespace)
PUBLIC: Final = Namespace(2200, "public")
"""The schema ``public``, with the oid that it has in every PostgreSQL (pg_namespace.dat)."""


class PgNamespace(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[Namespace, ...]:
        """Return every schema in the order of oids; ``public`` is the first."""
        return (PUBLIC, *_TABLE.all(self.connection))

    def find(self, name: str) -> Namespace | None:
        """Return the schema of that name, or None."""
        if name == PUBLIC.name:
            return PUBLIC
        return _TABLE.find(self.connection, _TABLE.c.nspname == name)

    def create(self, name: str, owner: int | None = None) -> Namespace:
        """Insert a schema. Raises DuplicateObject (42P06)."""
        if self.find(name) is not None:
            raise DuplicateSchema(f'schema "{name}" already exists')
        namespace = Namespace(pg_control.new_oid(self.connection), name, owner)
        _TABLE.insert(self.connection, namespace)
        return namespace

    def delete(self, oid: int) -> None:
        """Forget a schema; no effect when it is gone."""
        _TABLE.delete(self.connection, _TABLE.c.oid == oid)
