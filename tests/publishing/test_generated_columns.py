"""Generated columns that the node keeps: the rows of a server, and published as a server does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_TABLES = (
    "CREATE TABLE g (twice int GENERATED ALWAYS AS (a * 2) STORED, a int PRIMARY KEY,"
    " t varchar(8) DEFAULT 'none', big text GENERATED ALWAYS AS (upper(t) || '!') STORED,"
    " n numeric(6,2), total numeric(8,2) GENERATED ALWAYS AS (n * 2 + a) STORED,"
    " missing bool GENERATED ALWAYS AS (n IS NULL) STORED)",
    "CREATE TABLE plain (x int, y text)",
    "CREATE TABLE ratio (a int, q int GENERATED ALWAYS AS (100 / a) STORED)",
    "CREATE TABLE quotient (n numeric, third numeric GENERATED ALWAYS AS (n / 3) STORED,"
    " inverse numeric GENERATED ALWAYS AS (1 / n))",
    "CREATE TABLE short (a text, b varchar(3) GENERATED ALWAYS AS (a) STORED)",
    "CREATE TABLE root (a int, b int GENERATED ALWAYS AS (a * 10) STORED, c text)"
    " PARTITION BY RANGE (a)",
    "CREATE TABLE v (a int PRIMARY KEY, n int, b int GENERATED ALWAYS AS (coalesce(n, 0) * 2),"
    " s int GENERATED ALWAYS AS (a * 10) STORED,"
    " t text GENERATED ALWAYS AS (a::text || '!') VIRTUAL)",
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20)",
)
_NAMES_THE_COLUMN = "ALTER TABLE ratio ADD COLUMN z int GENERATED ALWAYS AS (1 / (a - 5)) STORED"
_STATEMENTS = (
    "INSERT INTO g (a) VALUES (1), (2)",
    "INSERT INTO g (a, t, n) VALUES (3, 'three', 1.005)",
    "INSERT INTO g VALUES (DEFAULT, 4, 'four', DEFAULT, 4.5, DEFAULT, DEFAULT)",
    "INSERT INTO g VALUES (DEFAULT, 5), (DEFAULT, 6)",
    "INSERT INTO g VALUES (10, 7)",
    "INSERT INTO g VALUES (DEFAULT, 7), (10, 8)",
    "INSERT INTO g VALUES ('x', 7)",
    "INSERT INTO g (a, twice) SELECT x, x FROM plain",
    "INSERT INTO g (a, big) VALUES (7, NULL)",
    "INSERT INTO plain VALUES (20, 'twenty'), (21, NULL)",
    "INSERT INTO g (a, t) SELECT x, y FROM plain ORDER BY x LIMIT 1",
    "INSERT INTO g (a, t) SELECT x, y FROM plain WHERE x > 20",
    "INSERT INTO g (a) VALUES (generate_series(30, 33))",
    "UPDATE g SET a = a + 100 WHERE a = 1",
    "UPDATE g SET t = 'new', n = 7 WHERE a = 2",
    "UPDATE g SET t = (SELECT max(y) FROM plain) WHERE a = 3",
    "UPDATE g SET n = n * 2, a = a + 1000 WHERE a = 4",
    "UPDATE g SET twice = DEFAULT, big = DEFAULT WHERE a > 30",
    "UPDATE g SET twice = 5",
    "UPDATE g SET twice = DEFAULT, big = 'x'",
    "UPDATE g SET a = 2147483647 WHERE a = 5",
    "UPDATE g SET a = 40 WHERE twice = 60",
    "DELETE FROM g WHERE twice = 62",
    "INSERT INTO ratio VALUES (5), (7)",
    "INSERT INTO ratio VALUES (1), (0)",
    "UPDATE ratio SET a = 0 WHERE a = 5",
    "INSERT INTO quotient VALUES (1), (NULL), (7)",
    "INSERT INTO quotient VALUES (-0.0001)",
    "INSERT INTO quotient VALUES (1000000.50)",
    "UPDATE quotient SET n = n / 7 WHERE third < 1000",
    "INSERT INTO short VALUES ('abc'), ('ab ')",
    "INSERT INTO short VALUES ('abcd')",
    "INSERT INTO root (a, c) VALUES (1, 'low'), (11, 'high')",
    "INSERT INTO high (a) VALUES (12)",
    "UPDATE root SET a = a + 1 WHERE a < 3",
    "INSERT INTO v VALUES (1, 5, DEFAULT), (2, 6, DEFAULT), (3, NULL, DEFAULT)",
    "INSERT INTO v (a, b) VALUES (4, 9)",
    "INSERT INTO v (a, n) SELECT a + 10, b FROM v WHERE b = 10",
    "UPDATE v SET n = b + 1 WHERE b = 10",
    "UPDATE v SET b = DEFAULT, n = 8 WHERE t = '2!'",
    "UPDATE v SET b = 3",
    "DELETE FROM v WHERE t LIKE '3%'",
    "CREATE TABLE from_virtual AS SELECT v.a, v.b, w.b AS missing, count(*) AS n FROM v"
    " LEFT JOIN v AS w ON w.a = v.a AND w.b > 20 GROUP BY v.a, v.b, w.b",
    "ALTER TABLE v ADD COLUMN later int GENERATED ALWAYS AS (n - a)",
    "CREATE TABLE copied AS SELECT a, twice FROM g",
    "INSERT INTO copied VALUES (0, 1)",
    "ALTER TABLE plain ADD COLUMN d int DEFAULT 6,"
    " ADD COLUMN z int GENERATED ALWAYS AS (x + d) STORED",
    _NAMES_THE_COLUMN,
    "INSERT INTO plain VALUES (22)",
    "ALTER TABLE root ADD COLUMN d int GENERATED ALWAYS AS (a - b) STORED,"
    " ADD COLUMN v text GENERATED ALWAYS AS (upper(c))",
    "CREATE TABLE later (a int)",
    "ALTER TABLE later ADD COLUMN b int GENERATED ALWAYS AS (a + 1) STORED",
    "INSERT INTO later VALUES (1), (NULL)",
)
_READ = (
    "g",
    "v",
    "plain",
    "ratio",
    "quotient",
    "short",
    "root",
    "low",
    "high",
    "from_virtual",
    "copied",
    "later",
)


def _outcome(connection: Any, statement: str) -> tuple[Any, ...]:
    """The command tag, or the error's fields."""
    try:
        return (connection.execute(statement).statusmessage,)
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary, error.diag.message_detail


def test_statements_do_what_a_server_does(both: Callable[..., tuple[Any, Any]]) -> None:
    ours, server = both(*_TABLES)
    for statement in _STATEMENTS:
        wanted, found = _outcome(server, statement), _outcome(ours, statement)
        if statement == _NAMES_THE_COLUMN:
            wanted, found = wanted[:2], found[:2]
        assert (statement, found) == (statement, wanted)
    for table in _READ:
        query = f"SELECT * FROM {table} ORDER BY 1, 2"
        wanted, found = (session.execute(query).fetchall() for session in (server, ours))
        assert (table, found) == (table, wanted)


def test_what_psql_shows(pair: Pair) -> None:
    printed = pair.both(
        r"""
CREATE TABLE shown (a int PRIMARY KEY, "B c" text, b int GENERATED ALWAYS AS (a * 2) STORED,
    d text GENERATED ALWAYS AS (lower("B c")) STORED, v int GENERATED ALWAYS AS (a * 3) VIRTUAL,
    w text GENERATED ALWAYS AS (upper("B c")));
INSERT INTO shown (a, "B c") VALUES (1, 'X');
\d shown
\d+ shown
COPY shown TO STDOUT;
COPY shown (a, b) TO STDOUT;
COPY (SELECT a, b FROM shown) TO STDOUT;
COPY (SELECT a, v FROM shown) TO STDOUT;
COPY shown (a, v) TO STDOUT;
CREATE PUBLICATION shown FOR TABLE shown WHERE (v > 3) WITH (publish_generated_columns = stored);
SELECT attnames, rowfilter FROM pg_publication_tables WHERE pubname = 'shown';
ALTER PUBLICATION shown SET TABLE shown (a, v);
\d shown
SELECT attname, attgenerated, atthasdef FROM pg_attribute
    WHERE attrelid = 'shown'::regclass AND attnum > 0 ORDER BY attnum;
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'shown'::regclass ORDER BY adnum;
SELECT column_name, column_default, is_generated, generation_expression
    FROM information_schema.columns WHERE table_name = 'shown' ORDER BY ordinal_position;
"""
    )
    assert "generated always as (a * 2) stored" in printed


def test_what_could_not_be_computed_is_refused_at_once(lake: LakeNode) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        lake.execute("CREATE TABLE w (a text, b text GENERATED ALWAYS AS (normalize(a)) STORED)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        lake.execute("SELECT * FROM w")


def test_rows_of_other_writers_get_their_values_on_the_port(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE theirs (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)",
        "INSERT INTO theirs VALUES (1)",
    )
    uri = f"{lake.node.folder}/warehouse/public/theirs"
    lake.node.spark.sql(f"INSERT INTO delta.`{uri}` VALUES (2, NULL), (3, 7)").collect()
    assert lake.rows("SELECT * FROM theirs ORDER BY a") == [(1, 2), (2, None), (3, 7)]
    lake.execute("UPDATE theirs SET b = DEFAULT WHERE b IS DISTINCT FROM a * 2")
    assert lake.rows("SELECT * FROM theirs ORDER BY a") == [(1, 2), (2, 4), (3, 6)]


def test_virtual_columns_are_made_when_they_are_read(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE unmade (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2))",
        "INSERT INTO unmade VALUES (1)",
    )
    uri = f"{lake.node.folder}/warehouse/public/unmade"
    lake.node.spark.sql(f"INSERT INTO delta.`{uri}` VALUES (2, NULL), (3, 7)").collect()
    assert lake.rows("SELECT * FROM unmade ORDER BY a") == [(1, 2), (2, 4), (3, 6)]
    assert lake.rows("SELECT a FROM unmade WHERE b = 6") == [(3,)]
    lake.execute("DELETE FROM unmade WHERE b = 4")
    files = lake.node.spark.read.format("delta").load(uri).orderBy("a")
    assert [tuple(row) for row in files.collect()] == [(1, 2), (3, 7)]


@pytest.mark.parametrize(
    ("publication", "wanted"),
    [
        ("{0}", [(1, None), (5, None)]),
        ("{0} WITH (publish_generated_columns = none)", [(1, None), (5, None)]),
        ("{0} WITH (publish_generated_columns = stored)", [(1, 2), (5, 10)]),
        ("{0} (b) WITH (publish_generated_columns = none)", [(None, 2), (None, 10)]),
        ("{0} (a) WITH (publish_generated_columns = stored)", [(1, None), (5, None)]),
        ("{0} WHERE (c > 10)", [(5, None)]),
    ],
)
def test_what_is_published(
    publication: str,
    wanted: list[tuple[int | None, int | None]],
    request: pytest.FixtureRequest,
    lake: LakeNode,
    subscriber: Callable[..., Database],
) -> None:
    name = f"gen_{request.node.callspec.indices['publication']}"
    target = subscriber(18)
    target.execute(f"CREATE TABLE {name} (a int, b int)")
    lake.execute(
        f"CREATE TABLE {name} (a int, b int GENERATED ALWAYS AS (a * 2) STORED,"
        " c int GENERATED ALWAYS AS (a * 3) VIRTUAL)",
        f"INSERT INTO {name} VALUES (1)",
        f"CREATE PUBLICATION {name} FOR TABLE {publication.format(name)}",
    )
    lake.subscribe(target, name, name)
    lake.execute(f"INSERT INTO {name} VALUES (5)")
    lake.caught_up(name)
    assert target.rows(f"SELECT * FROM {name} ORDER BY a, b") == wanted


def test_updates_and_the_replica_identity(both: Callable[..., tuple[Any, Any]]) -> None:
    ours, server = both(
        "CREATE TABLE ident (a int, b int GENERATED ALWAYS AS (a * 2) STORED)",
        "ALTER TABLE ident REPLICA IDENTITY FULL",
        "CREATE PUBLICATION ident FOR TABLE ident",
    )
    for statement in (
        "UPDATE ident SET a = 1",
        "ALTER PUBLICATION ident SET (publish_generated_columns = stored)",
        "UPDATE ident SET a = 1",
    ):
        assert _outcome(ours, statement) == _outcome(server, statement)
