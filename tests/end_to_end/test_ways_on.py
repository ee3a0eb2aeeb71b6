"""A subscription that one table has stopped goes on as its hint says, statement by statement."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
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


def another_in_its_place(node: LocalNode, spark: Any, vectors: str = "true") -> Path:
    """Exchange the folder of a stopped node's table for somebody else's table."""
    folder = node.warehouse / "public" / "t"
    folder.rename(folder.with_name("t_kept"))
    spark.sql(
        f"CREATE TABLE delta.`{folder}` USING delta TBLPROPERTIES "
        f"('delta.enableDeletionVectors' = '{vectors}') AS SELECT 7 AS id, 'mine' AS mine"
    )
    return folder


def files_of(folder: Path) -> dict[Path, bytes]:
    """What is in a folder."""
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def is_told_and_left_alone(
    node: LocalNode, database: Database, refresh: str, enable: str | None, folder: Path
) -> None:
    """A copy is refused until the other table has been moved away, and goes on by itself then."""
    (told,) = node.node.sql(refresh).notices
    assert told.message == 'table "public.t" will be copied again'
    assert f'Another Delta table lies at "file://{folder}"' in str(told.detail)
    assert "replaces the rows" not in str(told.detail)
    if enable is not None:
        node.node.sql(enable)

    def refused(status: SubscriptionStatus) -> bool:
        return any(f"{folder}" in f"{t.error_detail} {t.error_hint}" for t in status.tables)

    theirs, away = files_of(folder), folder.with_name("t_theirs")
    node.wait_for(_NAME, "a refused copy", refused)
    folder.rename(away)
    node.caught_up(_NAME, database)
    assert_equal(node, database)
    assert files_of(away) == theirs


@pytest.mark.parametrize("vectors", ["true", in_make_faults("false")])
def test_another_table_in_its_place(
    node: LocalNode, database: Database, spark: Any, vectors: str
) -> None:
    node.node.stop()
    folder = another_in_its_place(node, spark, vectors)
    database.execute("UPDATE t SET n = 7 WHERE id = 3")
    node.node.start()
    status = node.stopped(_NAME)
    hint = str(status.error_hint)
    assert hint.startswith(f"Put the table back in its place. Then run {_ALTER} ENABLE. Or move ")
    assert "in place of all its rows" not in hint
    enable, refresh, enable_too, park = statements(status)
    assert enable == enable_too == f"{_ALTER} ENABLE"
    assert park == f"{_ALTER} SET (on_table_error = park)"
    node.node.sql(enable)
    assert node.stopped(_NAME).error == status.error
    is_told_and_left_alone(node, database, refresh, enable, folder)


def test_another_table_in_the_place_of_a_parked_one(
    node: LocalNode, database: Database, spark: Any
) -> None:
    node.node.sql(f"{_ALTER} SET (on_table_error = park)")
    node.node.stop()
    folder = another_in_its_place(node, spark, "false")
    database.execute("UPDATE t SET n = 7 WHERE id = 3; INSERT INTO u VALUES (2)")
    node.node.start()
    node.caught_up_but_parked(_NAME, database)
    (parked,) = [table for table in node.status(_NAME).tables if table.state == "p"]
    refresh = f"{_ALTER} REFRESH PUBLICATION"
    assert parked.error_hint == (
        "The table is parked. Move away what lies in its place, or put the table back there; then "
        f"{refresh} copies it again."
    )
    is_told_and_left_alone(node, database, refresh, None, folder)


def test_a_parked_table_that_is_put_back(node: LocalNode, database: Database, spark: Any) -> None:
    node.node.sql(f"{_ALTER} SET (on_table_error = park)")
    node.node.stop()
    folder = another_in_its_place(node, spark)
    database.execute("UPDATE t SET n = 7 WHERE id = 3")
    node.node.start()
    node.caught_up_but_parked(_NAME, database)
    folder.rename(folder.with_name("t_theirs"))
    folder.with_name("t_kept").rename(folder)
    (told,) = node.node.sql(f"{_ALTER} REFRESH PUBLICATION").notices
    assert "The copy replaces the rows of the Delta table" in str(told.detail)
    node.caught_up(_NAME, database)
    assert_equal(node, database)


def test_a_table_that_was_moved_away(node: LocalNode, database: Database) -> None:
    node.node.stop()
    folder = node.warehouse / "public" / "t"
    folder.rename(folder.with_name("t_kept"))
    database.execute("UPDATE t SET n = 7 WHERE id = 3")
    node.node.start()
    status = node.stopped(_NAME)
    assert str(status.error_hint).startswith("Put the table back in its place. Then run ")
    assert "ove away" not in str(status.error_hint)
    copied_again(node, database, status)


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
