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
    "CREATE TABLE short (a text, b varchar(3) GENERATED ALWAYS AS (a) STORED)",
    "CREATE TABLE root (a int, b int GENERATED ALWAYS AS (a * 10) STORED, c text)"
    " PARTITION BY RANGE (a)",
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20)",
)
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
    "INSERT INTO short VALUES ('abc'), ('ab ')",
    "INSERT INTO short VALUES ('abcd')",
    "INSERT INTO root (a, c) VALUES (1, 'low'), (11, 'high')",
    "INSERT INTO high (a) VALUES (12)",
    "UPDATE root SET a = a + 1 WHERE a < 3",
    "CREATE TABLE copied AS SELECT a, twice FROM g",
    "INSERT INTO copied VALUES (0, 1)",
    "ALTER TABLE plain ADD COLUMN z int GENERATED ALWAYS AS (x) STORED",
    "CREATE TABLE later (a int)",
    "ALTER TABLE later ADD COLUMN b int GENERATED ALWAYS AS (a + 1) STORED",
    "INSERT INTO later VALUES (1), (NULL)",
)
_OURS = {
    # Rows that are there would have to be written again.
    "ALTER TABLE plain ADD COLUMN z int GENERATED ALWAYS AS (x) STORED": "0A000",
}
_READ = ("g", "ratio", "short", "root", "low", "high", "copied", "later")


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
        if statement in _OURS:
            wanted, found = (_OURS[statement],), found[:1]
        assert (statement, found) == (statement, wanted)
    for table in _READ:
        query = f"SELECT * FROM {table} ORDER BY 1, 2"
        wanted, found = (session.execute(query).fetchall() for session in (server, ours))
        assert (table, found) == (table, wanted)


def test_what_psql_shows(pair: Pair) -> None:
    printed = pair.both(
        r"""
CREATE TABLE shown (a int PRIMARY KEY, "B c" text, b int GENERATED ALWAYS AS (a * 2) STORED,
    d text GENERATED ALWAYS AS (lower("B c")) STORED);
INSERT INTO shown (a, "B c") VALUES (1, 'X');
\d shown
\d+ shown
COPY shown TO STDOUT;
COPY shown (a, b) TO STDOUT;
COPY (SELECT a, b FROM shown) TO STDOUT;
SELECT attname, attgenerated, atthasdef FROM pg_attribute
    WHERE attrelid = 'shown'::regclass AND attnum > 0 ORDER BY attnum;
SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 'shown'::regclass ORDER BY adnum;
SELECT column_name, column_default, is_generated, generation_expression
    FROM information_schema.columns WHERE table_name = 'shown' ORDER BY ordinal_position;
"""
    )
    assert "generated always as (a * 2) stored" in printed


def test_virtual_columns_are_refused_by_name(lake: LakeNode) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        lake.execute("CREATE TABLE v (a int, b int GENERATED ALWAYS AS (a * 2))")
    assert caught.value.diag.message_primary == "virtual generated columns are not supported"
    hint = str(caught.value.diag.message_hint)
    assert hint.endswith("GENERATED ALWAYS AS (a * 2) STORED.")
    lake.execute("CREATE TABLE v (a int, b int GENERATED ALWAYS AS (a * 2) STORED)")


def test_what_could_not_be_computed_is_refused_at_once(lake: LakeNode) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        lake.execute("CREATE TABLE w (a numeric, b numeric GENERATED ALWAYS AS (a / 3) STORED)")
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


@pytest.mark.parametrize(
    ("publication", "wanted"),
    [
        ("{0}", [(1, None), (5, None)]),
        ("{0} WITH (publish_generated_columns = none)", [(1, None), (5, None)]),
        ("{0} WITH (publish_generated_columns = stored)", [(1, 2), (5, 10)]),
        ("{0} (b) WITH (publish_generated_columns = none)", [(None, 2), (None, 10)]),
        ("{0} (a) WITH (publish_generated_columns = stored)", [(1, None), (5, None)]),
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
        f"CREATE TABLE {name} (a int, b int GENERATED ALWAYS AS (a * 2) STORED)",
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
