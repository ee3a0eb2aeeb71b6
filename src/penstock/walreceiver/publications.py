"""Publications of the publisher, and the tables in them (subscriptioncmds.c).

In: publication names. Out: missing names, and the tables with their OIDs, listed by the queries
that PostgreSQL's own subscriber sends to each server version. ``table_info`` describes one table.

PostgreSQL: check_publications, fetch_table_list (fetch_relation_list)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.errors import FeatureNotSupported, UndefinedObject
from penstock.identifiers import quote_literal
from penstock.relation import TableName
from penstock.sqlstate import UndefinedTable
from penstock.walreceiver.connection import Connection, literal_list

_TABLES_16: Final = """\
SELECT DISTINCT n.nspname, c.relname, c.oid, gpt.attrs
       FROM pg_class c
         JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN ( SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*
                FROM pg_publication
                WHERE pubname IN ( {names} )) AS gpt
             ON gpt.relid = c.oid
"""

_TABLES_15: Final = """\
SELECT DISTINCT t.schemaname, t.tablename, c.oid, t.attnames
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname IN ( {names} )
"""

_TABLES_14: Final = """\
SELECT DISTINCT t.schemaname, t.tablename, c.oid
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname IN ( {names} )
"""

# CheckCmdReplicaIdentity (execReplication.c) as a query. Partition roots are left out: their leaves
# count.
_NO_IDENTITY: Final = """\
SELECT DISTINCT n.nspname, c.relname
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p USING (pubname)
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE p.pubname IN ( {names} ) AND (p.pubupdate OR p.pubdelete)
  AND c.relkind = 'r' AND c.relreplident <> 'f'
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
ORDER BY 1, 2
"""

_OPERATIONS: Final = """\
SELECT t.schemaname, t.tablename, bool_or(p.pubinsert), bool_or(p.pubupdate), bool_or(p.pubdelete),
       bool_or(p.pubtruncate)
FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication p USING (pubname)
WHERE p.pubname IN ( {names} )
GROUP BY t.schemaname, t.tablename
"""

_DIFFERENT_ORIGIN: Final = """\
SELECT DISTINCT P.pubname AS pubname
FROM pg_publication P,
     LATERAL pg_get_publication_tables(P.pubname) GPT
     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid OR
     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION
                   SELECT relid FROM pg_partition_tree(PS.srrelid))),
     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)
WHERE C.oid = GPT.relid AND P.pubname IN ({names})
"""


def missing_publications(connection: Connection, names: Sequence[str]) -> list[str]:
    """Return the names that do not exist on the publisher, in the order given
    (check_publications)."""
    rows = connection.query(
        "SELECT t.pubname FROM pg_catalog.pg_publication t"
        f" WHERE t.pubname IN ({literal_list(names)})",
        prefix="could not receive list of publications from the publisher: ",
    )
    existing = {row[0] for row in rows}
    return [name for name in names if name not in existing]


def missing_publications_message(missing: Sequence[str]) -> str:
    """Return PostgreSQL's warning (42704) about missing publications."""
    quoted = ", ".join(f'"{name}"' for name in missing)
    if len(missing) == 1:
        return f"publication {quoted} does not exist on the publisher"
    return f"publications {quoted} do not exist on the publisher"


def publications_of_different_origin(
    connection: Connection, publications: Sequence[str], besides: Iterable[TableName] = ()
) -> list[str]:
    """Return the publications with tables that the publisher subscribes to itself
    (check_publications_origin). ``besides``: tables that do not count."""
    query = _DIFFERENT_ORIGIN.format(names=literal_list(publications))
    for schema, table in besides:
        place = f"N.nspname = {quote_literal(schema)} AND C.relname = {quote_literal(table)}"
        query += f"AND NOT ({place})\n"
    rows = connection.query(
        query, prefix="could not receive list of replicated tables from the publisher: "
    )
    return [str(name) for (name,) in rows]


def fetch_table_list(connection: Connection, publications: Sequence[str]) -> dict[TableName, int]:
    """Return all tables in the publications with their OIDs, sorted. A partition root that is
    published as a root is listed itself.

    Raises FeatureNotSupported if a table has different column lists in them.
    """
    version = connection.server_version
    query = _TABLES_16 if version >= 160000 else _TABLES_15 if version >= 150000 else _TABLES_14
    rows = connection.query(
        query.format(names=literal_list(publications)),
        prefix="could not receive list of replicated tables from the publisher: ",
    )
    oids = {(str(row[0]), str(row[1])): int(str(row[2])) for row in rows}
    counts = Counter((str(row[0]), str(row[1])) for row in rows)
    for (schema, table), count in counts.items():
        if count > 1:
            raise different_column_lists(schema, table)
    return {name: oids[name] for name in sorted(oids)}


def tables_without_replica_identity(
    connection: Connection, publications: Sequence[str]
) -> list[tuple[str, str]]:
    """Return (schema, table) of tables whose updates and deletes are published, but would be
    refused."""
    rows = connection.query(_NO_IDENTITY.format(names=literal_list(publications)))
    return [(str(schema), str(table)) for schema, table in rows]


def operations_left_out(
    connection: Connection, publications: Sequence[str]
) -> dict[TableName, frozenset[str]]:
    """Return for each table in the publications the operations that none of them publishes."""
    words = ("insert", "update", "delete", "truncate")
    rows = connection.query(_OPERATIONS.format(names=literal_list(publications)))
    return {
        (str(schema), str(table)): frozenset(
            word for word, published in zip(words, flags, strict=True) if published != "t"
        )
        for schema, table, *flags in rows
    }


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
