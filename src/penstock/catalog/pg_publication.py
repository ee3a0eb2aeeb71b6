"""Publications, their tables and their schemas (pg_publication.h, pg_publication_rel.h,
pg_publication_namespace.h).

``penstock.publication`` and ``penstock.commands`` enforce PostgreSQL's rules for publications.

A commit is sent according to the publications that existed at its LSN in the node's WAL
(``history``). Each row therefore has the LSN from which it is valid. The former state of a changed
or removed row is kept while a slot may need it, with the LSN up to which it was valid. The LSNs are
written in the transaction that writes the rows.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    String,
    Table,
    Text,
    and_,
    select,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import LIST, METADATA, LsnColumn, Record, StoredTable, TableAccess
from penstock.catalog.pg_transactions import PgTransactions
from penstock.errors import DuplicateObject, UndefinedObject
from penstock.lsn import Lsn

_AFTER_ALL: Final = Lsn((1 << 63) - 1)


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication. ``generated_columns``: ``n`` for none, ``s`` for stored. ``owner``: oid of a
    role, None: the node's own."""

    oid: Annotated[int, Column("oid", BigInteger, primary_key=True, autoincrement=False)]
    name: Annotated[str, Column("pubname", String(64), nullable=False, unique=True)]
    owner: Annotated[int | None, Column("pubowner", BigInteger)] = field(default=None, kw_only=True)
    all_tables: Annotated[bool, Column("puballtables", Boolean, nullable=False)] = False
    insert: Annotated[bool, Column("pubinsert", Boolean, nullable=False)] = True
    update: Annotated[bool, Column("pubupdate", Boolean, nullable=False)] = True
    delete: Annotated[bool, Column("pubdelete", Boolean, nullable=False)] = True
    truncate: Annotated[bool, Column("pubtruncate", Boolean, nullable=False)] = True
    via_root: Annotated[bool, Column("pubviaroot", Boolean, nullable=False)] = False
    generated_columns: Annotated[str, Column("pubgencols", String(1), nullable=False)] = "n"


@dataclass(frozen=True, slots=True)
class PublicationRel:
    """A table in a publication. ``columns`` None: all. ``row_filter``: source text of WHERE."""

    oid: Annotated[int, Column("oid", BigInteger, nullable=False, unique=True)]
    publication: Annotated[
        int, Column("prpubid", BigInteger, primary_key=True, autoincrement=False)
    ]
    relation: Annotated[int, Column("prrelid", BigInteger, primary_key=True, autoincrement=False)]
    columns: Annotated[tuple[str, ...] | None, Column("prattrs", Text), LIST]
    row_filter: Annotated[str | None, Column("prqual", Text)]


@dataclass(frozen=True, slots=True)
class PublicationNamespace:
    """A schema in a publication."""

    oid: Annotated[int, Column("oid", BigInteger, nullable=False, unique=True)]
    publication: Annotated[
        int, Column("pnpubid", BigInteger, primary_key=True, autoincrement=False)
    ]
    schema: Annotated[str, Column("pnnspname", String(64), primary_key=True)]


def _since() -> Column[Any]:
    """Return the column with the LSN from which a row is valid; NULL if it always was."""
    return Column("since_lsn", LsnColumn)


_PUBLICATIONS: Final = StoredTable("penstock_publication", Publication, _since())
_RELATIONS: Final = StoredTable("penstock_publication_rel", PublicationRel, _since())
_NAMESPACES: Final = StoredTable("penstock_publication_namespace", PublicationNamespace, _since())
_FORMER: Final = Table(
    "penstock_former_publication",
    METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(64), nullable=False),  # the table that had the row
    Column("since_lsn", LsnColumn),
    Column("until_lsn", LsnColumn, nullable=False),
    Column("content", Text, nullable=False),
)
_KINDS: Final = {stored.table.name: stored for stored in (_PUBLICATIONS, _RELATIONS, _NAMESPACES)}


@dataclass(frozen=True, slots=True)
class HistoricPublications:
    """The publications at one LSN, in the orders of ``PgPublication``."""

    publications: tuple[Publication, ...]
    relations: tuple[PublicationRel, ...]
    namespaces: tuple[PublicationNamespace, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """A row that is valid for transactions that begin at ``since`` (None: any LSN) or later, and
    before ``until`` (None: no limit)."""

    kind: str
    since: Lsn | None
    until: Lsn | None
    row: Mapping[str, Any]

    def counts(self, place: Lsn) -> bool:
        begun = self.since is None or self.since <= place
        return begun and (self.until is None or place < self.until)


@dataclass(frozen=True)
class PublicationHistory:
    """The publications at every LSN that a slot may need."""

    spans: tuple[_Span, ...]

    @cached_property
    def _changes(self) -> tuple[Lsn, ...]:
        places = {place for span in self.spans for place in (span.since, span.until)}
        return tuple(sorted(place for place in places if place is not None))

    def epoch(self, place: Lsn) -> int:
        """Return a number that is equal for LSNs between which no publication has changed."""
        return bisect_right(self._changes, place)

    @cached_property
    def newest(self) -> HistoricPublications:
        """The publications that are valid for the next transaction."""
        return self.at(_AFTER_ALL)

    def at(self, place: Lsn) -> HistoricPublications:
        """Return the publications that are valid for a transaction that begins at ``place``."""

        def rows(stored: StoredTable[Record]) -> list[Record]:
            kind = stored.table.name
            found = [s.row for s in self.spans if s.kind == kind and s.counts(place)]
            return [stored.record(row) for row in found]

        return HistoricPublications(
            tuple(sorted(rows(_PUBLICATIONS), key=lambda row: row.name)),
            tuple(sorted(rows(_RELATIONS), key=lambda row: row.oid)),
            tuple(sorted(rows(_NAMESPACES), key=lambda row: row.oid)),
        )


class PgPublication(TableAccess):
    """The three tables, within one transaction."""

    def all(self) -> tuple[Publication, ...]:
        """Return every publication, sorted by name."""
        return _PUBLICATIONS.all(self.connection, order_by=[_PUBLICATIONS.c.pubname])

    def find(self, name: str) -> Publication | None:
        """Return the publication of that name, or None."""
        return _PUBLICATIONS.find(self.connection, _PUBLICATIONS.c.pubname == name)

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
        publication = Publication(pg_control.new_oid(self.connection), name, **attributes)
        self._add(_PUBLICATIONS, publication)
        return publication

    def save(self, publication: Publication) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        if self._end(_PUBLICATIONS, _PUBLICATIONS.c.oid == publication.oid):
            self._add(_PUBLICATIONS, publication)

    def delete(self, oid: int) -> None:
        """Remove a publication with its tables and schemas."""
        self._end(_RELATIONS, _RELATIONS.c.prpubid == oid)
        self._end(_NAMESPACES, _NAMESPACES.c.pnpubid == oid)
        self._end(_PUBLICATIONS, _PUBLICATIONS.c.oid == oid)

    def relations(self, publication: int | None = None) -> tuple[PublicationRel, ...]:
        """Return the tables of one publication, or of all, in the order in which they were
        added."""
        where = () if publication is None else (_RELATIONS.c.prpubid == publication,)
        return _RELATIONS.all(self.connection, *where, order_by=[_RELATIONS.c.oid])

    def add_relation(
        self,
        publication: int,
        relation: int,
        columns: tuple[str, ...] | None = None,
        row_filter: str | None = None,
    ) -> PublicationRel:
        """Add a table that is not in the publication yet."""
        row = PublicationRel(
            pg_control.new_oid(self.connection), publication, relation, columns, row_filter
        )
        self._add(_RELATIONS, row)
        return row

    def remove_relation(self, publication: int, relation: int) -> None:
        """Remove a table from a publication; no effect when it is not in it."""
        same = and_(_RELATIONS.c.prpubid == publication, _RELATIONS.c.prrelid == relation)
        self._end(_RELATIONS, same)

    def namespaces(self, publication: int | None = None) -> tuple[PublicationNamespace, ...]:
        """Return the schemas of one publication, or of all, in the order in which they were
        added."""
        where = () if publication is None else (_NAMESPACES.c.pnpubid == publication,)
        return _NAMESPACES.all(self.connection, *where, order_by=[_NAMESPACES.c.oid])

    def add_namespace(self, publication: int, schema: str) -> PublicationNamespace:
        """Add a schema that is not in the publication yet."""
        row = PublicationNamespace(pg_control.new_oid(self.connection), publication, schema)
        self._add(_NAMESPACES, row)
        return row

    def remove_namespace(self, publication: int, schema: str) -> None:
        """Remove a schema from a publication; no effect when it is not in it."""
        same = and_(_NAMESPACES.c.pnpubid == publication, _NAMESPACES.c.pnnspname == schema)
        self._end(_NAMESPACES, same)

    def history(self) -> PublicationHistory:
        """Return the present publications and the former ones that a slot may need."""
        spans = [
            _Span(name, row["since_lsn"], None, dict(row))
            for name, stored in _KINDS.items()
            for row in self.connection.execute(select(stored.table)).mappings()
        ]
        for row in self.connection.execute(select(_FORMER)).mappings():
            content = json.loads(row["content"])
            spans.append(_Span(row["kind"], row["since_lsn"], row["until_lsn"], content))
        return PublicationHistory(tuple(spans))

    def forget_before(self, place: Lsn) -> None:
        """Forget rows that are needed only for transactions that begin before ``place``."""
        self.connection.execute(_FORMER.delete().where(_FORMER.c.until_lsn <= place))

    def _add(self, stored: StoredTable[Record], row: Record) -> None:
        end = PgTransactions(self.connection).end()
        stored.insert(self.connection, row, since_lsn=end)

    def _end(self, stored: StoredTable[Record], which: ColumnElement[bool]) -> bool:
        """Remove rows, but keep them for the transactions in the WAL. Return whether any row was
        removed."""
        end = PgTransactions(self.connection).end()
        rows = self.connection.execute(select(stored.table).where(which)).mappings().all()
        for row in rows:
            if row["since_lsn"] == end:
                continue  # it was valid for no transaction
            content = {name: value for name, value in row.items() if name != "since_lsn"}
            self.connection.execute(
                _FORMER.insert().values(
                    id=pg_control.new_oid(self.connection),
                    kind=stored.table.name,
                    since_lsn=row["since_lsn"],
                    until_lsn=end,
                    content=json.dumps(content, ensure_ascii=False),
                )
            )
        stored.delete(self.connection, which)
        return bool(rows)
