"""CREATE TABLE AS, LIKE, DEFAULT and ATTACH PARTITION beside a server: the same tables and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_STATEMENTS = (
    "CREATE TABLE plain (a int, b text DEFAULT 'it''s', c numeric(4,1) DEFAULT -1.25,"
    " d boolean DEFAULT true, e text DEFAULT NULL, f char(4) DEFAULT 'a', g int DEFAULT 1.5,"
    " h date DEFAULT '2024-1-1', i text DEFAULT true, PRIMARY KEY (a) INCLUDE (b))",
    "INSERT INTO plain (a) VALUES (1), (2)",
    "INSERT INTO plain VALUES (3, DEFAULT, 2, DEFAULT, 'x')",
    "INSERT INTO plain (a, b) SELECT generate_series(10, 13), 'series'",
    "INSERT INTO plain (a, c) VALUES (generate_series(20, 30, 5), 7)",
    "UPDATE plain SET b = DEFAULT, c = DEFAULT, f = DEFAULT, g = DEFAULT WHERE a > 19",
    "CREATE TABLE fits (a int, v varchar(2) DEFAULT 'abc', n smallint DEFAULT 99999)",
    "INSERT INTO fits VALUES (1, 'ab', 2)",
    "INSERT INTO fits (a, n) VALUES (1, 2)",
    "INSERT INTO fits (a, v) VALUES (1, 'a')",
    "UPDATE fits SET v = DEFAULT",
    "ALTER TABLE fits ADD COLUMN w varchar(2) DEFAULT 'abc'",
    "ALTER TABLE fits ADD COLUMN x numeric(4,1) DEFAULT 1.26, ADD COLUMN y char(3) DEFAULT 7",
    "CREATE TABLE wrong (a int DEFAULT true)",
    "CREATE TABLE wrong (a int DEFAULT 'x')",
    "CREATE TABLE made AS SELECT generate_series(1, 5) AS n, 'v' AS v",
    "CREATE TABLE made AS SELECT 1",
    "CREATE TABLE IF NOT EXISTS made AS SELECT 1",
    "CREATE TABLE named (x, y) AS SELECT a, b FROM plain WHERE a < 12",
    "CREATE TABLE named2 (x, y, z) AS SELECT a, b FROM plain",
    "CREATE TABLE failed AS SELECT 1 / (a - a) AS q FROM plain",
    "SELECT * FROM failed",
    "CREATE TABLE empty AS SELECT * FROM plain WITH NO DATA",
    "CREATE TABLE copy (LIKE plain, more int)",
    "INSERT INTO copy (a, more) VALUES (1, 2)",
    "CREATE TABLE root (a int, b text) PARTITION BY RANGE (a)",
    "CREATE TABLE low (LIKE root)",
    "CREATE TABLE odd (a int)",
    "CREATE TABLE other (a bigint, b text)",
    "CREATE TABLE more (a int, b text, c text)",
    "ALTER TABLE root ATTACH PARTITION odd DEFAULT",
    "ALTER TABLE root ATTACH PARTITION other DEFAULT",
    "ALTER TABLE root ATTACH PARTITION more DEFAULT",
    "ALTER TABLE root ATTACH PARTITION low FOR VALUES FROM (0) TO (10)",
    "ALTER TABLE root ATTACH PARTITION low DEFAULT",
    "ALTER TABLE low ATTACH PARTITION odd DEFAULT",
    "CREATE TABLE high PARTITION OF root (b DEFAULT 'high') FOR VALUES FROM (10) TO (20)",
    "INSERT INTO root VALUES (1, 'low'), (11, NULL)",
    "INSERT INTO high (a) VALUES (12)",
    "CREATE TABLE keyed (a int PRIMARY KEY, b int)",
    "ALTER TABLE keyed REPLICA IDENTITY USING INDEX keyed_pkey",
    "ALTER TABLE keyed DROP CONSTRAINT other",
    "ALTER TABLE keyed DROP CONSTRAINT IF EXISTS other",
    "ALTER TABLE keyed REPLICA IDENTITY DEFAULT",
    "ALTER TABLE keyed DROP CONSTRAINT keyed_pkey",
    "ALTER TABLE keyed ADD PRIMARY KEY (b)",
    "INSERT INTO keyed VALUES (1, 1)",
    "CREATE TABLE child (a int PRIMARY KEY, b int REFERENCES keyed, c int REFERENCES keyed (b))",
    "CREATE TABLE orphan (a int, b int REFERENCES nothing)",
    "CREATE TABLE own (a int PRIMARY KEY, b int REFERENCES own)",
    "CREATE TABLE no_columns ()",
    "CREATE PUBLICATION defined FOR TABLE keyed, no_columns",
    "UPDATE keyed SET a = 2",
    "SELECT generate_series(1, 3) AS g, count(*) FROM low GROUP BY 1",
    "CREATE TABLE timed (a int, at timestamptz DEFAULT now())",
    "INSERT INTO timed VALUES (1, NULL), (2, NULL)",
    "UPDATE timed SET at = DEFAULT",
    "DELETE FROM timed WHERE at > '2020-01-01'",
    'CREATE TABLE pair (a int, "A" int) PARTITION BY RANGE (a)',
    'CREATE TABLE alike (a int, "A" int)',
    'CREATE TABLE turned ("A" int, a int)',
    "ALTER TABLE pair ATTACH PARTITION alike FOR VALUES FROM (0) TO (10)",
    "ALTER TABLE pair ATTACH PARTITION turned FOR VALUES FROM (10) TO (20)",
)
_OURS = {
    # PostgreSQL groups the rows first; here the two are not seen together.
    "SELECT generate_series(1, 3) AS g, count(*) FROM low GROUP BY 1": "0A000",
    # The two are stored under each other's names.
    "ALTER TABLE pair ATTACH PARTITION turned FOR VALUES FROM (10) TO (20)": "0A000",
}
_TABLES = ("plain", "fits", "made", "named", "empty", "copy", "root", "low", "high", "keyed")


@pytest.fixture
def both(lake: LakeNode, database_on: Callable[..., Database]) -> Iterator[tuple[Any, Any]]:
    """Sessions on the node and on a server."""
    database = database_on(18)
    with (
        lake.connect() as ours,
        psycopg.connect(
            database.conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
        ) as server,
    ):
        yield ours, server


def test_definitions_do_what_a_server_does(both: tuple[Any, Any]) -> None:
    ours, server = both
    for statement in _STATEMENTS:
        wanted, found = _outcome(server, statement), _outcome(ours, statement)
        if statement in _OURS:
            wanted, found = _OURS[statement], found[:5]
        assert (statement, found) == (statement, wanted)
    for table in _TABLES:
        query = f"SELECT * FROM {table} ORDER BY 1, 2"
        assert (table, _rows(ours, query)) == (table, _rows(server, query))


def _outcome(connection: Any, statement: str) -> str:
    """The command tag, or the SQLSTATE with the message."""
    try:
        return str(connection.execute(statement).statusmessage)
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"


def _rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(query)
    assert cursor.description is not None
    return [tuple(column.name for column in cursor.description), *cursor.fetchall()]
