"""on_table_error = park: a table with an error of its own leaves the cuts, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.lsn import Lsn
from penstock.node.status import TableStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = ("good", "typed", "dated", "foreign_rows", "gone", "damaged")


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> Iterator[LocalNode]:
    for table in _TABLES:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int, d date DEFAULT '2024-02-29');"
            f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 100) i"
        )
    database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    yield local_node()


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def parked(node: LocalNode) -> dict[str, TableStatus]:
    return {t.name: t for t in node.status("s").tables if t.state == "p"}


def confirmed(database: Database) -> Lsn:
    slot = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 's'"
    return Lsn.parse(database.value(slot))


def acknowledged(node: LocalNode, database: Database) -> None:
    """Nothing holds the publisher's WAL back."""
    written = Lsn.parse(database.value("SELECT pg_current_wal_flush_lsn()::text"))
    node.wait_for("s", "the acknowledgement", lambda _: confirmed(database) >= written)


def break_tables(node: LocalNode, database: Database) -> None:
    """Each table but one gets an error of its own, at another place of the way."""
    folder = node.warehouse / "public"
    node.node.spark.sql(
        f"INSERT INTO delta.`{folder / 'foreign_rows'}` VALUES (500, 1, date '2024-02-29')"
    )
    for file in (folder / "gone").glob("*.parquet"):
        file.unlink()
    for file in (folder / "damaged").glob("*.parquet"):
        file.write_bytes(b"x" * file.stat().st_size)
    database.execute("ALTER TABLE typed ALTER COLUMN n TYPE text")


def write_to_all(database: Database) -> None:
    """One transaction over all of them, which no reader may see a part of."""
    updates = "".join(f"UPDATE {table} SET n = 7 WHERE id = 1;" for table in _TABLES[2:])
    with database.connect(autocommit=False) as connection:
        connection.execute("UPDATE good SET n = -1 WHERE id <= 10")
        connection.execute("UPDATE typed SET n = 'x' WHERE id = 1")
        connection.execute("UPDATE dated SET d = 'infinity' WHERE id = 2")
        connection.execute(updates)
        connection.execute("INSERT INTO foreign_rows VALUES (500, 2)")
        connection.execute("INSERT INTO good VALUES (1000, 1)")
        connection.commit()


def test_bad_tables_are_parked_and_copied_again(
    node: LocalNode, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    node.subscribe("s", database, "p", "on_table_error = park")
    node.caught_up("s", database)
    before = node.cut().tables
    rows_before = {
        name: delta_rows(pin.uri, pin.version)
        for name, pin in before.items()
        if name[1] not in ("gone", "damaged")
    }
    break_tables(node, database)
    write_to_all(database)
    node.wait_for("s", "five parked tables", lambda _: len(parked(node)) == 5)
    acknowledged(node, database)
    assert set(node.cut().tables) == {("public", "good")}
    assert_equal(node, database, "good")
    # Status, catalog, log and metric say which, and why.
    found = parked(node)
    assert "has changed its type" in str(found["public.typed"].error)
    assert "infinity" in str(found["public.dated"].error)
    assert "(id)=(500)" in str(found["public.foreign_rows"].error_detail)
    assert "No such file" in str(found["public.gone"].error)
    assert found["public.damaged"].error
    assert node.status("s").state == "streaming"
    assert node.status("s").error is None
    shown = node.node.sql("SELECT relname, state, error FROM pg_stat_lake_subscription_rel").rows
    assert sum(state == "p" and error is not None for _, state, error in shown) == 5
    again = "ALTER SUBSCRIPTION s REFRESH PUBLICATION"
    assert all(again in str(table.error_hint) for table in found.values())
    assert 'table "public.typed" of subscription "s" is parked' in "\n".join(caplog.messages)
    # The rest goes on, also over a new session.
    database.execute("INSERT INTO good VALUES (1001, 1); UPDATE dated SET n = 8 WHERE id = 3")
    node.node.sql("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up_but_parked("s", database)
    assert_equal(node, database, "good")
    assert len(parked(node)) == 5
    # The remedies, and one statement.
    database.execute(
        "UPDATE dated SET d = '2025-01-01' WHERE id = 2; INSERT INTO typed VALUES (0, 'new')"
    )
    for table in ("gone", "damaged"):
        (node.warehouse / "public" / table).rename(node.folder / table)
    node.node.sql(again)
    node.caught_up("s", database)
    assert_equal(node, database, *_TABLES)
    write_to_typed = "UPDATE typed SET n = 'y' WHERE id = 5; DELETE FROM foreign_rows WHERE id = 9"
    database.execute(write_to_typed + "; UPDATE gone SET n = 3; UPDATE damaged SET n = 4")
    node.caught_up("s", database)
    assert_equal(node, database, *_TABLES)
    # A cut from before is still what it was.
    for name, rows in rows_before.items():
        pin = before[name]
        assert not difference(name[1], rows, delta_rows(pin.uri, pin.version))


def test_stop_names_the_table_and_parking_is_a_way_on(node: LocalNode, database: Database) -> None:
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    at = node.cut().lsn
    write_to_all_but = "UPDATE dated SET d = 'infinity' WHERE id = 2; UPDATE good SET n = 5"
    database.execute(write_to_all_but)
    status = node.stopped("s")
    assert 'table "public.dated"' in str(status.error_detail).lower()
    remedy = "ALTER SUBSCRIPTION s SET (on_table_error = park)"
    assert remedy in str(status.error_hint)
    assert confirmed(database) <= node.cut().lsn
    assert node.cut().lsn >= at
    node.node.sql(remedy)
    node.wait_for("s", "the parked table", lambda _: set(parked(node)) == {"public.dated"})
    acknowledged(node, database)
    assert_equal(node, database, "good", "typed")
    assert ("public", "dated") not in node.cut().tables
