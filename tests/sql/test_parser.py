"""What the grammar makes of statements; PostgreSQL's own verdict is in test_syntax_oracle."""

from __future__ import annotations

import pytest

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionPublications,
    AlterSubscriptionRefresh,
    AlterSubscriptionRefreshTables,
    AlterSubscriptionSet,
    CreateSubscription,
    DefElem,
    DropSubscription,
    RangeVar,
    Statement,
    parse,
    parse_script,
    parse_table_name,
)
from penstock.sql.grammar.raw_statements import parse_select
from penstock.sql.grammar.table import CreateTableAs

CREATE = "CREATE SUBSCRIPTION s CONNECTION 'host=h' PUBLICATION p"

STATEMENTS: list[tuple[str, Statement]] = [
    (CREATE, CreateSubscription("s", "host=h", ("p",))),
    (
        'create subscription "My ""S""" connection $$host=it\'s$$ publication P1, "P2", refresh;',
        CreateSubscription('My "S"', "host=it's", ("p1", "P2", "refresh")),
    ),
    (
        f"{CREATE} WITH (connect, Binary = ON, slot_name = NONE, \"Odd\" = 'X', n = -5, f = 1.5)",
        CreateSubscription(
            "s",
            "host=h",
            ("p",),
            (
                DefElem("connect"),
                DefElem("binary", "on"),
                DefElem("slot_name", "none"),
                DefElem("Odd", "X"),
                DefElem("n", -5),
                DefElem("f", "1.5"),
            ),
        ),
    ),
    ("ALTER SUBSCRIPTION s ENABLE", AlterSubscriptionEnabled("s", True)),
    ("ALTER SUBSCRIPTION s DISABLE", AlterSubscriptionEnabled("s", False)),
    ("ALTER SUBSCRIPTION s CONNECTION ''", AlterSubscriptionConnection("s", "")),
    ("ALTER SUBSCRIPTION s REFRESH PUBLICATION", AlterSubscriptionRefresh("s")),
    (
        "ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)",
        AlterSubscriptionRefresh("s", (DefElem("copy_data", "false"),)),
    ),
    (
        "ALTER SUBSCRIPTION s SET PUBLICATION p WITH (refresh)",
        AlterSubscriptionPublications("s", "SET", ("p",), (DefElem("refresh", None),)),
    ),
    (
        "ALTER SUBSCRIPTION s ADD PUBLICATION p, q",
        AlterSubscriptionPublications("s", "ADD", ("p", "q")),
    ),
    (
        "ALTER SUBSCRIPTION s DROP PUBLICATION p",
        AlterSubscriptionPublications("s", "DROP", ("p",)),
    ),
    (
        "ALTER SUBSCRIPTION s SET (slot_name = a.b, x = int)",
        AlterSubscriptionSet("s", (DefElem("slot_name", "a.b"), DefElem("x", "pg_catalog.int4"))),
    ),
    ("DROP SUBSCRIPTION s CASCADE", DropSubscription("s")),
    ("DROP SUBSCRIPTION IF EXISTS s RESTRICT;", DropSubscription("s", missing_ok=True)),
    ("DROP SUBSCRIPTION if", DropSubscription("if")),
]


@pytest.mark.parametrize(("text", "statement"), STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_statement_is_read(text: str, statement: Statement) -> None:
    assert parse(text) == statement


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"E'a\nb\t\'\\\x41\101\u00e9\U0001F600\q'", "a\nb\t'\\AAé😀q"),
        (r"E'\ud83d\ude00'", "😀"),
        (r"U&'d\0061t\+00010'", None),
        (r"U&'d\0061t\\'", "dat\\"),
        (r"'a\b'", r"a\b"),
        ("'a' -- comment\n 'b'", "ab"),
        ("$x$ $$ it's $x$", " $$ it's "),
        ("'/* no comment */'", "/* no comment */"),
        ("/* a /* nested */ comment */ 'x'", "x"),
    ],
)
def test_string_constants(literal: str, value: str | None) -> None:
    text = f"ALTER SUBSCRIPTION s CONNECTION {literal}"
    if value is None:
        with pytest.raises(SqlSyntaxError):
            parse(text)
    else:
        assert parse(text) == AlterSubscriptionConnection("s", value)


def test_only_ascii_letters_are_folded() -> None:
    assert parse("DROP SUBSCRIPTION ÄBc") == DropSubscription("Äbc")


def test_long_names_are_cut_at_a_character_with_a_notice() -> None:
    statement = parse("DROP SUBSCRIPTION " + "a" * 62 + "éb")
    assert statement == DropSubscription("a" * 62)
    assert statement.notices == (f'identifier "{"a" * 62}éb" will be truncated to "{"a" * 62}"',)


def test_a_script_is_split_at_semicolons() -> None:
    script = '; DROP SUBSCRIPTION a; ;\nDROP SUBSCRIPTION "b;" ; -- end;'
    assert parse_script(script) == [DropSubscription("a"), DropSubscription("b;")]
    assert parse_script("") == []
    found = parse_script(
        "CREATE TABLE x AS SELECT 1 WITH NO DATA; CREATE TABLE y AS SELECT 2; TABLE y"
    )
    tables = [statement for statement in found if isinstance(statement, CreateTableAs)]
    made = [("SELECT 1", False), ("SELECT 2", True)]
    assert [(t.query, t.with_data) for t in tables] == [(parse_select(q), w) for q, w in made]
    assert parse_script("/* ; */") == []


def test_parse_wants_exactly_one_statement() -> None:
    with pytest.raises(SqlSyntaxError, match="syntax error at end of input"):
        parse(" ; ")
    with pytest.raises(SqlSyntaxError, match="multiple commands"):
        parse("DROP SUBSCRIPTION a; DROP SUBSCRIPTION b")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CREATE VIEW v AS SELECT 1", "CREATE VIEW"),
        ("ALTER SEQUENCE q RESTART", "ALTER SEQUENCE"),
        ("REINDEX TABLE t", "REINDEX"),
        ("CREATE TABLE t (a int) WITH (autovacuum_enabled)", "WITH"),
        ("GRANT INSERT ON t TO r", "GRANT INSERT"),
        ("GRANT r TO q", "GRANT of a role"),
        ("COPY t FROM STDIN", "COPY FROM"),
        ("CREATE TABLE t (a int DEFAULT 1 + 1)", "DEFAULT"),
        ("CREATE TABLE t (a int, CHECK (a > 1))", "CHECK"),
        ("ALTER TABLE t ALTER COLUMN a TYPE text", "ALTER TABLE ... ALTER"),
        ("CREATE OR REPLACE VIEW v AS SELECT 1", "CREATE VIEW"),
        ("ALTER ROLE r SET a = 1", "ALTER ROLE ... SET"),
        ("ALTER TABLE t RENAME a TO b", "RENAME"),
        ("CREATE TEMP TABLE t (a int)", "TEMPORARY tables"),
    ],
)
def test_what_postgresql_has_and_we_have_not_is_refused_by_name(text: str, name: str) -> None:
    with pytest.raises(FeatureNotSupported, match=name) as raised:
        parse(text)
    assert raised.value.sqlstate == "0A000"
    assert raised.value.hint


SECRET = "host=h password=tops3cret"


@pytest.mark.parametrize(
    "text",
    [
        f"CREATE SUBSCRIPTION s '{SECRET}'",
        f"CREATE SUBSCRIPTION s CONNECTION 'x' '{SECRET}'",
        f"CREATE SUBSCRIPTION s '{SECRET}",
        f"CREATE SUBSCRIPTION s ${SECRET}$",
        "CREATE SUBSCRIPTION s $$postgresql://u:tops3cret@h/d$$",
    ],
)
def test_no_error_shows_a_connection_string(text: str) -> None:
    with pytest.raises(SqlSyntaxError) as raised:
        parse(text)
    assert "tops3cret" not in raised.value.report()


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ROLE r PASSWORD 'x' 'tops3cret'",
        "CREATE ROLE r ENCRYPTED 'tops3cret'",
        "ALTER ROLE r PASSWORD E'tops3cret",
        "ALTER ROLE r PASSWORD 5 $a$tops3cret$a$",
    ],
)
def test_no_error_shows_a_password(text: str) -> None:
    with pytest.raises(SqlSyntaxError) as raised:
        parse(text)
    assert "tops3cret" not in raised.value.report()


def test_no_repr_shows_a_connection_string() -> None:
    for text in (
        f"CREATE SUBSCRIPTION s CONNECTION '{SECRET}' PUBLICATION p",
        f"ALTER SUBSCRIPTION s CONNECTION '{SECRET}'",
    ):
        assert "tops3cret" not in repr(parse(text))


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        ("CREATE TABLE t (a int) INHERITS (u)", "INHERITS"),
        ("CREATE TABLE t (a int) TABLESPACE x", "TABLESPACE"),
        ("CREATE TABLE t (a text STORAGE external)", "STORAGE"),
        ("CREATE UNIQUE INDEX i ON t (a) WHERE a > 1", "WHERE"),
    ],
)
def test_a_clause_that_is_not_read_is_refused_by_name(text: str, clause: str) -> None:
    with pytest.raises(FeatureNotSupported, match=clause):
        parse(text)


@pytest.mark.parametrize(
    ("tables", "near"),
    [
        ("t RESTRICT", "RESTRICT"),
        ("t,", "end of input"),
        ("", "end of input"),
        ("t; SELECT FROM FROM", "FROM"),
    ],
)
def test_refresh_table_takes_names_alone(tables: str, near: str) -> None:
    with pytest.raises(SqlSyntaxError, match=near):
        parse_script(f"ALTER SUBSCRIPTION s REFRESH TABLE {tables}")


def test_refresh_table_within_a_script() -> None:
    script = 'BEGIN; ALTER SUBSCRIPTION "é S" REFRESH TABLE a.b, restrict; COMMIT'
    statements = parse_script(script)
    tables = (RangeVar("b", "a"), RangeVar("restrict"))
    assert statements[1] == AlterSubscriptionRefreshTables("é S", tables)


def test_a_table_name_is_nothing_else() -> None:
    assert parse_table_name('"A".b') == RangeVar("b", "A")
    for text in ("", "t u", "t CASCADE", "IF EXISTS t", "t, u", "t; DROP TABLE u", "a.b.c.d"):
        with pytest.raises(SqlSyntaxError):
            parse_table_name(text)
