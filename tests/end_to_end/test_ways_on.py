"""A subscription that one table has stopped goes on as its hint says, statement by statement."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.errors import PenstockError
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_NAME = 'My "s"'
_QUOTED = '"My ""s"""'
_ALTER = f"ALTER SUBSCRIPTION {_QUOTED}"


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> LocalNode:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, n integer, d date DEFAULT '2024-02-29');"
        "CREATE TABLE u (id integer PRIMARY KEY);"
        "INSERT INTO t SELECT i, i FROM generate_series(1, 10) i; INSERT INTO u VALUES (1);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    node: LocalNode = local_node()
    node.subscribe(_QUOTED, database, "p", "slot_name = s")
    node.caught_up(_NAME, database)
    return node


def assert_equal(node: LocalNode, database: Database) -> None:
    with database.connect() as connection:
        for table in ("t", "u"):
            wanted = publisher_rows(connection, f"public.{table}")
            found = node.rows(table, subscription=_NAME)
            assert not (lack := difference(table, wanted, found)), str(lack)


def statements(status: SubscriptionStatus) -> list[str]:
    """Those of a hint, each whole; SKIP, which comes last, is ``test_on_error``'s."""
    hint, *_ = str(status.error_hint).split(" To skip the transaction:")
    assert "..." not in hint, hint
    return re.findall(rf"{re.escape(_ALTER)} [A-Z]+(?: PUBLICATION| \([^)]*\))?", hint)


def copied_again(node: LocalNode, database: Database, status: SubscriptionStatus) -> None:
    """REFRESH and ENABLE come last but one; ENABLE alone leads to the same error."""
    *_, refresh, enable, park = statements(status)
    assert park == f"{_ALTER} SET (on_table_error = park)"
    assert (refresh, enable) == (f"{_ALTER} REFRESH PUBLICATION", f"{_ALTER} ENABLE")
    node.node.sql(enable)
    assert node.stopped(_NAME).error == status.error
    (told,) = node.node.sql(refresh).notices
    assert told.message == 'table "public.t" will be copied again'
    assert str(status.error) in str(told.detail)
    node.node.sql(enable)
    node.caught_up(_NAME, database)
    assert_equal(node, database)


def test_changes_that_are_not_followed(node: LocalNode, database: Database) -> None:
    for change in (
        "ALTER TABLE t ALTER COLUMN n TYPE text; UPDATE t SET n = 'x' WHERE id = 1",
        "ALTER TABLE t DROP COLUMN n; UPDATE t SET d = '2025-01-01' WHERE id = 2",
        "ALTER TABLE t RENAME d TO n; UPDATE t SET n = '2026-01-01'",
    ):
        database.execute(f"{change}; INSERT INTO u SELECT max(id) + 1 FROM u")
        status = node.stopped(_NAME)
        # To take the change back does not help: the WAL keeps the definition of then.
        assert len(statements(status)) == 3, status.error_hint
        assert "in place of all its rows" in str(status.error_hint)
        copied_again(node, database, status)
        database.execute("DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
        node.caught_up(_NAME, database)
        assert_equal(node, database)


@part_of_make_faults
def test_rows_and_files_that_are_not_what_they_were(node: LocalNode, database: Database) -> None:
    folder = node.warehouse / "public" / "t"
    node.node.spark.sql(f"INSERT INTO delta.`{folder}` VALUES (500, 1, date '2024-02-29')")
    database.execute("INSERT INTO t VALUES (500, 2)")
    copied_again(node, database, node.stopped(_NAME))
    for file in folder.glob("*.parquet"):
        file.unlink()
    database.execute("UPDATE t SET n = 7 WHERE id = 3")
    copied_again(node, database, node.stopped(_NAME))


@part_of_make_faults
def test_deletion_vectors_that_are_gone(node: LocalNode, database: Database) -> None:
    """A copy that replaces all rows does not need to know them."""
    folder = node.warehouse / "public" / "t"
    database.execute("DELETE FROM t WHERE id = 2")
    node.caught_up(_NAME, database)
    vectors = list(folder.glob("deletion_vector_*.bin"))
    assert vectors
    for file in vectors:
        file.unlink()
    database.execute("UPDATE t SET n = 7 WHERE id = 3")
    node.node.stop()
    node.node.start()
    copied_again(node, database, node.stopped(_NAME))


def test_a_column_that_another_writer_has_added(node: LocalNode, database: Database) -> None:
    folder = node.warehouse / "public" / "t"
    node.node.spark.sql(f"ALTER TABLE delta.`{folder}` ADD COLUMNS (note string)")
    database.execute("UPDATE t SET n = 7 WHERE id = 7")
    status = node.stopped(_NAME)
    assert 'column "note" of target table "public.t" is not published' in str(status.error)
    copied_again(node, database, status)


def test_what_is_mended_needs_no_copy(node: LocalNode, database: Database) -> None:
    folder = node.warehouse / "public" / "t"
    node.node.spark.sql(f"INSERT INTO delta.`{folder}` VALUES (500, 1, date '2024-02-29')")
    database.execute("INSERT INTO t VALUES (500, 2)")
    status = node.stopped(_NAME)
    copied = node.status(_NAME).tables[0].lsn
    assert "Delete the rows that are too many" in str(status.error_hint)
    node.node.spark.sql(f"DELETE FROM delta.`{folder}` WHERE id = 500")
    node.node.sql(statements(status)[0])
    node.caught_up(_NAME, database)
    # What has gone on is not blamed any more.
    assert node.node.sql(f"{_ALTER} REFRESH PUBLICATION").notices == ()
    assert node.status(_NAME).tables[0].lsn == copied
    assert_equal(node, database)


def test_hints_name_the_subscription(node: LocalNode, database: Database) -> None:
    sql = node.node.sql
    for statement, hint in (
        (f"{_ALTER} SET (slot_name = NONE)", f"Disable it first: {_ALTER} DISABLE."),
        (
            f"{_ALTER} DISABLE; {_ALTER} REFRESH PUBLICATION",
            f"Enable it first: {_ALTER} ENABLE.",
        ),
        (
            f"{_ALTER} SET (slot_name = NONE); {_ALTER} ENABLE",
            f"Give it one: {_ALTER} SET (slot_name = '...').",
        ),
    ):
        with pytest.raises(PenstockError) as refused:
            sql(statement)
        assert refused.value.hint == hint
    sql(f"{_ALTER} SET (slot_name = s); {_ALTER} ENABLE")
    # The connection's errors are told by who knows whose it is.
    nowhere = database.conninfo.replace(f"dbname={database.name}", "dbname=nowhere")
    sql(f"{_ALTER} CONNECTION '{nowhere}'")
    status = node.retrying(_NAME)
    connection = f"Correct the connection string. Run {_ALTER} CONNECTION '...'."
    assert status.error_hint == connection
    with pytest.raises(PenstockError) as refused:
        sql(f"{_ALTER} REFRESH PUBLICATION")
    assert refused.value.hint == connection
    with pytest.raises(PenstockError) as refused:
        sql(f"CREATE SUBSCRIPTION x CONNECTION '{nowhere}' PUBLICATION p")
    assert refused.value.hint == "Correct the connection string."
    sql(f"{_ALTER} CONNECTION '{database.conninfo}'")
    # So are those of copies.
    database.execute("CREATE TABLE v (id integer PRIMARY KEY)")
    node.node.stop()
    sql(f"{_ALTER} REFRESH PUBLICATION")
    database.execute("ALTER TABLE v RENAME TO w")
    node.node.start()
    hint = f"It was dropped or renamed. Run {_ALTER} REFRESH PUBLICATION."
    node.wait_for(_NAME, hint, lambda s: hint in [t.error_hint for t in s.tables])
    sql(f"{_ALTER} REFRESH PUBLICATION")
    node.caught_up(_NAME, database)
