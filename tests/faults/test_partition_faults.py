"""A node that fills partitioned tables is killed between the commits of two partitions.

Rows move between partitions all the time, with values that the publisher does not send again.
Afterwards nothing is lost and nothing is there twice. Part of ``make faults`` only: ``make test``
has the same states without kills (``subscription/test_partitions.py``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import delta_rows
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node, failpoint
from penstock.lsn import Lsn

pytestmark = [
    part_of_make_faults,
    pytest.mark.faults,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.slow,
]

TABLES = """
CREATE TABLE r (id int PRIMARY KEY, v text, big text);
CREATE TABLE plain (id int PRIMARY KEY, v text);
INSERT INTO r SELECT i, 'copied', (SELECT string_agg(md5((i * j)::text), '')
  FROM generate_series(1, 200) j) FROM generate_series(0, 90) i;
CREATE PUBLICATION p FOR ALL TABLES;
"""
PARTITIONS = """
CREATE TABLE r (id int PRIMARY KEY, v text, big text) PARTITION BY HASH (id);
CREATE TABLE r_0 PARTITION OF r FOR VALUES WITH (MODULUS 4, REMAINDER 0);
CREATE TABLE r_1 PARTITION OF r FOR VALUES WITH (MODULUS 4, REMAINDER 1);
CREATE TABLE r_2 PARTITION OF r FOR VALUES WITH (MODULUS 4, REMAINDER 2);
CREATE TABLE r_3 PARTITION OF r FOR VALUES WITH (MODULUS 4, REMAINDER 3);
"""
LEAVES = ("r_0", "r_1", "r_2", "r_3")
KILLS = (
    f"{failpoint.BETWEEN_COMMITS}:1",
    f"{failpoint.BETWEEN_COMMITS}:2",
    f"{failpoint.BETWEEN_COMMITS}:4",
    f"{failpoint.BEFORE_CUT}:1",
)


def test_nothing_is_lost_and_nothing_is_twice(tmp_path: Path, database: Database) -> None:
    database.execute(TABLES)
    node = NodeProcess(tmp_path / "node")
    dice = random.Random(5)
    try:
        node.init()
        node.sql(PARTITIONS)
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        node.start(f"{failpoint.BETWEEN_COMMITS}:2")  # of the copy
        assert node.wait_end(180) == -9, node.log_tail()
        node.start()
        follow(node, database)
        node.kill9()
        check(node, database)
        for kill in KILLS:
            for change in changes(dice):
                database.execute(change)
            node.start(kill)
            deadline = time.monotonic() + 180
            while (ended := node.wait_end(5)) is None:  # commits may end together
                assert time.monotonic() < deadline, node.log_tail()
                for change in changes(dice):
                    database.execute(change)
            assert ended == -9, node.log_tail()
            node.start()
            follow(node, database)
            node.kill9()
            check(node, database)
    finally:
        node.close()


def changes(dice: random.Random) -> Iterator[str]:
    """Each a transaction; most rows move, and ``big`` is not sent."""
    shift = dice.randrange(1, 50)
    yield f"UPDATE r SET id = id + 1000 + {shift}"
    yield f"INSERT INTO plain SELECT coalesce(max(id), 0) + 1, 'v{shift}' FROM plain"
    yield f"UPDATE r SET big = big || '{shift}' WHERE id % 5 = {shift % 5}"
    yield f"UPDATE r SET id = id - 1000, v = '{shift}'"
    yield "DELETE FROM r WHERE id IN (SELECT id FROM r ORDER BY md5(id::text) LIMIT 2)"
    yield "INSERT INTO r SELECT max(id) + 1, 'new', repeat(md5('x'), 300) FROM r"


def follow(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
    node.wait_for("a cut with all of it", lambda: _cut(node.status()) >= target, 180)


def _cut(status: Any) -> int:
    (subscription,) = status
    tables, cut = subscription["tables"], subscription["cut_lsn"]
    ready = len(tables) == 2 and all(table["state"] == "r" for table in tables)
    return Lsn.parse(cut) if ready and cut else 0


def check(node: NodeProcess, database: Database) -> None:
    with Node(node.folder) as reader:
        cut = reader.cut("s")
    assert cut is not None
    found = []
    for leaf in LEAVES:
        pin = cut.tables["public", leaf]
        rows = delta_rows(pin.uri, pin.version)
        found += rows
        assert len(rows) > 5, leaf
    assert sorted(found) == sorted(database.rows("SELECT id, v, big FROM r"))
    pin = cut.tables["public", "plain"]
    assert sorted(delta_rows(pin.uri, pin.version)) == sorted(database.rows("TABLE plain"))
