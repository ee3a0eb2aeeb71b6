"""Queries for Spark reach the tables that they name, and nothing else that Spark can reach."""

from __future__ import annotations

import pytest

from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.sql.spark_dialect import SparkTable, change_for_spark, query_for_spark

TABLES = {"t": SparkTable("view_t", (("a", "int"), ("b", "string")))}


def locate(schema: str | None, name: str) -> SparkTable:
    if schema not in (None, "public") or name not in TABLES:
        raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01")
    return TABLES[name]


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("SELECT reflect('java.lang.System', 'getenv') FROM t", "42883"),
        ("SELECT \"reflect\"('java.lang.System', 'getenv') FROM t", "42883"),
        ("SELECT builtin.reflect('java.lang.System', 'getenv') FROM t", "42883"),
        ("SELECT java_method('java.lang.System', 'exit', 1) FROM t", "42883"),
        ("SELECT try_reflect('a', 'b') FROM t", "42883"),
        ("SELECT input_file_name() FROM t", "42883"),
        ("SELECT transform(ARRAY[1], x -> reflect('a', 'b')) FROM t", "42883"),
        ("SELECT * FROM table_changes('secret', 0)", "42883"),
        ("SELECT * FROM table_changes_by_path('/lake/secret', 0)", "42883"),
        ("SELECT * FROM TABLE(table_changes_by_path('/lake/secret', 0))", "42883"),
        ("SELECT * FROM identifier('delta.`/lake/secret`')", "42883"),
        ("SELECT * FROM t, LATERAL reflect('a', 'b') x", "42883"),
        ("SELECT * FROM ROWS FROM (reflect('a', 'b'))", "0A000"),
        ("SELECT * FROM read_csv('/etc/passwd')", "0A000"),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM table_changes('x', 0))", "42883"),
        ('SELECT * FROM csv."/etc/passwd"', "42P01"),
        ('SELECT * FROM delta."/lake/secret"', "42P01"),
        ('SELECT * FROM spark_catalog.delta."/lake/secret"', "42P01"),
        ("SELECT * FROM secret, (WITH secret AS (SELECT 1) SELECT * FROM secret) q", "42P01"),
        ("WITH secret AS (SELECT * FROM secret) SELECT * FROM secret", "42P01"),
        ("WITH q AS (SELECT 1) DELETE FROM t", "0A000"),
        ("WITH q AS (SELECT 1) INSERT INTO t SELECT 1, 'x'", "0A000"),
        ("WITH q AS (DELETE FROM t RETURNING a) SELECT * FROM q", "0A000"),
        ("SELECT a INTO t FROM t", "0A000"),
        ("SELECT $1 FROM t", "42P02"),
        ("SELECT @secret FROM t", "42P02"),
        ("SELECT :secret FROM t", "42P02"),
        ("SELECT a FROM t, (WITH q AS (SELECT 1) SELECT * FROM q) x,"
         " (WITH q AS (SELECT 2) SELECT * FROM q) y", "0A000"),
        ("SELECT " + "ARRAY[" * 20 + "1" + "]" * 20 + " FROM t", "54000"),
        ("SELECT 1 FROM t" + " JOIN t x" * 40, "54001"),
        ("SELECT " + "(" * 500 + "1" + ")" * 500 + " FROM t", "54001"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_a_query_does_not_reach(text: str, sqlstate: str) -> None:
    with pytest.raises(PenstockError) as error:
        query_for_spark(text, locate)
    assert error.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("INSERT INTO t SELECT reflect('a', 'b'), 'x'", "42883"),
        ("INSERT INTO t SELECT * FROM secret", "42P01"),
        ("UPDATE t SET b = java_method('a', 'b')", "42883"),
        ("UPDATE t SET b = (SELECT max(b) FROM secret)", "42P01"),
        ("DELETE FROM t WHERE a IN (SELECT a FROM secret)", "42P01"),
        ("DELETE FROM t WHERE b = input_file_name()", "42883"),
        ("UPDATE t SET b = x.b FROM secret x", "0A000"),
        ("DELETE FROM t USING secret", "0A000"),
    ],
)
def test_what_a_change_does_not_reach(text: str, sqlstate: str) -> None:
    with pytest.raises(PenstockError) as error:
        change_for_spark(text, locate, locate)
    assert error.value.sqlstate == sqlstate


def test_joins_of_any_number() -> None:
    conditions = " JOIN t x ON true" * 30 + " NATURAL LEFT JOIN t y" * 30 + " CROSS JOIN t z" * 30
    assert query_for_spark(f"SELECT 1 FROM t{conditions}", locate).count("JOIN") == 90


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "t JOIN t x JOIN t y ON x.a = y.a ON t.a = x.a",
            "{t} AS t JOIN ({t} AS x JOIN {t} AS y ON x.a = y.a) ON t.a = x.a",
        ),
        ("(t x CROSS JOIN t) LEFT JOIN t y ON true",
         "({t} AS x CROSS JOIN {t} AS t) LEFT JOIN {t} AS y ON TRUE"),
        ("t CROSS JOIN (t x CROSS JOIN t y)",
         "{t} AS t CROSS JOIN ({t} AS x CROSS JOIN {t} AS y)"),
        ("t AS x(b, a)", "{t} AS x(b, a)"),
    ],
)  # fmt: skip
def test_joins_and_aliases_stay(source: str, expected: str) -> None:
    table = query_for_spark("SELECT 1 FROM t", locate).split(" FROM ")[1].removesuffix(" AS t")
    found = query_for_spark(f"SELECT 1 FROM {source}", locate)
    assert found.split(" FROM ")[1] == expected.format(t=table)


def test_joins_of_a_series_stay() -> None:
    for source in ("(generate_series(1, 3) AS s(n) JOIN t ON n = a) CROSS JOIN t u",
                   "t u JOIN generate_series(1, 3) AS s(n) JOIN t ON n = a ON true"):  # fmt: skip
        found = query_for_spark(f"SELECT 1 FROM {source}", locate)
        assert found.count("JOIN") == 2, found


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 FROM t, generate_series(1, 3) WITH ORDINALITY AS s(n, o)",
        "SELECT 1 FROM t TABLESAMPLE BERNOULLI (10)",
        "SELECT 1 FROM ONLY t",
        "SELECT DISTINCT ON (a) a, b FROM t ORDER BY a, b DESC",
        "SELECT a FROM t WHERE (a, b) IS NULL",
    ],
)
def test_what_spark_reads_otherwise_is_refused(query: str) -> None:
    with pytest.raises(FeatureNotSupported):
        query_for_spark(query, locate)


def test_tables_by_their_names_in_spark() -> None:
    assert query_for_spark("SELECT a FROM public.t AS x", locate) == "SELECT a FROM view_t AS x"
    assert query_for_spark("TABLE t", locate) == "SELECT * FROM view_t AS t"
    text = query_for_spark("WITH q AS (SELECT a FROM t) SELECT count(*), q.a FROM q", locate)
    assert text == "WITH q AS (SELECT a FROM view_t AS t) SELECT COUNT(*) AS `count`, q.a FROM q"
    text = query_for_spark("WITH t AS (SELECT a FROM t) SELECT t.a FROM t", locate)
    assert text == "WITH t AS (SELECT a FROM view_t AS t) SELECT t.a FROM t"
    text = query_for_spark("SELECT * FROM (WITH q AS (SELECT 1 AS a) SELECT * FROM q) s", locate)
    assert "view_t" not in text


def test_nothing_is_substituted_in_strings_and_no_comment_goes_along() -> None:
    text = query_for_spark("SELECT '${env:HOME}', 'a\\' /* ${x} */ FROM t -- ${y}", locate)
    assert text.startswith("SELECT '\\u0024{env:HOME}' AS ")
    assert "/*" not in text
    assert "--" not in text
    change = change_for_spark("INSERT INTO t VALUES (1, '${spark.secret}')", locate, locate)
    text = change.on("t")
    assert "${" not in text and "\\u0024{spark.secret}" in text


@pytest.mark.parametrize(
    ("series", "spark"),
    [
        ("generate_series(1, 3) g", "CAST(id AS INT) AS `g` FROM RANGE(1, 4, 1)) AS `g`"),
        ("generate_series(5, -1, -2) AS t(i)", "AS `i` FROM RANGE(5, -2, -2)) AS `t`"),
        ("generate_series(1, 3000000000)", "CAST(id AS BIGINT) AS `generate_series`"),
    ],
)
def test_series_of_numbers_are_ranges(series: str, spark: str) -> None:
    assert spark in query_for_spark(f"SELECT * FROM {series}", locate)


@pytest.mark.parametrize(
    ("series", "sqlstate"),
    [
        ("t, generate_series(1, t.a) g", "0A000"),
        ("generate_series('2020-01-01'::date, '2020-02-01', '1 day') g", "0A000"),
        ("generate_series(1, 2, 0) g", "22023"),
    ],
)
def test_other_series_are_refused(series: str, sqlstate: str) -> None:
    with pytest.raises(PenstockError) as error:
        query_for_spark(f"SELECT * FROM {series}", locate)
    assert error.value.sqlstate == sqlstate
