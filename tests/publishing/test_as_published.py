"""Statements whose stream could surprise: subscribers get what a stock publisher sends them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.catalog import LakeTable
from penstock.errors import StorageError
from penstock.executor.modify import TruncateTables
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_MESSAGES = (
    "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes('sent', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', '{}')"
)


def sent(stock: Database, publication: str, *statements: str) -> set[str]:
    """Kinds of changes that a stock publisher sends for statements."""
    with stock.connect() as session:
        session.execute("SELECT pg_create_logical_replication_slot('sent', 'pgoutput', true)")
        for statement in statements:
            session.execute(statement)
        rows = session.execute(_MESSAGES.format(publication)).fetchall()
        session.execute("SELECT pg_drop_replication_slot('sent')")
    return {kind for (kind,) in rows} & set("IUDT")


def make(statements: Sequence[str], lake: LakeNode, stock: Database) -> None:
    """The same on the node and on a server."""
    lake.execute(*statements)
    for statement in statements:
        stock.execute(statement)


def test_an_update_is_nothing_to_a_publication_of_inserts(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    made = (
        "CREATE TABLE keyless (id int, v text)",
        "CREATE TABLE keyed (id int PRIMARY KEY, v text)",
        "INSERT INTO keyless VALUES (1, 'a'), (1, 'a'), (2, 'b')",
        "INSERT INTO keyed VALUES (1, 'a'), (2, 'b')",
        "CREATE PUBLICATION added FOR TABLE keyless, keyed WITH (publish = 'insert')",
    )
    updates = (
        "UPDATE keyless SET v = 'x' WHERE id = 1",
        "UPDATE keyed SET id = id + 10",
        "UPDATE keyed SET v = 'y'",
    )
    stock, target = subscriber(), subscriber()
    make(made, lake, stock)
    assert sent(stock, "added", *updates) == set()
    for statement in made[:2]:
        target.execute(statement)
    lake.subscribe(target, "added", "added")
    lake.execute(*updates, "INSERT INTO keyless VALUES (9, 'new')")
    lake.caught_up("added")
    assert sorted(target.rows("SELECT * FROM keyless")) == [
        (1, "a"),
        (1, "a"),
        (2, "b"),
        (9, "new"),
    ]
    assert sorted(target.rows("SELECT * FROM keyed")) == [(1, "a"), (2, "b")]


def test_truncate_of_a_partition_and_of_its_root(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    made = (
        "CREATE TABLE tree (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE tree_1 PARTITION OF tree FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE tree_2 PARTITION OF tree FOR VALUES FROM (10) TO (20)",
        "INSERT INTO tree VALUES (1), (11)",
        "CREATE PUBLICATION tree FOR TABLE tree WITH (publish_via_partition_root = true)",
    )
    stock, target = subscriber(), subscriber()
    make(made, lake, stock)
    target.execute("CREATE TABLE tree (id int PRIMARY KEY)")
    lake.subscribe(target, "tree", "tree")
    assert sent(stock, "tree", "TRUNCATE tree_1") == set()
    lake.execute("TRUNCATE tree_1")
    lake.caught_up("tree")
    assert sorted(target.rows("SELECT * FROM tree")) == [(1,), (11,)]
    target.execute("INSERT INTO tree VALUES (100)")  # deletes would leave it
    assert sent(stock, "tree", "TRUNCATE tree") == {"T"}
    lake.execute("TRUNCATE tree", "INSERT INTO tree VALUES (5)")
    lake.caught_up("tree")
    assert target.rows("SELECT * FROM tree") == [(5,)]


def test_truncate_that_stops_between_two_partitions(
    lake: LakeNode, subscriber: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the other partition stay at the subscriber, too."""
    made = (
        "CREATE TABLE half (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE half_1 PARTITION OF half FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE half_2 PARTITION OF half FOR VALUES FROM (10) TO (20)",
        "INSERT INTO half VALUES (1), (11)",
        "CREATE PUBLICATION half FOR TABLE half WITH (publish_via_partition_root = true)",
    )
    lake.execute(*made)
    target = subscriber()
    target.execute("CREATE TABLE half (id int PRIMARY KEY)")
    lake.subscribe(target, "half", "half")
    by_spark = TruncateTables._by_spark

    def stops(truncates: TruncateTables, leaf: LakeTable, *mark: Any) -> None:
        if leaf.name == "half_2":
            raise StorageError("the disk is full", sqlstate="53100")
        by_spark(truncates, leaf, *mark)

    with monkeypatch.context() as patched:
        patched.setattr(TruncateTables, "_by_files", lambda *_: False)
        patched.setattr(TruncateTables, "_by_spark", stops)
        with pytest.raises(psycopg.errors.StatementCompletionUnknown, match=r'"public\.half_1"'):
            lake.execute("TRUNCATE half")
    lake.caught_up("half")
    assert lake.rows("SELECT * FROM half") == [(11,)]
    assert target.rows("SELECT * FROM half") == [(11,)]
    lake.execute("TRUNCATE half")
    lake.caught_up("half")
    assert target.rows("SELECT * FROM half") == []
