"""A transaction larger than memory spills to disk and becomes visible whole, never in part."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from end_to_end.compare import delta_rows, difference, publisher_rows, query
from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.subscription.spool import SpooledMessages

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_ROWS = 40_000


def test_a_transaction_larger_than_memory_arrives_whole(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled: list[int] = []
    write = SpooledMessages.write

    def counted(folder: Any, chunk: Any) -> SpooledMessages:
        spilled.append(len(chunk))
        return write(folder, chunk)

    monkeypatch.setattr(SpooledMessages, "write", counted)
    database.execute(
        "CREATE TABLE large (id integer PRIMARY KEY, v text);"
        "CREATE TABLE mirror (id integer PRIMARY KEY, n integer);"
        f"INSERT INTO large SELECT i, repeat('a', 100) FROM generate_series(1, {_ROWS}) i;"
        "INSERT INTO mirror VALUES (1, 0);"
        "CREATE PUBLICATION p FOR TABLE large, mirror"
    )
    node = local_node(logical_decoding_work_mem="1MB", apply_queue_mem="2MB")
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    uri = node.cut().tables["public", "large"].uri
    seen: set[tuple[int, int]] = set()
    ended = threading.Event()

    def look() -> None:
        (row,) = query(
            "SELECT count(*) AS n, count(DISTINCT v) AS kinds FROM t", t=DeltaTable(uri)
        ).to_pylist()
        seen.add((row["n"], row["kinds"]))

    def look_on() -> None:
        while not ended.wait(0.02):
            look()

    reader = threading.Thread(target=look_on)
    reader.start()
    try:
        with database.connect(autocommit=False) as connection:
            # Every kind of change, several times over the same rows, so that later pieces must find
            # what earlier pieces of the same transaction have staged.
            connection.execute("UPDATE large SET v = repeat('b', 100)")
            connection.execute(
                "INSERT INTO large SELECT i, repeat('b', 100)"
                f" FROM generate_series({_ROWS + 1}, {2 * _ROWS}) i"
            )
            connection.execute("UPDATE large SET v = 'c' WHERE true")
            connection.execute("UPDATE large SET id = -id WHERE id % 4 = 0")
            connection.execute("DELETE FROM large WHERE id % 10 = 0")
            connection.execute("UPDATE mirror SET n = 1")
            connection.commit()
        node.caught_up("s", database, timeout=180)
    finally:
        ended.set()
        reader.join()
    look()
    after = database.value("SELECT count(*) FROM large")
    assert seen <= {(_ROWS, 1), (after, 1)}
    assert (after, 1) in seen
    assert spilled
    assert not list((node.folder).rglob("*.frames"))
    with database.connect() as connection:
        for table in ("large", "mirror"):
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)
    assert len(delta_rows(uri)) == after
