"""Queries of all shapes against a real server: fields, types, values and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.attribute import TupleDesc
from penstock.errors import PenstockError
from penstock.pg_catalog import CatalogDatabase, PythonFunction, reads_catalog_only
from penstock.sql.grammar.raw_statements import parse_query, parse_select
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction
from pg_catalog import objects
from pg_catalog.test_subscriber_queries import compare, drop_subscription, server_oids

QUERIES = [
    "SELECT",
    "SELECT FROM pg_namespace WHERE nspname = 'public'",
    "SELECT 1, 'a', NULL, true AS t, 1.5, 3000000000, -2",
    "SELECT 1 AS a, 'x'::name AS b, '5'::oid, CAST('7' AS int8), 'c'::\"char\"",
    "SELECT 1 + 1, 7 / 2, 7 % 4, 2 * 3 - 1, -(3)",
    "SELECT 'a' || 'b', 'a' = 'b', 1 <> 2, NOT true, 1 IS NULL, NULL IS NOT NULL",
    "SELECT 1 IS DISTINCT FROM NULL, 2 BETWEEN 1 AND 3, 'x' IN ('x', 'y'), 'b' LIKE '_',"
    " 'b' ~ '^B'",
    "SELECT 'b' ~* '^B', 'b' !~ 'c', 'Ab' ILIKE 'a%', 'x' NOT LIKE 'y'",
    "SELECT CASE WHEN true THEN 'x' END, CASE 1 WHEN 1 THEN 2 ELSE 3 END, coalesce(NULL, 'z')",
    "SELECT CASE WHEN relname = 't1' THEN relname END, CASE WHEN false THEN 1 ELSE relnatts END"
    " FROM pg_class WHERE relname = 't1'",
    "SELECT nullif(1, 1), greatest(1, 2), least('a', 'b')",
    "SELECT ARRAY['a', 'b c', NULL, '', 'q\"', 'b\\s', '{}'], ARRAY[1, 2], '{1,2}'::int2[]",
    "SELECT ARRAY[1,2] || 3, ARRAY['a']::name[], '1 2'::int2vector, ('1 2'::int2vector)[0]",
    "SELECT (ARRAY[5,6])[1], array_length(ARRAY[1,2], 1), array_upper('1 2'::int2vector, 1),"
    " array_lower(ARRAY[1], 1), 2 = ANY (ARRAY[1,2]), 2 = ANY ('{1,3}'), 3 <> ALL ('{1,2}'::int[])",
    "SELECT array_to_string(ARRAY['a', NULL, 'b'], ', '), array_length('{}'::text[], 1)",
    "SELECT '1 2'::int2vector::int2[]",
    "SELECT format_type(t.oid, -1), format_type(t.oid, NULL), t.typname FROM pg_type t"
    " WHERE oid IN (16,17,18,19,20,21,23,25,26,700,701,1042,1043,1082,1083,1114,1184,1266,1560,"
    "1700,1005,1009,1015,1231,2950,3802) ORDER BY oid",
    "SELECT format_type(1043, 24), format_type(1700, 655366), format_type(1042, 7),"
    " format_type(1114, 3), format_type(1184, 0), format_type(1015, 24), format_type(1560, 5),"
    " format_type(0, NULL), format_type(99999, NULL), format_type(1700, 4), format_type(1083, 2)",
    "SELECT quote_ident('a'), quote_ident('A b'), quote_ident('select'), quote_ident('q\"'),"
    " quote_ident('int'), quote_ident('left'), quote_ident('name'), quote_ident('a$b')",
    "SELECT oid::regclass, oid::regclass::text FROM pg_class WHERE relname IN ('t1', 'orders',"
    " 'Odd Table') ORDER BY relname",
    "SELECT 't1'::regclass, 'public.t1'::regclass, 'shop.\"Odd Table\"'::regclass::text,"
    " '0'::regclass, '-'::regclass, to_regclass('nowhere'), to_regclass('shop.orders')",
    "SELECT 25::regtype, 'int4'::regtype, 'character varying'::regtype::oid, 1009::regtype::text,"
    " 'numeric(10,2)'::regtype, '\"char\"'::regtype",
    "SELECT 'public'::regnamespace, 'postgres'::regrole, 11::regnamespace::text",
    "SELECT 1 AS x UNION SELECT 2 UNION ALL SELECT 2 ORDER BY x DESC",
    "SELECT 'a', NULL UNION SELECT relname, relname FROM pg_class WHERE relname = 't1' ORDER BY 1",
    "SELECT 1 EXCEPT SELECT 2",
    "SELECT * FROM (VALUES (1, 'a'), (2, NULL)) v (n, t) ORDER BY n DESC NULLS LAST LIMIT 1",
    "VALUES (1, 'x'), (2, 'y')",
    "WITH q AS (SELECT 1 AS a), r (b) AS (SELECT a + 1 FROM q) SELECT * FROM q, r",
    "SELECT s, s + 1 AS next FROM generate_series(1, 3) s ORDER BY 1 DESC",
    "SELECT u.x, u.n FROM unnest(ARRAY['a', 'b']) WITH ORDINALITY AS u (x, n) ORDER BY n",
    "SELECT c.relname, a.* FROM pg_class c CROSS JOIN LATERAL (SELECT count(*) AS columns FROM"
    " pg_attribute WHERE attrelid = c.oid AND attnum > 0) a WHERE relname IN ('t1','t2')"
    " ORDER BY 1",
    "SELECT relkind, count(*), min(relname), max(relnatts), bool_or(relispartition),"
    " string_agg(relname, ',' ORDER BY relname) FROM pg_class c JOIN pg_namespace n ON"
    " n.oid = relnamespace WHERE nspname IN ('public', 'shop') AND relkind IN ('r', 'p')"
    " GROUP BY relkind HAVING count(*) > 0 ORDER BY 1",
    "SELECT array_agg(attname ORDER BY attnum) FROM pg_attribute WHERE attrelid = 't2'::regclass"
    " AND attnum > 0",
    "SELECT array(SELECT attname FROM pg_attribute WHERE attrelid = 't2'::regclass AND attnum > 0"
    " ORDER BY attnum), (SELECT count(*) FROM pg_publication WHERE puballtables) AS n,"
    " EXISTS (SELECT 1 FROM pg_subscription)",
    "SELECT DISTINCT ON (relkind) relkind, relname FROM pg_class WHERE relname IN"
    " ('t1', 't2', 'part') ORDER BY relkind, relname DESC",
    "SELECT indexrelid::regclass, indrelid::regclass, indnatts, indnkeyatts, indisunique,"
    " indisprimary, indisreplident, indimmediate, indisvalid, indkey FROM pg_index"
    " WHERE indrelid IN (SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
    " WHERE nspname IN ('public', 'shop')) ORDER BY indrelid",
    "SELECT attrelid::regclass, attname, atttypid, attlen, attnum, atttypmod, attndims, attbyval,"
    " attalign, attstorage, attnotnull, attgenerated, attisdropped, attislocal, attcollation,"
    " atthasdef FROM pg_attribute WHERE attrelid IN ('t1'::regclass, 't2'::regclass,"
    " 't3'::regclass, 't4'::regclass, 'shop.orders'::regclass, 'gen'::regclass) AND attnum > 0"
    " ORDER BY attrelid, attnum",
    "SELECT relname, relkind, relnatts, relreplident, relispartition, relpersistence, relhasindex,"
    " relhassubclass, relrowsecurity FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
    " WHERE nspname IN ('public', 'shop') AND relkind IN ('r', 'p') ORDER BY c.oid",
    "SELECT conname, contype, conrelid::regclass, conkey, pg_get_constraintdef(oid) FROM"
    " pg_constraint WHERE contype = 'p' AND conrelid > 16383 ORDER BY conrelid",
    "SELECT pg_get_indexdef('t2_pkey'::regclass), pg_get_indexdef('t2_pkey'::regclass, 2, true),"
    " pg_get_indexdef('part_pkey'::regclass)",
    "SELECT pg_get_replica_identity_index('t1'::regclass) = 't1_pkey'::regclass,"
    " pg_get_replica_identity_index('t3'::regclass),"
    " pg_get_replica_identity_index('t4'::regclass)::text",
    "SELECT * FROM pg_partition_tree('part') ORDER BY level, relid",
    "SELECT relid FROM pg_partition_ancestors('part_1'::regclass)",
    "SELECT pg_partition_ancestors('part_2')::text",
    "SELECT pg_get_partkeydef('part'::regclass), pg_get_expr(relpartbound, oid) FROM pg_class"
    " WHERE relname = 'part_1'",
    "SELECT inhrelid::regclass, inhparent::regclass, inhseqno FROM pg_inherits WHERE inhparent ="
    " 'part'::regclass ORDER BY 1",
    "SELECT partrelid::regclass, partstrat, partnatts FROM pg_partitioned_table",
    "SELECT pubname, pubowner, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate,"
    " pubviaroot FROM pg_publication ORDER BY pubname",
    "SELECT subname, subenabled, subbinary, substream, subslotname, subsynccommit,"
    " subpublications FROM pg_subscription",
    "SELECT rolname, rolsuper, rolreplication, rolcanlogin, rolconnlimit, rolpassword,"
    " rolvaliduntil FROM pg_roles WHERE rolname IN ('alice', 'bob') ORDER BY 1",
    "SELECT usename, userepl, passwd FROM pg_user WHERE usename = 'alice'",
    "SELECT datname, datallowconn, encoding FROM pg_database WHERE datname = current_database()",
    "SELECT current_database(), current_user, session_user, current_schema(),"
    " current_schemas(true)",
    "SELECT pg_is_in_recovery(), pg_encoding_to_char(6), pg_client_encoding(),"
    " current_setting('nothing.here', true)",
    "SELECT pg_size_pretty(0::bigint), pg_size_pretty(10239::bigint),"
    " pg_size_pretty(10240::bigint),"
    " pg_size_pretty(123456789::bigint), pg_size_pretty(20000000000000::bigint),"
    " pg_size_pretty(-20480::bigint)",
    "SELECT pg_table_is_visible('t1'::regclass), pg_table_is_visible('shop.orders'::regclass),"
    " pg_relation_is_publishable('t1'), pg_relation_is_publishable('t1_pkey')",
    "SELECT slot_name, plugin, slot_type, active, restart_lsn FROM pg_replication_slots"
    " WHERE slot_name = 'nothing'",
    "SELECT pid, usename, state, sent_lsn, sync_state FROM pg_stat_replication WHERE pid = -1",
    "SELECT lower('AB'), upper('ab'), length('abc'), substring('abcdef', 2, 3), replace('a.b', '.',"
    " '-'), split_part('a,b', ',', 2), left('abc', 2), btrim(' x '), starts_with('abc', 'ab')",
    "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary WHERE i.indexrelid IS NULL"
    " AND n.nspname IN ('public', 'shop') AND c.relkind = 'r' ORDER BY 1, 2",
    "SELECT '0/FF'::pg_lsn < '0/100', '1/0'::pg_lsn - '0/10', '0/a'::pg_lsn::text,"
    " pg_wal_lsn_diff('0/20', '0/30'), '0/1'::pg_lsn",
    "SELECT 'FFFFFFFF/FFFFFFFF'::pg_lsn, '80000000/0'::pg_lsn - '1/0'::pg_lsn,"
    " '0/10'::pg_lsn - '80000000/0', '7FFFFFFF/FFFFFFFF'::pg_lsn + 1,"
    " '80000000/0'::pg_lsn > '1/0', pg_wal_lsn_diff('FFFFFFFF/FFFFFFFF', '0/0')",
    "SELECT relname, relacl, has_table_privilege('alice', oid, 'SELECT'),"
    " has_table_privilege('bob', oid, 'SELECT'), has_table_privilege(oid, 'INSERT')"
    " FROM pg_class WHERE relname IN ('t1', 't2') ORDER BY 1",
    "SELECT p.oid = q.oid FROM pg_publication p JOIN pg_publication q USING (pubname) LIMIT 1",
    'SELECT \'\' AS "Weird "" name", 1 AS "A", 2 AS a',
    "SELECT table_name, count(*) FROM information_schema.table_constraints"
    " WHERE table_schema IN ('public', 'shop') AND constraint_type = 'CHECK'"
    " GROUP BY table_name ORDER BY table_name",
    "SELECT table_name, column_name FROM information_schema.constraint_column_usage"
    " WHERE constraint_name LIKE '%_pkey' ORDER BY table_name, column_name",
    "SELECT * FROM information_schema.information_schema_catalog_name",
    "SELECT * FROM pg_tables WHERE schemaname IN ('public', 'shop') ORDER BY 1, 2",
    "SELECT * FROM pg_indexes WHERE schemaname IN ('public', 'shop') ORDER BY 1, 2, 3",
    "SELECT schemaname, relname FROM pg_stat_user_tables ORDER BY 1, 2",
    "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg/_%' ESCAPE '/' ORDER BY 1",
    "SELECT json_build_object('a', 1, 'b', true, 'c', NULL, 'd', 'x\"y', 'e', 'é'::name)",
    "WITH RECURSIVE n (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n WHERE a < 5) TABLE n",
    "WITH RECURSIVE t AS (SELECT oid, 0 AS depth FROM pg_class WHERE relname = 'part' UNION"
    " SELECT i.inhrelid, t.depth + 1 FROM pg_inherits i, t WHERE i.inhparent = t.oid)"
    " SELECT count(*), max(depth) FROM t",
    "SELECT 'pg_class'::regclass, 'pg_catalog.pg_type'::regclass::oid, 2606::regclass",
    "SELECT '{1,2}'::oid[], ARRAY['pg_class'::regclass]::oid[], '{a,b}'::\"char\"[]",
]

NAMES = (
    "SELECT true, NOT true, CASE WHEN true THEN 1 ELSE relnatts END, CASE WHEN true THEN relnatts"
    " END, (ARRAY[1])[1], ('1 2'::int2vector)[0], ARRAY[1], EXISTS (SELECT 1), nullif(1, 2),"
    " 'x'::text, relname::text, coalesce(1, 2), greatest(1, 2), (SELECT 1), (SELECT relname),"
    ' array(SELECT 1), current_user, current_database(), relname COLLATE "C", 1 + 1'
    " FROM pg_class WHERE relname = 't1'"
)

_IN_ORDER = "table_schema, table_name, ordinal_position"
VIEWS = [
    *(
        f"SELECT * FROM information_schema.{view} WHERE {column} IN ('public', 'shop')"
        f" ORDER BY {key}"
        for view, column, key in (
            ("tables", "table_schema", "table_schema, table_name"),
            ("columns", "table_schema", _IN_ORDER),
            ("schemata", "schema_name <> 'public' AND schema_name", "schema_name"),
            ("key_column_usage", "table_schema", _IN_ORDER),
            ("constraint_table_usage", "table_schema", "table_schema, table_name"),
            ("views", "table_schema", "table_name"),
            ("sequences", "sequence_schema", "sequence_name"),
            ("triggers", "trigger_schema", "trigger_name"),
            ("referential_constraints", "constraint_schema", "constraint_name"),
        )
    ),
    "SELECT constraint_schema, table_schema, table_name, constraint_type, is_deferrable,"
    " initially_deferred, enforced FROM information_schema.table_constraints"
    " WHERE table_schema IN ('public', 'shop') AND constraint_type = 'PRIMARY KEY'"
    " ORDER BY table_schema, table_name",
]
ERRORS = [
    "SELECT * FROM pg_nowhere",
    "SELECT nothing FROM pg_class",
    "SELECT *",
    "SELECT c.*",
    "SELECT c.nothing FROM pg_class c",
    "SELECT d.oid FROM pg_class c",
    "SELECT oid FROM pg_class, pg_type",
    "SELECT pg_nothing(1)",
    "SELECT 'nowhere'::regclass",
    "SELECT 'shop.nowhere'::regclass",
    "SELECT 'nothing'::regtype",
    "SELECT 'nothing'::regnamespace",
    "SELECT 'nobody'::regrole",
    "SELECT oid FROM pg_class WHERE oid = 'x'",
    "SELECT 'x'::pg_lsn",
    "SELECT 'x'::int4",
    "SELECT 'x'::bool",
    "SELECT 1::nothing",
    "SELECT current_setting('nothing.here')",
    "SELECT (SELECT oid FROM pg_class)",
    "SELECT (SELECT 1, 2)",
    "SELECT 1 UNION SELECT 1, 2",
    "SELECT oid FROM pg_class ORDER BY 2",
    "SELECT '{1'::int2[]",
    "SELECT x FROM generate_series(1, 2) AS s (y)",
    "SELECT 1/0",
    "SELECT oid % 0 FROM pg_class",
    "SELECT 9223372036854775807 + 1",
    "SELECT 1::int2 + 32767::int2",
]

VERSIONS = (14, 16, 18)


@pytest.fixture
def pair(
    database_on: Callable[..., Any],
) -> Iterator[Callable[[int], tuple[Any, CatalogDatabase]]]:
    servers: list[Any] = []
    opened: list[CatalogDatabase] = []

    def of(version: int) -> tuple[Any, CatalogDatabase]:
        server = database_on(version)
        server.execute(objects.ROLES)
        servers.append(server)
        server.execute(objects.setup(version) + objects.GRANTS)
        oids = server_oids(server)
        snapshot = dataclasses.replace(
            objects.snapshot(version, oids),
            database=server.name,
            select_grants=frozenset({(oids["public.t1"], oids["alice"])}),
        )
        session = dataclasses.replace(
            objects.session(version),
            database=server.name,
            settings={"search_path": '"$user", public'},
        )
        opened.append(CatalogDatabase(snapshot, session))
        return server, opened[-1]

    yield of
    for database in opened:
        database.close()
    for server in servers:
        drop_subscription(server)
        server.execute("DROP OWNED BY alice; DROP ROLE alice; DROP ROLE bob")


@pytest.mark.parametrize("version", VERSIONS)
def test_fields_and_rows_are_a_servers(
    pair: Callable[[int], tuple[Any, CatalogDatabase]], version: int
) -> None:
    server, ours = pair(version)
    wrong: list[str] = []
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        for sql in QUERIES:
            try:
                assert reads_catalog_only(parse_query(sql))
                compare(connection, ours, sql)
            except (AssertionError, PenstockError) as error:
                wrong.append(f"{sql}\n    {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("version", VERSIONS)
def test_views_of_the_information_schema_are_a_servers(
    pair: Callable[[int], tuple[Any, CatalogDatabase]], version: int
) -> None:
    """But for lengths: yes_or_no is varchar(3) there."""
    server, ours = pair(version)
    wrong: list[str] = []
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        for sql in VIEWS:
            try:
                compare(connection, ours, sql, lengths=False)
            except AssertionError as error:
                wrong.append(f"{sql}\n    {error}")
    assert not wrong, "\n".join(wrong)


def test_columns_are_called_as_on_a_server(
    pair: Callable[[int], tuple[Any, CatalogDatabase]],
) -> None:
    server, ours = pair(18)
    with psycopg.connect(server.conninfo) as connection:
        compare(connection, ours, NAMES)


def test_errors_are_a_servers(pair: Callable[[int], tuple[Any, CatalogDatabase]]) -> None:
    server, ours = pair(18)
    wrong: list[str] = []
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        for sql in ERRORS:
            with pytest.raises(psycopg.Error) as theirs:
                connection.execute(sql)
            expected = theirs.value.diag.message_primary, theirs.value.sqlstate
            try:
                ours.query(parse_select(sql))
                found: object = "no error"
            except PenstockError as error:
                found = error.message, error.sqlstate
            if found != expected:
                wrong.append(f"{sql}\n    {expected}\n    {found}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t1",
        "SELECT * FROM pg_class, t1",
        "SELECT count(*) FROM (SELECT 1 FROM shop.orders) q",
        "INSERT INTO t1 VALUES (1)",
        "SELECT my_function(1)",
        "SELECT * FROM pg_class WHERE EXISTS (SELECT 1 FROM t1)",
    ],
)
def test_what_is_no_question_for_the_catalogs(sql: str) -> None:
    assert not reads_catalog_only(parse_query(sql))


def test_who_may_see_secrets() -> None:
    snapshot = objects.snapshot()
    plain = CatalogDatabase(snapshot, objects.session(user="alice", superuser=False))
    for sql in (
        "SELECT rolname FROM pg_authid",
        "SELECT * FROM pg_shadow",
        "SELECT subconninfo FROM pg_subscription",
        "SELECT * FROM pg_subscription",
    ):
        with pytest.raises(PenstockError, match=r"permission denied for (table|view) pg_") as error:
            plain.query(parse_select(sql))
        assert error.value.sqlstate == "42501"
    assert plain.query(parse_select("SELECT subname FROM pg_subscription"))[1] == [[b"s1"]]
    hidden = plain.query(parse_select("SELECT DISTINCT rolpassword FROM pg_roles"))[1]
    assert hidden == [[b"********"]]
    all_seeing = CatalogDatabase(snapshot, objects.session())
    cells = [
        cell or b"" for row in all_seeing.query(parse_select("TABLE pg_authid"))[1] for cell in row
    ]
    assert any(b"SCRAM-SHA-256" in cell for cell in cells)
    plain.close()
    all_seeing.close()


def test_a_publishers_password_is_never_shown() -> None:
    base = objects.snapshot()
    (subscription,) = base.subscriptions
    secret = dataclasses.replace(subscription, conninfo="host=h password=hunter2")
    database = CatalogDatabase(
        dataclasses.replace(base, subscriptions=(secret,)), objects.session()
    )
    (row,) = database.query(parse_select("SELECT subconninfo FROM pg_subscription"))[1]
    assert b"hunter2" not in (row[0] or b"") and b"host=h" in (row[0] or b"")
    database.close()


def test_files_and_duckdbs_own_are_out_of_reach() -> None:
    database = CatalogDatabase(objects.snapshot(), objects.session())
    for sql in (
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM duckdb_settings()",
        "SELECT getenv('HOME')",
        "SELECT * FROM penstock_publication_tables",
    ):
        with pytest.raises(PenstockError):
            database.query(parse_select(sql))
    database.close()


def test_settings_are_changed_by_the_session() -> None:
    changed: list[tuple[str, str | None, bool]] = []

    def set_config(name: str, value: str | None, is_local: bool) -> str:
        changed.append((name, value, is_local))
        return value or ""

    session = dataclasses.replace(objects.session(), set_config=set_config)
    database = CatalogDatabase(objects.snapshot(), session)
    fields, rows = database.query(
        parse_select("SELECT pg_catalog.set_config('search_path', '', false);")
    )
    assert rows == [[b""]] and [(f.attribute.name, f.attribute.type_oid) for f in fields] == [
        ("set_config", 25)
    ]
    assert changed == [("search_path", "", False)]
    database.close()


def test_partitioned_parents_have_the_columns_of_their_partitions() -> None:
    base = objects.snapshot()
    tables = tuple(
        dataclasses.replace(t, columns=TupleDesc()) if t.lake.partition_key else t
        for t in base.tables
    )
    database = CatalogDatabase(dataclasses.replace(base, tables=tables), objects.session())
    sql = "SELECT attname FROM pg_attribute WHERE attrelid = 'part'::regclass ORDER BY attnum"
    assert database.query(parse_select(sql))[1] == [[b"a"], [b"b"]]
    database.close()


def test_functions_that_the_node_adds() -> None:
    dropped: list[str] = []
    drop = PythonFunction(
        CatalogFunction("pg_drop_replication_slot", ("name",), "void"),
        lambda name: dropped.append(name),
    )
    name = "pg_drop_replication_slot"
    database = CatalogDatabase(objects.snapshot(), objects.session(), {name: drop})
    sql = f"SELECT {name}('s' || pubname) FROM pg_publication WHERE pubname IN ('p_t', 'p_all')"
    assert list(database.query(parse_select(sql))[1]) == [[None], [None]]
    assert sorted(dropped) == ["sp_all", "sp_t"]
    assert not reads_catalog_only(parse_query(f"SELECT {name}('s')"))
    assert reads_catalog_only(parse_query(f"SELECT {name}('s')"), [name])
    database.close()


def test_parameters_get_their_types_where_they_are_used() -> None:
    database = CatalogDatabase(objects.snapshot(), objects.session())
    sql = (
        "SELECT relname, $4 FROM pg_class WHERE (oid = $1 OR $1 IS NULL) AND relname = ANY ($2)"
        " AND relispartition = $3 AND $5::int2 = 3"
    )
    assert database.describe(parse_select(sql)).parameters == (26, 1003, 16, 25, 21)
    found = database.query(parse_select(sql), [None, b'{part_1,"t1",NULL}', b"t", b"x", b"3"])[1]
    assert found == [[b"part_1", b"x"]]
    with pytest.raises(PenstockError, match="invalid input syntax") as error:
        database.query(parse_select(sql), [b"x", b"{}", b"t", b"x", b"3"])
    assert error.value.sqlstate == "22P02"
    with pytest.raises(PenstockError, match="bind message supplies 1 parameters") as error:
        database.query(parse_select(sql), [b"1"])
    assert error.value.sqlstate == "08P01"
    database.close()


def test_views_of_the_running_node() -> None:
    row = {"pid": 12, "usename": "alice", "sent_lsn": "0/10", "state": "streaming"}
    snapshot = dataclasses.replace(objects.snapshot(), views={"pg_stat_replication": [row]})
    database = CatalogDatabase(snapshot, objects.session())
    sql = "SELECT pid, usename, sent_lsn, write_lag, backend_start FROM pg_stat_replication"
    assert database.query(parse_select(sql))[1] == [[b"12", b"alice", b"0/10", None, None]]
    database.close()


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b",
         "57014"),
        ("SELECT * FROM generate_series(1, 1000000000) a", "0A000"),
        ("SELECT * FROM generate_series(2147483647, -2147483648, -1) a", "0A000"),
    ],
)  # fmt: skip
def test_no_query_occupies_the_node(
    monkeypatch: pytest.MonkeyPatch, sql: str, sqlstate: str
) -> None:
    if sqlstate == "57014":
        monkeypatch.setattr("penstock.pg_catalog.database._LONGEST_S", 0.3)
    database = CatalogDatabase(objects.snapshot(), objects.session())
    with pytest.raises(PenstockError) as error:
        database.query(parse_select(sql))
    assert error.value.sqlstate == sqlstate
    assert database.query(parse_select("SELECT 1"))[1] == [[b"1"]]
    database.close()
