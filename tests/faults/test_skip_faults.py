"""A node is killed while it skips a transaction: all tables are without it, or all have it.

Part of ``make faults`` only; ``subscription/test_skipping.py`` has the same states without kills.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import delta_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from faults.unread import unread
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.embedded import EmbeddedPostgres
from penstock.lsn import Lsn

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.postgres, pytest.mark.slow]

TABLES = "abcdef"
"""Some, so that one commits before the others."""
SKIP = "ALTER SUBSCRIPTION s SKIP (lsn = {})"


@pytest.fixture
def node(tmp_path: Path, database: Database) -> Iterator[NodeProcess]:
    for table in TABLES:
        database.execute(f"CREATE TABLE {table} (i int PRIMARY KEY)")
    database.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(TABLES)}")
    made = NodeProcess(tmp_path / "node")
    try:
        made.init()
        made.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        made.start()
        follow(made, database)
        made.kill9()
        yield made
    finally:
        made.close()


def three_transactions(database: Database, first: int) -> Lsn:
    """Each with a row for every table; where the second one finishes. No node runs."""
    for number in range(first, first + 3):
        rows = "; ".join(f"INSERT INTO {table} VALUES ({number})" for table in TABLES)
        database.execute(f"BEGIN; {rows}; COMMIT")
    return unread(database, b"B")[-2]


def killed(node: NodeProcess, name: str) -> bool:
    """Whether it was; tables may commit at one moment."""
    node.start(f"{name}:1")
    if node.wait_end(60) == -9:
        return True
    node.kill9()
    return False


def follow(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def reached() -> bool:
        ((status),) = node.status()
        ready = len(status["tables"]) == len(TABLES)
        ready = ready and all(table["state"] == "r" for table in status["tables"])
        return ready and Lsn.parse(status["cut_lsn"] or "0/0") >= target

    node.wait_for("a cut with all of it", reached, 120)


def check(node: NodeProcess, wanted: set[int]) -> None:
    with Node(node.folder) as reader:
        cut = reader.cut("s")
    assert cut is not None
    for table in TABLES:
        pin = cut.tables["public", table]
        found: list[Any] = sorted(delta_rows(pin.uri, pin.version))
        assert found == [(i,) for i in sorted(wanted)], table


def rounds(
    node: NodeProcess, database: Database, name: str, before: str, after: str, skipped: bool
) -> None:
    """``before``, ``after``: SKIP's values, before the kill and after it; "": not at all."""
    wanted: set[int] = set()
    for first in range(10, 60, 10):
        lsn = three_transactions(database, first)
        if before:
            node.sql(SKIP.format(before.format(lsn)))
        died = killed(node, name)
        if after and died:
            node.sql(SKIP.format(after.format(lsn)))
        node.start()
        follow(node, database)
        node.kill9()
        all_of_them = {first, first + 1, first + 2}
        gone = {first + 1} if (skipped if died else bool(before)) else set()
        wanted |= all_of_them - gone
        check(node, wanted)
        if died:
            return
    pytest.fail(f"never killed at {name}")


@pytest.mark.parametrize(
    "name", [failpoint.BETWEEN_COMMITS, failpoint.BEFORE_CUT, failpoint.AFTER_CUT]
)
def test_it_is_in_no_table(node: NodeProcess, database: Database, name: str) -> None:
    rounds(node, database, name, "'{}'", "", skipped=True)


def test_what_has_begun_is_not_taken_back(node: NodeProcess, database: Database) -> None:
    rounds(node, database, failpoint.BETWEEN_COMMITS, "'{}'", "NONE", skipped=True)


def test_what_some_tables_have_is_taken_back(node: NodeProcess, database: Database) -> None:
    rounds(node, database, failpoint.BETWEEN_COMMITS, "", "'{}'", skipped=True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_prepared_stays_skipped_when_its_prepare_comes_again(
    tmp_path: Path, when: str
) -> None:
    """SKIP comes before the node is killed with the PREPARE, which is not acknowledged, or after
    it."""
    with (
        EmbeddedPostgres(18, settings={"max_prepared_transactions": 2}) as server,
        closing(NodeProcess(tmp_path / "node")) as node,
    ):
        database = Database(server, "postgres")
        for table in TABLES:
            database.execute(f"CREATE TABLE {table} (i int PRIMARY KEY)")
        database.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(TABLES)}")
        node.init()
        connection = f"CONNECTION '{database.conninfo}' PUBLICATION p"
        node.sql(f"CREATE SUBSCRIPTION s {connection} WITH (two_phase, copy_data = false)")
        node.start()
        follow(node, database)
        node.kill9()
        rows = "; ".join(f"INSERT INTO {table} VALUES (1)" for table in TABLES)
        database.execute(f"BEGIN; {rows}; PREPARE TRANSACTION 'x'")
        (prepared,) = unread(database, b"P")
        skip = SKIP.format(f"'{prepared}'")
        if when == "before":
            node.sql(skip)
        assert killed(node, failpoint.AFTER_PREPARE)
        if when == "after":
            node.sql(skip)
        node.start()
        database.execute("COMMIT PREPARED 'x'")
        database.execute("; ".join(f"INSERT INTO {table} VALUES (2)" for table in TABLES))
        follow(node, database)
        node.kill9()
        check(node, {2})
