"""One published table as the publisher's catalogs describe it (fetch_remote_table_info).

``pipeline.table_copy`` copies the table.

PostgreSQL: src/backend/replication/logical/tablesync.c
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, UndefinedObject, WrongObjectType
from penstock.identifiers import quote_literal
from penstock.relation import Relation, ReplicaIdentity
from penstock.sqlstate import UndefinedTable
from penstock.walreceiver.connection import Connection, literal_list

_UNSUPPORTED: Final = {
    "i": "indexes",
    "I": "partitioned indexes",
    "S": "sequences",
    "t": "TOAST tables",
    "v": "views",
    "m": "materialized views",
    "c": "composite types",
    "f": "foreign tables",
}
"""The words for kinds of relations that cannot be a target (errdetail_relkind_not_supported)."""


@dataclass(frozen=True, slots=True)
class LeafTable:
    """A heap to copy. ``blocks``: the present size of the main fork; ``size``: bytes with TOAST.

    ``by_ctid``: False if it can only be read as a whole (a foreign partition, no right on the
    partitions, or a table access method other than heap, as on a node). ``only``: False if it is
    read through inheritance (``SELECT ... FROM root``).
    """

    oid: int
    schema: str
    name: str
    blocks: int
    size: int
    by_ctid: bool = True
    only: bool = True


@dataclass(frozen=True, slots=True)
class RemoteTable:
    """A published table. ``primary_key``: columns in the index's order, () if there is none or not
    all are published.

    ``row_filter``: the publications' filters, OR-ed; None copies all rows. ``block_size``: bytes.
    """

    relation: Relation
    relkind: str
    primary_key: tuple[str, ...]
    row_filter: str | None
    leaves: tuple[LeafTable, ...]
    block_size: int

    @property
    def size(self) -> int:
        """The bytes of all its heaps and their TOAST."""
        return sum(leaf.size for leaf in self.leaves)


def fetch_table_info(
    connection: Connection, publications: Sequence[str], schema: str, table: str
) -> RemoteTable:
    """Read everything about one table. Raises UndefinedObject, WrongObjectType (a view, ...),
    FeatureNotSupported (different column lists), PublisherError."""
    name = f"{schema}.{table}"
    prefix = f'could not fetch table info for table "{name}" from publisher: '
    rows = connection.query(_class_query(schema, table), prefix=prefix)
    if not rows:
        raise not_found(schema, table)
    oid, identity, relkind, block_size = rows[0]
    _check_relkind(str(relkind), name)
    relation = Relation(
        int(str(oid)),
        schema,
        table,
        ReplicaIdentity(identity),
        _attributes(connection, int(str(oid)), publications, str(identity), (schema, table)),
    )
    return RemoteTable(
        relation=relation,
        relkind=str(relkind),
        primary_key=_primary_key(connection, relation),
        row_filter=_row_filter(connection, relation.oid, publications, name),
        leaves=_leaves(connection, relation, str(relkind)),
        block_size=int(str(block_size)),
    )


def _class_query(schema: str, table: str) -> str:
    return (
        "SELECT c.oid, c.relreplident, c.relkind, current_setting('block_size')"
        "  FROM pg_catalog.pg_class c  INNER JOIN pg_catalog.pg_namespace n"
        "        ON (c.relnamespace = n.oid)"
        f" WHERE n.nspname = {quote_literal(schema)}   AND c.relname = {quote_literal(table)}"
    )


def _check_relkind(relkind: str, name: str) -> None:
    if relkind in ("r", "p"):
        return
    raise WrongObjectType(
        f'cannot use relation "{name}" as logical replication target',
        detail=f"This operation is not supported for {_UNSUPPORTED.get(relkind, 'this kind')}.",
        hint="Publish the tables behind it instead.",
    )


def _attributes(
    connection: Connection,
    oid: int,
    publications: Sequence[str],
    identity: str,
    name: tuple[str, str],
) -> tuple[Attribute, ...]:
    included = _column_list(connection, oid, publications, name)
    version = connection.server_version
    generated = "" if version >= 180000 else " AND a.attgenerated = ''"
    rows = connection.query(
        "SELECT a.attnum, a.attname, a.atttypid, a.atttypmod, i.indkey, i.indnkeyatts"
        "  FROM pg_catalog.pg_attribute a"
        "  LEFT JOIN pg_catalog.pg_index i"
        f"       ON (i.indexrelid = pg_get_replica_identity_index({oid}))"
        f" WHERE a.attnum > 0::pg_catalog.int2   AND NOT a.attisdropped{generated}"
        f"   AND a.attrelid = {oid} ORDER BY a.attnum",
        prefix=f'could not fetch table info for table "{name[0]}.{name[1]}" from publisher: ',
    )
    return tuple(
        Attribute(
            str(column),
            int(str(type_oid)),
            int(str(typmod)),
            key=identity == "f" or str(attnum) in _key_columns(indkey, indnkeyatts),
        )
        for attnum, column, type_oid, typmod, indkey, indnkeyatts in rows
        if included is None or int(str(attnum)) in included
    )


def _key_columns(indkey: str | None, indnkeyatts: str | None) -> list[str]:
    """Return the column numbers of the identity's index, without INCLUDE columns
    (RelationGetIdentityKeyBitmap)."""
    return [] if indkey is None else indkey.split()[: int(str(indnkeyatts))]


def _column_list(
    connection: Connection, oid: int, publications: Sequence[str], name: tuple[str, str]
) -> frozenset[int] | None:
    """Return the published column numbers; None for all. From version 18 on the list decides which
    generated columns are published."""
    if connection.server_version < 150000:
        return None
    rows = connection.query(
        "SELECT DISTINCT"
        "  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)   THEN NULL ELSE gpt.attrs END)"
        "  FROM pg_publication p,"
        "  LATERAL pg_get_publication_tables(p.pubname) gpt,"
        "  pg_class c"
        f" WHERE gpt.relid = {oid} AND c.oid = gpt.relid"
        f"   AND p.pubname IN ( {literal_list(publications)} )",
        prefix=f'could not fetch column list info for table "{name[0]}.{name[1]}" from publisher: ',
    )
    if len(rows) > 1:
        raise different_column_lists(*name)
    listed = rows[0][0] if rows else None
    return None if listed is None else frozenset(int(number) for number in listed.split())


def _primary_key(connection: Connection, relation: Relation) -> tuple[str, ...]:
    rows = connection.query(
        "SELECT a.attname FROM pg_catalog.pg_index i"
        " CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, position)"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        f" WHERE i.indrelid = {relation.oid} AND i.indisprimary AND i.indimmediate"
        " AND k.position <= i.indnkeyatts"
        " ORDER BY k.position"
    )
    names = tuple(str(name) for (name,) in rows)
    published = {attribute.name for attribute in relation.attributes}
    return names if published.issuperset(names) else ()


def _row_filter(
    connection: Connection, oid: int, publications: Sequence[str], name: str
) -> str | None:
    if connection.server_version < 150000:
        return None
    rows = connection.query(
        "SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)"
        "  FROM pg_publication p,"
        "  LATERAL pg_get_publication_tables(p.pubname) gpt"
        f" WHERE gpt.relid = {oid}"
        f"   AND p.pubname IN ( {literal_list(publications)} )",
        prefix=f'could not fetch table WHERE clause info for table "{name}" from publisher: ',
    )
    filters = [expression for (expression,) in rows]
    if not filters or None in filters:
        return None
    return " OR ".join(sorted(f"({expression})" for expression in filters))


def _leaves(connection: Connection, relation: Relation, relkind: str) -> tuple[LeafTable, ...]:
    """Return the heaps of a relation, largest first; the root itself if they cannot be read."""
    members = (
        f"SELECT relid FROM pg_catalog.pg_partition_tree({relation.oid}) WHERE isleaf"
        if relkind == "p"
        else f"SELECT {relation.oid}::oid AS relid"
    )
    rows = connection.query(
        "SELECT c.oid, n.nspname, c.relname, c.relkind,"
        " pg_catalog.has_any_column_privilege(c.oid, 'SELECT'),"
        " CASE c.relkind WHEN 'r' THEN pg_catalog.pg_relation_size(c.oid) ELSE 0 END,"
        " CASE WHEN c.reltoastrelid <> 0"
        " THEN pg_catalog.pg_relation_size(c.reltoastrelid) ELSE 0 END,"
        " pg_catalog.current_setting('block_size'), am.amname"
        f" FROM ({members}) m JOIN pg_catalog.pg_class c ON c.oid = m.relid"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam"
    )
    leaves = []
    for oid, schema, name, kind, readable, heap, toast, block_size, method in rows:
        if readable != "t" and relkind == "p":
            return (_whole(relation),)
        leaf = LeafTable(
            oid=int(str(oid)),
            schema=str(schema),
            name=str(name),
            blocks=int(str(heap)) // int(str(block_size)),
            size=int(str(heap)) + int(str(toast)),
            by_ctid=kind == "r" and method == "heap",
            only=kind == "r",
        )
        leaves.append(leaf)
    return tuple(sorted(leaves, key=lambda leaf: (-leaf.size, leaf.schema, leaf.name)))


def _whole(relation: Relation) -> LeafTable:
    return LeafTable(relation.oid, relation.schema, relation.name, 0, 0, by_ctid=False, only=False)


def not_found(schema: str, table: str) -> UndefinedObject:
    """Return PostgreSQL's error for a table that the publisher does not have."""
    return UndefinedTable(
        f'table "{schema}.{table}" not found on publisher',
        hint="It was dropped or renamed.",
        alter="REFRESH PUBLICATION",
    )


def different_column_lists(schema: str, table: str) -> FeatureNotSupported:
    """Return PostgreSQL's error for a table with several column lists."""
    return FeatureNotSupported(
        f'cannot use different column lists for table "{schema}.{table}" in different publications',
        hint="Give the table the same column list in all publications of the subscription, "
        "or make one subscription for each.",
    )
