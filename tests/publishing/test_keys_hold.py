"""Keys, UNIQUE and NOT NULL hold for sessions: the node answers what a server beside it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.executor.unique_keys import UniqueKeys
from penstock.lakehouse.xact import TableLog
from publishing.lake_node import LakeNode
from publishing.test_cascade import follows

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

Both = Callable[..., tuple[Any, Any]]


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    folder = tmp_path_factory.mktemp("keys") / "node"
    with LakeNode(folder, spark, max_prepared_transactions=8) as started:
        yield started


_KEYS = """
CREATE TABLE k (id int PRIMARY KEY, u text UNIQUE, n int NOT NULL)
INSERT INTO k VALUES (1, 'a', 1), (2, 'b', 2)
INSERT INTO k VALUES (1, 'c', 1)
INSERT INTO k VALUES (3, 'a', 1)
INSERT INTO k VALUES (1, 'a', 1)
INSERT INTO k VALUES (3, 'c', 1), (3, 'd', 1)
INSERT INTO k VALUES (3, 'c', 1), (4, 'c', 1)
INSERT INTO k VALUES (3, 'c', NULL)
INSERT INTO k (id, u) VALUES (3, 'c')
INSERT INTO k (u, n) VALUES ('c', 3)
INSERT INTO k VALUES (1, 'x', 1), (3, 'c', NULL)
INSERT INTO k VALUES (3, 'c', NULL), (1, 'x', 1)
INSERT INTO k VALUES (3, NULL, 3), (4, NULL, 4)
INSERT INTO k SELECT id + 1, NULL, n FROM k
INSERT INTO k SELECT id + 10, u, n FROM k WHERE id < 3
INSERT INTO k SELECT id + 10, u || '!', n FROM k WHERE id < 3
UPDATE k SET id = 2 WHERE id = 1
UPDATE k SET u = 'b' WHERE id = 1
UPDATE k SET id = id WHERE id < 3
UPDATE k SET id = 7 WHERE id < 3
UPDATE k SET u = 'z'
UPDATE k SET n = NULL WHERE id = 1
UPDATE k SET id = NULL WHERE id = 1
UPDATE k SET u = NULL WHERE id > 2
UPDATE k SET id = -id
UPDATE k SET id = id + 1, n = id
DELETE FROM k WHERE id = 0
INSERT INTO k VALUES (0, 'a', 1)
BEGIN
INSERT INTO k VALUES (21, 'u', 1)
SAVEPOINT s
INSERT INTO k VALUES (21, 'v', 1)
ROLLBACK TO s
INSERT INTO k VALUES (22, 'u', 1)
ROLLBACK TO s
UPDATE k SET id = 21 WHERE id = 0
ROLLBACK TO s
UPDATE k SET n = NULL WHERE id = 21
ROLLBACK TO s
DELETE FROM k WHERE id = 21
INSERT INTO k VALUES (21, 'v', 2)
UPDATE k SET id = 30 WHERE id = 21
INSERT INTO k VALUES (21, 'w', 2)
INSERT INTO k VALUES (23, NULL, 2), (24, NULL, 2)
COMMIT
INSERT INTO k VALUES (30, 'c', 1)
TRUNCATE k
INSERT INTO k VALUES (0, 'a', 1)
CREATE TABLE two (a int, b text, c numeric(9,2) UNIQUE, d float8 UNIQUE, PRIMARY KEY (b, a))
INSERT INTO two VALUES (1, 'x', 1.5, 2.5), (2, 'x', NULL, NULL), (1, 'y', NULL, NULL)
INSERT INTO two VALUES (1, 'x', 3, 3)
INSERT INTO two VALUES (3, 'x', 1.50, 3)
INSERT INTO two VALUES (3, 'x', 3, 2.5)
INSERT INTO two VALUES (3, 'x', 3, 'NaN'), (4, 'x', 4, 'NaN')
INSERT INTO two VALUES (3, 'x', 3, 0), (4, 'x', 4, '-0')
INSERT INTO two VALUES (NULL, 'x', 3, 0)
INSERT INTO two VALUES (5, 'a long key, of seventy characters, shown with all of them', 9, 9)
INSERT INTO two VALUES (5, 'a long key, of seventy characters, shown with all of them', 8, 8)
CREATE UNIQUE INDEX ON two (a, c)
INSERT INTO two VALUES (1, 'z', 1.5, 9.5)
CREATE TABLE "S" (id serial PRIMARY KEY, "V" int UNIQUE)
INSERT INTO "S" VALUES (1, 1)
INSERT INTO "S" ("V") VALUES (2)
INSERT INTO "S" ("V") VALUES (2)
INSERT INTO "S" ("V") VALUES (2)
CREATE TABLE keyed (d date, u uuid, t timestamptz, UNIQUE (d), UNIQUE (u), UNIQUE (t))
INSERT INTO keyed VALUES ('2024-01-01', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2024-01-01 00:00Z')
INSERT INTO keyed VALUES ('2024-01-01', NULL, NULL)
INSERT INTO keyed VALUES (NULL, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', NULL)
INSERT INTO keyed VALUES (NULL, NULL, '2024-01-01 01:00+01')
INSERT INTO keyed VALUES (NULL, NULL, NULL), (NULL, NULL, NULL)
BEGIN
CREATE TABLE made (id int PRIMARY KEY, n int NOT NULL, g int GENERATED ALWAYS AS (n % 9) STORED)
INSERT INTO made VALUES (1, 1)
SAVEPOINT s
INSERT INTO made VALUES (1, 2)
ROLLBACK TO s
INSERT INTO made VALUES (2, NULL)
ROLLBACK TO s
INSERT INTO made VALUES (2, 11)
ROLLBACK TO s
UPDATE made SET n = 3
COMMIT
INSERT INTO made VALUES (1, 1)
INSERT INTO made VALUES (2, 13)
UPDATE made SET n = NULL
CREATE TABLE liked (LIKE k, PRIMARY KEY (id))
INSERT INTO liked VALUES (1, 'a', NULL)
INSERT INTO liked VALUES (1, 'a', 1), (2, 'a', 1)
"""

_PARTITIONS = """
CREATE TABLE p (id int, r int NOT NULL, v int, PRIMARY KEY (id, r), UNIQUE (r, v)) {by}
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)
CREATE TABLE px PARTITION OF p DEFAULT
INSERT INTO p VALUES (1, 1, 1), (1, 11, 1)
INSERT INTO p VALUES (1, 11, 2)
INSERT INTO p VALUES (2, 11, 1)
INSERT INTO p VALUES (5, 5, 5), (1, 1, 2)
INSERT INTO p2 VALUES (1, 11, 2)
INSERT INTO p VALUES (5, NULL, 5)
INSERT INTO p VALUES (NULL, 5, 5)
UPDATE p SET r = 11 WHERE r = 1
UPDATE p SET r = 12, v = 5 WHERE r = 1
UPDATE p SET r = 11, id = 7 WHERE r = 12
UPDATE p SET id = NULL WHERE r = 11
BEGIN
INSERT INTO p VALUES (8, 8, 8)
INSERT INTO p VALUES (9, 18, 8), (8, 8, 9)
ROLLBACK
INSERT INTO p VALUES (8, 8, 8)
"""


_NOT_NULL = """
CREATE TABLE nn (id int PRIMARY KEY, a int NOT NULL, b int, s int GENERATED ALWAYS AS IDENTITY)
INSERT INTO nn VALUES (1, 1, NULL)
ALTER TABLE nn ALTER COLUMN a DROP NOT NULL
INSERT INTO nn VALUES (2, NULL, 2)
ALTER TABLE nn ALTER b SET NOT NULL
ALTER TABLE nn ALTER a SET NOT NULL, ALTER b DROP NOT NULL
UPDATE nn SET b = 1 WHERE id = 1
ALTER TABLE nn ALTER b SET NOT NULL
ALTER TABLE nn ALTER b SET NOT NULL
INSERT INTO nn VALUES (3, 3, NULL)
ALTER TABLE nn ALTER id DROP NOT NULL
ALTER TABLE nn ALTER s DROP NOT NULL
ALTER TABLE nn ALTER nothing SET NOT NULL
ALTER TABLE nn ADD c int NOT NULL
ALTER TABLE nn ADD d int NOT NULL DEFAULT 4
UPDATE nn SET d = NULL
TRUNCATE nn
ALTER TABLE nn ADD c int NOT NULL
INSERT INTO nn VALUES (1, 1, 1)
CREATE TABLE np (id int, r int, v int NOT NULL, w int) {by}
CREATE TABLE np1 PARTITION OF np FOR VALUES FROM (0) TO (10)
INSERT INTO np VALUES (1, 1, NULL, 1)
ALTER TABLE np1 ALTER v DROP NOT NULL
ALTER TABLE np ALTER v DROP NOT NULL
INSERT INTO np VALUES (1, 1, NULL, 1)
ALTER TABLE np1 ALTER w SET NOT NULL
INSERT INTO np VALUES (1, 1, 1, NULL)
ALTER TABLE np ALTER v SET NOT NULL
"""


def _outcome(session: Any, statement: str) -> tuple[str | None, ...]:
    try:
        return (session.execute(statement).statusmessage,)
    except psycopg.Error as error:
        told = error.diag
        return (
            told.sqlstate,
            told.message_primary,
            told.message_detail,
            told.schema_name,
            told.table_name,
            told.column_name,
            told.constraint_name,
        )


def _compare(both: Both, statements: str, *queries: str, exact: bool = True) -> None:
    """``exact``: which of several rows is told of, too."""
    ours, server = both()
    for statement in statements.format(by="PARTITION BY RANGE (r)").strip().splitlines():
        mine, theirs = _outcome(ours, statement), _outcome(server, statement)
        if not exact and len(mine) == len(theirs) > 1:
            mine, theirs = (str(mine[0])[:2],), (str(theirs[0])[:2],)
        assert (statement, mine) == (statement, theirs)
    for query in queries:
        assert ours.execute(query).fetchall() == server.execute(query).fetchall()


def test_statements_are_answered_as_by_a_server(both: Both) -> None:
    _compare(
        both,
        _KEYS,
        "SELECT * FROM k ORDER BY 1",
        "SELECT * FROM two ORDER BY 1, 2",
        'SELECT * FROM "S" ORDER BY 1',
    )


def test_not_null_comes_and_goes(both: Both) -> None:
    shown = "SELECT attname, attnotnull FROM pg_attribute WHERE attrelid = '{}'::regclass"
    queries = [f"{shown.format(name)} AND attnum > 0 ORDER BY 1" for name in ("nn", "np", "np1")]
    _compare(both, _NOT_NULL, "SELECT * FROM nn", *queries)


def test_partitions(both: Both) -> None:
    _compare(both, _PARTITIONS, "SELECT * FROM p ORDER BY 1, 2")


@part_of_make_faults
@pytest.mark.parametrize(("statements", "table"), [(_KEYS, "k"), (_PARTITIONS, "p")])
def test_by_spark(both: Both, by_spark: None, statements: str, table: str) -> None:
    """Tables that are large, or that Delta alone may write."""
    script = f"DROP TABLE IF EXISTS {table}" + statements.split("BEGIN")[0]
    script = script.replace("UPDATE k SET id = id + 1, n = id\n", "")
    _compare(both, script, f"SELECT * FROM {table} ORDER BY 1, 2", exact=False)


_OTHER_ROWS = """
CREATE TABLE g (id int PRIMARY KEY, u int UNIQUE, n int NOT NULL)
INSERT INTO g VALUES (1, 10, 0), (2, 20, 5), (3, 30, 2), (4, NULL, 0)
UPDATE g SET id = id + 100 / n, u = 60 / n, n = 10 / n WHERE n > 0
UPDATE g SET u = 10 / n WHERE n < 5
UPDATE g SET id = 10 / n WHERE id = 1
UPDATE g SET n = CASE WHEN n = 0 THEN NULL ELSE 10 / n END WHERE id = 4
UPDATE g SET id = id + 7 / n WHERE id = 22 AND n = 2
UPDATE g SET id = id + 7 / n WHERE n <> 0 AND u > 0
"""
_OTHER_ROWS_OF_PARTITIONS = """
CREATE TABLE q (id int, n int, v text) PARTITION BY RANGE (id)
CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10)
CREATE TABLE q2 PARTITION OF q FOR VALUES FROM (10) TO (30)
INSERT INTO q VALUES (1, 0, 'a'), (2, 5, 'b'), (12, 2, 'c'), (13, 0, 'd'), (4, NULL, 'e')
UPDATE q SET id = id + 5 / n, v = v || n WHERE n > 0
UPDATE q SET id = id - 20 / n WHERE n > 2 AND id > 2
UPDATE q SET id = 20 / n WHERE n < 6
UPDATE q SET id = 20 / n WHERE n > 0
UPDATE q SET id = 100 / n WHERE n > 0
"""


@pytest.mark.parametrize(
    ("statements", "table"), [(_OTHER_ROWS, "g"), (_OTHER_ROWS_OF_PARTITIONS, "q")]
)
def test_values_of_rows_that_do_not_change_are_not_computed(
    both: Both, by_spark: None, statements: str, table: str
) -> None:
    """Spark alone would look for their errors, too."""
    _compare(both, statements, f"SELECT * FROM {table} ORDER BY 1, 2", exact=table == "g")


def test_sessions_that_race_for_a_key(lake: LakeNode) -> None:
    """Each key goes to one of them, and the others are told so."""
    lake.execute("CREATE TABLE raced (id int PRIMARY KEY, who int)")
    told: list[str | None] = []

    def insert(who: int) -> None:
        with lake.connect() as session:
            for key in range(20):
                told.append(_outcome(session, f"INSERT INTO raced VALUES ({key}, {who})")[0])

    threads = [threading.Thread(target=insert, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, told)) == ["23505"] * 60 + ["INSERT 0 1"] * 20
    assert lake.rows("SELECT id FROM raced ORDER BY 1") == [(key,) for key in range(20)]


def test_a_key_that_comes_before_the_commit(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of the table that takes no turn, as a subscription, is first."""
    lake.execute("CREATE TABLE beaten (id int PRIMARY KEY)", "INSERT INTO beaten VALUES (1)")
    put, others = TableLog.put, ["INSERT INTO beaten VALUES (3)", "INSERT INTO beaten VALUES (2)"]

    def late(log: TableLog, after: int, *commit: Any) -> Any:
        if log.uri.endswith("/beaten") and others:
            with monkeypatch.context() as patched, lake.connect() as other:
                patched.setattr(TableLog, "put", put)
                patched.setattr(UniqueKeys, "turn", lambda *_: nullcontext())
                other.execute(others.pop())
        return put(log, after, *commit)

    monkeypatch.setattr(TableLog, "put", late)
    lake.execute("INSERT INTO beaten VALUES (4)")
    with pytest.raises(psycopg.errors.UniqueViolation, match="beaten_pkey"):
        lake.execute("INSERT INTO beaten VALUES (3)")
    assert lake.rows("SELECT id FROM beaten ORDER BY 1") == [(1,), (2,), (3,), (4,)]


def test_blocks_that_race_for_a_key(lake: LakeNode) -> None:
    lake.execute(
        "CREATE TABLE two_blocks (id int PRIMARY KEY, v int)", "CREATE TABLE other (v int)"
    )
    with lake.connect() as first, lake.connect() as second:
        for session in (first, second):
            session.execute("BEGIN")
            session.execute("INSERT INTO two_blocks VALUES (1, 1)")
            session.execute("INSERT INTO other VALUES (1)")
        assert _outcome(first, "COMMIT") == ("COMMIT",)
        told = _outcome(second, "COMMIT")
        assert told[:3] == (
            "23505",
            'duplicate key value violates unique constraint "two_blocks_pkey"',
            "Key (id)=(1) already exists.",
        )
        second.execute("BEGIN")
        second.execute("INSERT INTO two_blocks VALUES (2, 1)")
        first.execute("INSERT INTO two_blocks VALUES (3, 1)")
        second.execute("COMMIT")
        second.execute("BEGIN")
        second.execute("DELETE FROM two_blocks WHERE id = 1")
        second.execute("INSERT INTO two_blocks VALUES (1, 2)")
        first.execute("INSERT INTO two_blocks VALUES (4, 1)")
        second.execute("COMMIT")
    assert lake.rows("SELECT * FROM two_blocks ORDER BY 1") == [(1, 2), (2, 1), (3, 1), (4, 1)]
    assert lake.rows("SELECT * FROM other") == [(1,)]


def test_prepared_transactions(lake: LakeNode) -> None:
    """Who brings a key that one of them brings runs again; what others bring meanwhile, by
    themselves, leaves it prepared."""
    lake.execute("CREATE TABLE prep (id int PRIMARY KEY)", "INSERT INTO prep VALUES (1)")
    with lake.connect() as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO prep VALUES (2)")
        session.execute("PREPARE TRANSACTION 'keys'")
    for statement in (
        "INSERT INTO prep VALUES (3), (2)",
        "UPDATE prep SET id = 2",
    ):
        told = _outcome(lake.connection, statement)
        assert told[0] == "40001" and '"keys"' in str(told[2])
    with lake.connect() as session:
        session.execute("BEGIN")
        assert _outcome(session, "INSERT INTO prep VALUES (2)")[0] == "40001"
        session.execute("ROLLBACK")
    uri = str(lake.node.folder / "warehouse" / "public" / "prep")
    write_deltalake(uri, pa.table({"id": pa.array([2], pa.int32())}), mode="append")
    told = _outcome(lake.connection, "COMMIT PREPARED 'keys'")
    assert told[:3] == (
        "23505",
        'duplicate key value violates unique constraint "prep_pkey"',
        "Key (id)=(2) already exists.",
    )
    lake.execute("DELETE FROM prep WHERE id = 2", "COMMIT PREPARED 'keys'")
    assert lake.rows("SELECT id FROM prep ORDER BY 1") == [(1,), (2,)]


def test_a_table_that_a_subscription_fills(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """Its rows have keys, too: but not those that are deleted and stay. What a session brings first
    is a conflict of the subscription."""
    source = subscriber(18)
    source.execute(
        "CREATE TABLE filled (id int PRIMARY KEY, v text); INSERT INTO filled VALUES (1, 'source');"
        "CREATE PUBLICATION filled FOR TABLE filled"
    )
    lake.execute("CREATE TABLE filled (id serial PRIMARY KEY, v text)")
    lake.node.sql(
        f"CREATE SUBSCRIPTION filled CONNECTION '{source.conninfo}' PUBLICATION filled"
        " WITH (soft_delete = true)"
    )
    follows(lake, source, "filled")
    assert _outcome(lake.connection, "INSERT INTO filled (v) VALUES ('lake')")[:3] == (
        "23505",
        'duplicate key value violates unique constraint "filled_pkey"',
        "Key (id)=(1) already exists.",
    )
    lake.execute("INSERT INTO filled (v) VALUES ('lake')")
    source.execute("DELETE FROM filled")
    follows(lake, source, "filled")
    lake.execute("INSERT INTO filled VALUES (1, 'lake')")
    assert _outcome(lake.connection, "INSERT INTO filled VALUES (1, 'lake')")[0] == "23505"
    source.execute("INSERT INTO filled VALUES (2, 'source')")
    wait_until(lambda: lake.node.status()[0].stopped, "the conflict")
    assert "insert_exists" in str(lake.node.status()[0].error)
    lake.node.sql("DROP SUBSCRIPTION filled")
