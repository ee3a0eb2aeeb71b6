"""Every clause of SELECT, INSERT, UPDATE and DELETE: as on a server, or refused by name.

A statement that a server refuses has its SQLSTATE here, too, or 0A000; one that it takes is taken
or 0A000. What only other engines know (LIMIT in DELETE, OVERWRITE, functions of Spark and DuckDB)
is never taken.
"""

from __future__ import annotations

import psycopg
import pytest

from executor.lake_oracle import LakeOracle
from fix_postgres import Database
from penstock.errors import PenstockError
from penstock.sql.grammar.parsenodes import InsertStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.to_duckdb.duckdb_change import compile_expression, compile_insert
from penstock.sql.typed.change_analysis import analyze_change, analyze_insert

pytestmark = pytest.mark.postgres

_SELECTS = """
SELECT
SELECT FROM t
SELECT * FROM t ORDER BY id
SELECT t.*, id AS x, 1 AS "A b" FROM t ORDER BY 1
SELECT ALL id FROM t ORDER BY id
SELECT DISTINCT ON (v) id, v FROM t ORDER BY v, id
SELECT DISTINCT ON (2, id) id AS a, v FROM t ORDER BY a, 2 DESC, v || 'x'
SELECT DISTINCT ON (id % 2) v FROM t ORDER BY id % 2, id DESC
SELECT DISTINCT ON (v) id FROM t ORDER BY id
SELECT DISTINCT ON (v, id) id FROM t ORDER BY id, v || 'x', v
SELECT DISTINCT ON (v, id) id FROM t ORDER BY id, v || 'x'
SELECT DISTINCT ON (9) id FROM t
SELECT DISTINCT ON ('x') id FROM t
SELECT DISTINCT ON (nothing) id FROM t
SELECT DISTINCT ON (v) v, count(*) FROM t GROUP BY v ORDER BY v
SELECT DISTINCT ON (id) v FROM t GROUP BY v
SELECT DISTINCT ON (v) v, sum(id) OVER () AS s FROM t ORDER BY v LIMIT 2 OFFSET 1
SELECT id / 3.0, round(id / 0.07, 2), round(id / 3.0), 10 / 4.00 FROM t ORDER BY 1
SELECT id FROM t WHERE id / 2.0 > 1 ORDER BY id / -7.0
SELECT id / 0.0 FROM t
SELECT NULL / 0.0, 1.0 / NULL
SELECT CASE WHEN id > 9 THEN 1 / (id - id)::numeric ELSE 2 / 3.0 END FROM t
SELECT DISTINCT ON (v) id FROM t ORDER BY v, v DESC, id, v
SELECT sum(id) / count(*)::numeric, avg(id / 4.0) FROM t
SELECT (0.5)::text || 'x', (-0.05)::text, (1e-20)::text, 0.5::varchar FROM t
SELECT CASE WHEN id > 1 THEN 0.5 ELSE 'NaN'::numeric END FROM t ORDER BY 1
SELECT id FROM t WHERE coalesce(-0.5, 'NaN'::numeric) = CASE WHEN id > 0 THEN -0.5 ELSE 1e50 END
SELECT ARRAY[0.5, -0.25] = ARRAY[0.5, -.25], ARRAY[0.5]::numeric[] FROM t
SELECT id INTO other FROM t
SELECT * FROM ONLY t ORDER BY id
SELECT * FROM t TABLESAMPLE system (100)
SELECT * FROM t AS a (x, y) ORDER BY x
SELECT * FROM t AS a (x, y, z, w, q)
SELECT * FROM (SELECT id FROM t) ORDER BY id
SELECT * FROM (VALUES (1, 'x'), (2, NULL)) AS v (a, b) ORDER BY a
SELECT * FROM (VALUES (1), (2, 3)) AS v
SELECT * FROM generate_series(1, 3)
SELECT * FROM generate_series(1, 3) WITH ORDINALITY
SELECT * FROM generate_series(1, abs(-3))
SELECT * FROM generate_series(1, int4(2.6))
SELECT * FROM generate_series(sign(-5)::int, 3)
SELECT date '2024-01-01' + interval '1 day' * sqrt(4)
SELECT date '2024-01-01' + interval '1 day' * 4::int2
SELECT date '2024-01-01' + interval '1 day' * round(2.4::float8)
SELECT date '2024-01-01' + nullif(interval '1 day', interval '1 day')
SELECT nullif(7 / 2, 3), nullif(1, 1), (1 + 1 IS DISTINCT FROM 2), CASE 2 WHEN 1 + 1 THEN 'x' END
SELECT id FROM t WHERE id IS DISTINCT FROM 1 AND nullif(v, 'a') IS NULL ORDER BY id
SELECT * FROM unnest(ARRAY[1, 2])
SELECT * FROM ROWS FROM (generate_series(1, 2), generate_series(1, 3))
SELECT * FROM pg_read_file('/etc/passwd')
SELECT * FROM t a JOIN u b USING (id) ORDER BY 1
SELECT * FROM t a JOIN u b USING (id) AS j
SELECT * FROM t NATURAL LEFT JOIN u ORDER BY 1
SELECT * FROM t CROSS JOIN u ORDER BY 1, 3
SELECT * FROM t, LATERAL (SELECT t.id + 1 AS n) AS l ORDER BY n
SELECT * FROM t, (SELECT t.id) AS l
SELECT * FROM t JOIN t ON true
SELECT nothing FROM t
SELECT t.nothing FROM t
SELECT x.id FROM t
SELECT id FROM t, u
SELECT * FROM missing
SELECT * FROM elsewhere.t
SELECT id FROM t WHERE v
SELECT id FROM t WHERE count(*) > 1
SELECT id FROM t WHERE row_number() OVER () = 1
SELECT v, count(*) FROM t GROUP BY v ORDER BY v
SELECT v, id FROM t GROUP BY v
SELECT count(*) FROM t GROUP BY ROLLUP (v)
SELECT count(*) FROM t GROUP BY GROUPING SETS ((v), ())
SELECT v, count(*) FROM t GROUP BY 1 ORDER BY 2 DESC, 1
SELECT v, count(*) FROM t GROUP BY 3
SELECT v AS id, count(*) FROM t GROUP BY id
SELECT max(id) FROM t HAVING count(*) > 0
SELECT max(id) FROM t HAVING id > 0
SELECT 1 FROM t HAVING true
SELECT 1 FROM t HAVING false
SELECT 1 AS one FROM t GROUP BY NULL::int
SELECT 1 AS one FROM t WHERE false GROUP BY NULL::int
SELECT 5 AS v, count(*) FROM t GROUP BY v
SELECT count(*) FROM t WHERE false
SELECT count(*) FROM t WHERE false GROUP BY ()
SELECT id + 1, count(*) FROM t GROUP BY id + 1 ORDER BY id + 1
SELECT id % 2 AS m FROM t GROUP BY m HAVING count(*) > 1 ORDER BY m
SELECT count(*) FROM t ORDER BY count(*)
SELECT id FROM t ORDER BY count(*)
SELECT max(id) FROM t a WHERE EXISTS (SELECT max(a.id) FROM u)
SELECT (SELECT count(a.id) FROM u) FROM t a ORDER BY 1
SELECT (SELECT a.id FROM u LIMIT 1), count(*) FROM t a
SELECT sum(sum(id)) OVER () FROM t
SELECT sum(id) OVER (), sum(id) FROM t
SELECT sum(sum(id) OVER ()) FROM t
SELECT sum(count(*)) FROM t
SELECT count(DISTINCT id ORDER BY v) FROM t
SELECT string_agg(v, ',' ORDER BY v DESC) FROM t
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM t
SELECT count() FROM t
SELECT upper(DISTINCT v) FROM t
SELECT upper(*) FROM t
SELECT id, sum(id) OVER w FROM t WINDOW w AS (ORDER BY id) ORDER BY id
SELECT sum(id) OVER nowhere FROM t
SELECT id, sum(id) OVER (ORDER BY id GROUPS 1 PRECEDING) FROM t ORDER BY id
SELECT sum(id) OVER (ORDER BY id ROWS 1 PRECEDING EXCLUDE CURRENT ROW) FROM t
SELECT ntile(0) OVER () FROM t
SELECT id FROM t UNION SELECT id FROM u ORDER BY 1
SELECT id FROM t UNION SELECT id FROM u ORDER BY id + 1
SELECT id FROM t UNION SELECT v FROM t
SELECT id FROM t UNION SELECT id, v FROM t
(SELECT id FROM t ORDER BY id LIMIT 1) UNION ALL (SELECT 7) ORDER BY 1
SELECT date '2020-01-01' AS a UNION SELECT NULL ORDER BY 1
SELECT '2020-01-01' UNION SELECT date '2020-01-02' ORDER BY 1
SELECT 'a' UNION SELECT NULL UNION SELECT 'b' ORDER BY 1
SELECT NULL UNION SELECT NULL UNION SELECT 1
SELECT '1' UNION ALL SELECT id FROM t ORDER BY 1
(SELECT NULL ORDER BY 1) UNION ALL SELECT 1 ORDER BY 1
(SELECT NULL ORDER BY 1) UNION ALL SELECT 'a' ORDER BY 1
(SELECT DISTINCT NULL) UNION ALL SELECT 1
(SELECT DISTINCT ON (1) NULL) UNION ALL SELECT 1
(SELECT NULL GROUP BY 1) UNION ALL SELECT 1
(SELECT NULL, NULL ORDER BY 2) UNION ALL SELECT 1, 'a' ORDER BY 1
(SELECT NULL AS a, NULL ORDER BY a) UNION ALL SELECT 1, 'a'
TABLE t ORDER BY id
VALUES (1, 'a'), (2, 'b') ORDER BY 1 DESC
SELECT id FROM t ORDER BY id USING >
SELECT id FROM t ORDER BY 9
SELECT id FROM t ORDER BY v, 'x'
SELECT DISTINCT id FROM t ORDER BY v
SELECT id FROM t ORDER BY id NULLS FIRST LIMIT 1 OFFSET 1
SELECT id FROM t ORDER BY id LIMIT ALL
SELECT id FROM t ORDER BY id LIMIT NULL
SELECT id FROM t LIMIT -1
SELECT id FROM t ORDER BY id LIMIT 1 + 1 OFFSET 2 - 1
SELECT id FROM t ORDER BY id LIMIT length('3')
SELECT id FROM t ORDER BY id LIMIT abs(-2)
SELECT id FROM t ORDER BY id LIMIT -(+2)
SELECT id FROM t ORDER BY id LIMIT coalesce(NULL, 2)
SELECT id FROM t ORDER BY id LIMIT 1.5
SELECT id FROM t ORDER BY id LIMIT 2.5::float8
SELECT id FROM t ORDER BY id LIMIT NULL::int + 1
SELECT id FROM t ORDER BY id LIMIT 100000::int2
SELECT id FROM t ORDER BY id LIMIT 1 / 0
SELECT id FROM t ORDER BY id LIMIT 'NaN'::numeric
SELECT id FROM t ORDER BY id LIMIT 'NaN'::float8
SELECT id FROM t ORDER BY id LIMIT true
SELECT id FROM t ORDER BY id LIMIT v
SELECT id FROM t ORDER BY id LIMIT (SELECT 1)
SELECT id FROM t ORDER BY id OFFSET length('3')
SELECT sum(id) OVER (ORDER BY id ROWS '1' PRECEDING) FROM t ORDER BY id
SELECT sum(id) OVER (ORDER BY id ROWS 1.5 PRECEDING) FROM t ORDER BY id
SELECT sum(id) OVER (ORDER BY id ROWS 'x' PRECEDING) FROM t ORDER BY id
SELECT sum(id) OVER (ORDER BY id ROWS true PRECEDING) FROM t ORDER BY id
SELECT sum(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND -1 FOLLOWING) FROM t ORDER BY id
SELECT 1 FROM t WINDOW w AS (ORDER BY nothing)
SELECT id FROM t WINDOW w AS (ORDER BY count(*))
SELECT 1 FROM t WINDOW w AS (ORDER BY count(*))
SELECT count(*), rank() OVER w FROM t WINDOW w AS (ORDER BY count(*))
SELECT rank() OVER (ORDER BY id) FROM t GROUP BY 1
SELECT rank() OVER (ORDER BY id * 2.5::float8) FROM t ORDER BY 1
SELECT ARRAY(SELECT '{1}'::int[]) FROM t
SELECT ARRAY(SELECT now()) IS NULL FROM t
SELECT id FROM t WINDOW w AS (ORDER BY rank() OVER ())
SELECT id, rank() OVER w FROM t WINDOW w AS (ORDER BY id), w AS (ORDER BY v) ORDER BY id
SELECT id, rank() OVER w FROM t WINDOW w AS (ORDER BY id), v AS (ORDER BY v) ORDER BY id
SELECT id FROM t WINDOW w AS (ORDER BY id), v AS (w)
WITH RECURSIVE a AS (SELECT * FROM u), u AS (SELECT 7 AS id) SELECT a.id, t.id FROM a, t ORDER BY 2
WITH a AS (SELECT * FROM u), u AS (SELECT 7 AS id) SELECT a.id FROM a, t ORDER BY 1
WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT 1 FROM a, t
SELECT (SELECT count(*) FILTER (WHERE t.id > 1) FROM u) FROM t
SELECT (SELECT sum((SELECT t.id)) FROM u) FROM t
SELECT (SELECT string_agg('x', ',' ORDER BY t.id) FROM u) FROM t
SELECT (SELECT sum(u.id + t.id) FROM u) FROM t ORDER BY 1
SELECT (SELECT sum((SELECT max(u.id) FROM u)) FROM u) FROM t ORDER BY 1
SELECT sum(id) FILTER (WHERE sum(id) > 1) FROM t
SELECT sum(id) FILTER (WHERE rank() OVER () > 1) FROM t
SELECT string_agg(v, ',' ORDER BY sum(id)) FROM t
SELECT string_agg(v, ',' ORDER BY rank() OVER ()) FROM t
SELECT string_agg(v, NULL ORDER BY v) FROM t
SELECT '{1}'::int[] || NULL::int[], NULL::int || '{1}'::int[]
SELECT (SELECT 1)::text, (SELECT id FROM t LIMIT 1)::int2, (VALUES (1)), (SELECT 1 UNION SELECT 1)
SELECT (SELECT * FROM (SELECT max(id) AS most FROM t) AS q), coalesce((SELECT 1), 2)
SELECT text(id) FROM t ORDER BY id
SELECT 1 FROM t u, u
SELECT 1 NOT BETWEEN abs(-2) AND 0 FROM t
SELECT id FROM t WHERE (1 >= abs(-1) OR 1 / 0 > 1) AND id = 1
SELECT id FROM t WHERE 1 / 0 = 1 AND false
SELECT coalesce(NULL, 'infinity'::timestamp), '-infinity'::timestamptz, 'infinity'::date FROM t
SELECT 'infinity'::date::timestamptz, ARRAY['infinity'::date] FROM t
SELECT v LIKE 'x' ESCAPE 'ab' FROM t
SELECT DISTINCT ON (id) id, generate_series(1, 2) FROM t ORDER BY id
SELECT id FROM t OFFSET -1
SELECT id FROM t LIMIT id
SELECT id FROM t ORDER BY id FETCH FIRST 2 ROWS ONLY
SELECT id FROM t ORDER BY id FETCH FIRST 1 ROW WITH TIES
SELECT id FROM t FOR UPDATE
WITH q AS (SELECT 1 AS a) SELECT * FROM q
WITH q(a, b) AS (SELECT 1) SELECT * FROM q
WITH q AS (SELECT 1), q AS (SELECT 2) SELECT * FROM q
WITH q AS (DELETE FROM t RETURNING id) SELECT * FROM q
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r
SELECT (SELECT id FROM t)
SELECT (SELECT id, v FROM t WHERE id = 1)
SELECT (SELECT max(id) FROM u WHERE u.id = t.id) FROM t ORDER BY t.id
SELECT ARRAY(SELECT id FROM t ORDER BY id)
SELECT id FROM t WHERE (id, v) = (1, 'a')
SELECT id FROM t WHERE (id, v) IN (SELECT id, v FROM t)
SELECT t FROM t
SELECT (t).id FROM t
SELECT ctid FROM t
SELECT id::text || v FROM t ORDER BY 1
SELECT id || v FROM t ORDER BY 1
SELECT v::int FROM t
SELECT 1 / 0
SELECT 1 / (id - 1) FROM t
SELECT 2147483647 + id FROM t
SELECT 'x'::int
SELECT 'x'::nothing
SELECT v = 1 FROM t
SELECT now() - now()
SELECT current_user
SELECT $1
SELECT pg_sleep(0) FROM t
SELECT id FROM t WHERE pg_sleep(0)
SELECT pg_notify('a', v) FROM t
SELECT xpath('//a', '<!DOCTYPE a SYSTEM "http://localhost:1/">')
SELECT xmlparse(DOCUMENT '<a/>')
SELECT query_to_xml('SELECT 1', true, true, '')
SELECT lo_import('/etc/passwd')
SELECT set_config('a.b', 'c', false)
SELECT reflect('java.lang.System', 'exit', 1)
SELECT java_method('java.lang.Runtime', 'getRuntime')
SELECT input_file_name() FROM t
SELECT read_text('/etc/passwd')
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM table_changes('t', 0)
SELECT getenv('HOME')
SELECT '${spark.driver.host}' AS v
SELECT id FROM t QUALIFY row_number() OVER () = 1
SELECT id FROM t LIMIT 1, 2
SELECT TOP 1 id FROM t
SELECT id FROM t SORT BY id
SELECT id FROM t LATERAL VIEW explode(ARRAY[1]) e AS x
SELECT * EXCLUDE (id) FROM t
SELECT id FROM t VERSION AS OF 0
SELECT id FROM 't.parquet'
FROM t
PIVOT t ON id
DESCRIBE t
"""
_CHANGES = """
INSERT INTO t VALUES (7, 'x')
INSERT INTO t (id) VALUES (7)
INSERT INTO t (v, id) VALUES ('x', 7), (DEFAULT, 8)
INSERT INTO t AS a VALUES (7, 'x')
INSERT INTO t SELECT id + 10, v FROM t
INSERT INTO t SELECT 7, 'x' UNION SELECT 8, 'y'
INSERT INTO t TABLE t
INSERT INTO t DEFAULT VALUES
INSERT INTO t VALUES (7, 'x', 1)
INSERT INTO t (id, v) VALUES (7)
INSERT INTO t (id, id) VALUES (7, 8)
INSERT INTO t (nothing) VALUES (7)
INSERT INTO t VALUES ('x', 'x')
INSERT INTO t VALUES (true, 'x')
INSERT INTO t VALUES (7, 'x'), (8)
INSERT INTO t VALUES (7, 'x') ON CONFLICT DO NOTHING
INSERT INTO t VALUES (7, 'x') ON CONFLICT (id) DO UPDATE SET v = 'y'
INSERT INTO t VALUES (7, 'x') RETURNING id
INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (7, 'x')
WITH q AS (SELECT 7) INSERT INTO t (id) SELECT * FROM q
INSERT INTO t (id)
INSERT OVERWRITE t VALUES (7, 'x')
INSERT INTO t PARTITION (id = 1) VALUES ('x')
INSERT INTO t BY NAME SELECT 1 AS id
INSERT OR REPLACE INTO t VALUES (7, 'x')
INSERT INTO t VALUES (7, left('abc', -1))
INSERT INTO t VALUES (7, now())
INSERT INTO n VALUES (1.005, 'toolong')
INSERT INTO n VALUES (1.005, 'x')
INSERT INTO n VALUES (99999, 'x')
INSERT INTO n SELECT id, v FROM t
UPDATE t SET v = 'x'
UPDATE t SET v = 'x' WHERE id = 1
UPDATE ONLY t SET v = 'x'
UPDATE t AS a SET v = a.v || 'x' WHERE a.id = 1
UPDATE t a SET v = t.v
UPDATE t SET v = DEFAULT
UPDATE t SET (id, v) = (7, 'x') WHERE id = 1
UPDATE t SET (id, v) = (SELECT 7, 'x') WHERE id = 1
UPDATE t SET v = (SELECT max(s) FROM u)
UPDATE t SET v = u.s FROM u WHERE u.id = t.id
UPDATE t SET v = 'x' WHERE id = 1 RETURNING *
UPDATE t SET v = 'x' WHERE CURRENT OF c
UPDATE t SET nothing = 1
UPDATE t SET id = 'x'
UPDATE t SET v = t.*
UPDATE t SET id = v
UPDATE t SET v = 'x', v = 'y'
UPDATE t SET id = count(*)
UPDATE t SET t.v = 'x'
UPDATE t SET v = 'x' LIMIT 1
UPDATE t SET v = 'x' ORDER BY id
UPDATE t JOIN u ON true SET v = 'x'
DELETE FROM t
DELETE FROM t WHERE id = 1
DELETE FROM ONLY t AS a WHERE a.id = 1
DELETE FROM t USING u WHERE u.id = t.id
DELETE FROM t WHERE id IN (SELECT id FROM u)
DELETE FROM t WHERE id = 1 RETURNING id
DELETE FROM t WHERE id > 0 LIMIT 1
DELETE FROM t WHERE v
DELETE FROM t ORDER BY id
DELETE t WHERE id = 1
DELETE FROM t JOIN u ON true
DELETE FROM t WHERE CURRENT OF c
MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE
"""


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.fixture
def tables(database: Database) -> LakeOracle:
    found = LakeOracle(database.connect())
    found.create("t", {"id": "int", "v": 'text COLLATE "C"'}, [["1", "a"], ["2", None], ["3", "c"]])
    found.create("u", {"id": "int", "s": 'text COLLATE "C"'}, [["1", "x"], ["4", "y"]])
    found.create("n", {"p": "numeric(5,2)", "c": "varchar(3)"}, [])
    return found


def test_queries(tables: LakeOracle) -> None:
    for statement in _lines(_SELECTS):
        tables.compare(statement)
    assert not tables.tally.differences, "\n".join(tables.tally.differences)


_OF_SESSION = """
SELECT now(), transaction_timestamp(), current_timestamp, localtimestamp, current_date
SELECT current_user, session_user, user, current_role, current_catalog, current_database()
SELECT id FROM t WHERE now() > current_timestamp OR current_user = v
SELECT id FROM t WHERE current_date - 1 < current_date AND localtimestamp IS NOT NULL ORDER BY 1
SELECT DISTINCT current_date AS d, now() AS n FROM t ORDER BY n
SELECT current_user || v, length(current_user), (SELECT now() = now()) FROM t ORDER BY id
SELECT count(*), now() FROM t GROUP BY now()
SELECT localtime
SELECT current_timestamp(3)
SELECT current_timestamp(0)
SELECT clock_timestamp()
SELECT current_schema
"""


def test_what_a_session_says(tables: LakeOracle, database: Database) -> None:
    """In a transaction, which has one time."""
    with tables.transaction():
        for statement in _lines(_OF_SESSION):
            tables.compare(statement)
    assert not tables.tally.differences, "\n".join(tables.tally.differences)
    assert tables.tally.counts["equal"] == 7, tables.tally.refused


_SCALES = """
VALUES (1::numeric), (2.50), (NULL)
VALUES (1, 1000.0), (2, 0.001) ORDER BY 2
SELECT * FROM (VALUES (1::numeric), (0.50), (12.005)) AS v(a) WHERE a > 0.5 ORDER BY a DESC
SELECT a::text || 'x', a + 1 = 1.5, a FROM (VALUES (1::numeric), (0.50)) AS v(a) ORDER BY a
SELECT sum(a), max(a), count(DISTINCT a) FROM (VALUES (1::numeric), (2.50)) AS v(a)
SELECT a FROM (VALUES (1::numeric), (2.50)) AS v(a) JOIN t ON t.id = a ORDER BY 1
SELECT 1000::numeric AS n UNION ALL SELECT 0.001 UNION ALL SELECT -.50 ORDER BY n
WITH q(n) AS (SELECT 1000::numeric UNION ALL SELECT 0.001) SELECT n, n * 2 > 1 FROM q ORDER BY n
SELECT n FROM (SELECT 1000::numeric AS n UNION ALL SELECT 0.001) AS q ORDER BY n LIMIT 1
SELECT id, coalesce(p, 0), coalesce(NULL, 2.0, p), coalesce(p, q) FROM m ORDER BY id
SELECT id, coalesce(p, q)::text FROM m ORDER BY 2
SELECT id, CASE WHEN id > 2 THEN p ELSE 1.5 END, CASE id WHEN 1 THEN 0.5 END FROM m ORDER BY 2, 1
SELECT sum(coalesce(p, 0)), avg(coalesce(p, 0.00)) FROM m
SELECT id FROM m WHERE coalesce(p, 0) > 1 AND coalesce(p, q) IN (1.5, 10) ORDER BY coalesce(p, 0)
SELECT (SELECT count(*) FROM (VALUES (1::numeric), (2.50)) AS v(a) WHERE a > id) FROM m ORDER BY 1
SELECT id FROM m WHERE p IN (SELECT * FROM (VALUES (1.5), (2.500)) AS v(a)) ORDER BY id
SELECT id FROM m WHERE p IN (VALUES (1.5), (2.500)) OR EXISTS (VALUES (1.5), (2)) ORDER BY id
SELECT count(*) FROM m GROUP BY coalesce(p, 0) ORDER BY 1
SELECT coalesce(max(p), 0) FROM m WHERE id > 100
SELECT id, coalesce(max(p), 0) FROM m GROUP BY id ORDER BY id
SELECT DISTINCT ON (id) coalesce(p, 0) FROM m ORDER BY id
SELECT lag(id) OVER (ORDER BY coalesce(p, 0), id), coalesce(p, 0) FROM m ORDER BY id
SELECT DISTINCT coalesce(p, 0) FROM m ORDER BY 1
SELECT DISTINCT a, a > 1 FROM (VALUES (1::numeric), (2.50), (2.50)) AS v(a) ORDER BY a DESC
SELECT DISTINCT a FROM (VALUES (1::numeric), (2.50)) AS v(a)
SELECT coalesce(p, 0), count(*), max(id) FROM m GROUP BY coalesce(p, 0) ORDER BY 1
SELECT a, a > 1, count(*) FROM (VALUES (1::numeric), (2.50), (1)) AS v(a) GROUP BY a ORDER BY a
SELECT a FROM (VALUES (1::numeric), (2.50), (1)) AS v(a) GROUP BY a HAVING count(*) = 1
SELECT 1::numeric AS n UNION SELECT 2.50 UNION SELECT 1 ORDER BY n
SELECT n, n > 2 FROM (SELECT p AS n FROM m UNION SELECT q FROM m) AS s ORDER BY n
SELECT count(*) FROM (SELECT p AS n FROM m UNION SELECT q FROM m) AS s
SELECT greatest(1::numeric, 2.50), least(1::numeric, 2.50), greatest(NULL, 1.0, 1.00, 0.123)
SELECT id, greatest(p, q, 3), least(p, q, 3), greatest(p, NULL::numeric) FROM m ORDER BY id
SELECT greatest(p, 1)::text, least(coalesce(p, 5), q) FROM m ORDER BY id
SELECT least(greatest(p, 1), 1.5000) FROM m ORDER BY id
SELECT ARRAY[1::numeric, 2.50, NULL], ARRAY[1, 2.5]::numeric[], ARRAY[0.5, 10]
SELECT id, ARRAY[p, q, 0.1] FROM m ORDER BY id
SELECT a FROM (VALUES (ARRAY[1::numeric, 2.50]), (ARRAY[3.000])) AS v(a)
SELECT ARRAY[1::numeric, 2.50] UNION ALL SELECT ARRAY[0.001]
SELECT min(a), max(a), count(a) FROM (VALUES (1::numeric), (2.50), (NULL)) AS v(a)
SELECT min(a), max(a) FILTER (WHERE a < 2) FROM (VALUES (1::numeric), (2.50)) AS v(a)
SELECT max(a) OVER (ORDER BY a), lag(a) OVER (ORDER BY a) FROM (VALUES (1::numeric), (2.50)) AS v(a)
SELECT first_value(a) OVER (ORDER BY a DESC) FROM (VALUES (1::numeric), (2.50)) AS v(a)
SELECT array_agg(a ORDER BY a DESC) FROM (VALUES (1::numeric), (2.50)) AS v(a)
SELECT id % 2, max(coalesce(p, 0)) FROM m GROUP BY id % 2 ORDER BY 1
WITH q AS (SELECT DISTINCT coalesce(p, 0) AS n FROM m) SELECT n FROM q ORDER BY n
"""


def test_numerics_keep_their_scales(database: Database) -> None:
    """Values of several scales in one column: each is printed as PostgreSQL prints it."""
    found = LakeOracle(database.connect())
    found.create("t", {"id": "int"}, [["1"], ["2"]])
    found.create(
        "m",
        {"id": "int", "p": "numeric(8,2)", "q": "numeric(6,3)"},
        [["1", "1.50", None], ["2", None, "10.000"], ["3", None, None], ["4", "7.00", "0.001"]],
    )
    for statement in _lines(_SCALES):
        found.compare(statement)
    assert not found.tally.differences, "\n".join(found.tally.differences)
    assert not found.tally.refused


_INSERTED_SCALES = """
INSERT INTO w VALUES (1, 1000), (2, 0.001), (3, NULL), (4, '1.50'), (5, 7::numeric)
INSERT INTO w SELECT 1, 1000 UNION ALL SELECT 2, 0.001 UNION ALL SELECT 3, '1.50'
INSERT INTO w SELECT * FROM (VALUES (1, 1000.0), (2, 0.001)) AS v
INSERT INTO w WITH q AS (SELECT 1, 1000.0 UNION ALL SELECT 2, 0.001) SELECT * FROM q
INSERT INTO w SELECT id, coalesce(p, 0) FROM m
INSERT INTO w SELECT id, CASE WHEN id > 2 THEN p ELSE 1 END FROM m
INSERT INTO w SELECT id, coalesce(p, q) FROM m ORDER BY 2
INSERT INTO w SELECT id, greatest(p, q) FROM m
INSERT INTO w SELECT DISTINCT id, coalesce(p, 0) FROM m
INSERT INTO w SELECT 1, 1000 UNION SELECT 2, 0.001
INSERT INTO w SELECT id, max(coalesce(p, 0)) FROM m GROUP BY id
"""


def test_numerics_are_stored_with_their_scales(database: Database) -> None:
    connection = database.connect()
    found = LakeOracle(connection)
    found.create("w", {"id": "int", "n": "numeric"}, [])
    found.create(
        "m",
        {"id": "int", "p": "numeric(8,2)", "q": "numeric(6,3)"},
        [["1", "1.50", None], ["2", None, "10.000"], ["4", "7.00", "0.001"]],
    )
    for statement in _lines(_INSERTED_SCALES):
        raw = parse_query(statement)
        assert isinstance(raw, InsertStmt)
        plan = analyze_insert(raw, found.find(raw.relation), found.find)
        ours = sorted(found.run(compile_insert(plan)))
        connection.execute(statement)
        theirs = found.theirs("SELECT * FROM w ORDER BY id").rows
        connection.execute("TRUNCATE w")
        assert ours == theirs, statement
    found.create("r", {"id": "int", "p": "numeric(8,2)", "n": "numeric"}, [["1", "1.50", "3"]])
    found.compare_change("UPDATE r SET n = CASE WHEN id > 1 THEN 0.005 ELSE p END")
    found.compare_change("UPDATE r SET n = coalesce(NULL, 2.0, p)")
    assert found.tally.counts["equal"] == 2, found.tally


_SUMS_OF_FLOATS = """
SELECT sum(x), avg(x) FROM f WHERE g = 'sum is too great'
SELECT sum(x) FROM f WHERE g = 'sum is too great'
SELECT avg(x) FROM f WHERE g = 'sum is too great'
SELECT sum(-x) FROM f WHERE g = 'sum is too great'
SELECT sum(x) FROM f WHERE g = 'far apart'
SELECT avg(x) FROM f WHERE g = 'far apart'
SELECT sum(x), avg(x) FROM f WHERE g = 'great and equal'
SELECT sum(x), avg(x) FROM f WHERE g = 'infinity'
SELECT sum(-x), avg(-x) FROM f WHERE g = 'infinity'
SELECT sum(x), avg(x) FROM f WHERE g = 'both infinities'
SELECT sum(x), avg(x) FROM f WHERE g = 'nan'
SELECT sum(x), avg(x) FROM f WHERE g = 'nan' OR g = 'infinity'
SELECT sum(x), avg(x) FROM f WHERE g = 'nothing'
SELECT sum(DISTINCT x), avg(DISTINCT x) FROM f WHERE g = 'sum is too great'
SELECT sum(x) FILTER (WHERE x < 1), avg(x) FILTER (WHERE x < 1) FROM f
SELECT g, sum(x) FROM f WHERE g <> 'sum is too great' GROUP BY g ORDER BY g
SELECT g, sum(x) FROM f GROUP BY g ORDER BY g
SELECT sum(x) OVER (ORDER BY id) FROM f WHERE g = 'sum is too great' ORDER BY id
SELECT avg(x) OVER (ORDER BY id) FROM f WHERE g = 'great and equal' ORDER BY id
SELECT coalesce(1.5, sum(x)) FROM f WHERE g = 'sum is too great'
SELECT sum(x::real), avg(x::real) FROM f WHERE g = 'infinity'
SELECT stddev(x) FROM f WHERE g = 'far apart'
SELECT variance(x) FROM f WHERE g = 'far apart'
"""


def test_sums_of_floats(database: Database) -> None:
    """Infinity comes of infinities only; what is out of range is an error."""
    found = LakeOracle(database.connect())
    groups: dict[str, list[str | None]] = {
        "sum is too great": ["1e308", "1e308"],
        "far apart": ["1e160", "-1e160"],
        "great and equal": ["1e160", "1e160"],
        "infinity": ["Infinity", "1"],
        "both infinities": ["Infinity", "-Infinity"],
        "nan": ["NaN", "1"],
        "nothing": [None],
    }
    rows = [(group, x) for group, numbers in groups.items() for x in numbers]
    found.create(
        "f",
        {"id": "int", "g": 'text COLLATE "C"', "x": "float8"},
        [[str(number), group, x] for number, (group, x) in enumerate(rows)],
    )
    for statement in _lines(_SUMS_OF_FLOATS):
        found.compare(statement)
    assert not found.tally.differences, "\n".join(found.tally.differences)
    assert found.tally.counts["refused"] == 3, found.tally.refused


def test_changes(tables: LakeOracle, database: Database) -> None:
    wrong = []
    for statement in _lines(_CHANGES):
        ours, theirs = _our_state(tables, statement), _their_state(database, statement)
        if ours not in (theirs, "0A000"):
            wrong.append(f"{statement}\n  server {theirs or 'taken'}, ours {ours or 'taken'}")
    assert not wrong, "\n".join(wrong)


def _our_state(tables: LakeOracle, text: str) -> str:
    try:
        raw = parse_query(text)
        assert not isinstance(raw, SelectStmt)
        target = tables.find(raw.relation)
        if isinstance(raw, InsertStmt):
            tables.run(compile_insert(analyze_insert(raw, target, tables.find)))
            return ""
        plan = analyze_change(raw, target, tables.find)
        for name, value in plan.settings:
            compile_expression(plan, value, next(c for c in target if c.name == name))
        if plan.where is not None:
            compile_expression(plan, plan.where)
    except PenstockError as error:
        return error.sqlstate
    return ""


def _their_state(database: Database, text: str) -> str:
    with database.connect(autocommit=False) as connection:
        try:
            connection.execute(text)
        except psycopg.Error as error:
            return error.sqlstate or ""
        finally:
            connection.rollback()
    return ""
