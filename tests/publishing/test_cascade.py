"""PostgreSQL A -> node -> PostgreSQL B: every type, whole transactions, and no loops."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from end_to_end.test_versions import _COLUMNS, run_script
from faults.heavy import HEAVY, in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_KEPT_AS_TEXT = ("span", "addr", "mood")
"""Columns whose types have no binary format here."""


def caught_up(lake: LakeNode, source: Database, slot: str) -> None:
    """The node has what A has now, and B has confirmed all that the node has."""
    follows(lake, source, slot)
    lake.caught_up(slot)


def follows(lake: LakeNode, source: Database, subscription: str) -> None:
    """Wait until the node has what A has now."""
    wait_until(lambda: lake.node.cut(subscription) is not None, "the first cut")
    target = source.value("SELECT pg_current_wal_flush_lsn()::text")
    lake.node.wait_for(target, subscription=subscription, timeout=90)


def table_rows(database: Database, table: str, columns: str = "*") -> Counter[str]:
    """Rows as texts, since NaN is not equal to itself."""
    return Counter(map(repr, database.rows(f"SELECT {columns} FROM {table}")))


@pytest.mark.parametrize("binary", [False, in_make_faults(True)])
def test_every_type_arrives_as_it_left(
    lake: LakeNode, subscriber: Callable[..., Database], binary: bool
) -> None:
    schema = "types_binary" if binary else "types_text"
    source, target = subscriber(18), subscriber(18)
    for database in (source, target):
        database.execute(f"CREATE SCHEMA {schema}")
        run_script(database, schema, "versions_setup.sql")
    for table in ("items", "parts", "empty", "keyless", "whole"):
        target.execute(f"TRUNCATE {schema}.{table}")
    source.execute(f"CREATE PUBLICATION p FOR TABLE {schema}.items, {schema}.empty")
    lake.node.sql(f"CREATE SUBSCRIPTION {schema} CONNECTION '{source.conninfo}' PUBLICATION p")
    follows(lake, source, schema)
    lake.execute(f"CREATE PUBLICATION {schema} FOR TABLES IN SCHEMA {schema}")
    columns = "*"
    if binary:
        columns = ", ".join(column for column in _COLUMNS if column not in _KEPT_AS_TEXT)
        lake.execute(
            f"DROP PUBLICATION {schema}",
            f"CREATE PUBLICATION {schema} FOR TABLE {schema}.items ({columns})",
        )
    lake.subscribe(target, schema, schema, f"binary = {str(binary).lower()}")
    items = f"{schema}.items"
    assert table_rows(target, items, columns) == table_rows(source, items, columns)
    run_script(source, schema, "versions_changes.sql")
    caught_up(lake, source, schema)
    assert table_rows(target, items, columns) == table_rows(source, items, columns)
    target.execute(f"DROP SUBSCRIPTION {schema}")
    lake.node.sql(f"DROP SUBSCRIPTION {schema}")


def test_transactions_stay_whole(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    source, target = subscriber(18), subscriber(18)
    for database in (source, target):
        database.execute(
            "CREATE SCHEMA bank; CREATE TABLE bank.a (id integer PRIMARY KEY, v integer);"
            "CREATE TABLE bank.b (id integer PRIMARY KEY, v integer)"
        )
    source.execute(
        "INSERT INTO bank.a SELECT i, 100 FROM generate_series(1, 50) i;"
        "INSERT INTO bank.b SELECT i, 100 FROM generate_series(1, 50) i;"
        "CREATE PUBLICATION bank FOR TABLES IN SCHEMA bank"
    )
    lake.node.sql(f"CREATE SUBSCRIPTION bank CONNECTION '{source.conninfo}' PUBLICATION bank")
    follows(lake, source, "bank")
    lake.execute("CREATE PUBLICATION bank FOR TABLE bank.a, bank.b")
    lake.subscribe(target, "bank", "bank")
    done = threading.Event()

    def transfer() -> None:
        with source.connect() as connection:
            for number in range(1, 301):
                amount = number % 7
                connection.execute(
                    "WITH x AS (UPDATE bank.a SET v = v - %(n)s WHERE id = %(i)s) "
                    "UPDATE bank.b SET v = v + %(n)s WHERE id = %(j)s",
                    {"n": amount, "i": number % 50 + 1, "j": number * 3 % 50 + 1},
                )
        done.set()

    thread = threading.Thread(target=transfer)
    thread.start()
    total = "SELECT (SELECT sum(v) FROM bank.a) + (SELECT sum(v) FROM bank.b)"
    seen = 0
    while not done.is_set():
        assert target.value(total) == 10_000
        seen += 1
    thread.join()
    caught_up(lake, source, "bank")
    assert seen > 1
    for table in ("bank.a", "bank.b"):
        assert table_rows(target, table) == table_rows(source, table)
    target.execute("DROP SUBSCRIPTION bank")
    lake.node.sql("DROP SUBSCRIPTION bank")


def test_live_rows_alone_by_a_filter(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    source, target = subscriber(18), subscriber(18)
    columns = "id integer PRIMARY KEY, v text"
    source.execute(
        f"CREATE SCHEMA soft; CREATE TABLE soft.t ({columns});"
        "INSERT INTO soft.t SELECT i, 'copied' FROM generate_series(1, 9) i;"
        "CREATE PUBLICATION p FOR TABLE soft.t"
    )
    target.execute(f"CREATE SCHEMA soft; CREATE TABLE soft.t ({columns}, _deleted_at timestamptz)")
    lake.node.sql(
        f"CREATE SUBSCRIPTION soft CONNECTION '{source.conninfo}' PUBLICATION p"
        " WITH (soft_delete = true)"
    )
    follows(lake, source, "soft")
    source.execute("DELETE FROM soft.t WHERE id = 1")
    follows(lake, source, "soft")
    source.execute("INSERT INTO soft.t VALUES (1, 'again')")
    follows(lake, source, "soft")
    lake.execute(
        "ALTER TABLE soft.t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION soft FOR TABLE soft.t WHERE (_deleted_at IS NULL)",
    )
    lake.subscribe(target, "soft", "soft")
    for statement in (
        "DELETE FROM soft.t WHERE id = 2; UPDATE soft.t SET v = 'changed' WHERE id = 3",
        "INSERT INTO soft.t VALUES (2, 'again'); UPDATE soft.t SET id = 10 WHERE id = 4",
        "DELETE FROM soft.t WHERE id IN (2, 10)",
        "BEGIN; DELETE FROM soft.t WHERE id = 5; INSERT INTO soft.t VALUES (5, 'other'); COMMIT",
        "INSERT INTO soft.t VALUES (2, 'once more')",
    ):
        source.execute(statement)
        caught_up(lake, source, "soft")
        assert table_rows(target, "soft.t", "id, v") == table_rows(source, "soft.t", "id, v")
    lake.execute("DELETE FROM soft.t WHERE _deleted_at < '2100-01-01 00:00:00+00'")
    source.execute("DELETE FROM soft.t WHERE id = 3")
    caught_up(lake, source, "soft")
    assert table_rows(target, "soft.t", "id, v") == table_rows(source, "soft.t", "id, v")
    assert lake.rows("SELECT id FROM soft.t WHERE _deleted_at IS NOT NULL") == [(3,)]
    target.execute("DROP SUBSCRIPTION soft")
    lake.node.sql("DROP SUBSCRIPTION soft")


_SUMS = (
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM "
    "pgbench_branches), (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), "
    "0) FROM pgbench_history)"
)
"""Equal whenever transactions are whole (TPC-B)."""
_PGBENCH = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")


@part_of_make_faults
def test_pgbench_arrives_in_whole_transactions(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """B is A at each pause and at the end, after a TRUNCATE as well; whole in between."""
    source, target = subscriber(18), subscriber(18)
    for database in (source, target):
        database.server.pgbench("-i", "-q", "-s", "1", dbname=database.name)
    target.execute(f"TRUNCATE {', '.join(_PGBENCH)}")
    source.execute("CREATE PUBLICATION pgbench FOR ALL TABLES")
    lake.node.sql(f"CREATE SUBSCRIPTION pgbench CONNECTION '{source.conninfo}' PUBLICATION pgbench")
    follows(lake, source, "pgbench")
    lake.execute(f"CREATE PUBLICATION pgbench FOR TABLE {', '.join(_PGBENCH)}")
    lake.subscribe(target, "pgbench", "pgbench")
    for number in range(3 if HEAVY else 2):
        bench = threading.Thread(
            target=source.server.pgbench,
            args=("-n", "-c", "2", "-t", "150", "-R", "100"),
            kwargs={"dbname": source.name},
        )
        bench.start()
        while bench.is_alive():
            ((accounts, *others),) = target.rows(_SUMS)
            assert others == [accounts] * 3
            bench.join(0.2)  # the processor is for the others
        if number == 1:
            source.execute("TRUNCATE pgbench_history; UPDATE pgbench_accounts SET abalance = 0")
            source.execute("UPDATE pgbench_branches SET bbalance = 0")
            source.execute("UPDATE pgbench_tellers SET tbalance = 0")
        caught_up(lake, source, "pgbench")
        for table in _PGBENCH:
            assert table_rows(target, table) == table_rows(source, table), table
    assert target.value("SELECT count(*) FROM pgbench_history") == (300 if HEAVY else 0)
    target.execute("DROP SUBSCRIPTION pgbench")
    lake.node.sql("DROP SUBSCRIPTION pgbench")


def test_origin_none_stops_what_came_from_elsewhere(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """A <-> node: what the node has from A does not go back to A."""
    database = subscriber(18)
    database.execute("CREATE SCHEMA loop; CREATE TABLE loop.t (id integer PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION loop FOR TABLE loop.t")
    conninfo = database.conninfo
    lake.node.sql(f"CREATE SUBSCRIPTION loop CONNECTION '{conninfo}' PUBLICATION loop")
    wait_until(lambda: lake.node.cut("loop") is not None, "the first cut")
    lake.execute("CREATE PUBLICATION loop FOR TABLE loop.t")
    lake.subscribe(database, "loop", "loop", "origin = none, copy_data = false")
    database.execute("INSERT INTO loop.t SELECT i, 'x' FROM generate_series(1, 20) i")
    caught_up(lake, database, "loop")
    database.execute("UPDATE loop.t SET v = 'y'; DELETE FROM loop.t WHERE id > 10")
    caught_up(lake, database, "loop")
    assert database.value("SELECT count(*) FROM loop.t WHERE v = 'y'") == 10
    assert (
        database.value(
            "SELECT sum(apply_error_count) FROM pg_stat_subscription_stats WHERE subname = 'loop'"
        )
        == 0
    )
    database.execute("DROP SUBSCRIPTION loop")
    lake.node.sql("DROP SUBSCRIPTION loop")
