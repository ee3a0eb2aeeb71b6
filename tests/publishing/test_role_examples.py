"""Roles and rights by SQL: who may copy a table, who may stream, who may make slots.

Scripts run on the node and on a real server alike, each as a role with few rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import PASSWORD, LakeNode
from publishing.psql_pair import Pair, psql

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_ROLES = f"""
CREATE ROLE repl LOGIN REPLICATION PASSWORD '{PASSWORD}';
CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}';
CREATE ROLE nobody;
"""


@pytest.fixture
def roles(pair: Pair) -> Iterator[Pair]:
    """Both with the roles repl, reader and nobody."""
    pair.both(_ROLES)
    yield pair
    psql(pair.server.conninfo, "DROP OWNED BY repl, reader, nobody;")
    pair.both("DROP ROLE repl, reader, nobody;")


def test_rights_of_roles(roles: Pair) -> None:
    roles.both(
        r"""
CREATE TABLE secret (id int PRIMARY KEY, v text);
CREATE TABLE open (id int PRIMARY KEY, v text);
INSERT INTO secret VALUES (1, 'hidden');
INSERT INTO open VALUES (1, 'seen');
GRANT SELECT ON open TO reader;
GRANT SELECT ON secret TO nobody;
\du re*
\du nobody
\dp open
\dp secret
"""
    )
    script = """
SELECT * FROM open;
SELECT * FROM secret;
SELECT * FROM open, secret;
INSERT INTO open VALUES (2, 'x');
UPDATE open SET v = 'x';
DELETE FROM open;
TRUNCATE open;
COPY secret TO STDOUT;
COPY open TO STDOUT;
CREATE PUBLICATION p FOR TABLE open;
CREATE PUBLICATION p;
DROP TABLE open;
ALTER TABLE open REPLICA IDENTITY FULL;
GRANT SELECT ON secret TO reader;
CREATE ROLE other;
DROP ROLE nobody;
ALTER ROLE reader SUPERUSER;
SELECT pg_create_logical_replication_slot('reader', 'pgoutput');
SELECT pg_drop_replication_slot('reader');
SELECT * FROM nowhere;
"""
    roles.both(script, "reader")
    roles.both(
        r"""
REVOKE SELECT ON open FROM reader;
GRANT SELECT ON secret TO PUBLIC;
\dp secret
SELECT has_table_privilege('reader', 'secret', 'SELECT') AS yes,
  has_table_privilege('reader', 'open', 'SELECT') AS no;
"""
    )
    roles.both("SELECT * FROM open;\nSELECT * FROM secret;", "reader")
    roles.both("DROP TABLE open, secret;")


def test_a_subscriber_needs_select(
    roles: Pair, lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    target = subscriber(18)
    for execute in (lake.execute, target.execute):
        execute("CREATE TABLE guarded (id int PRIMARY KEY, v text)")
    lake.execute(
        "INSERT INTO guarded VALUES (1, 'one')", "CREATE PUBLICATION guarded FOR TABLE guarded"
    )
    conninfo = lake.conninfo("repl").replace("'", "''")
    target.execute(f"CREATE SUBSCRIPTION guarded CONNECTION '{conninfo}' PUBLICATION guarded")
    log = target.server.log_path
    wanted = (
        'could not start initial contents copy for table "public.guarded": '
        "ERROR:  permission denied for table guarded"
    )
    wait_until(lambda: wanted in log.read_text(errors="replace"), "PostgreSQL's error in its log")
    lake.execute("GRANT SELECT ON guarded TO repl")
    lake.copied(target, "guarded")
    assert target.rows("SELECT * FROM guarded") == [(1, "one")]
    # once copied, rows are streamed without further checks, as PostgreSQL does it
    lake.execute("REVOKE SELECT ON guarded FROM repl", "INSERT INTO guarded VALUES (2, 'two')")
    lake.caught_up("guarded")
    assert target.rows("SELECT id FROM guarded ORDER BY id") == [(1,), (2,)]
    with pytest.raises(psycopg.OperationalError, match="permission denied to start WAL sender"):
        lake.connect("reader", replication="database")
