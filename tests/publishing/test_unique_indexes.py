"""Unique indexes of the node beside a server's: what statements answer, what psql shows, and what a
stock subscriber gets of a table that is identified by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_STATEMENTS = (
    "CREATE TABLE ri (a int NOT NULL, b int NOT NULL, c text UNIQUE)",
    "CREATE UNIQUE INDEX ri_a ON ri (a)",
    "CREATE UNIQUE INDEX ri_b ON ri (b)",
    "CREATE PUBLICATION ri FOR TABLE ri",
    "INSERT INTO ri VALUES (1, 1, 'one'), (2, 2, 'two')",
    "UPDATE ri SET c = 'x' WHERE a = 1",
    "ALTER TABLE ri REPLICA IDENTITY USING INDEX ri_b",
    "UPDATE ri SET a = -1 WHERE a = 1",
    "DROP INDEX ri_b",
    "DELETE FROM ri",
    "ALTER TABLE ri REPLICA IDENTITY USING INDEX ri_b",
    "ALTER TABLE ri REPLICA IDENTITY USING INDEX ri_a",
    "ALTER TABLE ri DROP CONSTRAINT ri_c_key",
    "DELETE FROM ri WHERE b = 2",
    "ALTER TABLE ri DROP COLUMN a",
    "DELETE FROM ri WHERE b = 1",
)


def test_statements_do_what_a_server_does(both: Callable[..., tuple[Any, Any]]) -> None:
    ours, server = both()
    for statement in _STATEMENTS:
        assert (statement, _outcome(ours, statement)) == (statement, _outcome(server, statement))
    query = "SELECT * FROM ri"
    assert ours.execute(query).fetchall() == server.execute(query).fetchall()


def _outcome(connection: Any, statement: str) -> str:
    """The command tag, or the error."""
    try:
        return str(connection.execute(statement).statusmessage)
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary} {error.diag.message_hint}"


def test_psql_shows_them(pair: Pair) -> None:
    printed = pair.both(
        """
CREATE SCHEMA ix;
CREATE TABLE ix.t (a int PRIMARY KEY, b int, "C" text CONSTRAINT odd UNIQUE, UNIQUE (b, "C"));
CREATE UNIQUE INDEX t_i ON ix.t (b, a);
CREATE UNIQUE INDEX ON ix.t (a);
\\d ix.t
ALTER TABLE ix.t REPLICA IDENTITY USING INDEX t_a_idx;
\\d ix.t
ALTER TABLE ix.t REPLICA IDENTITY USING INDEX t_pkey;
\\d ix.t
DROP INDEX ix.t_i, ix.t_a_idx;
\\d ix.t
SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'ix' ORDER BY 1;
SELECT conname, contype, pg_get_constraintdef(oid) FROM pg_constraint
 WHERE conrelid = 'ix.t'::regclass AND contype <> 'n' ORDER BY 1;
SELECT constraint_name, constraint_type FROM information_schema.table_constraints
 WHERE table_schema = 'ix' AND constraint_type <> 'CHECK' ORDER BY 1;
"""
    )
    assert '"odd" UNIQUE CONSTRAINT, btree ("C")' in printed
    assert '"t_a_idx" UNIQUE, btree (a) REPLICA IDENTITY' in printed


def test_a_subscriber_finds_rows_by_the_index(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """The identity changes from one index to another, and the subscriber hears of it."""
    lake.execute(
        "CREATE TABLE indexed (a int NOT NULL, b int NOT NULL)",
        "CREATE UNIQUE INDEX indexed_a ON indexed (a)",
        "CREATE UNIQUE INDEX indexed_b ON indexed (b)",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_a",
        "INSERT INTO indexed VALUES (1, 1), (2, 2), (3, 3)",
        "CREATE PUBLICATION indexed FOR TABLE indexed",
    )
    database = subscriber(18)
    database.execute(
        "CREATE TABLE indexed (a int NOT NULL, b int NOT NULL);"
        "CREATE UNIQUE INDEX indexed_a ON indexed (a);"
        "CREATE UNIQUE INDEX indexed_b ON indexed (b);"
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_b"
    )
    lake.subscribe(database, "indexed", "indexed")
    lake.execute(
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_b",
        "UPDATE indexed SET a = -a WHERE a = 1",
        "DELETE FROM indexed WHERE a = 2",
    )
    rows = "SELECT a, b FROM indexed ORDER BY b"
    wait_until(lambda: database.rows(rows) == [(-1, 1), (3, 3)], "the changed rows")


def test_a_null_in_the_identity_stops_the_stream(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """No column needs to be NOT NULL here: as with a primary key that other writers do not obey, it
    is looked at where it counts."""
    lake.execute(
        "CREATE TABLE nulls (a int, b text)",
        "CREATE UNIQUE INDEX nulls_a ON nulls (a)",
        "ALTER TABLE nulls REPLICA IDENTITY USING INDEX nulls_a",
        "INSERT INTO nulls VALUES (NULL, 'x'), (1, 'y')",
        "CREATE PUBLICATION nulls FOR TABLE nulls",
    )
    database = subscriber(18)
    database.execute("CREATE TABLE nulls (a int, b text)")
    lake.subscribe(database, "nulls", "nulls")
    lake.execute("DELETE FROM nulls WHERE a IS NULL")
    found = "null value in column"
    wait_until(lambda: found in database.server.log(), "the error of the stream")
