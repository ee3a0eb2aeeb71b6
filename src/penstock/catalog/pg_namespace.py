"""Schemas of the lake (pg_namespace.h).

In: a connection inside a transaction. Out: frozen rows. ``public`` always exists. Like a table, a
schema becomes known when it is created or first named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, RowMapping, String, Table, select

from penstock.catalog import pg_control
from penstock.catalog.metadata import METADATA
from penstock.sqlstate import DuplicateSchema

_TABLE = Table(
    "penstock_namespace",
    METADATA,
    Column("oid", BigInteger, primary_key=True, autoincrement=False),
    Column("nspname", String(64), nullable=False, unique=True),
    Column("nspowner", BigInteger),
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A schema. ``owner``: oid of a role, None: the node's own."""

    oid: int
    name: str
    owner: int | None = None


PUBLIC: Final = Namespace(2200, "public")
"""The schema ``public``, with the oid that it has in every PostgreSQL (pg_namespace.dat)."""


class PgNamespace:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[Namespace, ...]:
        """Return every schema in the order of oids; ``public`` is the first."""
        rows = self._connection.execute(select(_TABLE).order_by(_TABLE.c.oid))
        return (PUBLIC, *(_namespace(row) for row in rows.mappings()))

    def find(self, name: str) -> Namespace | None:
        """Return the schema of that name, or None."""
        if name == PUBLIC.name:
            return PUBLIC
        query = select(_TABLE).where(_TABLE.c.nspname == name)
        found = self._connection.execute(query).mappings().one_or_none()
        return None if found is None else _namespace(found)

    def create(self, name: str, owner: int | None = None) -> Namespace:
        """Insert a schema. Raises DuplicateObject (42P06)."""
        if self.find(name) is not None:
            raise DuplicateSchema(f'schema "{name}" already exists')
        namespace = Namespace(pg_control.new_oid(self._connection), name, owner)
        self._connection.execute(
            _TABLE.insert().values(oid=namespace.oid, nspname=name, nspowner=owner)
        )
        return namespace

    def delete(self, oid: int) -> None:
        """Forget a schema; no effect when it is gone."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.oid == oid))


def _namespace(row: RowMapping) -> Namespace:
    return Namespace(row["oid"], row["nspname"], row["nspowner"])
