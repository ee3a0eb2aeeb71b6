"""Publications, their tables and their schemas (pg_publication.h, pg_publication_rel.h,
pg_publication_namespace.h).

In: a connection inside a transaction. Out: frozen rows. ``penstock.publication`` and
``penstock.commands`` enforce PostgreSQL's rules about what may be published, and how.

A commit is sent according to the publications that existed at its place in the log (``history``).
So each row has the place of the log from which on it is valid. A row that is changed or removed is
kept, with the place up to which it was valid, as long as a slot may need it. The places are written
in the transaction that writes the rows.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    RowMapping,
    String,
    Table,
    Text,
    and_,
    select,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.catalog.pg_transactions import PgTransactions
from penstock.errors import DuplicateObject, UndefinedObject
from penstock.lsn import Lsn

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
    Column("since_lsn", LsnColumn),  # here and below: NULL if the row has always been valid
)

_RELATIONS = Table(
    "penstock_publication_rel",
    METADATA,
    Column("oid", BigInteger, nullable=False, unique=True),
    Column("prpubid", BigInteger, primary_key=True, autoincrement=False),
    Column("prrelid", BigInteger, primary_key=True, autoincrement=False),
    Column("prattrs", Text),
    Column("prqual", Text),
    Column("since_lsn", LsnColumn),
)

_NAMESPACES = Table(
    "penstock_publication_namespace",
    METADATA,
    Column("oid", BigInteger, nullable=False, unique=True),
    Column("pnpubid", BigInteger, primary_key=True, autoincrement=False),
    Column("pnnspname", String(64), primary_key=True),
    Column("since_lsn", LsnColumn),
)

_FORMER = Table(
    "penstock_former_publication",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(64), nullable=False),  # the table that had the row
    Column("since_lsn", LsnColumn),
    Column("until_lsn", LsnColumn, nullable=False),
    Column("content", Text, nullable=False),
)
_AFTER_ALL: Final = Lsn((1 << 63) - 1)
_KINDS: Final = {table.name: table for table in (_PUBLICATIONS, _RELATIONS, _NAMESPACES)}


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication. ``generated_columns``: ``n`` for none, ``s`` for stored. ``owner``: oid of a
    role, None: the node's own."""

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


@dataclass(frozen=True, slots=True)
class PublicationsThen:
    """The publications at one place of the log, in the orders of ``PgPublication``."""

    publications: tuple[Publication, ...]
    relations: tuple[PublicationRel, ...]
    namespaces: tuple[PublicationNamespace, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """A row that is valid for transactions that begin at ``since`` (None: at any place) or later,
    and before ``until``."""

    kind: str
    since: Lsn | None
    until: Lsn | None
    row: Mapping[str, Any]

    def counts(self, place: Lsn) -> bool:
        begun = self.since is None or self.since <= place
        return begun and (self.until is None or place < self.until)


@dataclass(frozen=True)
class PublicationHistory:
    """Publications at every place of the log that a slot may need."""

    spans: tuple[_Span, ...]

    @cached_property
    def _changes(self) -> tuple[Lsn, ...]:
        places = {place for span in self.spans for place in (span.since, span.until)}
        return tuple(sorted(place for place in places if place is not None))

    def epoch(self, place: Lsn) -> int:
        """Return a number that is equal for places between which no publication has changed."""
        return bisect_right(self._changes, place)

    @cached_property
    def newest(self) -> PublicationsThen:
        """The publications that are valid for the next transaction."""
        return self.at(_AFTER_ALL)

    def at(self, place: Lsn) -> PublicationsThen:
        """Return the publications that are valid for a transaction that begins at ``place``."""

        def rows(table: Table) -> list[Mapping[str, Any]]:
            return [s.row for s in self.spans if s.kind == table.name and s.counts(place)]

        publications = map(_publication, rows(_PUBLICATIONS))
        relations, namespaces = map(_relation, rows(_RELATIONS)), map(_namespace, rows(_NAMESPACES))
        return PublicationsThen(
            tuple(sorted(publications, key=lambda row: row.name)),
            tuple(sorted(relations, key=lambda row: row.oid)),
            tuple(sorted(namespaces, key=lambda row: row.oid)),
        )


class PgPublication:
    """The three tables, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[Publication, ...]:
        """Return every publication, sorted by name."""
        rows = self._connection.execute(select(_PUBLICATIONS).order_by(_PUBLICATIONS.c.pubname))
        return tuple(_publication(row) for row in rows.mappings())

    def find(self, name: str) -> Publication | None:
        """Return the publication of that name, or None."""
        query = select(_PUBLICATIONS).where(_PUBLICATIONS.c.pubname == name)
        found = self._connection.execute(query).mappings().one_or_none()
        return None if found is None else _publication(found)

    def get(self, name: str) -> Publication:
        """Return the publication of that name. Raises UndefinedObject (42704)."""
        found = self.find(name)
        if found is None:
            raise UndefinedObject(f'publication "{name}" does not exist')
        return found

    def create(self, name: str, **attributes: Any) -> Publication:
        """Insert a publication with these fields of ``Publication``. Raises DuplicateObject."""
        if self.find(name) is not None:
            raise DuplicateObject(f'publication "{name}" already exists')
        publication = Publication(pg_control.new_oid(self._connection), name, **attributes)
        self._add(_PUBLICATIONS, _values(publication))
        return publication

    def save(self, publication: Publication) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        if self._end(_PUBLICATIONS, _PUBLICATIONS.c.oid == publication.oid):
            self._add(_PUBLICATIONS, _values(publication))

    def delete(self, oid: int) -> None:
        """Remove a publication with its tables and schemas."""
        self._end(_RELATIONS, _RELATIONS.c.prpubid == oid)
        self._end(_NAMESPACES, _NAMESPACES.c.pnpubid == oid)
        self._end(_PUBLICATIONS, _PUBLICATIONS.c.oid == oid)

    def relations(self, publication: int | None = None) -> tuple[PublicationRel, ...]:
        """Return the tables of one publication, or of all, in the order in which they were
        added."""
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
        """Add a table that is not in the publication yet."""
        row = PublicationRel(
            pg_control.new_oid(self._connection), publication, relation, columns, row_filter
        )
        attrs = None if columns is None else json.dumps(columns, ensure_ascii=False)
        values = {"oid": row.oid, "prpubid": publication, "prrelid": relation}
        self._add(_RELATIONS, values | {"prattrs": attrs, "prqual": row_filter})
        return row

    def remove_relation(self, publication: int, relation: int) -> None:
        """Remove a table from a publication; no effect when it is not in it."""
        same = and_(_RELATIONS.c.prpubid == publication, _RELATIONS.c.prrelid == relation)
        self._end(_RELATIONS, same)

    def namespaces(self, publication: int | None = None) -> tuple[PublicationNamespace, ...]:
        """Return the schemas of one publication, or of all, in the order in which they were
        added."""
        query = select(_NAMESPACES).order_by(_NAMESPACES.c.oid)
        if publication is not None:
            query = query.where(_NAMESPACES.c.pnpubid == publication)
        return tuple(_namespace(row) for row in self._connection.execute(query).mappings())

    def add_namespace(self, publication: int, schema: str) -> PublicationNamespace:
        """Add a schema that is not in the publication yet."""
        row = PublicationNamespace(pg_control.new_oid(self._connection), publication, schema)
        self._add(_NAMESPACES, {"oid": row.oid, "pnpubid": publication, "pnnspname": schema})
        return row

    def remove_namespace(self, publication: int, schema: str) -> None:
        """Remove a schema from a publication; no effect when it is not in it."""
        same = and_(_NAMESPACES.c.pnpubid == publication, _NAMESPACES.c.pnnspname == schema)
        self._end(_NAMESPACES, same)

    def history(self) -> PublicationHistory:
        """Return the present publications and the former ones that a slot may need."""
        spans = [
            _Span(name, row["since_lsn"], None, dict(row))
            for name, table in _KINDS.items()
            for row in self._connection.execute(select(table)).mappings()
        ]
        for row in self._connection.execute(select(_FORMER)).mappings():
            content = json.loads(row["content"])
            spans.append(_Span(row["kind"], row["since_lsn"], row["until_lsn"], content))
        return PublicationHistory(tuple(spans))

    def forget_before(self, place: Lsn) -> None:
        """Forget rows that are needed only for transactions that begin before ``place``."""
        self._connection.execute(_FORMER.delete().where(_FORMER.c.until_lsn <= place))

    def _add(self, table: Table, values: Mapping[str, Any]) -> None:
        end = PgTransactions(self._connection).end()
        self._connection.execute(table.insert().values(**values, since_lsn=end))

    def _end(self, table: Table, which: ColumnElement[bool]) -> bool:
        """Remove rows, but keep them for the transactions in the log. Tell whether there were
        any."""
        end = PgTransactions(self._connection).end()
        rows = self._connection.execute(select(table).where(which)).mappings().all()
        for row in rows:
            if row["since_lsn"] == end:
                continue  # it was valid for no transaction
            content = {name: value for name, value in row.items() if name != "since_lsn"}
            self._connection.execute(
                _FORMER.insert().values(
                    id=pg_control.new_oid(self._connection),
                    kind=table.name,
                    since_lsn=row["since_lsn"],
                    until_lsn=end,
                    content=json.dumps(content, ensure_ascii=False),
                )
            )
        self._connection.execute(table.delete().where(which))
        return bool(rows)


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


def _publication(row: RowMapping | Mapping[str, Any]) -> Publication:
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


def _namespace(row: RowMapping | Mapping[str, Any]) -> PublicationNamespace:
    return PublicationNamespace(row["oid"], row["pnpubid"], row["pnnspname"])


def _relation(row: RowMapping | Mapping[str, Any]) -> PublicationRel:
    columns = None if row["prattrs"] is None else tuple(json.loads(row["prattrs"]))
    return PublicationRel(row["oid"], row["prpubid"], row["prrelid"], columns, row["prqual"])
