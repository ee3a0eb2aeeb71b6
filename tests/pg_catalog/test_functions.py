"""What catalog queries compute beside a real server; what a small text may cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import DiagnosticField, ExecStatus

from fix_postgres import Database
from penstock.catalog.pg_class import LakeTable
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pg_catalog import CatalogDatabase
from penstock.sql.grammar.raw_statements import parse_select
from pg_catalog import objects

QUERIES = [
    line
    for line in Path(__file__).with_name("functions.sql").read_text("utf-8").splitlines()
    if line and not line.startswith("--")
]


@pytest.fixture
def ours() -> Iterator[CatalogDatabase]:
    settings = {"search_path": '"$user", public', "server_version_num": "180000"}
    session = dataclasses.replace(objects.session(18), settings=settings)
    database = CatalogDatabase(objects.snapshot(18), session)
    yield database
    database.close()


def _theirs(connection: psycopg.Connection[object], query: str) -> object:
    result = connection.pgconn.exec_(query.encode())
    if result.status != ExecStatus.TUPLES_OK:
        state = result.error_field(DiagnosticField.SQLSTATE) or b""
        message = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
        return state.decode(), message.decode()
    width = range(result.nfields)
    names = [((result.fname(n) or b"").decode(), result.ftype(n), result.fmod(n)) for n in width]
    return names, [[result.get_value(r, n) for n in width] for r in range(result.ntuples)]


def _answer(database: CatalogDatabase, query: str) -> object:
    try:
        fields, rows = database.query(parse_select(query))
    except PenstockError as error:
        return error.sqlstate, error.message
    return [(f.attribute.name, f.attribute.type_oid, f.attribute.typmod) for f in fields], rows


@pytest.mark.postgres
def test_functions_and_casts_give_what_a_server_gives(
    database: Database, ours: CatalogDatabase
) -> None:
    wrong = []
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for query in QUERIES:
            expected, found = _theirs(connection, query), _answer(ours, query)
            if found != expected:
                wrong.append(f"{query}\n  {expected}\n  {found}")
    assert not wrong, "\n".join(wrong)


def _nested(levels: int, text: str, by: str) -> str:
    for level in range(levels):
        text = by.format(text, level)
    return text


@pytest.mark.parametrize(
    ("query", "sqlstate"),
    [
        ("SELECT repeat('x', 2000000000)", "54000"),
        ("SELECT length(repeat('x', 1000000000))", "53200"),
        ("SELECT sum(length(repeat(i::text, 200000))) FROM generate_series(1, 2048) i", "53200"),
        ("SELECT count(i::text::char(1000000)) FROM generate_series(1, 2048) i", "53200"),
        ("SELECT concat(repeat('x', 50000000), repeat('x', 50000000))", "53200"),
        ("SELECT replace(repeat('x', 30000), 'x', repeat('y', 30000))", "53200"),
        ("SELECT array_length(string_to_array(repeat('x', 30000000), NULL), 1)", "53200"),
        ("SELECT regexp_match(repeat('a', 60), '(a+)+b')", "0A000"),
        ("SELECT repeat('a', 20000000) LIKE '_' || repeat('a', 10000000) || 'b'", "53200"),
        ("SELECT regexp_count(repeat('a', 100000000), 'a')", "53200"),
        ("SELECT regexp_replace(repeat('a', 100000000), 'a', '0123456789', 'g')", "53200"),
        ("SELECT length(initcap(repeat('a ', 50000000)))", "53200"),
        ("SELECT jsonb_array_length(('[' || repeat('1,', 30000000) || '1]')::jsonb)", "53200"),
        ("SELECT btrim(repeat('ab', 9000000)::bytea, repeat('c', 9000000)::bytea) = ''", "53200"),
        (
            "SELECT " + _nested(28, "'a'::text", "(SELECT x||x FROM (SELECT {} x) q{})"),
            "53200",
        ),
        ("SELECT " + _nested(30, "1", "(CASE WHEN {} BETWEEN 1 AND 2 THEN 1 END)"), "54001"),
        ("SELECT " + _nested(30, "'t'::text", "{}::bool::text"), "54001"),
        (
            "SELECT count(*) FROM pg_class WHERE 1 = "
            + _nested(30, "1", "(CASE WHEN {} IN (oid, relpages) THEN 1 END)"),
            "54001",
        ),
        ("SELECT " + ", ".join(["1"] * 1665), "54011"),
        (
            "WITH q0 AS (SELECT * FROM pg_class), "
            + ", ".join(f"q{n + 1} AS (SELECT * FROM q{n} a, q{n} b)" for n in range(12))
            + " SELECT count(*) FROM q12",
            "54011",
        ),
    ],
    ids=lambda value: value[:50],
)
def test_a_small_text_costs_little(ours: CatalogDatabase, query: str, sqlstate: str) -> None:
    began = time.thread_time()
    with pytest.raises(PenstockError) as error:
        ours.query(parse_select(query))
    assert error.value.sqlstate == sqlstate
    assert time.thread_time() - began < 5


def test_each_query_has_its_own_budget(ours: CatalogDatabase) -> None:
    for _ in range(3):
        fields, rows = ours.query(parse_select("SELECT length(repeat('x', 100000000))"))
        assert (fields[0].attribute.name, rows) == ("length", [[b"100000000"]])


@pytest.mark.parametrize(
    ("text", "oid", "expected"),
    [
        (b"Y", 16, b"t"),
        (b"off", 16, b"f"),
        (b" 0x1F ", 23, b"31"),
        (b"NaN", 701, b"NaN"),
        (b"0044-03-15 BC", 1082, b"0044-03-15 BC"),
        (b"-5", 26, b"4294967291"),
        (b"1.50", 1700, b"1.50"),
        (b"1e40", 1700, b"1" + b"0" * 40),
        ("٣".encode(), 23, "22P02"),
        (b"maybe", 16, "22P02"),
        (b"99999", 21, "22003"),
        (b"x", 1082, "22007"),
        (b"{1,x}", 1007, "22P02"),
    ],
)
def test_parameters_are_read_as_literals_are(
    ours: CatalogDatabase, text: bytes, oid: int, expected: bytes | str
) -> None:
    try:
        _, ((found,),) = ours.query(parse_select("SELECT $1"), [text], [oid])
    except PenstockError as error:
        assert error.sqlstate == expected
        return
    assert found == expected


def test_a_parameter_of_an_unknown_type_is_text_in_order_by(ours: CatalogDatabase) -> None:
    assert ours.describe(parse_select("SELECT 1 ORDER BY $1")).parameters == (25,)
    assert ours.query(parse_select("SELECT 1 ORDER BY $1"), [b"x"])[1] == [[b"1"]]


@pytest.mark.parametrize(("clause", "sqlstate"), [("LIMIT", "2201W"), ("OFFSET", "2201X")])
def test_a_count_that_is_a_parameter_is_not_negative(
    ours: CatalogDatabase, clause: str, sqlstate: str
) -> None:
    assert ours.query(parse_select(f"SELECT 1 {clause} $1"), [None])[1] == [[b"1"]]
    with pytest.raises(PenstockError, match=f"{clause} must not be negative") as error:
        ours.query(parse_select(f"SELECT 1 {clause} $1"), [b"-1"])
    assert error.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    "query",
    [
        "SELECT generate_series(1, 3), unnest(ARRAY[1, 2])",
        "SELECT unnest(ARRAY[1, 2]) + 1, generate_series(1, 3)",
        "SELECT generate_series(1, 2), generate_subscripts(ARRAY[5, 6, 7], 1)",
        "SELECT generate_subscripts(ARRAY[5, 6], NULL, false)",
    ],
)
def test_sets_that_a_server_gives_side_by_side_are_refused(
    ours: CatalogDatabase, query: str
) -> None:
    with pytest.raises(FeatureNotSupported):
        ours.query(parse_select(query))


@pytest.mark.parametrize("column", ["rolvaliduntil - now()", "extract(year FROM rolvaliduntil)"])
def test_arithmetic_of_dates_that_may_be_infinite_is_refused(
    ours: CatalogDatabase, column: str
) -> None:
    ours.query(parse_select("SELECT rolvaliduntil, rolvaliduntil < now() FROM pg_roles"))
    with pytest.raises(FeatureNotSupported):
        ours.query(parse_select(f"SELECT {column} FROM pg_roles"))


def test_a_parameter_whose_type_nothing_tells_is_refused(ours: CatalogDatabase) -> None:
    with pytest.raises(PenstockError) as error:
        ours.describe(parse_select("SELECT $2"))
    assert (error.value.sqlstate, error.value.message) == (
        "42P18",
        "could not determine data type of parameter $1",
    )


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["x" * 63, "ä" * 31, "x" * 58, "x" * 59, "ü" * 28 + "xyz"])
def test_a_primary_key_is_named_as_on_a_server(database: Database, name: str) -> None:
    database.execute(f'CREATE TABLE "{name}" (a int PRIMARY KEY)')
    named = database.value(
        "SELECT conname FROM pg_constraint WHERE contype = 'p' AND conrelid >= 16384"
    )
    assert LakeTable(1, "public", name, None).primary_key_name == named
