"""Columns that are added at the publisher: rows from before are as there, or the table stops."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text, w text);"
    "INSERT INTO t SELECT i, 'v', 'w' FROM generate_series(1, 100) i;"
    "CREATE DOMAIN five AS text DEFAULT '5';"
)


def equal(node: LocalNode, database: Database, *columns: str) -> bool:
    """Whether these columns are the same as at the publisher, in all rows."""
    pin = node.cut().tables["public", "t"]
    names = [c.name for c in node.node.read("t").schema.fields]
    rows = [
        tuple(row[names.index(column)] for column in columns)
        for row in delta_rows(pin.uri, pin.version)
    ]
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t", columns=columns)
    return not difference("t", wanted, rows)


def unfilled(node: LocalNode) -> tuple[str, ...]:
    (table,) = node.status("s").tables
    return table.unfilled


@pytest.mark.parametrize(
    ("column", "values"),
    [
        in_make_faults("c integer DEFAULT 5", "constant"),
        ("c float8 DEFAULT random()", "unknown"),
        in_make_faults("c integer GENERATED ALWAYS AS IDENTITY", "unknown"),
        ("c serial", "unknown"),
        ("c five", "constant"),
        ("\"Total\" text NOT NULL DEFAULT 'x''y'", "constant"),
    ],
)
def test_rows_from_before_have_the_publishers_values(
    local_node: Callable[..., LocalNode], database: Database, column: str, values: str
) -> None:
    """A constant is filled in here; nobody sends what else it may be, so it is not made up."""
    database.execute(f"{_SETUP} CREATE PUBLICATION p FOR TABLE t")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (102, 'before', 'w')")
    database.execute(f"ALTER TABLE t ADD COLUMN {column}")
    database.execute("UPDATE t SET v = 'x' WHERE id <= 10; INSERT INTO t VALUES (101, 'a', 'b')")
    name = database.value(
        "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum = 4"
    )
    if values == "unknown":
        stopped = node.stopped("s")
        assert "values that were not sent" in f"{stopped.error} {stopped.error_detail}"
        assert f"{name}" in f"{stopped.error} {stopped.error_detail}"
        assert "REFRESH PUBLICATION" in f"{stopped.error_hint}"
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.wait_for("s", "a new copy", lambda s: s.tables[0].rows_copied == 102)
    node.caught_up("s", database)
    assert equal(node, database, "id", "v", "w", name)
    assert unfilled(node) == ()


def test_rows_of_partitions_have_the_publishers_values(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """A partitioned table itself holds no value for the rows of its partitions."""
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (50);"
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (50) TO (200);"
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i;"
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (102, 'before')")
    database.execute("ALTER TABLE t ADD COLUMN c timestamptz NOT NULL DEFAULT now()")
    database.execute("UPDATE t SET v = 'x' WHERE id <= 10; INSERT INTO t VALUES (101, 'a')")
    node.caught_up("s", database)
    assert equal(node, database, "id", "v", "c")
    assert unfilled(node) == ()


def test_what_is_null_there_is_null_here(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(f"{_SETUP} CREATE PUBLICATION p FOR TABLE t")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute("ALTER TABLE t ADD COLUMN c integer, ADD COLUMN d text")
    database.execute("UPDATE t SET c = 1 WHERE id <= 10; INSERT INTO t VALUES (101, 'a', 'b', 3)")
    node.caught_up("s", database)
    assert equal(node, database, "id", "v", "w", "c", "d")
    assert unfilled(node) == ()


def test_a_column_that_joins_a_list_is_copied(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(f"{_SETUP} CREATE PUBLICATION p FOR TABLE t (id, v)")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    # Once to another list, once to none.
    for now in ("(id, v, w)", ""):
        database.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS x integer; UPDATE t SET x = 4")
        node.caught_up("s", database)
        database.execute(f"ALTER PUBLICATION p SET TABLE t {now}")
        database.execute("UPDATE t SET v = 'z' WHERE id = 5")
        assert "values that were not sent" in f"{node.stopped('s').error}"
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.wait_for("s", "a new copy", lambda s: s.tables[0].rows_copied == 100)
        node.caught_up("s", database)
        assert equal(node, database, "id", "v", "w", *(["x"] if not now else []))
        assert unfilled(node) == ()
