"""What subscribers of 14 to 18 ask: the rows they need, and the same as from a real server."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.heavy import in_make_faults
from penstock.pg_catalog import CatalogDatabase, CatalogSnapshot, reads_catalog_only
from penstock.sql.grammar.raw_statements import parse_query, parse_select
from pg_catalog import objects
from pg_catalog import subscriber_queries as ask

VERSIONS = (14, 15, 16, 17, 18)
TABLES = [
    ("public", "t1"),
    ("public", "t2"),
    ("public", "t3"),
    ("public", "t4"),
    ("public", "gen"),
    ("shop", "Odd Table"),
    ("shop", "orders"),
    ("public", "part"),
    ("public", "part_1"),
]


def publication_sets(version: int) -> list[list[str]]:
    names = objects.publication_names(version)
    return [
        *([name] for name in names),
        names,
        ["p_part", "p_root"],
        ["p_leaf", "p_root"],
        ["p_part", "p_leaf"],
        ["p_all_root", "p_leaf"],
        ["p_t", "nowhere"],
        ["nowhere"],
    ]


def queries(snapshot: CatalogSnapshot, version: int) -> Iterator[str]:
    """All that subscribers ask a publisher of that version."""
    sets = publication_sets(version)
    for names in sets:
        yield ask.check_publications(names)
        yield ask.table_list_14(names)
        yield ask.without_identity(names)
        yield ask.check_publications_origin(names)
        yield ask.check_publications_origin(names, ancestors=False)
        yield ask.without_known_table(ask.check_publications_origin(names), "public", "t1")
        if version >= 15:
            yield ask.table_list_15(names)
        if version >= 16:
            yield ask.table_list_16(names)
    oids = {(t.lake.schema, t.lake.name): t.oid for t in snapshot.tables}
    for schema, table in (*TABLES, ("public", "nowhere")):
        yield ask.table_info(schema, table)
        oid = oids.get((schema, table))
        if oid is None:
            continue
        yield ask.primary_key(oid)
        yield ask.columns(oid, subscriber=15, publisher=version)
        yield ask.columns(oid, subscriber=18, publisher=version)
        if version >= 15:
            for names in sets:
                yield ask.column_list(oid, names)
                yield ask.row_filter(oid, names)


@pytest.fixture
def lake() -> Iterator[Callable[..., CatalogDatabase]]:
    opened: list[CatalogDatabase] = []

    def of(version: int, snapshot: CatalogSnapshot | None = None) -> CatalogDatabase:
        database = CatalogDatabase(snapshot or objects.snapshot(version), objects.session(version))
        opened.append(database)
        return database

    yield of
    for database in opened:
        database.close()


def rows(database: CatalogDatabase, sql: str) -> list[tuple[str | None, ...]]:
    _, found = database.query(parse_select(sql))
    return [tuple(None if cell is None else cell.decode() for cell in row) for row in found]


Lake = Callable[..., CatalogDatabase]


def test_every_query_is_known_as_one_of_the_catalogs() -> None:
    snapshot = objects.snapshot()
    for version in VERSIONS:
        for sql in queries(snapshot, version):
            assert reads_catalog_only(parse_query(sql)), sql
    assert reads_catalog_only(parse_query(ask.CLEAR_SEARCH_PATH))


@pytest.mark.parametrize("version", VERSIONS)
def test_publications_that_there_are(lake: Lake, version: int) -> None:
    found = rows(lake(version), ask.check_publications(["p_t", "P 'Odd'", "nowhere"]))
    assert sorted(found) == [("P 'Odd'",), ("p_t",)]


def test_tables_and_columns_by_version(lake: Lake) -> None:
    assert sorted(rows(lake(14), ask.table_list_14(["p_t"]))) == [
        ("public", "gen"),
        ("public", "t1"),
        ("public", "t2"),
    ]
    assert ("public", "gen", "{a,g,b}") in rows(lake(15), ask.table_list_15(["p_t"]))
    assert ("public", "gen", "{a,b}") in rows(lake(16), ask.table_list_15(["p_t"]))
    for version in (16, 17, 18):
        assert sorted(rows(lake(version), ask.table_list_16(["p_t"]))) == [
            ("public", "gen", "1 3"),
            ("public", "t1", "1 2 3"),
            ("public", "t2", "1 2 3"),
        ]
    assert rows(lake(18), ask.table_list_16(["p_gen"])) == [("public", "gen", "1 2 3")]


def test_different_column_lists_are_seen_as_two_rows(lake: Lake) -> None:
    found = rows(lake(17), ask.table_list_16(["p_l", "p_f"]))
    assert sorted(row for row in found if row[1] == "t1") == [
        ("public", "t1", "1"),
        ("public", "t1", "1 2"),
    ]


def test_partitions_and_their_root(lake: Lake) -> None:
    for version in (15, 16, 17, 18):
        found = rows(lake(version), ask.table_list_14(["p_part"]))
        assert sorted(found) == [("public", "part_1"), ("public", "part_2")]
        assert rows(lake(version), ask.table_list_14(["p_root"])) == [("public", "part")]
    both = rows(lake(16), ask.table_list_16(["p_root", "p_leaf"]))
    assert both == [("public", "part", "1 2")]


def test_a_table_and_its_columns(lake: Lake) -> None:
    snapshot = objects.snapshot()
    oid = snapshot.tables[1].oid
    database = lake(18)
    assert rows(database, ask.table_info("public", "t2")) == [(str(oid), "d", "r")]
    assert rows(database, ask.columns(oid, subscriber=18, publisher=18)) == [
        ("1", "a", "23", "t", "f"),
        ("2", "b", "1700", "t", "f"),
        ("3", "Weird Name", "25", "f", "f"),
    ]
    full = snapshot.tables[2].oid
    assert rows(database, ask.columns(full, subscriber=17, publisher=18))[0] == (
        "1",
        "x",
        "1184",
        None,
    )
    assert rows(database, ask.table_info("public", "part"))[0][1:] == ("d", "p")
    assert rows(database, ask.table_info("shop", "nowhere")) == []


def test_lists_and_filters_of_a_table(lake: Lake) -> None:
    oid = objects.snapshot().tables[0].oid
    for version in (15, 16, 17, 18):
        database = lake(version)
        assert rows(database, ask.column_list(oid, ["p_f"])) == [("1 2",)]
        assert rows(database, ask.column_list(oid, ["p_list_all"])) == [(None,)]
        assert rows(database, ask.column_list(oid, ["p_part"])) == []
        assert sorted(rows(database, ask.row_filter(oid, ["p_f", "p_f2"]))) == [
            ("((a > 5) AND ((c)::text = 'NSW'::text))",),
            ("(a < 3)",),
        ]
        assert (None,) in rows(database, ask.row_filter(oid, ["p_f", "p_t"]))


def test_tables_that_other_subscriptions_fill(lake: Lake) -> None:
    base = objects.snapshot()
    filled = dataclasses.replace(
        base, subscription_rels=objects.subscribed(base, "public", "part_1")
    )
    for version in VERSIONS:
        database = lake(version, filled)
        query = ask.check_publications_origin(["p_root", "p_t"])
        assert rows(database, query) == [("p_root",)]
        known = ask.without_known_table(query, "public", "part")
        assert rows(database, known) == []


@pytest.mark.parametrize("version", [14, *map(in_make_faults, (15, 16, 17)), 18])
def test_the_same_answers_as_a_server(
    database_on: Callable[..., Any], lake: Lake, version: int
) -> None:
    server = database_on(version)
    server.execute(objects.setup(version))
    try:
        snapshot = objects.snapshot(version, server_oids(server))
        ours = lake(version, snapshot)
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            for sql in queries(snapshot, version):
                compare(connection, ours, sql)
    finally:
        drop_subscription(server)


def drop_subscription(server: Any) -> None:
    server.execute("ALTER SUBSCRIPTION s1 SET (slot_name = NONE)")
    server.execute("DROP SUBSCRIPTION s1")


def server_oids(server: Any) -> dict[str, int]:
    """Oids of the server's objects by the names that ``objects`` gives them."""
    found = server.rows(
        "SELECT nspname || '.' || relname, c.oid::int8 FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'p')"
        " AND nspname IN ('public', 'shop')"
        " UNION ALL SELECT pubname, oid::int8 FROM pg_publication"
        " UNION ALL SELECT subname, oid::int8 FROM pg_subscription"
        " UNION ALL SELECT rolname, oid::int8 FROM pg_roles WHERE rolname IN ('alice', 'bob')"
        " UNION ALL SELECT 'database', oid::int8 FROM pg_database"
        " WHERE datname = current_database()"
    )
    return dict(found)


def compare(
    connection: psycopg.Connection[Any], ours: CatalogDatabase, sql: str, *, lengths: bool = True
) -> None:
    """The same fields and rows, in any order unless the query gives one.

    ``lengths``: compare typmods, too.
    """
    result = connection.pgconn.exec_(sql.encode())
    assert result.ntuples >= 0 and not result.error_message, (sql, result.error_message)
    fields, found = ours.query(parse_select(sql))
    theirs = [
        ((result.fname(n) or b"").decode(), result.ftype(n), result.fsize(n))
        for n in range(result.nfields)
    ]
    assert [(f.attribute.name, f.attribute.type_oid, f.type_size) for f in fields] == theirs, sql
    if lengths:
        assert [f.attribute.typmod for f in fields] == [
            result.fmod(n) for n in range(result.nfields)
        ], sql
    expected = [
        [result.get_value(row, n) for n in range(result.nfields)] for row in range(result.ntuples)
    ]
    if "ORDER BY" not in sql:
        found, expected = sorted(found, key=repr), sorted(expected, key=repr)
    assert found == expected, sql


def logged() -> list[tuple[int, str]]:
    """(publisher's version, query) of every query that real subscribers have sent."""
    text = Path(__file__).with_name("logged_queries.sql").read_text("utf-8")
    parts = re.split(r"^-- (\d+)\n", text, flags=re.MULTILINE)[1:]
    return [(int(v), sql) for v, sql in zip(parts[::2], parts[1::2], strict=True)]


def test_every_query_that_real_subscribers_have_sent_is_answered(lake: Lake) -> None:
    databases = {version: lake(version) for version in VERSIONS}
    for version, sql in logged():
        assert reads_catalog_only(parse_query(sql)), sql
        fields, _ = databases[version].query(parse_select(sql))
        assert fields == databases[version].describe(parse_select(sql)).fields
