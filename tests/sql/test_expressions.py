"""Expressions: the shape of trees, the built-in catalogs, constants as the server reads them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.builtin import casts, functions, operators, types
from penstock.sql.grammar.raw_statements import parse_expression, without_parentheses
from penstock.sql.typed.literals import canonical

SAME = [
    ("a OR b AND NOT c", "a OR (b AND (NOT c))"),
    ("a = b AND c", "(a = b) AND c"),
    ("NOT a = b", "NOT (a = b)"),
    ("a + b * c ^ d", "a + (b * (c ^ d))"),
    ("a - b - c", "(a - b) - c"),
    ("- a ^ b", "(- a) ^ b"),
    ("- a::int", "- (a::int)"),
    ("a || b = c", "(a || b) = c"),
    ("a || b + c", "a || (b + c)"),
    ("a < b IS NULL", "(a < b) IS NULL"),
    ("a LIKE b = c", "(a LIKE b) = c"),
    ("a BETWEEN b AND c AND d", "(a BETWEEN b AND c) AND d"),
    ("a COLLATE x || b", "(a COLLATE x) || b"),
    ("a != b", "a <> b"),
    ("CAST(a AS int)", "a::int4"),
    ("a IN (1)", "((a) IN ((1)))"),
    ("f(a)::int[]", "(f(a))::integer array"),
    ("a IS NOT DISTINCT FROM b OR c", "(a IS NOT DISTINCT FROM b) OR c"),
    ("double precision '1'", "'1'::float8"),
    ("a NOT IN (1, 2) AND b", "(a NOT IN (1, 2)) AND b"),
]


@pytest.mark.parametrize(("plain", "grouped"), SAME)
def test_precedence(plain: str, grouped: str) -> None:
    assert parse_expression(plain) == parse_expression(grouped)


@pytest.mark.parametrize("text", ["{}", "0x{}", "{}.5", "-{}"])
def test_numbers_that_python_does_not_read_are_refused(text: str) -> None:
    with pytest.raises(FeatureNotSupported):
        parse_expression(text.format("1" * 5000))


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("(" * 20000 + "'", "54001"),
        ("1 + " * 20000 + "1", "54001"),
        ("NOT " * 20000 + "a", "54001"),
        ("1 + " * 20000 + "'", "42601"),
    ],
    ids=lambda text: str(text)[:8],
)
def test_depth_is_limited(text: str, sqlstate: str) -> None:
    with pytest.raises(PenstockError) as raised:
        parse_expression(text)
    assert raised.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("(a = 1)", "a = 1"),
        ("((a) = (b))", "(a) = (b)"),
        ("(a) || (b)", "(a) || (b)"),
        ("('a)') || (b)", "('a)') || (b)"),
        ("(a = ')')", "a = ')'"),
        ("a", "a"),
        ("f(a)", "f(a)"),
        ("(a, b)", "(a, b)"),
    ],
)
def test_the_outermost_parentheses_are_left_out(text: str, plain: str) -> None:
    assert without_parentheses(text) == plain


def test_lists_have_no_depth() -> None:
    parse_expression(" OR ".join(["a = 1"] * 5000) + f" AND a IN ({', '.join('1' * 5000)})")


@pytest.fixture(scope="module")
def session(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        yield connection


def test_the_built_in_catalogs_are_those_of_postgresql_18(
    session: psycopg.Connection[tuple[object, ...]],
) -> None:
    def rows(sql: str) -> set[tuple[object, ...]]:
        return set(session.execute(sql).fetchall())

    known = {(t.oid, t.name, t.sql_name, t.category, t.preferred) for t in types().values()}
    assert known <= rows(
        "SELECT oid::int8, typname, format_type(oid, NULL), typcategory, typispreferred"
        " FROM pg_type"
    )
    assert {
        (o.oid, o.name, o.left, o.right, o.result) for v in operators().values() for o in v
    } == rows(
        "SELECT oid::int8, oprname, oprleft::int8, oprright::int8, oprresult::int8"
        " FROM pg_operator WHERE oprcode <> 0"
    )
    assert {(f.oid, f.name, f.kind, f.volatility, f.result) for f in functions().values()} <= rows(
        "SELECT oid::int8, proname, prokind, provolatile, prorettype::int8 FROM pg_proc"
    )
    assert {
        (c.source, c.target, c.function, c.context, c.method) for c in casts().values()
    } == rows(
        "SELECT castsource::int8, casttarget::int8, castfunc::int8, castcontext, castmethod"
        " FROM pg_cast"
    )


LITERALS: dict[str, list[str]] = {
    "int4": ["1", " -1 ", "+5", "0x1F", "-0b11", "1_000", "2147483648", "x", "", "1.5", "- 1"],
    "int2": ["32767", "32768"],
    "int8": ["9223372036854775807", "9223372036854775808"],
    "numeric": ["1", "1.50", "-0", "-0.00", ".5", "5.", "1e3", "1.5e-3", "1E+2", "nan", "-inf",
                "infinity", "x", "", "1_000.5", "00012.30", "0x1f", "-nan", "1e"],
    "float8": ["1", "1e20", "1e15", "1e14", "123456789012345678", "0.0001", "0.00001", "-0", "nan",
               "-inf", "1e400", "1e-400", "x", "", "5e-324", "0.1", "1.5e300", "100000", "1e23",
               "9007199254740993", "1e22", "-1e16", "1.7976931348623157e308", " .5e1 ", "1_0"],
    "float4": ["1", "1e7", "123456", "1234567", "0.0001", "0.00001", "3.4e38", "3.5e38", "1e-45",
               "0.1", "16777217", "1e-50", "-0", "nan", "8.5e9", "1e15", "1e22", "9e15", "1e6"],
    "bool": ["t", "TRUE", " yes", "on", "of", "o", "n", "0", "1", "2", "", "maybe", "tr",
             "+1", "\vtrue\n", "of ", "01", "yess"],
    "uuid": ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}", "x",
             "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11"],
    "bytea": ["\\x00FF", "\\x0", "\\xgg", "abc", "\\000\\\\", "\\9", "\\x 00 ff", "é",
              "\\x0 0", "\\377\\", "\\477", "a\\\\b", ""],
    "date": ["2020-01-31", "2020-02-30", "20200131", "0044-03-15 BC", "infinity", "-Infinity",
             "epoch", "2020-1-5", "x", "9999-12-31", "5874897-12-31", "2020-01-01 10:00:00",
             "5874898-01-01", "4714-11-24 BC", "4714-11-23 BC", "0000-01-01", "2020-13-01", "",
             "2020-02-29", "2019-02-29", "1900-02-29", "2000-02-29"],
    "timestamp": ["2020-01-31", "2020-01-31 10:00", "2020-01-31T10:00:00.123456789",
                  "2020-01-31 24:00:00", "2020-01-31 25:00:00", "0044-03-15 01:02:03 BC",
                  "2020-01-31 10:00:00+02", "infinity", "2020-01-31 23:59:60",
                  "2020-01-31 23:59:59.9999999", "2020-01-31 10:00:00.5", "294276-12-31 23:59:59",
                  "294277-01-01", "4714-11-24 00:00:00 BC", "4714-11-23 23:59:59 BC", "2020-1-1",
                  "2020-01-31 10:00:00.0000005", "2020-01-31 10:00:00.0000015"],
    "timestamptz": ["2020-01-31", "2020-01-31 10:00+02", "2020-01-31 10:00:00-08:30",
                    "2020-01-31 10:00Z", "0001-01-01 00:00:00+01", "2020-01-31 10:00 UTC",
                    "2020-01-31 10:00:00+05:30:15", "2020-01-31 10:00+0530", "2020-01-31 10:00+16",
                    "294276-12-31 23:59:59-01", "4714-11-24 00:00:00+01 BC", "2020-01-31 1:00+5"],
    "oid": ["1", " -1 ", "4294967295", "4294967296", "-2147483649", "0x1f", "x", ""],
    "xid": ["1", "-1", "4294967296", "x", "0x1f", "010"],
    "xid8": ["1", "-1", "18446744073709551616", "x"],
    "pg_lsn": ["0/0", "16/B374D848", "ffffffff/ffffffff", "1", "1/123456789", "g/1", "01/02"],
    '"char"': ["a", "", "ab", "é", "\\101", "\\377"],
    "name": ["a", "a" * 70, "é" * 40, ""],
    "int2vector": ["", "1 2", " 1  2 ", "x", "40000", "1,2"],
    "oidvector": ["1 2", "-1", "x"],
    "json": ['{"a": 1 }', "", "{", "nan", '"a', "1 2", "null", '{"a":1,"a":2}', "[1,]", "01",
             '"\\ud800"', '"\\u0000"'],
    "jsonb": ['{"b": 1.50, "a":[1,2 ,true,null]}', '{"aa":1,"b":2,"aa":3}', "1e3", "-0", "", "[",
              '"\\u0000"', '"\\u00e9"', '"\\ud800"', "1.10", '" \\t"', "false", "{}"],
    "int4[]": ["{}", "{1, 2,NULL}", "{ 1 }", '{"1"}', "{1,}", "{1", "1", "{x}", "{1}x"],
    "text[]": ['{a,"b c",NULL,"NULL",""}', '{a b, c}', '{"a\\"b"}', "{a\\,b}", "{null}"],
}  # fmt: skip


@pytest.mark.parametrize("name", LITERALS)
def test_literals_are_read_and_printed_as_by_the_server(
    name: str, session: psycopg.Connection[tuple[object, ...]]
) -> None:
    (found,) = session.execute(f"SELECT '{name}'::regtype::oid::int8").fetchall()
    oid = int(str(found[0]))
    for text in LITERALS[name]:
        try:
            row = session.execute(
                f"SELECT format('%%s', %s::{name})",
                (text,),
            ).fetchone()
            expected: object = row and row[0]
        except psycopg.Error as error:
            expected = (error.diag.sqlstate, error.diag.message_primary)
        try:
            got: object = canonical(text, oid)
        except PenstockError as error:
            got = (error.sqlstate, error.message)
        assert got == expected, text
