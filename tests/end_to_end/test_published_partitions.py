"""Partitions that are attached and detached at the publisher, under both settings of
publish_via_partition_root, beside a stock PostgreSQL 18 subscriber, which is told as little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from end_to_end.after_copy import after_first_copy
from end_to_end.compare import Row, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_ROOTS: Final = ("via", "each")
_COLUMNS: Final = "id int PRIMARY KEY, v text"


def _setup() -> str:
    made = (
        f"CREATE TABLE {root} ({_COLUMNS}) PARTITION BY RANGE (id);"
        f"CREATE TABLE {root}_a PARTITION OF {root} FOR VALUES FROM (0) TO (100);"
        f"CREATE TABLE {root}_b PARTITION OF {root} FOR VALUES FROM (100) TO (200);"
        f"CREATE TABLE {root}_c ({_COLUMNS}); INSERT INTO {root}_c VALUES (200, 'c'), (201, 'c');"
        f"INSERT INTO {root} VALUES (1, 'a'), (2, 'a'), (101, 'b'), (102, 'b');"
        for root in _ROOTS
    )
    return (
        f"{''.join(made)} CREATE PUBLICATION p_each FOR TABLE each;"
        "CREATE PUBLICATION p_via FOR TABLE via WITH (publish_via_partition_root = true);"
    )


def _change(database: Database) -> None:
    for root in _ROOTS:
        for transaction in (
            f"UPDATE {root} SET v = 'before' WHERE id IN (1, 101)",
            f"ALTER TABLE {root} ATTACH PARTITION {root}_c FOR VALUES FROM (200) TO (300);"
            f"INSERT INTO {root} VALUES (202, 'c'); UPDATE {root} SET v = 'now' WHERE id = 200;"
            f"DELETE FROM {root} WHERE id = 2",
            f"INSERT INTO {root} VALUES (103, 'b'); UPDATE {root} SET v = 'b' WHERE id = 101;"
            f"ALTER TABLE {root} DETACH PARTITION {root}_b; INSERT INTO {root}_b VALUES (104, 'b');"
            f"DELETE FROM {root}_b WHERE id = 102",
            f"INSERT INTO {root} VALUES (3, 'after'); DELETE FROM {root} WHERE id = 201",
        ):
            database.execute(f"BEGIN; {transaction}; COMMIT")


@part_of_make_faults
@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("follow", "batch"),
        *(
            in_make_faults(*each)
            for each in (("add", "copy"), ("stop", "batch"), ("follow", "copy"))
        ),
    ],
)
def test_partitions_come_and_go(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    place: str,
) -> None:
    publisher, stock, node = database_on(17), database_on(18), local_node()
    publisher.execute(_setup())
    tables = ["via", "each_a", "each_b"]
    stock.execute("".join(f"CREATE TABLE {t} ({_COLUMNS});" for t in [*tables, "each_c"]))
    stock.execute(
        f"CREATE SUBSCRIPTION partitions CONNECTION '{publisher.conninfo}'"
        " PUBLICATION p_each, p_via"
    )
    try:
        _copied(stock)
        wait = None
        if place == "copy":
            wait = after_first_copy(monkeypatch, lambda: _change(publisher))
        node.subscribe("s", publisher, "p_each, p_via", f"schema_change = {option}")
        if wait is not None:
            wait()
        if place == "batch":
            node.caught_up("s", publisher)
            node.node.stop()
            stock.execute("ALTER SUBSCRIPTION partitions DISABLE")
            _change(publisher)
            node.node.start()
            stock.execute("ALTER SUBSCRIPTION partitions ENABLE")
        if option != "follow":
            # A server's subscriber goes on without the rows that ATTACH has brought.
            assert 'Partition "via_' in f"{node.stopped('s').error_detail}"
            node.node.sql("ALTER SUBSCRIPTION s SET (schema_change = follow)")
            node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.caught_up("s", publisher)
        _as_stock(node, stock, publisher, ["each_a", "each_b"])
        with publisher.connect() as connection:
            wanted = publisher_rows(connection, "public.via")
        node.wait_for("s", "a new copy", lambda _: _rows(node, "via") == sorted(wanted))
        # REFRESH takes the new partition in, and a detached one out; rows come with a copy.
        stock.execute("ALTER SUBSCRIPTION partitions REFRESH PUBLICATION")
        _copied(stock)
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        publisher.execute("INSERT INTO each VALUES (203, 'c'); INSERT INTO via VALUES (203, 'c')")
        node.caught_up("s", publisher)
        _as_stock(node, stock, publisher, ["each_a", "each_c"])
        assert ("public", "each_b") not in node.cut().tables
        node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE via")
        node.caught_up("s", publisher)
        with publisher.connect() as connection:
            for table in ("via", "each_a", "each_c"):
                wanted = publisher_rows(connection, f"public.{table}")
                assert sorted(node.rows(table)) == sorted(wanted)
    finally:
        stock.execute("DROP SUBSCRIPTION partitions")


def _rows(node: LocalNode, table: str) -> list[Row] | None:
    """None while it is copied again."""
    try:
        return sorted(node.rows(table))
    except KeyError:
        return None


def _copied(stock: Database) -> None:
    states = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'"
    wait_until(lambda: stock.value(states) == 0, "the server's copies")


def _as_stock(node: LocalNode, stock: Database, publisher: Database, tables: list[str]) -> None:
    end = publisher.value("SELECT pg_current_wal_flush_lsn()::text")
    confirmed = (
        "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = 'partitions'"
    )
    wait_until(lambda: publisher.rows(confirmed, (end,)) == [(True,)], "the server's apply worker")
    with stock.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert sorted(node.rows(table)) == sorted(wanted), table
