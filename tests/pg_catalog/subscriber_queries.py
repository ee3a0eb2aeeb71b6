"""What subscribers ask a publisher, word by word (subscriptioncmds.c, tablesync.c of 14 to 18)."""

from __future__ import annotations

from collections.abc import Sequence


def literals(names: Sequence[str]) -> str:
    return ", ".join("'" + name.replace("'", "''") + "'" for name in names)


CLEAR_SEARCH_PATH = "SELECT pg_catalog.set_config('search_path', '', false);"


def check_publications(names: Sequence[str]) -> str:
    return (
        "SELECT t.pubname FROM\n pg_catalog.pg_publication t WHERE\n t.pubname IN ("
        f"{literals(names)})"
    )


def check_publications_origin(names: Sequence[str], *, ancestors: bool = True) -> str:
    """``ancestors``: what later minor versions ask."""
    more = (
        " OR     GPT.relid IN (SELECT relid FROM pg_partition_ancestors(PS.srrelid) UNION"
        "                   SELECT relid FROM pg_partition_tree(PS.srrelid))"
    )
    return (
        "SELECT DISTINCT P.pubname AS pubname\n"
        "FROM pg_publication P,\n"
        "     LATERAL pg_get_publication_tables(P.pubname) GPT\n"
        "     JOIN pg_subscription_rel PS ON (GPT.relid = PS.srrelid"
        f"{more if ancestors else ''}),\n"
        "     pg_class C JOIN pg_namespace N ON (N.oid = C.relnamespace)\n"
        f"WHERE C.oid = GPT.relid AND P.pubname IN ({literals(names)})\n"
    )


def without_known_table(query: str, schema: str, table: str) -> str:
    return f"{query} AND NOT (N.nspname = '{schema}' AND C.relname = '{table}')\n"


def table_list_14(names: Sequence[str]) -> str:
    return (
        "SELECT DISTINCT t.schemaname, t.tablename\n"
        "  FROM pg_catalog.pg_publication_tables t\n"
        f" WHERE t.pubname IN ({literals(names)})"
    )


def table_list_15(names: Sequence[str]) -> str:
    return (
        "SELECT DISTINCT t.schemaname, t.tablename \n"
        ", t.attnames\n"
        "FROM pg_catalog.pg_publication_tables t\n"
        f" WHERE t.pubname IN ( {literals(names)} )"
    )


def table_list_16(names: Sequence[str]) -> str:
    return (
        "SELECT DISTINCT n.nspname, c.relname, gpt.attrs\n"
        "       FROM pg_class c\n"
        "         JOIN pg_namespace n ON n.oid = c.relnamespace\n"
        "         JOIN ( SELECT (pg_get_publication_tables(VARIADIC "
        "array_agg(pubname::text))).*\n"
        "                FROM pg_publication\n"
        f"                WHERE pubname IN ( {literals(names)} )) AS gpt\n"
        "             ON gpt.relid = c.oid\n"
    )


def table_info(schema: str, table: str) -> str:
    return (
        "SELECT c.oid, c.relreplident, c.relkind  FROM pg_catalog.pg_class c"
        "  INNER JOIN pg_catalog.pg_namespace n"
        "        ON (c.relnamespace = n.oid)"
        f" WHERE n.nspname = {literals([schema])}   AND c.relname = {literals([table])}"
    )


def column_list(relid: int, names: Sequence[str]) -> str:
    return (
        "SELECT DISTINCT  (CASE WHEN (array_length(gpt.attrs, 1) = c.relnatts)"
        "   THEN NULL ELSE gpt.attrs END)"
        "  FROM pg_publication p,"
        "  LATERAL pg_get_publication_tables(p.pubname) gpt,"
        "  pg_class c"
        f" WHERE gpt.relid = {relid} AND c.oid = gpt.relid"
        f"   AND p.pubname IN ( {literals(names)} )"
    )


def columns(relid: int, *, subscriber: int, publisher: int) -> str:
    generated = ", a.attgenerated != ''" if subscriber >= 18 and publisher >= 18 else ""
    only = "   " if subscriber >= 18 and publisher >= 18 else "AND a.attgenerated = ''"
    return (
        "SELECT a.attnum,       a.attname,       a.atttypid,       a.attnum = ANY(i.indkey)"
        f"{generated}"
        "  FROM pg_catalog.pg_attribute a"
        "  LEFT JOIN pg_catalog.pg_index i"
        f"       ON (i.indexrelid = pg_get_replica_identity_index({relid}))"
        " WHERE a.attnum > 0::pg_catalog.int2"
        f"   AND NOT a.attisdropped {only}"
        f"   AND a.attrelid = {relid} ORDER BY a.attnum"
    )


def row_filter(relid: int, names: Sequence[str]) -> str:
    return (
        "SELECT DISTINCT pg_get_expr(gpt.qual, gpt.relid)"
        "  FROM pg_publication p,"
        "  LATERAL pg_get_publication_tables(p.pubname) gpt"
        f" WHERE gpt.relid = {relid}"
        f"   AND p.pubname IN ( {literals(names)} )"
    )


SYNC_SLOTS = (
    "SELECT slot_name, plugin, slot_type, database, temporary, two_phase "
    "FROM pg_catalog.pg_replication_slots ORDER BY 1"
)


def without_identity(names: Sequence[str]) -> str:
    """What a node asks that subscribes: tables whose updates would be refused."""
    return f"""\
SELECT DISTINCT n.nspname, c.relname
FROM pg_catalog.pg_publication_tables t
  JOIN pg_catalog.pg_publication p USING (pubname)
  JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE p.pubname IN ( {literals(names)} ) AND (p.pubupdate OR p.pubdelete)
  AND c.relkind = 'r' AND c.relreplident <> 'f'
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END)
ORDER BY 1, 2
"""


def primary_key(oid: int) -> str:
    """What a node asks that subscribes."""
    return (
        "SELECT a.attname FROM pg_catalog.pg_index i"
        " CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, position)"
        " JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        f" WHERE i.indrelid = {oid} AND i.indisprimary AND i.indimmediate"
        " AND k.position <= i.indnkeyatts"
        " ORDER BY k.position"
    )
