"""Definitions on which the stored values of published tables depend, by OIDs and numbers
(relcache.c).

A look at some published tables, for the publications of one subscription, returns a
``TableDefinition`` for each: its file node, the numbers of its columns with types, modifiers,
generation expressions and missing values, the labels and attributes of the columns' types, its
publications, and its partitions with their places in the tree. A change of these may change the
publisher's rows without any message, so a subscriber has to look. ``subscription.definition_watch``
decides what a difference means.

One query reads all definitions from the catalogs, and takes no lock on the tables.

PostgreSQL: pg_attribute.h, pg_enum.h, pg_publication_rel.h, pg_inherits.h
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.attribute import AttGenerated, Attribute
from penstock.errors import PenstockError
from penstock.identifiers import quote_literal, quoted
from penstock.lsn import INVALID, Lsn
from penstock.walreceiver.connection import Connection, literal_list

Raw = Mapping[str, Any]
"""A definition as the query returns it and as it is stored: lists of JSON by kind."""


@dataclass(frozen=True, slots=True)
class AttributeDefinition:
    """One column (pg_attribute). ``number`` is never given to another column of the table.

    ``expression``: digest of the generation expression, empty without one. ``missing``: the value
    in rows that are older than the column, if the catalog keeps one (attmissingval); None with
    ``has_missing`` if its text is not known. ``changed``: the transaction that last wrote the
    column's catalog row.
    """

    number: int
    attribute: Attribute
    collation: int
    expression: str
    has_missing: bool
    missing: str | None
    changed: int

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> AttributeDefinition:
        """Parse the list that stands for one attribute in a definition."""
        number, name, type_oid, typmod, collation, generated, *rest = row
        attribute = Attribute(name, type_oid, typmod, generated=AttGenerated(generated))
        return cls(number, attribute, collation, *rest)

    def row(self) -> list[object]:
        """Return the list that ``of_row`` reads."""
        of = self.attribute
        head = [self.number, of.name, of.type_oid, of.typmod, self.collation, of.generated.value]
        return [*head, self.expression, self.has_missing, self.missing, self.changed]


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A type that the publisher's users have made. ``parts``: types that it is made of (elements of
    an array, the base of a domain, subtypes of a range). ``labels``: (OID, label) of an enum.
    ``attributes``: (number, type) of a composite type; a dropped attribute has type 0. ``places``:
    the sort order of each of ``labels``. ``written``: the transaction that last wrote each of the
    labels or attributes."""

    oid: int
    kind: str
    parts: tuple[int, ...]
    labels: tuple[tuple[int, str], ...]
    attributes: tuple[tuple[int, int], ...]
    places: tuple[float, ...]
    written: tuple[int, ...]

    @property
    def marks(self) -> dict[int, tuple[str, float, int]]:
        """The label, place and writer of each label, by its OID."""
        rows = zip(self.labels, self.places, self.written, strict=True) if self.labels else ()
        return {oid: (label, place, xid) for (oid, label), place, xid in rows}


@dataclass(frozen=True, slots=True)
class Membership:
    """A reason why a table is published. ``entry``: OID of the row in pg_publication_rel or
    pg_publication_namespace, 0 for all tables. ``changed``: the transaction that last altered the
    publication. ``operations``: some of i, u, d, t. ``columns``: the list, None for all.
    ``row_filter``: a digest, None without a filter. ``kind``: t if the entry names a table, s for a
    schema, a for all tables. ``relation``: the published partitioned table above the table, 0 if
    the table itself is published. ``path``: the transactions that attached the tables from the
    table up to ``relation``. ``placed``: if a schema is published, the transaction that last
    renamed, moved or re-owned the table in that schema, and this table's owner."""

    publication: int
    name: str
    entry: int
    changed: int
    owner: int
    operations: str
    columns: str | None
    row_filter: str | None
    generated: str
    via_root: bool
    kind: str
    relation: int
    path: str
    placed: str

    @property
    def selects(self) -> tuple[str, str | None, str | None, str]:
        """The operations, columns, rows and generated columns that it publishes."""
        return self.operations, self.columns, self.row_filter, self.generated


@dataclass(frozen=True, slots=True)
class LeafDefinition:
    """A partition with rows of its own. ``missing``: columns that have a missing value in it, and
    the value, as in ``AttributeDefinition``; ``changed``: the transaction that last wrote its row
    in pg_class. ``logged``: False for an unlogged one, whose changes are not sent."""

    oid: int
    name: str
    filenode: int
    toast: int
    missing: Mapping[str, str | None]
    changed: int
    logged: bool


@dataclass(frozen=True, slots=True)
class PartitionLink:
    """The place of a partition in its tree (pg_inherits). ``attached``: the transaction that made
    the link, and ``command`` the number of its command. ``born``: the partition was made by CREATE
    TABLE ... PARTITION OF, so that no row was in it before. ``made``: ``attached`` has also made
    the partition, so that nobody else could write to it before."""

    child: int
    parent: int
    attached: int
    command: int
    born: bool
    made: bool = False


@dataclass(frozen=True)
class TableDefinition:
    """A published table. ``filenode``: the heap's, new after each rewrite, 0 for a partitioned
    table. ``toast``: OID of its TOAST table, new after a rewrite by ALTER TABLE, 0 without one.
    ``columns``: the highest column number that was ever used. ``memberships``: those by which
    changes are sent under the table's own name. ``name``: (schema, table)."""

    filenode: int
    toast: int
    columns: int
    attributes: tuple[AttributeDefinition, ...]
    types: tuple[TypeDefinition, ...]
    memberships: tuple[Membership, ...]
    leaves: tuple[LeafDefinition, ...]
    links: tuple[PartitionLink, ...]
    name: tuple[str, str]

    def path(self, leaf: int) -> tuple[PartitionLink, ...]:
        """Return the links by which a leaf is in the tree, from the leaf upwards."""
        found = []
        while (link := self._links.get(leaf)) is not None:
            found.append(link)
            leaf = link.parent
        return tuple(found)

    @cached_property
    def _links(self) -> Mapping[int, PartitionLink]:
        return {link.child: link for link in self.links}

    @cached_property
    def leaf_oids(self) -> frozenset[int]:
        """The OIDs of its leaves."""
        return frozenset(leaf.oid for leaf in self.leaves)

    @property
    def by_name(self) -> dict[str, AttributeDefinition]:
        """The columns by their names."""
        return {each.attribute.name: each for each in self.attributes}


Xids: TypeAlias = "Sequence[int] | NDArray[np.int64]"
"""Transaction numbers: a batch may have a million."""


@dataclass(frozen=True, slots=True)
class SeenTransactions:
    """The transactions visible to a look: those before ``next_xid`` that were not ``running``.

    A transaction whose commit record is in the WAL, and may be sent, still runs for a moment: while
    it waits for synchronous standbys, and until its session has removed it from the list (xact.c,
    RecordTransactionCommit before ProcArrayEndTransaction).
    """

    next_xid: int
    running: frozenset[int] = frozenset()

    def has(self, xids: Xids) -> bool:
        """Return whether all of these transactions were seen."""
        asked = np.asarray(xids, np.int64)
        later = _follow(asked, self.next_xid)
        return not (later | np.isin(asked, [*self.running])).any()


@dataclass(frozen=True, slots=True)
class Definitions:
    """The result of one look. ``lsn``: the end of the flushed WAL before the look; ``until``: the
    end of the written WAL after it. ``xid``: the oldest transaction that had not ended.
    ``publications``: the names in the query."""

    lsn: Lsn
    until: Lsn
    xid: int
    seen: SeenTransactions
    tables: Mapping[int, Raw]
    publications: tuple[str, ...] = ()


def read_definitions(
    connection: Connection,
    publications: Sequence[str],
    oids: Collection[int],
    xids: Xids = (),
) -> Definitions | None:
    """Look at tables by their OIDs; the result omits dropped tables. ``xids``: sent transactions;
    wait until they are visible, unless their commits may wait for us (a synchronous standby).
    Return None if the publisher is a node, whose catalogs lack these numbers. Raises
    PublisherError, ConnectionFailure."""
    if not oids:
        return Definitions(INVALID, INVALID, 0, SeenTransactions(0), {})
    if _is_node(connection):
        return None
    position, xid, seen = _see(connection, xids)
    rows = connection.query(_query(connection.server_version, publications, oids))
    tables: dict[int, dict[str, Any]] = {}
    for kind, oid, text in rows:
        tables.setdefault(int(str(oid)), {})[str(kind)] = json.loads(str(text))
    found = {oid: raw for oid, raw in tables.items() if "class" in raw}
    ((until,),) = connection.query(_WRITTEN)
    return Definitions(position, Lsn.parse(str(until)), xid, seen, found, tuple(publications))


def _see(connection: Connection, xids: Xids) -> tuple[Lsn, int, SeenTransactions]:
    """Ask for the end of the flushed WAL and the ended transactions. Later queries see at least the
    changes of these transactions."""
    deadline = time.monotonic() + _SEEN_S
    while True:
        ((position,),) = connection.query(_FLUSHED)
        ((xid, next_xid, running, synchronous),) = connection.query(_XIDS)
        seen = SeenTransactions(int(str(next_xid)), frozenset(map(int, str(running).split())))
        if seen.has(xids) or synchronous == "t" or time.monotonic() >= deadline:
            return Lsn.parse(str(position)), int(str(xid)), seen
        time.sleep(_PAUSE_S)


def _follow(xids: NDArray[np.int64], other: int) -> NDArray[np.bool_]:
    """Compare as TransactionIdFollowsOrEquals does: xids begin again after 2^32."""
    found: NDArray[np.bool_] = (xids - other) % _XIDS_IN_ALL < _XIDS_IN_ALL // 2
    return found


def parse_definition(raw: Raw) -> TableDefinition:
    """Parse one table's definition."""
    filenode, toast, columns, kind, persistence, schema, name = raw["class"]
    memberships = tuple(Membership(*each) for each in raw.get("memberships", ()))
    return TableDefinition(
        int(filenode),
        int(toast),
        int(columns),
        tuple(map(AttributeDefinition.of_row, raw.get("attributes", ()))),
        tuple(
            TypeDefinition(
                *(oid, kind, tuple(parts or ()), _pairs(labels), _pairs(attributes)),
                tuple(place for _, _, place, _ in labels or ()),
                tuple(each[-1] for each in labels or attributes or ()),
            )
            for oid, kind, parts, labels, attributes in raw.get("types", ())
        ),
        memberships if persistence == "p" and _are_sent(kind, memberships) else (),
        tuple(
            LeafDefinition(oid, name, filenode, toast, _missing(missing), changed, logged)
            for oid, name, filenode, toast, missing, changed, logged in raw.get("leaves", ())
        ),
        tuple(PartitionLink(*each) for each in raw.get("links", ())),
        (schema, name),
    )


def published_namesakes(
    connection: Connection, publications: Sequence[str], names: Collection[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Return the names among ``names`` that belong to published tables now. Raises PublisherError,
    ConnectionFailure."""
    which = ", ".join(f"({literal_list(name)})" for name in sorted(names))
    rows = connection.query(
        "SELECT c.oid::bigint FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE (n.nspname, c.relname) IN ({which})"
    )
    found = read_definitions(connection, publications, [int(str(oid)) for (oid,) in rows])
    tables = () if found is None else map(parse_definition, found.tables.values())
    return {table.name for table in tables if table.memberships}


def _are_sent(kind: str, memberships: Collection[Membership]) -> bool:
    """Return whether changes are sent under the table's own name, and not under the name of a
    partitioned table above or of partitions below (get_rel_sync_entry)."""
    if any(each.via_root and each.relation for each in memberships):
        return False
    return kind != "p" or any(each.via_root for each in memberships)


@dataclass(frozen=True, slots=True)
class CameWith:
    """Rows of a partition that may be older than its links, which would have come to the root
    without a message. ``certain``: some are older. ``xids``: otherwise, the transactions of those
    that may be. ``unread``: they may not be read, or have no age (a foreign table)."""

    certain: bool = False
    xids: frozenset[int] = frozenset()
    unread: bool = False


def rows_came_with(
    connection: Connection, leaf: int, links: Sequence[PartitionLink], ended: int
) -> CameWith | None:
    """Return which rows of a partition may be older than one of the links. ``ended``: transactions
    before this one ended when there was no link yet. Many rows count as certain. Return None if
    somebody has locked the partition.

    A transaction with a lower number than the link's may have written before it or after it. So may
    the transaction of the link, in subtransactions whose numbers are greater than its own. Command
    numbers continue through all of them, so only a row of an earlier command may be such a row.
    Raises PublisherError, ConnectionFailure.
    """
    before = " OR ".join(map(_is_before, links))
    try:
        rows = _read(
            connection,
            leaf,
            f"SELECT r.xmin::text::bigint, count(*), bool_or(NOT {_since(ended)})"
            f" FROM (SELECT xmin FROM ONLY {{table}} WHERE {before} LIMIT {_MANY_ROWS}) r"
            " GROUP BY r.xmin",
        )
    except _UnreadableError:
        return CameWith(unread=True)
    if rows is None:
        return None
    many = len(rows) > _MANY_XIDS or sum(int(str(count)) for _, count, _ in rows) >= _MANY_ROWS
    if many or any(older == "t" for _, _, older in rows):
        return CameWith(certain=True)
    return CameWith(xids=frozenset(int(str(xid)) for xid, _, _ in rows))


def _is_before(link: PartitionLink) -> str:
    since = _since(link.attached)
    own = f"({since} AND cmin::text::bigint < {link.command})"
    return own if link.made else f"NOT {since} OR {own}"


def rows_are_older(connection: Connection, leaf: int, xid: int) -> bool | None:
    """Return whether a partition has a row of a transaction before ``xid``, and so was not emptied
    since. Return False if we may not read its rows; None if somebody has locked it. Raises
    PublisherError, ConnectionFailure."""
    return _has_rows(connection, leaf, f"NOT {_since(xid)}", unread=False)


def rows_came_between(connection: Connection, leaf: int, first: int, last: int) -> bool | None:
    """Return whether a partition has a row of the transaction ``first`` or a later one, but before
    ``last``. Return False if we may not read its rows; None if somebody has locked it. Raises
    PublisherError, ConnectionFailure."""
    which = f"{_since(first)} AND NOT {_since(last)}"
    return _has_rows(connection, leaf, which, unread=False)


def _since(xid: int) -> str:
    """Return the condition that the transaction ``xid`` or a later one wrote a row. A row that is
    older by more than 2^31 transactions has a negative age; freezing does not change its xmin."""
    return f"(pg_catalog.age(xmin) BETWEEN 0 AND pg_catalog.age('{xid}'::pg_catalog.xid))"


@dataclass(frozen=True, slots=True)
class WrittenSince:
    """The rows of a publisher's catalogs that were written after pg_upgrade had restored them: OIDs
    of relations, publications, and entries of publications. ``xid``: the first transaction after
    the restore."""

    xid: int
    relations: frozenset[int]
    publications: frozenset[int]
    entries: frozenset[int]

    def has_written(self, xid: int) -> bool:
        """Return whether a transaction came after those that restored the catalogs."""
        frozen = xid < _FIRST_NORMAL_XID
        return not frozen and bool(_follow(np.array([xid]), self.xid)[0])


_FIRST_NORMAL_XID: Final = 3
_XIDS_IN_ALL: Final = 1 << 32


def written_since(connection: Connection, xid: int, relations: Collection[int]) -> WrittenSince:
    """Return the rows that were written since the transaction ``xid``, on a publisher of PostgreSQL
    17 or later. Raises PublisherError, ConnectionFailure."""
    oids = ", ".join(map(str, sorted(relations))) or "NULL"
    since = _since(xid)
    rows = connection.query(
        f"SELECT 'c', oid::bigint FROM pg_catalog.pg_class WHERE oid IN ({oids}) AND {since}"
        f" UNION ALL SELECT 'p', oid::bigint FROM pg_catalog.pg_publication WHERE {since}"
        f" UNION ALL SELECT 'e', oid::bigint FROM pg_catalog.pg_publication_rel WHERE {since}"
        f" UNION ALL SELECT 'e', oid::bigint FROM pg_catalog.pg_publication_namespace WHERE {since}"
    )

    def of(kind: str) -> frozenset[int]:
        return frozenset(int(str(oid)) for found, oid in rows if found == kind)

    return WrittenSince(xid, of("c"), of("p"), of("e"))


_MANY_ROWS: Final = 100_000
"""The number of rows that came with a partition for certain, as nobody asks who has written so
many."""
_MANY_XIDS: Final = 1_000
"""The same of transactions."""

_UNREADABLE: Final = ("42501", "0A000", "42703", "42P01", "3F000")
"""The errors of a table whose rows cannot be read: no privilege; no system column of that name, or
none in this kind of table; gone meanwhile."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_PATIENCE: Final = "100ms"
"""The longest time that a query about rows waits for a lock. It is short because all other tables
wait meanwhile."""


class _UnreadableError(Exception):
    """The rows of a table cannot be read."""


def _has_rows(connection: Connection, leaf: int, which: str, *, unread: bool) -> bool | None:
    try:
        found = _read(connection, leaf, f"SELECT 1 FROM ONLY {{table}} WHERE {which} LIMIT 1")
    except _UnreadableError:
        return unread
    return None if found is None else bool(found)


def _read(connection: Connection, leaf: int, query: str) -> Sequence[Sequence[object]] | None:
    """Return the rows of a query on a partition, whose name takes the place of ``{table}``. Return
    None if somebody has locked it; raise _UnreadableError if it cannot be read."""
    rows = connection.query(
        "SELECT n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c"
        f" JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {leaf}"
    )
    if not rows:
        return []
    schema, name, kind = map(str, rows[0])
    if kind == "f":
        raise _UnreadableError
    setting = "pg_catalog.set_config('lock_timeout', {}, false)"
    ((before,),) = connection.query("SELECT pg_catalog.current_setting('lock_timeout')")
    connection.query(f"SELECT {setting.format(quote_literal(_PATIENCE))}")
    try:
        return connection.query(query.replace("{table}", f"{quoted(schema)}.{quoted(name)}"))
    except PenstockError as error:
        if error.sqlstate in _UNREADABLE:
            raise _UnreadableError from error
        if error.sqlstate == _LOCK_NOT_AVAILABLE:
            return None
        raise
    finally:
        if connection.is_open:
            connection.query(f"SELECT {setting.format(quote_literal(str(before)))}")


def _pairs(lists: Sequence[Sequence[Any]] | None) -> tuple[tuple[Any, Any], ...]:
    return tuple((each[0], each[1]) for each in lists or ())


def _missing(columns: Sequence[Any] | None) -> dict[str, str | None]:
    """Read the columns with a missing value. A text stored before has their names alone."""
    return {each[0]: each[1] for each in columns or () if not isinstance(each, str)}


def _is_node(connection: Connection) -> bool:
    ((version,),) = connection.query("SELECT pg_catalog.version()")
    return "(Penstock)" in str(version)


_FIRST_NORMAL_OID: Final = 16384

_SEEN_S: Final = 5.0
"""The most seconds to wait until a transaction that was sent can be seen."""
_PAUSE_S: Final = 0.005

_AT: Final = (
    "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
    " ELSE pg_catalog.{}() END"
)
_FLUSHED: Final = _AT.format("pg_current_wal_flush_lsn")
_WRITTEN: Final = _AT.format("pg_current_wal_insert_lsn")

_XIDS: Final = (
    "SELECT (pg_catalog.pg_snapshot_xmin(s)::text::numeric % 4294967296)::bigint,"
    " (pg_catalog.pg_snapshot_xmax(s)::text::numeric % 4294967296)::bigint,"
    " (SELECT coalesce(pg_catalog.string_agg((x::text::numeric % 4294967296)::text, ' '), '')"
    " FROM pg_catalog.pg_snapshot_xip(s) x),"
    " pg_catalog.current_setting('synchronous_standby_names') <> ''"
    " FROM pg_catalog.pg_current_snapshot() s"
)

_QUERY: Final = """\
WITH RECURSIVE followed AS (
  SELECT c.oid, c.relfilenode, c.reltoastrelid, c.relkind, c.relnatts, c.relpersistence,
         n.nspname, c.relname,
         COALESCE((SELECT i.inhparent FROM pg_catalog.pg_inherits i
                    WHERE c.relispartition AND i.inhrelid = c.oid AND NOT i.inhdetachpending),
                  0) AS parent
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid IN ({oids})
), above AS (
  SELECT f.oid AS relid, f.oid AS ancestor, ''::text AS path FROM followed f
  UNION ALL
  SELECT a.relid, i.inhparent, a.path || i.xmin::text || ' ' FROM above a
    JOIN pg_catalog.pg_class c ON c.oid = a.ancestor AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.ancestor AND NOT i.inhdetachpending
), below AS (
  SELECT f.oid AS relid, i.inhrelid AS leaf, i.inhparent AS parent, i.xmin AS attached,
         i.cmin AS command FROM followed f
    JOIN pg_catalog.pg_inherits i ON i.inhparent = f.oid AND NOT i.inhdetachpending
   WHERE f.relkind = 'p'
  UNION ALL
  SELECT b.relid, i.inhrelid, i.inhparent, i.xmin, i.cmin FROM below b
    JOIN pg_catalog.pg_inherits i ON i.inhparent = b.leaf AND NOT i.inhdetachpending
), used AS (
  SELECT a.attrelid AS relid, a.atttypid AS typ FROM pg_catalog.pg_attribute a
   WHERE a.attrelid IN ({oids}) AND a.attnum > 0 AND NOT a.attisdropped
     AND a.atttypid >= {first_normal}
  UNION
  SELECT u.relid, x.typ FROM used u
    JOIN pg_catalog.pg_type t ON t.oid = u.typ
    CROSS JOIN LATERAL (
      SELECT t.typelem UNION ALL SELECT t.typbasetype
      UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
       WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid
      UNION ALL SELECT m.atttypid FROM pg_catalog.pg_attribute m
       WHERE t.typrelid <> 0 AND m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
    ) x (typ)
   WHERE x.typ >= {first_normal}
)
SELECT 'class', f.oid, pg_catalog.json_build_array(f.relfilenode::bigint,
         f.reltoastrelid::bigint, f.relnatts, f.relkind, f.relpersistence,
         f.nspname, f.relname)::text
  FROM followed f
UNION ALL
SELECT 'attributes', a.attrelid, pg_catalog.json_agg(pg_catalog.json_build_array(
         a.attnum, a.attname, a.atttypid::bigint, a.atttypmod, a.attcollation::bigint,
         a.attgenerated,
         CASE WHEN a.attgenerated = '' THEN '' ELSE pg_catalog.md5(d.adbin::text) END,
         a.atthasmissing, {missing},
         a.xmin::text::bigint) ORDER BY a.attnum)::text
  FROM pg_catalog.pg_attribute a
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid IN ({oids}) AND a.attnum > 0 AND NOT a.attisdropped GROUP BY 2
UNION ALL
SELECT 'types', u.relid, pg_catalog.json_agg(pg_catalog.json_build_array(u.typ::bigint,
         (SELECT CASE t.typcategory WHEN 'A' THEN 'A' ELSE t.typtype::text END
            FROM pg_catalog.pg_type t WHERE t.oid = u.typ),
         (SELECT pg_catalog.json_agg(x.typ::bigint) FROM pg_catalog.pg_type t
           CROSS JOIN LATERAL (
             SELECT t.typelem UNION ALL SELECT t.typbasetype
             UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
              WHERE r.rngtypid = t.oid OR r.rngmultitypid = t.oid) x (typ)
           WHERE t.oid = u.typ AND x.typ <> 0),
         (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(e.oid::bigint, e.enumlabel,
                                     e.enumsortorder, e.xmin::text::bigint) ORDER BY e.oid)
            FROM pg_catalog.pg_enum e WHERE e.enumtypid = u.typ),
         (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(m.attnum, m.atttypid::bigint,
                                     m.xmin::text::bigint) ORDER BY m.attnum)
            FROM pg_catalog.pg_type t JOIN pg_catalog.pg_attribute m ON m.attrelid = t.typrelid
           WHERE t.oid = u.typ AND t.typtype = 'c' AND m.attnum > 0)
       ) ORDER BY u.typ)::text
  FROM used u GROUP BY 2
UNION ALL
SELECT 'leaves', b.relid, pg_catalog.json_agg(pg_catalog.json_build_array(
         b.leaf::bigint, c.relname, c.relfilenode::bigint,
         c.reltoastrelid::bigint,
         (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(a.attname, {missing}))
            FROM pg_catalog.pg_attribute a WHERE a.attrelid = b.leaf AND a.atthasmissing),
         c.xmin::text::bigint, c.relpersistence <> 'u') ORDER BY b.leaf)::text
  FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.leaf AND c.relkind <> 'p' GROUP BY 2
UNION ALL
SELECT 'links', b.relid, pg_catalog.json_agg(pg_catalog.json_build_array(
         b.leaf::bigint, b.parent::bigint, b.attached::text::bigint, b.command::text::bigint,
         -- ATTACH writes each column again, but not those that were dropped
         EXISTS (SELECT FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = b.leaf AND a.attnum > 0 AND NOT a.attisdropped
                    AND a.xmin = b.attached
                    AND a.cmin::text::bigint < b.command::text::bigint),
         -- nothing writes its system columns again
         EXISTS (SELECT FROM pg_catalog.pg_attribute a
                  WHERE a.attrelid = b.leaf AND a.attnum = -1 AND a.xmin = b.attached))
         ORDER BY b.leaf)::text
  FROM below b GROUP BY 2
UNION ALL
SELECT 'memberships', m.relid, pg_catalog.json_agg(pg_catalog.json_build_array(
         p.oid::bigint, p.pubname, m.entry::bigint, p.xmin::text::bigint, p.pubowner::bigint,
         CASE WHEN p.pubinsert THEN 'i' ELSE '' END || CASE WHEN p.pubupdate THEN 'u' ELSE '' END
         || CASE WHEN p.pubdelete THEN 'd' ELSE '' END
         || CASE WHEN p.pubtruncate THEN 't' ELSE '' END,
         m.columns, m.row_filter, {generated}, p.pubviaroot, m.kind, m.relation::bigint, m.path,
         m.placed) ORDER BY p.oid, m.entry, m.relation)::text
  FROM (
    SELECT a.relid, r.prpubid AS pub, r.oid AS entry, {columns} AS columns,
           {row_filter} AS row_filter, 't' AS kind,
           CASE WHEN a.ancestor = a.relid THEN 0 ELSE a.ancestor END AS relation, a.path,
           '' AS placed
      FROM above a JOIN pg_catalog.pg_publication_rel r ON r.prrelid = a.ancestor
    UNION ALL
    SELECT f.oid, p.oid, 0::oid, NULL::text, NULL::text, 'a', f.parent, '', ''
      FROM followed f CROSS JOIN pg_catalog.pg_publication p WHERE p.puballtables
    {schemas}
  ) m JOIN pg_catalog.pg_publication p ON p.oid = m.pub
 WHERE p.pubname IN ({publications}) GROUP BY 2
"""

_MISSING: Final = (
    "CASE WHEN pg_catalog.cardinality(a.attmissingval::text::text[]) = 1"
    " THEN (a.attmissingval::text::text[])[1] END"
)

_SCHEMAS: Final = """UNION ALL
    SELECT a.relid, s.pnpubid, s.oid, NULL::text, NULL::text, 's',
           CASE WHEN a.ancestor = a.relid THEN 0 ELSE a.ancestor END, a.path,
           t.xmin::text || ' ' || c.relowner
      FROM above a JOIN pg_catalog.pg_class c ON c.oid = a.ancestor
      LEFT JOIN pg_catalog.pg_type t ON t.oid = c.reltype
      JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace"""


def _query(version: int, publications: Sequence[str], oids: Collection[int]) -> str:
    lists = version >= 150000
    return _QUERY.format(
        oids=", ".join(map(str, sorted(oids))),
        first_normal=_FIRST_NORMAL_OID,
        missing=_MISSING,
        generated="p.pubgencols::text" if version >= 180000 else "''",
        columns="r.prattrs::text" if lists else "NULL::text",
        row_filter="pg_catalog.md5(r.prqual::text)" if lists else "NULL::text",
        schemas=_SCHEMAS if lists else "",
        publications=literal_list(publications),
    )
