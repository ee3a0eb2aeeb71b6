"""streaming = parallel: rows of open transactions are in files before the commit, in no table."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.embedded import wait_until
from penstock.pgoutput.columnar import XLOGDATA_HEADER
from penstock.subscription import streamed

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE a (id integer PRIMARY KEY, v text, n integer);
CREATE TABLE b (v text, n integer);
ALTER TABLE b REPLICA IDENTITY FULL;
INSERT INTO a SELECT i, repeat('a', 500), 0 FROM generate_series(1, 600) i;
INSERT INTO b SELECT repeat('b', 500), i % 50 FROM generate_series(1, 300) i;
CREATE PUBLICATION p FOR TABLE a, b
"""
_AHEAD = "written ahead"


@pytest.fixture
def publisher(database: Database) -> Database:
    """It streams what is small, too."""
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    database.execute(_TABLES)
    return database


def litter(warehouse: Path) -> set[str]:
    """Data files of the tables that no commit names."""
    names: set[str] = set()
    for table in ("a", "b"):
        folder = warehouse / "public" / table
        actions = [
            json.loads(line)
            for entry in (folder / "_delta_log").glob("*.json")
            for line in entry.read_text("utf-8").splitlines()
        ]
        named = {action["add"]["path"] for action in actions if "add" in action}
        names |= {path.name for path in folder.glob("*.parquet")} - named
    return names


def assert_equal(node: LocalNode, database: Database) -> None:
    with database.connect() as connection:
        for table in ("a", "b"):
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def test_rows_are_written_before_the_commit(
    local_node: Callable[..., LocalNode], publisher: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock.subscription.applyparallelworker")
    node = local_node(logical_decoding_work_mem="64kB")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    with publisher.connect(autocommit=False) as connection:
        connection.execute(
            "INSERT INTO a SELECT i, repeat('c', 500), 1 FROM generate_series(601, 1200) i"
        )
        connection.execute("UPDATE a SET n = n + 1, v = v || 'x' WHERE id % 2 = 0")
        connection.execute("SAVEPOINT s")
        connection.execute("UPDATE a SET v = repeat('gone', 200)")
        connection.execute("ROLLBACK TO s")
        connection.execute("DELETE FROM a WHERE id % 3 = 0")
        connection.execute("UPDATE b SET n = n + 1 WHERE n < 25")
        connection.execute(
            "INSERT INTO b SELECT repeat('d', 500), i FROM generate_series(1, 300) i"
        )
        wait_until(lambda: caplog.text.count(_AHEAD) > 5, "files of the open transaction")
        assert litter(node.warehouse)
        publisher.execute("UPDATE a SET n = 7 WHERE id = 599")  # another transaction is not held up
        node.caught_up("s", publisher)
        assert_equal(node, publisher)
        connection.commit()
    node.caught_up("s", publisher)
    assert_equal(node, publisher)
    with publisher.connect(autocommit=False) as connection:
        before = caplog.text.count(_AHEAD)
        connection.execute("UPDATE a SET v = repeat('y', 600)")
        wait_until(lambda: caplog.text.count(_AHEAD) > before + 3, "files that are vacuumed")
        for name in litter(node.warehouse):
            (node.warehouse / "public" / "a" / name).unlink()
        connection.commit()
    node.caught_up("s", publisher)
    assert_equal(node, publisher)
    with publisher.connect(autocommit=False) as connection:
        before = caplog.text.count(_AHEAD)
        connection.execute("UPDATE a SET v = repeat('z', 600)")
        wait_until(lambda: caplog.text.count(_AHEAD) > before + 3, "files of the next one")
        connection.rollback()
    wait_until(lambda: not litter(node.warehouse), "the end of files that nobody needs")
    # A note goes after the files that it names.
    wait_until(lambda: not [*node.folder.rglob("ahead/*")], "the end of their notes")


def test_what_does_not_fit_at_the_commit_is_done_from_the_changes(
    local_node: Callable[..., LocalNode],
    publisher: Database,
    spark: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rows that the table lacks; a column that came in between; a key that is there already."""
    caplog.set_level(logging.DEBUG, "penstock.subscription.applyparallelworker")
    node = local_node(logical_decoding_work_mem="64kB")
    publisher.execute("CREATE TABLE lacking (LIKE a INCLUDING ALL)")
    publisher.execute("INSERT INTO lacking SELECT * FROM a; ALTER PUBLICATION p ADD TABLE lacking")
    node.subscribe("s", publisher, "p", "copy_data = false")
    node.caught_up("s", publisher)
    with publisher.connect(autocommit=False) as connection:
        connection.execute("UPDATE lacking SET n = 1, v = repeat('m', 500)")
        connection.execute(
            "INSERT INTO lacking SELECT i, repeat('n', 500), i FROM generate_series(601, 1200) i"
        )
        wait_until(lambda: caplog.text.count(_AHEAD) > 3, "files of the open transaction")
        publisher.execute("ALTER TABLE a ADD COLUMN more integer")
        connection.execute(
            "INSERT INTO a SELECT i, repeat('o', 500), 1, 2 FROM generate_series(601, 1200) i"
        )
        connection.commit()
    node.caught_up("s", publisher)
    assert sorted(node.rows("lacking")) == publisher.rows(
        "SELECT id, v, n FROM lacking WHERE id > 600 ORDER BY id"
    )
    assert sorted(node.rows("a")) == publisher.rows("SELECT * FROM a WHERE id > 600 ORDER BY id")
    assert (
        node.node.sql("SELECT confl_update_missing FROM pg_stat_subscription_stats").rows[0][0]
        == 600
    )
    assert not litter(node.warehouse)
    uri = node.cut("s").tables["public", "lacking"].uri
    spark.sql(f"INSERT INTO delta.`{uri}` VALUES (5000, 'foreign', 0)").collect()
    with publisher.connect(autocommit=False) as connection:
        before = caplog.text.count(_AHEAD)
        connection.execute(
            "INSERT INTO lacking SELECT i, repeat('n', 500), i FROM generate_series(4950, 5550) i"
        )
        wait_until(lambda: caplog.text.count(_AHEAD) > before, "files of the last one")
        connection.commit()
    told = (
        f"Key (id)=(5000); existing local row (5000, foreign, 0); remote row (5000, {'n' * 64}..."
    )
    assert told in str(node.stopped("s").error_detail)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("ADD COLUMN later integer", ""),
        ("DROP COLUMN n, ADD COLUMN n integer DEFAULT 5", 'Column "n" is another one'),
    ],
)
def test_a_piece_that_ends_with_the_definition_of_what_follows(
    local_node: Callable[..., LocalNode],
    publisher: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: str,
    error: str,
) -> None:
    """It has no row of the table, and the next piece does not name it."""
    caplog.set_level(logging.DEBUG, "penstock.subscription.applyparallelworker")
    put = streamed.StreamedTransactions._put

    def one_by_one(self: Any, block: Any, frames: Sequence[bytes], kinds: bytes) -> None:
        for number, frame in enumerate(frames):
            put(self, block, [frame], kinds[number : number + 1])

    def ends_with_a_definition(self: Any, tail: Any) -> bool:
        last: bytes = tail.frames[-1]
        return last[XLOGDATA_HEADER : XLOGDATA_HEADER + 1] == b"R" or len(tail.frames) >= 5

    monkeypatch.setattr(streamed.StreamedTransactions, "_put", one_by_one)
    monkeypatch.setattr(streamed.StreamedTransactions, "_is_full", ends_with_a_definition)
    node = local_node(logical_decoding_work_mem="64kB")
    node.subscribe("s", publisher, "p", "schema_change = add")
    node.caught_up("s", publisher)
    with publisher.connect(autocommit=False) as connection:
        connection.execute(f"ALTER TABLE a {change}")
        connection.execute("UPDATE a SET v = repeat('c', 500) WHERE id % 2 = 0")
        wait_until(lambda: f" 0 changes of an open transaction are {_AHEAD}" in caplog.text, "it")
    if not error:
        node.caught_up("s", publisher)
        assert_equal(node, publisher)
        return
    assert error in f"{node.stopped('s').error_detail}"
    assert not [row for row in node.rows("a") if "ccc" in str(row)]


def test_files_are_removed_when_definitions_have_changed(
    local_node: Callable[..., LocalNode], publisher: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The look before the commit stops the subscription."""
    caplog.set_level(logging.DEBUG, "penstock.subscription.applyparallelworker")
    node = local_node(logical_decoding_work_mem="64kB")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    with publisher.connect(autocommit=False) as connection:
        connection.execute("UPDATE a SET v = repeat('y', 2000)")
        wait_until(lambda: caplog.text.count(_AHEAD) > 1, "files of the open transaction")
        publisher.execute("ALTER PUBLICATION p DROP TABLE a")
        publisher.execute("ALTER PUBLICATION p ADD TABLE a")
        connection.commit()
    assert "added again" in f"{node.stopped('s').error_detail}"
    wait_until(lambda: not litter(node.warehouse), "the end of files that nobody needs", 20)


@part_of_make_faults
def test_a_node_that_is_killed_leaves_no_files(tmp_path: Path, publisher: Database) -> None:
    node = NodeProcess(tmp_path / "node")
    try:
        node.init({"logical_decoding_work_mem": "64kB"})
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{publisher.conninfo}' PUBLICATION p")
        node.start(f"{failpoint.AFTER_WRITING_AHEAD}:3")
        ready = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate = 'r'"
        node.wait_for("the copies", lambda: "2" in node.sql(ready))
        with publisher.connect(autocommit=False) as connection:
            connection.execute("UPDATE a SET v = repeat('z', 600)")
            assert node.wait_end(60) == -9
            assert litter(node.warehouse)
            connection.rollback()
        node.start()
        node.wait_for("the end of the files", lambda: not litter(node.warehouse))
    finally:
        node.close()


def test_a_sequence_that_begins_again_within_the_transaction(
    local_node: Callable[..., LocalNode], publisher: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It does so at the commit: values of rows after it are not taken before, so that none of them
    comes a second time."""
    caplog.set_level(logging.DEBUG, "penstock.subscription.applyparallelworker")
    node = local_node(logical_decoding_work_mem="64kB")
    node.node.sql("CREATE TABLE a (id integer PRIMARY KEY, v text, n integer, s serial)")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    insert = "INSERT INTO a SELECT i, repeat('s', 500), 1 FROM generate_series({}, {}) i"
    with publisher.connect(autocommit=False) as connection:
        connection.execute(insert.format(1001, 1400))
        connection.execute("UPDATE b SET n = n + 1")
        connection.execute("TRUNCATE a RESTART IDENTITY")
        connection.execute(insert.format(2001, 2600))
        connection.execute("UPDATE b SET n = n + 1")
        wait_until(lambda: caplog.text.count(_AHEAD) > 1, "files of the open transaction")
        connection.commit()
    node.caught_up("s", publisher)
    assert sorted((row[0], row[3]) for row in node.rows("a")) == [
        (2000 + i, i) for i in range(1, 601)
    ]
    publisher.execute(insert.format(2601, 2602))
    node.caught_up("s", publisher)
    assert sorted(row[3] for row in node.rows("a")) == list(range(1, 603))
