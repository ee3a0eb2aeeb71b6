"""Publications and what is in them (pg_publication.h, pg_publication_rel.h,
pg_publication_namespace.h).

In: a connection inside a transaction. Out: frozen rows. PostgreSQL's rules about what may be
published how are ``penstock.publication``'s and ``penstock.commands``'.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    RowMapping,
    String,
    Table,
    Text,
    and_,
    select,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import METADATA
from penstock.errors import DuplicateObject, UndefinedObject

_PUBLICATIONS = Table(
    "penstock_publication",
    METADATA,
    Column("oid", BigInteger, primary_key=True, autoincrement=False),
    Column("pubname", String(64), nullable=False, unique=True),
    Column("pubowner", BigInteger),
    Column("puballtables", Boolean, nullable=False),
    Column("pubinsert", Boolean, nullable=False),
    Column("pubupdate", Boolean, nullable=False),
    Column("pubdelete", Boolean, nullable=False),
    Column("pubtruncate", Boolean, nullable=False),
    Column("pubviaroot", Boolean, nullable=False),
    Column("pubgencols", String(1), nullable=False),
)

_RELATIONS = Table(
    "penstock_publication_rel",
    METADATA,
    Column("oid", BigInteger, nullable=False, unique=True),
    Column("prpubid", BigInteger, primary_key=True, autoincrement=False),
    Column("prrelid", BigInteger, primary_key=True, autoincrement=False),
    Column("prattrs", Text),
    Column("prqual", Text),
)

_NAMESPACES = Table(
    "penstock_publication_namespace",
    METADATA,
    Column("oid", BigInteger, nullable=False, unique=True),
    Column("pnpubid", BigInteger, primary_key=True, autoincrement=False),
    Column("pnnspname", String(64), primary_key=True),
)


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication. ``generated_columns``: ``n``one or ``s``tored. ``owner``: oid of a role,
    None: the node's own."""

    oid: int
    name: str
    all_tables: bool = False
    insert: bool = True
    update: bool = True
    delete: bool = True
    truncate: bool = True
    via_root: bool = False
    generated_columns: str = "n"
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class PublicationRel:
    """A table in a publication. ``columns`` None: all. ``row_filter``: source text of WHERE."""

    oid: int
    publication: int
    relation: int
    columns: tuple[str, ...] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class PublicationNamespace:
    """A schema in a publication."""

    oid: int
    publication: int
    schema: str


class PgPublication:
    """The three tables, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[Publication, ...]:
        """Every publication, sorted by name."""
        rows = self._connection.execute(select(_PUBLICATIONS).order_by(_PUBLICATIONS.c.pubname))
        return tuple(_publication(row) for row in rows.mappings())

    def find(self, name: str) -> Publication | None:
        """The publication of that name, or None."""
        query = select(_PUBLICATIONS).where(_PUBLICATIONS.c.pubname == name)
        found = self._connection.execute(query).mappings().one_or_none()
        return None if found is None else _publication(found)

    def get(self, name: str) -> Publication:
        """The publication of that name. Raises UndefinedObject (42704)."""
        found = self.find(name)
        if found is None:
            raise UndefinedObject(f'publication "{name}" does not exist')
        return found

    def create(self, name: str, **attributes: Any) -> Publication:
        """Insert one; ``attributes`` are fields of ``Publication``. Raises DuplicateObject."""
        if self.find(name) is not None:
            raise DuplicateObject(f'publication "{name}" already exists')
        publication = Publication(pg_control.new_oid(self._connection), name, **attributes)
        self._connection.execute(_PUBLICATIONS.insert().values(**_values(publication)))
        return publication

    def save(self, publication: Publication) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        same = _PUBLICATIONS.c.oid == publication.oid
        self._connection.execute(_PUBLICATIONS.update().where(same).values(**_values(publication)))

    def delete(self, oid: int) -> None:
        """Remove a publication with all that is in it."""
        self._connection.execute(_RELATIONS.delete().where(_RELATIONS.c.prpubid == oid))
        self._connection.execute(_NAMESPACES.delete().where(_NAMESPACES.c.pnpubid == oid))
        self._connection.execute(_PUBLICATIONS.delete().where(_PUBLICATIONS.c.oid == oid))

    def relations(self, publication: int | None = None) -> tuple[PublicationRel, ...]:
        """Tables of one publication, or of all, in the order in which they were added."""
        query = select(_RELATIONS).order_by(_RELATIONS.c.oid)
        if publication is not None:
            query = query.where(_RELATIONS.c.prpubid == publication)
        return tuple(_relation(row) for row in self._connection.execute(query).mappings())

    def add_relation(
        self,
        publication: int,
        relation: int,
        columns: tuple[str, ...] | None = None,
        row_filter: str | None = None,
    ) -> PublicationRel:
        """Add a table that is not in it."""
        row = PublicationRel(
            pg_control.new_oid(self._connection), publication, relation, columns, row_filter
        )
        attrs = None if columns is None else json.dumps(columns, ensure_ascii=False)
        self._connection.execute(
            _RELATIONS.insert().values(
                oid=row.oid, prpubid=publication, prrelid=relation, prattrs=attrs, prqual=row_filter
            )
        )
        return row

    def remove_relation(self, publication: int, relation: int) -> None:
        """Take a table out; no effect when it is not in it."""
        same = and_(_RELATIONS.c.prpubid == publication, _RELATIONS.c.prrelid == relation)
        self._connection.execute(_RELATIONS.delete().where(same))

    def namespaces(self, publication: int | None = None) -> tuple[PublicationNamespace, ...]:
        """Schemas of one publication, or of all, in the order in which they were added."""
        query = select(_NAMESPACES).order_by(_NAMESPACES.c.oid)
        if publication is not None:
            query = query.where(_NAMESPACES.c.pnpubid == publication)
        return tuple(
            PublicationNamespace(row["oid"], row["pnpubid"], row["pnnspname"])
            for row in self._connection.execute(query).mappings()
        )

    def add_namespace(self, publication: int, schema: str) -> PublicationNamespace:
        """Add a schema that is not in it."""
        row = PublicationNamespace(pg_control.new_oid(self._connection), publication, schema)
        self._connection.execute(
            _NAMESPACES.insert().values(oid=row.oid, pnpubid=publication, pnnspname=schema)
        )
        return row

    def remove_namespace(self, publication: int, schema: str) -> None:
        """Take a schema out; no effect when it is not in it."""
        same = and_(_NAMESPACES.c.pnpubid == publication, _NAMESPACES.c.pnnspname == schema)
        self._connection.execute(_NAMESPACES.delete().where(same))


def _values(publication: Publication) -> dict[str, Any]:
    return {
        "oid": publication.oid,
        "pubname": publication.name,
        "pubowner": publication.owner,
        "puballtables": publication.all_tables,
        "pubinsert": publication.insert,
        "pubupdate": publication.update,
        "pubdelete": publication.delete,
        "pubtruncate": publication.truncate,
        "pubviaroot": publication.via_root,
        "pubgencols": publication.generated_columns,
    }


def _publication(row: RowMapping) -> Publication:
    return Publication(
        oid=row["oid"],
        name=row["pubname"],
        all_tables=row["puballtables"],
        insert=row["pubinsert"],
        update=row["pubupdate"],
        delete=row["pubdelete"],
        truncate=row["pubtruncate"],
        via_root=row["pubviaroot"],
        generated_columns=row["pubgencols"],
        owner=row["pubowner"],
    )


def _relation(row: RowMapping) -> PublicationRel:
    columns = None if row["prattrs"] is None else tuple(json.loads(row["prattrs"]))
    return PublicationRel(row["oid"], row["prpubid"], row["prrelid"], columns, row["prqual"])
