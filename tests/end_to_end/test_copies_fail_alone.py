"""A table whose copy fails is told of and copied again; the others and the stream go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.node.status import SubscriptionStatus, TableStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = (
    "CREATE TABLE good (id integer PRIMARY KEY); INSERT INTO good VALUES (1);"
    "CREATE TABLE odd (id integer PRIMARY KEY, d date);"
    "INSERT INTO odd SELECT i, '2020-01-01' FROM generate_series(1, 5000) i;"
    "INSERT INTO odd VALUES (9999, 'infinity');"
    "CREATE TABLE secret (id integer PRIMARY KEY); INSERT INTO secret VALUES (1);"
    "CREATE TABLE columns (id integer PRIMARY KEY, a text);"
    "GRANT SELECT (id, a) ON columns TO weak;"
    "INSERT INTO columns VALUES (1, 'a');"
    "CREATE TABLE hidden (id integer PRIMARY KEY); INSERT INTO hidden VALUES (1);"
    "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;"
    "GRANT SELECT ON good, odd, hidden, filled, failing TO weak;"
    "CREATE PUBLICATION p FOR TABLE good, odd, secret, columns, hidden, filled,"
    " failing WHERE (1 / (id - 2999) < 5)"
)


def test_each_alone(local_node: Callable[..., LocalNode], database: Database) -> None:
    database.execute("CREATE TABLE filled (id integer PRIMARY KEY); INSERT INTO filled VALUES (1);")
    database.execute(
        "CREATE TABLE failing (id integer PRIMARY KEY); INSERT INTO failing VALUES (2999);"
        "CREATE PUBLICATION first FOR TABLE filled;"
        "DROP ROLE IF EXISTS weak; CREATE ROLE weak LOGIN REPLICATION"
    )
    database.execute(_TABLES)
    node = local_node(wal_retrieve_retry_interval="500ms", copy_unit_size="64kB")
    node.subscribe("first", database, "first")
    node.caught_up("first", database)
    node.node.sql("DROP SUBSCRIPTION first")
    node.node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo} user=weak' PUBLICATION p")

    def settled(status: SubscriptionStatus) -> bool:
        ready = {one.name for one in status.tables if one.state == "r"}
        failed = {one.name for one in status.tables if one.error}
        return ready == {"public.good", "public.columns"} and len(failed) == 5

    node.wait_for("s", "five errors", settled, 90)
    status = node.status("s")
    errors = {one.name.removeprefix("public."): one for one in status.tables if one.error}
    assert "infinity" in told(errors["odd"])
    assert 'Table "public.odd", column "d"' in told(errors["odd"])
    assert "permission denied for table secret" in told(errors["secret"])
    assert "GRANT SELECT ON TABLE public.secret TO weak" in told(errors["secret"])
    assert "row-level security" in told(errors["hidden"])
    assert "BYPASSRLS" in told(errors["hidden"]) and "GRANT" not in told(errors["hidden"])
    assert 'target table "public.filled" is not empty' in told(errors["filled"])
    assert "division by zero" in told(errors["failing"])
    assert status.error in {one.error for one in errors.values()}
    assert not status.stopped
    before = status.error_count
    database.execute("INSERT INTO good VALUES (2)")
    node.wait_for("s", "another try", lambda status: status.error_count >= before + 5)
    node.wait_for("s", "the new row", lambda _: sorted(node.rows("good")) == [(1,), (2,)])
    assert_equal(node, database, "columns")
    # The causes go, and with them the errors.
    database.execute(
        "UPDATE odd SET d = '2021-01-01' WHERE id = 9999; GRANT SELECT ON secret TO weak;"
        "ALTER ROLE weak BYPASSRLS; TRUNCATE failing"
    )
    database.execute("ALTER PUBLICATION p DROP TABLE filled")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.caught_up("s", database)
    assert_equal(node, database, "good", "columns", "odd", "secret", "hidden", "failing")
    assert node.status("s").error is None
    node.node.sql("DROP SUBSCRIPTION s")
    database.execute("DROP OWNED BY weak; DROP ROLE weak")


def told(one: TableStatus) -> str:
    return f"{one.error} {one.error_detail} {one.error_hint}"


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)
