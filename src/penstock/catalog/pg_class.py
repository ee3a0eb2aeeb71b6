"""Tables of the lake that the node knows by name (pg_class.h, pg_namespace.h).

Delta keeps columns and rows. This table keeps facts for which Delta has no place: a stable oid, the
owner, the replica identity, the parent of a partition. A table becomes known when it is first
named, whichever writer made it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    String,
    Text,
    UniqueConstraint,
    and_,
    bindparam,
    select,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import LIST, ColumnForm, StoredTable, TableAccess, enum_form
from penstock.identifiers import NAMEDATALEN, truncated
from penstock.lsn import Lsn
from penstock.relation import ReplicaIdentity, TableName
from penstock.sqlstate import DuplicateTable, UndefinedTable


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A named promise that columns are unique. ``constraint``: a UNIQUE constraint has made it;
    ``replica_identity``: it is the REPLICA IDENTITY; ``parent``: oid of the partitioned table's
    index.
    """

    oid: int
    name: str
    columns: tuple[str, ...]
    constraint: bool = False
    replica_identity: bool = False
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class FormerTable:
    """A table as it was up to ``version`` of its Delta table: its names and the identity of rows.
    ``lsn``: the end of the node's WAL at that time, which orders several states at the same Delta
    version; None if an older node did not record it.
    """

    version: int
    schema: str
    name: str
    primary_key: tuple[str, ...]
    replica_identity: ReplicaIdentity
    identity_key: tuple[str, ...]
    lsn: Lsn | None = None


_KEPT: Final = tuple(
    field.name for field in fields(FormerTable) if field.name not in ("version", "lsn")
)
"""The fields that a ``FormerTable`` and a ``LakeTable`` have in common."""


def _stored(former: FormerTable) -> dict[str, Any]:
    return {**asdict(former), "replica_identity": former.replica_identity.value}


def _former(stored: dict[str, Any]) -> FormerTable:
    return FormerTable(
        **{
            **stored,
            "primary_key": tuple(stored["primary_key"]),
            "replica_identity": ReplicaIdentity(stored["replica_identity"]),
            "identity_key": tuple(stored["identity_key"]),
            "lsn": None if stored.get("lsn") is None else Lsn(stored["lsn"]),
        }
    )


def _unique_index(stored: dict[str, Any]) -> UniqueIndex:
    return UniqueIndex(**{**stored, "columns": tuple(stored["columns"])})


_IDENTITY: Final = enum_form(ReplicaIdentity)
_FOLDER: Final = ColumnForm(json.dumps, lambda text: tuple(json.loads(text)))
_INDEXES: Final = ColumnForm(
    lambda indexes: json.dumps([asdict(each) for each in indexes], ensure_ascii=False),
    lambda text: tuple(map(_unique_index, json.loads(text))),
)
_FORMER: Final = ColumnForm(
    lambda former: json.dumps([_stored(one) for one in former]) if former else None,
    lambda text: tuple(map(_former, json.loads(text))),
)


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table. ``uri``: its Delta table, None for a partitioned parent, which has no rows.

    ``primary_key``: its columns, in order; ``identity_key``: the columns of REPLICA IDENTITY USING
    INDEX. ``owner``: oid of a role, None: the node's own. ``parent`` and ``bound`` are set for a
    partition, ``partition_key`` (the text of PARTITION BY) for a partitioned table. ``indexes``:
    all but the primary key's, in the order of oids. ``folder_of``: the schema and name in whose
    folder the table still lies after SET SCHEMA. ``former``: its earlier states, the oldest first.
    """

    oid: Annotated[int, Column("oid", BigInteger, primary_key=True, autoincrement=False)]
    schema: Annotated[str, Column("relnamespace", String(64), nullable=False)]
    name: Annotated[str, Column("relname", String(64), nullable=False)]
    uri: Annotated[str | None, Column("reluri", Text)]
    primary_key: Annotated[
        tuple[str, ...], Column("relprimarykey", Text, nullable=False), LIST
    ] = ()
    replica_identity: Annotated[
        ReplicaIdentity, Column("relreplident", String(1), nullable=False), _IDENTITY
    ] = ReplicaIdentity.DEFAULT
    identity_key: Annotated[tuple[str, ...], Column("relidentkey", Text, nullable=False), LIST] = ()
    owner: Annotated[int | None, Column("relowner", BigInteger)] = None
    parent: Annotated[int | None, Column("relparent", BigInteger)] = None
    bound: Annotated[str | None, Column("relpartbound", Text)] = None
    partition_key: Annotated[str | None, Column("relpartkey", Text)] = None
    indexes: Annotated[tuple[UniqueIndex, ...], Column("relindexes", Text), _INDEXES] = ()
    folder_of: Annotated[TableName | None, Column("relfolderof", Text), _FOLDER] = None
    former: Annotated[tuple[FormerTable, ...], Column("relformer", Text), _FORMER] = ()

    def at(self, version: int) -> LakeTable:
        """Return the table with the name and identity that it had when ``version`` of its Delta
        table was committed."""
        former = next((one for one in self.former if version <= one.version), None)
        return self._as(former)

    def at_end_of(self, lsn: Lsn, version: int) -> LakeTable:
        """Return the table as it was at ``lsn``, where a transaction of other tables ended.
        ``version``: the table's Delta version at that LSN."""
        for one in self.former:
            if version < one.version or (
                version == one.version and (one.lsn is None or lsn <= one.lsn)
            ):
                return self._as(one)
        return self

    def _as(self, former: FormerTable | None) -> LakeTable:
        if former is None:
            return self
        return replace(self, **{name: getattr(former, name) for name in _KEPT})

    def until(self, version: int, lsn: Lsn | None = None) -> FormerTable:
        """Return the table's present state, to be kept when the table changes after ``version``."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return FormerTable(version, **kept, lsn=lsn)

    @property
    def qualified_name(self) -> str:
        """``schema.table``, unquoted, as PostgreSQL's messages print it."""
        return f"{self.schema}.{self.name}"

    @property
    def own_names(self) -> tuple[str, ...]:
        """Names of the table and its indexes, which are relations, too."""
        keys = (self.primary_key_name,) if self.primary_key else ()
        return (self.name, *keys, *(index.name for index in self.indexes))

    @property
    def primary_key_name(self) -> str:
        """The name that PostgreSQL would give to the primary key's constraint and index
        (makeObjectName)."""
        label = "_pkey"
        return truncated(self.name, NAMEDATALEN - 1 - len(label)) + label

    @property
    def identity(self) -> tuple[str, ...] | None:
        """Columns that identify a row of an update or delete: () for FULL, None if there are
        none."""
        match self.replica_identity:
            case ReplicaIdentity.FULL:
                return ()
            case ReplicaIdentity.INDEX:
                return self.identity_key or None  # empty: the index was dropped with a column
            case ReplicaIdentity.DEFAULT:
                return self.primary_key or None
        return None


_TABLE: Final = StoredTable(
    "penstock_class", LakeTable, UniqueConstraint("relnamespace", "relname")
)
# Built once, since each statement of a session looks up a few tables.
_BY_NAME: Final = select(_TABLE.table).where(
    and_(
        _TABLE.c.relnamespace == bindparam("schema", type_=String),
        _TABLE.c.relname == bindparam("name", type_=String),
    )
)
_BY_OID: Final = select(_TABLE.table).where(_TABLE.c.oid == bindparam("one", type_=BigInteger))


class PgClass(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[LakeTable, ...]:
        """Return every table in the order of oids."""
        return _TABLE.all(self.connection)

    def find(self, schema: str, name: str) -> LakeTable | None:
        """Return the table of that name, or None."""
        return _TABLE.one(self.connection.execute(_BY_NAME, {"schema": schema, "name": name}))

    def find_oid(self, oid: int) -> LakeTable | None:
        """Return the table with that oid, or None."""
        return _TABLE.one(self.connection.execute(_BY_OID, {"one": oid}))

    def in_folder_of(self, schema: str, name: str) -> LakeTable | None:
        """Return the table of another name that occupies this name's folder, or None."""
        return _TABLE.find(self.connection, _TABLE.c.relfolderof == json.dumps((schema, name)))

    def get(self, schema: str, name: str) -> LakeTable:
        """Return the table of that name. Raises UndefinedObject (42P01)."""
        found = self.find(schema, name)
        if found is None:
            raise UndefinedTable(f'relation "{schema}.{name}" does not exist')
        return found

    def family(self, table: LakeTable) -> tuple[LakeTable, ...]:
        """Return a table and all partitions below it, each after its parent."""
        known = self.all()
        found = [table]
        for member in found:  # the list grows meanwhile
            found += [child for child in known if child.parent == member.oid]
        return tuple(found)

    def create(self, schema: str, name: str, uri: str | None, **attributes: Any) -> LakeTable:
        """Insert a table with these fields of ``LakeTable``. Raises DuplicateObject (42P07)."""
        if self.find(schema, name) is not None:
            raise DuplicateTable(f'relation "{name}" already exists')
        table = LakeTable(pg_control.new_oid(self.connection), schema, name, uri, **attributes)
        self.add(table)
        return table

    def add(self, table: LakeTable) -> None:
        """Insert a table that already has its oid."""
        _TABLE.insert(self.connection, table)

    def new_index(self, name: str, columns: tuple[str, ...], **attributes: Any) -> UniqueIndex:
        """Return an index with a new oid, not yet part of a table. ``attributes``: fields of
        ``UniqueIndex``."""
        oid = pg_control.new_oid(self.connection)
        return UniqueIndex(oid, name, columns, **attributes)

    def register(self, schema: str, name: str, uri: str, key: tuple[str, ...] | None) -> LakeTable:
        """Insert a table of the warehouse that is not known yet. ``key``: the key that it declares.

        A table that declares an empty key may hold equal rows, because a subscription or CREATE
        TABLE made it so. Its rows are then identified by all columns together.
        """
        if key == ():
            return self.create(schema, name, uri, replica_identity=ReplicaIdentity.FULL)
        return self.create(schema, name, uri, primary_key=key or ())

    def save(self, table: LakeTable) -> None:
        """Write a changed row back (same oid), except ``former``; no effect when it is gone."""
        same = _TABLE.c.oid == table.oid
        self.connection.execute(_TABLE.table.update().where(same).values(**stored_table(table)))

    def keep_former(self, before: LakeTable, version: int, lsn: Lsn | None = None) -> None:
        """Record that a table, if it has changed, was ``before`` up to a version. ``lsn``: the end
        of the node's WAL."""
        now = self.find_oid(before.oid)
        if now is None or now.until(version) == before.until(version):
            return
        former = (*now.former, before.until(version, lsn))
        _TABLE.update(self.connection, replace(now, former=former))

    def delete(self, oid: int) -> None:
        """Forget a table; the Delta table stays."""
        _TABLE.delete(self.connection, _TABLE.c.oid == oid)


def stored_table(table: LakeTable) -> dict[str, Any]:
    """Return the columns of a table's row, except ``former``."""
    values = _TABLE.values(table)
    del values["relformer"]
    return values


def lake_table(row: Mapping[str, Any]) -> LakeTable:
    """Return the table from the columns that ``stored_table`` has returned."""
    return _TABLE.record(row)
