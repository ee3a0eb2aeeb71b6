"""The same texts to PostgreSQL 18's parser and to ours: same verdict, same message, same SQLSTATE.

PostgreSQL only parses: a Parse message of the extended protocol executes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from psycopg.pq import DiagnosticField, ExecStatus

from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError, SqlSyntaxError
from penstock.sql import parse
from penstock.sql.grammar.raw_statements import parse_expression
from penstock.sql.text.keywords import (
    COLUMN_NAME,
    RESERVED,
    TYPE_OR_FUNCTION_NAME,
    UNRESERVED,
)

Verdict = tuple[str, str, str | None, str | None]


@pytest.fixture(scope="module")
def session(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    connection = psycopg.connect(postgres.conninfo(), autocommit=True)
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def oracle(session: psycopg.Connection[tuple[object, ...]]) -> Callable[[str], Verdict | None]:
    """PostgreSQL's (SQLSTATE, message, detail, hint) for a text; None when it parses."""

    def verdict(text: str) -> Verdict | None:
        result = session.pgconn.prepare(b"", text.encode())
        if result.status == ExecStatus.COMMAND_OK:
            return None
        fields = (
            result.error_field(field)
            for field in (
                DiagnosticField.SQLSTATE,
                DiagnosticField.MESSAGE_PRIMARY,
                DiagnosticField.MESSAGE_DETAIL,
                DiagnosticField.MESSAGE_HINT,
            )
        )
        sqlstate, message, detail, hint = (f.decode() if f else None for f in fields)
        return str(sqlstate), str(message), detail, hint

    return verdict


def ours(text: str) -> Verdict | None:
    try:
        parse(text)
    except PenstockError as error:
        return error.sqlstate, error.message, error.detail, error.hint
    return None


C = "CREATE SUBSCRIPTION s CONNECTION 'dbname=x' PUBLICATION p"
W = f"{C} WITH (connect = false, "
A = "ALTER SUBSCRIPTION s"
D = "DROP SUBSCRIPTION"

TEXTS = [
    # create
    "CREATE", "CREATE SUBSCRIPTION", "CREATE SUBSCRIPTION 'x'", "CREATE SUBSCRIPTION s.t",
    "CREATE SUBSCRIPTION select CONNECTION ''", "CREATE SUBSCRIPTION left CONNECTION ''",
    "CREATE SUBSCRIPTION values CONNECTION '' PUBLICATION none",
    "CREATE SUBSCRIPTION IF NOT EXISTS s", "CREATE SUBSCRIPTION s", "CREATE FOO", "CREATE 1",
    "CREATE SUBSCRIPTION s CONNECTION", "CREATE SUBSCRIPTION s CONNECTION x",
    "CREATE SUBSCRIPTION s CONNECTION \"x\"", "CREATE SUBSCRIPTION s CONNECTION b'0'",
    "CREATE SUBSCRIPTION s CONNECTION x'0'", "CREATE SUBSCRIPTION s CONNECTION n'0'",
    "CREATE SUBSCRIPTION s CONNECTION $1", "CREATE SUBSCRIPTION s CONNECTION ''",
    "CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION", C, f"{C},", f"{C}, q", f"{C} q", f"{C}.q",
    f"{C} WITH", f"{C} WITH (", f"{C} WITH ()", f"{C} WITH (a", f"{C} WITH (a,)", f"{C} (a)",
    f"{C} WITH (a = )", f"{C} WITH (a = 1) x", f"{C} WITH (select = select, left = left)",
    f"{C} WITH ('a' = 1)", f"{C} WITH (a.b = 1)", f"{C} WITH (1 = 1)", f"{C} FOR ALL TABLES",
    f"{C};", f"{C} ;;", f"{C} -- x", f"{C} /* x", f"{C} /* /* x */",
    # values
    *(f"{W}a = {value})" for value in (
        "b", '"B"', "b.c", "b.", "b.1", "b.c.d", "none", "values", "int", "between", "row", "true",
        "all", "1", "-1", "+1", "- 1", "--1", "1.5", ".5", "5.", "1e5", "-1.5e-3", "1_000", "1__0",
        "1_", "1e", "1a", "0x1f", "0x", "0xg", "0b1", "0b2", "0o7", "0b", "99999999999999999999",
        "+", "*", "==", "=", "=>", "<", "<>", "@", "@-", "- -", "=-1", "*-1", "'a'", "'a' 'b'",
        "'a'\n'b'", "'a' -- c\n'b'", "E'a'\n'b'", "$$a$$\n'b'", "(1)", "[1]", "1 2", "a b", ":a",
        "$1", "$1a", "a::b", "E'\\u00'", "E'\\U0000'", "E'\\000'", "E'\\xff'", "E'\\x'", "e'\\q'",
        "U&'\\0061'", "U&'\\00'", "U&'\\+00006'", 'U&"\\0061"', '""', 'U&""', "E'\\u0000'",
        "U&'\\0000'", "'a", "E'a", "E'a\\", "e'a\\'", "U&'a", "x'a", "\"a", "$$a", "$a$ $b$", "$a",
        "$", "`a`", "{}", "\\d", "?", "!", "é", "Éa", "a$b", "a#b", "N'a'", "1.5.3", "#", "a%b",
    )),
    f"{W}a.b = 1)", f"{W}é)", f"{W}\"\" = 1)", f"{W}a a)", f"{W}a = 1, )", f"{W}a = 1 b = 2)",
    # alter
    "ALTER", "ALTER FOO", "ALTER SUBSCRIPTION", "ALTER SUBSCRIPTION IF EXISTS s ENABLE", A,
    f"{A} ENABLE", f"{A} ENABLE x", f"{A} DISABLE 1", f"{A} FOO", f"{A} 'x'", f"{A} \"enable\"",
    f"{A} CONNECTION", f"{A} CONNECTION 'x'", f"{A} CONNECTION 'x', 'y'", f"{A} REFRESH",
    f"{A} REFRESH PUBLICATION", f"{A} REFRESH PUBLICATION p", f"{A} REFRESH PUBLICATION WITH",
    f"{A} REFRESH PUBLICATION WITH (copy_data = )", f"{A} REFRESH PUBLICATIONS", f"{A} SET",
    f"{A} SET a", f"{A} SET (a)", f"{A} SET ()", f"{A} SET PUBLICATION", f"{A} SET PUBLICATION p",
    f"{A} SET PUBLICATION p WITH (refresh)", f"{A} SET PUBLICATION p, WITH (refresh)",
    f"{A} ADD", f"{A} ADD PUBLICATION", f"{A} ADD PUBLICATION p q", f"{A} DROP PUBLICATION p, q",
    f"{A} DROP p", f"{A} SKIP", f"{A} SKIP (lsn = NONE)", f"{A} SKIP lsn", f"{A} OWNER",
    f"{A} OWNER TO", f"{A} OWNER TO r", f"{A} OWNER TO CURRENT_ROLE", f"{A} OWNER TO select",
    f"{A} RENAME", f"{A} RENAME TO", f"{A} RENAME TO t", f"{A} RENAME TO t u", f"{A} RENAME t",
    # drop
    "DROP", D, f"{D} s", f"{D} a, b", f"{D} a.b", f"{D} IF", f"{D} IF EXISTS", f"{D} IF s",
    f"{D} IF EXISTS s", f"{D} IF NOT EXISTS s", f"{D} s CASCADE", f"{D} s RESTRICT",
    f"{D} s CASCADE RESTRICT", f"{D} s CASCADE s", f"{D} EXISTS", f"{D} none", f"{D} 'a'",
    # anything
    "FOO", "1a", "'a", "\"a", "$$a", "/* a", "*", "(", "foo bar", "é", "\"create\" subscription s",
    "CREATE\tSUBSCRIPTION\r\nfoo bar", "createsubscription", f"{C}; {A} FOO",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_verdict_is_postgresqls(text: str, oracle: Callable[[str], Verdict | None]) -> None:
    verdict = ours(text)
    if verdict and verdict[0] == "0A000":  # what we know and have not built
        verdict = None
    assert verdict == oracle(text)


STATEMENTS = (Path(__file__).parent / "statements.txt").read_text("utf-8").splitlines()
AT_EXECUTION = {
    "CREATE TABLE t (a int) PARTITION BY LIST (a, b)",
    "DROP TABLE a.b.c.d",
    "GRANT FOO ON t TO r",
}
"""PostgreSQL finds the same mistake, later."""


@pytest.mark.parametrize("text", STATEMENTS)
def test_verdict_on_the_other_statements(
    text: str, oracle: Callable[[str], Verdict | None]
) -> None:
    verdict, expected = ours(text), oracle(text)
    if expected is None and verdict is not None:
        assert verdict[0] == "0A000" or text in AT_EXECUTION
    else:
        assert verdict == expected


EXPRESSIONS = (Path(__file__).parent / "expressions.txt").read_text("utf-8").splitlines()


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_verdict_on_expressions(text: str, oracle: Callable[[str], Verdict | None]) -> None:
    try:
        parse_expression(text)
    except PenstockError as error:
        verdict = error.sqlstate, error.message, error.detail, error.hint
        expected = oracle(f"CREATE PUBLICATION p FOR TABLE t WHERE ({text})")
        assert verdict == expected or (error.sqlstate, expected) == ("0A000", None)
    else:
        assert oracle(f"CREATE PUBLICATION p FOR TABLE t WHERE ({text}\n)") is None


@pytest.mark.parametrize(
    "text",
    [
        "a), TABLE u WHERE (b",
        "a), TABLES IN SCHEMA s, TABLE u WHERE (b",
        "a), u (b",
        "a) WITH (b",
        "a); SELECT (1",
        "a); CREATE PUBLICATION q FOR TABLE t WHERE (b",
    ],
)
def test_an_expression_is_the_whole_text(text: str) -> None:
    with pytest.raises(SqlSyntaxError) as raised:
        parse_expression(text)
    assert raised.value.message == 'syntax error at or near ")"'


def test_what_is_near_a_mistake_is_no_password() -> None:
    with pytest.raises(SqlSyntaxError) as raised:
        parse_expression("1 'host=h password=hidden'")
    assert "hidden" not in raised.value.message


_TEXT = """
    CREATE ALTER DROP SUBSCRIPTION CONNECTION PUBLICATION WITH IF EXISTS ENABLE DISABLE REFRESH SET
    ADD SKIP TABLE TABLES IN SCHEMA ALL FOR CURRENT_SCHEMA ONLY * OWNER RENAME TO CASCADE RESTRICT
    NONE TRUE values between int select left s "S" 'x'
    $$x$$ E'\\n' 1 -1 1.5 ( ) , = . ; + == copy_data p /*c*/ -- "" 'u "u é
    """
_WORDS = st.sampled_from(sorted(set(_TEXT.split())))


RIGHT = (
    f"{C} , q WITH ( copy_data = true , slot_name = NONE )",
    f"{A} REFRESH PUBLICATION WITH ( copy_data = off )",
    f"{A} SET PUBLICATION p , q WITH ( refresh = false )",
    f"{A} SET ( slot_name = a.b )",
    f"{D} IF EXISTS s CASCADE",
    "CREATE PUBLICATION p FOR TABLE s . t ( a , b ) WHERE ( c > 5 ) , u",
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA s , CURRENT_SCHEMA , TABLE t",
    "ALTER PUBLICATION p ADD TABLE ONLY t , u WHERE ( c > 5 ) , v",
    "ALTER PUBLICATION p SET TABLES IN SCHEMA s , u , TABLE t * ( a ) , v",
    "DROP PUBLICATION IF EXISTS p , q CASCADE",
)
_QUERY = re.compile(r";\s*(/\*c\*/\s*)*(TABLE|values|select|with|\()", re.IGNORECASE)
"""Queries are not parsed to their end."""
_OURS = re.compile(r"refresh(\s|/\*c\*/)+table", re.IGNORECASE)
"""PostgreSQL has no REFRESH TABLE."""


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    statement=st.sampled_from(RIGHT),
    edits=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 1), st.lists(_WORDS, max_size=2)), max_size=3
    ),
)
def test_mistakes_are_found_where_postgresql_finds_them(
    oracle: Callable[[str], Verdict | None],
    statement: str,
    edits: list[tuple[int, int, list[str]]],
) -> None:
    parts = statement.split()
    for at, removed, added in edits:
        at = 2 + at % (len(parts) - 1)
        parts[at : at + removed] = added
    text = " ".join(parts)
    assume(not _QUERY.search(text) and not _OURS.search(text))
    expected, got = oracle(text), ours(text)
    if expected is None and not text.split("--")[0].strip(" ;"):
        assert got == ("42601", "syntax error at end of input", None, None)
    elif got is None or got[0] != "0A000":
        assert got == expected, text


def test_key_words_are_those_of_postgresql_18(
    session: psycopg.Connection[tuple[object, ...]],
) -> None:
    for category, known in (
        ("R", RESERVED),
        ("T", TYPE_OR_FUNCTION_NAME),
        ("C", COLUMN_NAME),
        ("U", UNRESERVED),
    ):
        rows = session.execute(
            "SELECT word FROM pg_get_keywords() WHERE catcode = %s", (category,)
        ).fetchall()
        assert {row[0] for row in rows} == known


_OPENING_TEXT = "' '' \\' e' x' b' n' \" u&\" $$ $a$ $ /* */ -- \\ a 1 ; ( )"
_OPENINGS = frozenset(_OPENING_TEXT.split())
"""What begins and ends quotes and comments."""


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([*sorted(_OPENINGS), " "]), min_size=1, max_size=8),
    st.sampled_from(["", " "]),
)
@example(['u&"', "\\", '"', "$$"], "")
def test_what_never_ends_begins_where_postgresql_says(
    oracle: Callable[[str], Verdict | None], pieces: list[str], gap: str
) -> None:
    text = "DROP SUBSCRIPTION " + gap.join(pieces)
    expected, got = oracle(text), ours(text)
    if expected is not None and "unterminated" in expected[1]:
        assert got == expected, text
