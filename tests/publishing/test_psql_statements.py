"""What a psql user tries that a lake does not do: refused plainly, and the session goes on."""

from __future__ import annotations

import psycopg
import pytest

from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair, psql

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def test_changes_in_a_transaction_block(lake: LakeNode, superuser: str) -> None:
    printed = psql(
        lake.conninfo(superuser),
        """
CREATE TABLE blocks (a int PRIMARY KEY);
BEGIN;
INSERT INTO blocks VALUES (1);
SELECT 1;
COMMIT;
INSERT INTO blocks VALUES (2);
BEGIN;
TRUNCATE blocks;
ROLLBACK;
BEGIN;
SELECT * FROM blocks;
COMMIT;
""",
    )
    assert printed.count("ERROR:  ") == 1, printed
    assert "ERROR:  0A000: TRUNCATE cannot run inside a transaction block" in printed
    assert "HINT:  One statement is one commit of the lake" in printed
    assert sorted(lake.rows("SELECT a FROM blocks")) == [(1,), (2,)]


_REFUSED = [
    # (statement, what the error names)
    ("CREATE INDEX i ON plain (a)", "CREATE INDEX"),
    ("CREATE VIEW v AS SELECT 1", "CREATE VIEW"),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "CREATE FUNCTION"),
    ("CREATE EXTENSION hstore", "CREATE EXTENSION"),
    ("CREATE DATABASE d", "CREATE DATABASE"),
    ("CREATE SEQUENCE s", "CREATE SEQUENCE"),
    ("CREATE TEMP TABLE x (a int)", "TEMP"),
    ("ALTER TABLE plain RENAME COLUMN b TO c", "ALTER TABLE ... RENAME"),
    ("ALTER TABLE plain ALTER COLUMN b TYPE int", "ALTER TABLE ... ALTER"),
    ("INSERT INTO plain VALUES (1, 'x') RETURNING a", "RETURNING"),
    ("INSERT INTO plain VALUES (1, 'x') ON CONFLICT DO NOTHING", "ON CONFLICT"),
    ("UPDATE plain SET b = 'x' FROM plain p WHERE plain.a = p.a", "FROM in UPDATE"),
    ("DELETE FROM plain USING plain p WHERE plain.a = p.a", "USING in DELETE"),
    ("DELETE FROM plain RETURNING a", "RETURNING"),
    ("UPDATE plain SET (a, b) = (1, 'x')", "SET"),
    ("MERGE INTO plain USING plain p ON false WHEN MATCHED THEN DELETE", "MERGE"),
    ("WITH x AS (DELETE FROM plain RETURNING a) SELECT * FROM x", "WITH"),
    ("COPY plain FROM STDIN", "COPY"),
    ("COPY plain TO '/tmp/x'", "COPY"),
    ("COPY plain TO STDOUT (FORMAT csv)", "csv"),
    ("LOCK TABLE plain", "LOCK"),
    ("REINDEX TABLE plain", "REINDEX"),
    ("EXPLAIN SELECT * FROM plain", "EXPLAIN"),
    ("DECLARE c CURSOR FOR SELECT 1", "DECLARE"),
    ("LISTEN x", "LISTEN"),
    ("COMMENT ON TABLE plain IS 'x'", "COMMENT"),
    ("DO $$ BEGIN END $$", "DO"),
    ("CALL p()", "CALL"),
    ("SELECT * FROM plain FOR UPDATE", "FOR UPDATE"),
    ("SELECT a INTO other FROM plain", "INTO"),
    ("SELECT pg_create_physical_replication_slot('x')", "pg_create_physical_replication_slot"),
]


@pytest.fixture(scope="module")
def plain(lake: LakeNode) -> LakeNode:
    lake.execute("CREATE TABLE plain (a int PRIMARY KEY, b text)")
    return lake


@pytest.mark.parametrize(("statement", "named"), _REFUSED, ids=[named for _, named in _REFUSED])
def test_what_is_not_supported_says_so(plain: LakeNode, statement: str, named: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        plain.execute(statement)
    assert (caught.value.sqlstate, named in str(caught.value)) == ("0A000", True), caught.value
    assert plain.rows("SELECT 1 AS one") == [(1,)]


def test_subscriptions_are_shown_as_by_a_server(pair: Pair) -> None:
    """Subscriptions of a node are its own; a default that it has not is spelled out."""
    shown = pair.both(
        r"""
CREATE SUBSCRIPTION shown CONNECTION 'user=u dbname=x host=nowhere.invalid' PUBLICATION a, b
  WITH (connect = false, streaming = off);
CREATE SUBSCRIPTION other CONNECTION 'dbname=x host=nowhere.invalid' PUBLICATION c
  WITH (connect = false, slot_name = 'one', binary = true, streaming = off);
CREATE SUBSCRIPTION shown CONNECTION 'host=nowhere.invalid' PUBLICATION a WITH (connect = false);
\dRs
\dRs+
\dRs o*
ALTER SUBSCRIPTION shown ENABLE;
ALTER SUBSCRIPTION shown DISABLE;
ALTER SUBSCRIPTION shown SET (slot_name = NONE);
ALTER SUBSCRIPTION other SET (slot_name = NONE);
DROP SUBSCRIPTION shown;
DROP SUBSCRIPTION other;
DROP SUBSCRIPTION other;
"""
    )
    assert "{a,b}" in shown


def test_results_are_named_and_typed_as_by_a_server(pair: Pair) -> None:
    pair.both(
        r"""
CREATE TABLE named (id int PRIMARY KEY, t text, n numeric(8,2), d date, b boolean);
INSERT INTO Named (ID, T) VALUES (1, 'one'), (2, NULL);
INSERT INTO named (id, id) VALUES (1, 2);
INSERT INTO named (id, nothing) VALUES (1, 2);
INSERT INTO named VALUES (1, 2, 3, NULL, NULL, 6);
INSERT INTO named (id, t) VALUES (1);
INSERT INTO named (id) VALUES (1, 2);
UPDATE named SET nothing = 1;
UPDATE named SET n = 1.5, d = '2024-02-29', b = true WHERE id = 1;
SELECT count(*), max(id), sum(n), coalesce(t, '-') , upper(t), 1 + id, 'x', t AS "A b"
FROM named GROUP BY t, id ORDER BY id;
SELECT id::bigint, CASE WHEN b THEN 1 END, lower(t) FROM named ORDER BY t DESC;
SELECT ID, T Tee FROM NAMED n WHERE n.t IS NULL;
SELECT * FROM named ORDER BY t;
SELECT count(*) FROM nowhere;
SELECT nothing FROM named;
DELETE FROM named WHERE id > 5;
"""
    )
