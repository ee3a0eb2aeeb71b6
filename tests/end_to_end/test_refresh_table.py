"""ALTER SUBSCRIPTION ... REFRESH TABLE: one table is copied again, in one statement."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.errors import PenstockError

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> LocalNode:
    database.execute(
        "CREATE SCHEMA a; CREATE TABLE a.t (id integer PRIMARY KEY, v integer);"
        "CREATE TABLE u (id integer PRIMARY KEY, v integer);"
        "INSERT INTO a.t SELECT i, 0 FROM generate_series(1, 1000) i;"
        "INSERT INTO u VALUES (1, 0);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    node = local_node(wal_retrieve_retry_interval="200ms")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    return node


def assert_equal(node: LocalNode, database: Database) -> None:
    with database.connect() as connection:
        for schema, table in (("a", "t"), ("public", "u")):
            wanted = publisher_rows(connection, f"{schema}.{table}")
            found = node.rows(table, schema=schema)
            assert not (lack := difference(table, wanted, found)), str(lack)


def test_one_table_is_copied_again_under_traffic(node: LocalNode, database: Database) -> None:
    before = {table.name: table for table in node.status("s").tables}
    # Somebody has damaged the table: what the publisher never sends again is missing.
    uri = node.cut().tables["a", "t"].uri
    node.node.spark.sql(f"DELETE FROM delta.`{uri}` WHERE id > 500")
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(database.conninfo) as connection:
            while not ended.wait(0.01):
                connection.execute("UPDATE a.t SET v = v + 1 WHERE id <= 100")
                connection.execute("UPDATE u SET v = v + 1")
                connection.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        (told,) = node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE a.t").notices
        assert told.message == 'table "a.t" will be copied again'
        node.caught_up("s", database)
    finally:
        ended.set()
        writer.join()
    node.caught_up("s", database)
    assert_equal(node, database)
    after = {table.name: table for table in node.status("s").tables}
    assert after["public.u"].lsn == before["public.u"].lsn  # only the one table
    assert (after["a.t"].lsn or 0) > (before["a.t"].lsn or 0)


@part_of_make_faults
def test_readers_keep_the_old_contents_until_the_copy_is_there(
    node: LocalNode, database: Database
) -> None:
    old = node.cut().tables["a", "t"]
    with psycopg.connect(database.conninfo) as writer:
        # The copy's slot waits for the end of transactions that have written.
        writer.execute("INSERT INTO u VALUES (2, 0)")
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE a.t")
        database.execute("UPDATE u SET v = 7 WHERE id = 1")
        node.wait_for(
            "s",
            "cuts without the table",
            lambda _: ("a", "t") not in node.cut().tables and (1, 7) in node.rows("u"),
        )
        assert node.node.read("a.t").count() == 1000  # at the last cut that holds it
        assert len(delta_rows(old.uri, None)) == 1000  # the newest version
        writer.execute("UPDATE a.t SET v = 9")
        writer.commit()
    node.caught_up("s", database)
    assert_equal(node, database)
    assert node.node.read("a.t").where("v = 9").count() == 1000
    # Older cuts stay readable, and what they hold stays as it was.
    assert len(delta_rows(old.uri, old.version)) == 1000


def test_a_table_that_has_stopped_the_subscription_goes_on(
    node: LocalNode, database: Database
) -> None:
    database.execute("ALTER TABLE a.t DROP COLUMN v; INSERT INTO a.t VALUES (1001)")
    node.stopped("s")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE a.t")
    node.caught_up("s", database)
    assert_equal(node, database)


_REFUSED = (
    (
        "REFRESH TABLE nothing",
        'relation "public.nothing" is not part of the subscription',
        "ALTER SUBSCRIPTION s REFRESH PUBLICATION takes in what is published.",
    ),
    ("REFRESH TABLE x.a.t", 'cross-database references are not implemented: "x.a.t"', None),
    ("REFRESH TABLE", "syntax error at end of input", None),
    ("REFRESH TABLE a.t,", "syntax error at end of input", None),
    ("REFRESH TABLE a.t WITH (copy_data)", 'syntax error at or near "WITH"', None),
)


def test_what_it_refuses_it_refuses_as_a_whole(node: LocalNode, database: Database) -> None:
    for statement, message, hint in _REFUSED:
        with pytest.raises(PenstockError) as answer:
            node.node.sql(f"ALTER SUBSCRIPTION s {statement}")
        assert (answer.value.message, answer.value.hint) == (message, hint)
    states = {table.name: table.lsn for table in node.status("s").tables}
    database.execute("ALTER PUBLICATION p RENAME TO old; CREATE PUBLICATION p FOR TABLE u")
    with pytest.raises(PenstockError, match=r'relation "a\.t" is not published') as refused:
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE u, a.t")
    assert {table.name: table.lsn for table in node.status("s").tables} == states
    assert "ALTER SUBSCRIPTION s REFRESH PUBLICATION removes it" in str(refused.value.hint)
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert [table.name for table in node.status("s").tables] == ["public.u"]
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    with pytest.raises(PenstockError, match="REFRESH TABLE is not allowed for disabled"):
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE u")
