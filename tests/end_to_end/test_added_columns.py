"""Columns that are added at the publisher: old rows are as there, or the column is told by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from typer.testing import CliRunner

from end_to_end.compare import delta_rows, difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.cli.main import app

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


def _is_unfilled(node: LocalNode, name: str, _: object) -> bool:
    return unfilled(node) == (name,)


def unfilled(node: LocalNode) -> tuple[str, ...]:
    (table,) = node.status("s").tables
    return table.unfilled


@pytest.mark.parametrize(
    "column",
    [
        in_make_faults("c integer DEFAULT 5"),
        "c float8 DEFAULT random()",
        "c integer GENERATED ALWAYS AS IDENTITY",
        "c serial",
        "c five",
        "\"Total\" text NOT NULL DEFAULT 'x''y'",
    ],
)
def test_values_that_are_not_sent_are_told_by_name(
    local_node: Callable[..., LocalNode],
    database: Database,
    caplog: pytest.LogCaptureFixture,
    column: str,
) -> None:
    database.execute(f"{_SETUP} CREATE PUBLICATION p FOR TABLE t")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    database.execute(f"ALTER TABLE t ADD COLUMN {column}")
    database.execute("UPDATE t SET v = 'x' WHERE id <= 10; INSERT INTO t VALUES (101, 'a', 'b')")
    node.caught_up("s", database)
    name = database.value(
        "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum = 4"
    )
    node.wait_for("s", "the column's name", lambda _: unfilled(node) == (name,))
    assert f'may have a default or another value at the publisher: "{name}"' in caplog.text
    assert equal(node, database, "id", "v", "w")
    assert not equal(node, database, "id", name)
    # It outlives the node's run: it is in the table's log.
    node.node.stop()
    shown = CliRunner().invoke(app, ["status", "-D", str(node.folder)]).stdout
    assert f"rows from before a column was added lack its value: {name}" in shown
    node.node.start()
    database.execute("UPDATE t SET v = 'y' WHERE id = 11")
    node.caught_up("s", database)
    node.wait_for("s", "the column's name", lambda _: unfilled(node) == (name,))
    # The statement of the log brings the values.
    statement = "ALTER SUBSCRIPTION s REFRESH TABLE public.t"
    assert f"To copy the table again: {statement}" in caplog.text
    node.node.sql(statement)
    node.caught_up("s", database)
    assert equal(node, database, "id", "v", "w", name)
    node.wait_for("s", "nothing to tell", lambda _: unfilled(node) == ())


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


def test_a_column_that_joins_a_list_is_told(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(f"{_SETUP} CREATE PUBLICATION p FOR TABLE t (id, v)")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    # Once to another list, once to none.
    for now, name in (("(id, v, w)", "w"), ("", "x")):
        database.execute("ALTER TABLE t ADD COLUMN IF NOT EXISTS x integer; UPDATE t SET x = 4")
        node.caught_up("s", database)
        database.execute(f"ALTER PUBLICATION p SET TABLE t {now}")
        database.execute("UPDATE t SET v = 'z' WHERE id = 5")
        node.caught_up("s", database)
        node.wait_for("s", "the column's name", partial(_is_unfilled, node, name))
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
        node.caught_up("s", database)
        assert equal(node, database, "id", "v", "w", *(["x"] if not now else []))
        node.wait_for("s", "nothing to tell", lambda _: unfilled(node) == ())
