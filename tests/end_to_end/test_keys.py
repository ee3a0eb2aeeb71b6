"""Keys that the publisher's index does not guarantee, rows that were never sent: as PostgreSQL.

Each case runs beside a stock subscriber, PostgreSQL 18, or says what it would do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from end_to_end.compare import publisher_rows
from end_to_end.local_node import LocalNode
from end_to_end.test_conflicts_table import conflicts
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SYNCED = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
_EXISTS = 'conflict detected on relation "public.{table}": conflict=insert_exists'


def _stopped_at(node: LocalNode, name: str, table: str, key: str) -> None:
    status = node.stopped(name)
    assert status.error == _EXISTS.format(table=table)
    told = f"+00.\nKey (id)=({key}); existing local row ({key}, "
    assert str(status.error_detail).startswith("Key already exists, modified ")
    assert told in str(status.error_detail)


def _gives(server: Database, query: str, row: tuple[Any, ...]) -> bool:
    return server.rows(query) == [row]


def _uri(node: LocalNode, table: str, subscription: str) -> str:
    return node.cut(subscription).tables["public", table].uri


@part_of_make_faults
def test_keys_whose_deletion_was_not_sent(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    cases = {
        "a": ("insert", "DELETE FROM a"),
        "b": ("insert,update,delete", "TRUNCATE b"),
        "c": ("insert,update,truncate", "DELETE FROM c"),
        "d": ("insert", "UPDATE d SET id = 100 WHERE id = 1"),
    }
    node = local_node()
    for table, (publish, _) in cases.items():
        database.execute(
            f"CREATE TABLE {table} (id integer PRIMARY KEY, v text);"
            f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 3) i;"
            f"CREATE PUBLICATION {table} FOR TABLE {table} WITH (publish = '{publish}')"
        )
        node.subscribe(table, database, table)
    for table, (_, change) in cases.items():
        node.caught_up(table, database)
        # a commit of ours in between takes nothing away from the check
        database.execute(f"INSERT INTO {table} VALUES (10, 'ours')")
        node.caught_up(table, database)
        database.execute(change)
        database.execute(f"INSERT INTO {table} VALUES (1, 'new'), (20, 'new')")
    for table in cases:
        _stopped_at(node, table, table, "1")
        assert sorted(node.rows(table, subscription=table)) == [
            *((i, "old") for i in (1, 2, 3)),
            (10, "ours"),
        ]
    # the hint: delete the rows that are too many, go on
    spark.sql(f"DELETE FROM delta.`{_uri(node, 'a', 'a')}` WHERE id < 10").collect()
    node.node.sql("ALTER SUBSCRIPTION a ENABLE")
    node.caught_up("a", database)
    assert sorted(row[0] for row in node.rows("a", subscription="a")) == [1, 10, 20]


def test_keys_that_somebody_else_has_written(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');"
        "CREATE TABLE u (id integer PRIMARY KEY, v text); INSERT INTO u VALUES (1, 'a');"
        "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE u"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.subscribe("w", database, "q")
    node.caught_up("s", database)
    node.caught_up("w", database)
    spark.sql(f"INSERT INTO delta.`{_uri(node, 't', 's')}` VALUES (50, 'foreign')").collect()
    database.execute("INSERT INTO t VALUES (2, 'b')")
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (3, 'c')")
    node.caught_up("s", database)
    database.execute("INSERT INTO t VALUES (50, 'ours')")
    _stopped_at(node, "s", "t", "50")
    # a table that has rows, joined without a copy
    node.node.sql("DROP SUBSCRIPTION w")
    database.execute("TRUNCATE u")
    node.subscribe("x", database, "q", "copy_data = false")
    hint = str(node.stopped("x").error_hint)  # the TRUNCATE is lost, which is accepted
    for statement in hint.partition("may be lost: ")[2][:-1].split("; "):
        node.node.sql(statement)
    database.execute("INSERT INTO u VALUES (7, 'new')")
    node.caught_up("x", database)
    database.execute("INSERT INTO u VALUES (1, 'new')")
    _stopped_at(node, "x", "u", "1")


_FINISHED = re.compile(r"in transaction (\d+), finished at ([0-9A-F]+/[0-9A-F]+)")
_CONFLICT = re.compile(
    r'detected on relation "(.*?)": conflict=(\w+)\n.*?DETAIL:  (.*)\n\s*(R.*?)\.\n.*?CONTEXT:  .*?'
    r' during (message type "\w+" for replication target relation ".*?") in transaction',
    re.MULTILINE,
)


def test_rows_that_were_never_sent_are_skipped_and_counted(
    local_node: Callable[..., LocalNode],
    database: Database,
    database_on: Callable[[int], Database],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stock, database = database, database_on(17)
    tables = (
        "CREATE TABLE k (id integer, part integer, v text, PRIMARY KEY (id, part))",
        "CREATE TABLE f (id integer, part integer, v text)",
    )
    for table, create in zip("kf", tables, strict=True):
        database.execute(
            f"{create} PARTITION BY LIST (part);"
            f"CREATE TABLE {table}1 PARTITION OF {table} FOR VALUES IN (1);"
            f"CREATE TABLE {table}2 (LIKE {table} INCLUDING ALL);"
            f"INSERT INTO {table}1 SELECT i, 1, 'sent' FROM generate_series(1, 5) i;"
            f"INSERT INTO {table}2 SELECT i, 2, 'never' FROM generate_series(6, 10) i"
        )
    database.execute(
        "ALTER TABLE f REPLICA IDENTITY FULL; ALTER TABLE f1 REPLICA IDENTITY FULL;"
        "ALTER TABLE f2 REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION p FOR TABLE k, f WITH (publish_via_partition_root)"
    )
    for create in tables:
        stock.execute(create)
    stock.execute("ALTER TABLE f REPLICA IDENTITY FULL")
    stock.execute(f"CREATE SUBSCRIPTION stock CONNECTION '{database.conninfo}' PUBLICATION p")
    node = local_node()
    # Rows that ATTACH has brought are to be missing.
    node.subscribe("s", database, "p", "unsent_changes = keep")
    node.caught_up("s", database)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)
    log_size = stock.server.log_path.stat().st_size
    try:
        for table in "kf":
            database.execute(
                f"ALTER TABLE {table} ATTACH PARTITION {table}2 FOR VALUES IN (2);"
                f"UPDATE {table} SET v = 'new' WHERE id IN (1, 6);"
                f"UPDATE {table} SET id = id + 100 WHERE id IN (2, 7);"
                f"UPDATE {table} SET v = 'newer' WHERE id IN (102, 107);"
                f"DELETE FROM {table} WHERE id IN (3, 8);"
                f"INSERT INTO {table} VALUES (8, 2, 'again');"
                f"UPDATE {table} SET v = 'twice' WHERE id = 8"
            )
        database.execute(
            "BEGIN; DELETE FROM k WHERE id = 9; INSERT INTO k VALUES (9, 2, 'back');"
            "UPDATE k SET v = 'again' WHERE id = 9; COMMIT"
        )
        node.caught_up("s", database)
        database.wait_confirmed("stock", 90)
        for table in "kf":
            with stock.connect() as connection:
                wanted = publisher_rows(connection, f"public.{table}")
            found = node.rows(table)
            assert sorted(map(str, found)) == sorted(map(str, wanted)), table
    finally:
        stock.execute("DROP SUBSCRIPTION stock")
    counts = {t.name: (t.update_missing, t.delete_missing) for t in node.status("s").tables}
    assert counts == {"public.k": (3, 2), "public.f": (3, 1)}
    theirs = sorted(_CONFLICT.findall(stock.server.log_path.read_bytes()[log_size:].decode()))
    assert len(theirs) == 9
    assert sorted(_CONFLICT.findall("\n".join(caplog.messages))) == theirs
    seen = node.node.sql("SELECT * FROM pg_stat_subscription_stats")
    (row,) = (dict(zip(seen.columns, row, strict=True)) for row in seen.rows)
    assert (row["confl_update_missing"], row["confl_delete_missing"]) == (6, 3)


def test_a_key_to_which_a_missing_row_did_not_move(
    local_node: Callable[..., LocalNode],
    database: Database,
    database_on: Callable[[int], Database],
) -> None:
    """Changes after it find the row that the target has under that key, or none."""
    stock, database = database, database_on(17)
    create = "CREATE TABLE m (id integer PRIMARY KEY, v text)"
    database.execute(
        f"{create}; INSERT INTO m SELECT i, 'sent' FROM generate_series(1, 9) i;"
        "CREATE PUBLICATION p FOR TABLE m WITH (publish = 'update')"
    )
    stock.execute(create)
    stock.execute(f"CREATE SUBSCRIPTION moved CONNECTION '{database.conninfo}' PUBLICATION p")
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)
    try:
        database.execute(
            "INSERT INTO m SELECT i, 'never' FROM generate_series(20, 24) i;"
            "DELETE FROM m WHERE id <= 6; BEGIN;"
            "UPDATE m SET id = 1, v = 'a' WHERE id = 20; UPDATE m SET v = 'b' WHERE id = 1;"
            "UPDATE m SET id = 2, v = 'c' WHERE id = 21; UPDATE m SET id = 30 WHERE id = 2;"
            "UPDATE m SET id = 33 WHERE id = 30; UPDATE m SET v = 'd' WHERE id = 33;"
            "UPDATE m SET id = 31 WHERE id = 22; UPDATE m SET id = 32 WHERE id = 31;"
            "UPDATE m SET id = 4 WHERE id = 32; UPDATE m SET v = 'e' WHERE id = 4; COMMIT"
        )
        node.caught_up("s", database)
        database.wait_confirmed("moved", 90)
        assert sorted(node.rows("m")) == stock.rows("SELECT * FROM m ORDER BY id")
        stats = "SELECT confl_update_missing FROM pg_stat_subscription_stats"
        (missing,) = node.node.sql(stats).rows
        told = f"{stats} WHERE subname = 'moved'"
        wait_until(lambda: stock.value(told) == missing[0], "the same count", 30)
    finally:
        stock.execute("DROP SUBSCRIPTION moved")


@part_of_make_faults
def test_missing_rows_of_partitions_are_told_as_a_server_tells_them(
    local_node: Callable[..., LocalNode],
    database: Database,
    database_on: Callable[[int], Database],
    spark: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under the leaf, in the order of its columns, without what was not sent."""
    stock, publisher, node = database, database_on(17), local_node()
    publisher.execute(
        "CREATE TABLE r (a integer PRIMARY KEY, b text, big text);"
        "ALTER TABLE r ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO r SELECT i, 'b', repeat('x', 5000) FROM generate_series(1, 6) i;"
        "CREATE PUBLICATION p FOR TABLE r"
    )
    made = (
        "CREATE TABLE r (own text DEFAULT 'own', a integer PRIMARY KEY, big text, b text)"
        " PARTITION BY LIST (a)",
        "CREATE TABLE r1 (b text, own text DEFAULT 'own', a integer NOT NULL, big text)",
        "ALTER TABLE r ATTACH PARTITION r1 FOR VALUES IN (1, 2, 3)",
        "CREATE TABLE rest PARTITION OF r DEFAULT",
    )
    for statement in made:
        stock.execute(statement)
        node.node.sql(statement)
    stock.execute(f"CREATE SUBSCRIPTION stock CONNECTION '{publisher.conninfo}' PUBLICATION p")
    node.subscribe("s", publisher, "p")
    node.caught_up("s", publisher)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)
    log_size = stock.server.log_path.stat().st_size
    try:
        stock.execute("DELETE FROM r")
        for leaf in ("r1", "rest"):
            spark.sql(f"DELETE FROM delta.`{node.warehouse}/public/{leaf}`").collect()
        publisher.execute("UPDATE r SET b = 'new' WHERE a IN (1, 4)")
        publisher.execute("UPDATE r SET b = 'small', big = 'y', a = -a WHERE a IN (3, 6)")
        publisher.execute("DELETE FROM r WHERE a IN (2, 5)")
        node.caught_up("s", publisher)
        wait_until(lambda: stock.server.log_path.read_text().count("delete_missing") >= 2, "it", 60)
    finally:
        stock.execute("DROP SUBSCRIPTION stock")
    theirs = sorted(_CONFLICT.findall(stock.server.log_path.read_bytes()[log_size:].decode()))
    assert len(theirs) == 6
    assert sorted(_CONFLICT.findall("\n".join(caplog.messages))) == theirs


@part_of_make_faults
def test_a_lost_race_of_one_table_hides_no_conflict_of_another(
    local_node: Callable[..., LocalNode],
    database: Database,
    spark: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is committed already is not worked again, and is told of all the same."""
    caplog.set_level("INFO")
    database.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b');"
        "CREATE TABLE u (id integer PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t, u"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    spark.sql(f"DELETE FROM delta.`{_uri(node, 't', 's')}` WHERE id = 1").collect()
    database.execute("UPDATE t SET v = 'c' WHERE id = 2")
    node.caught_up("s", database)
    spark.sql(f"INSERT INTO delta.`{_uri(node, 'u', 's')}` VALUES (50, 'foreign')").collect()
    database.execute("BEGIN; UPDATE t SET v = 'd' WHERE id = 1; INSERT INTO u VALUES (1); COMMIT")
    node.caught_up("s", database)
    assert any("working the batch again" in message for message in caplog.messages)
    told = [row[:2] for row in _CONFLICT.findall("\n".join(caplog.messages))]
    assert told == [("public.t", "update_missing")]
    assert {t.name: t.update_missing for t in node.status("s").tables}["public.t"] == 1
    assert len(node.rows("u")) == 2
    # a key that somebody has taken away since is not there
    spark.sql(f"DELETE FROM delta.`{_uri(node, 'u', 's')}` WHERE id = 50").collect()
    database.execute("INSERT INTO u VALUES (50, 'ours')")
    node.caught_up("s", database)
    assert sorted(map(str, node.rows("u"))) == ["(1, None)", "(50, 'ours')"]


def test_which_conflict_an_existing_key_is(
    local_node: Callable[..., LocalNode],
    database: Database,
    database_on: Callable[[int], Database],
    spark: Any,
) -> None:
    publisher, stock = database_on(17), database
    create = "CREATE TABLE t (id integer PRIMARY KEY, v text)"
    publisher.execute(f"{create}; INSERT INTO t VALUES (1, 'a'); CREATE PUBLICATION p FOR TABLE t")
    stock.execute(create)
    options = "disable_on_error = true"
    stock.execute(
        f"CREATE SUBSCRIPTION stock CONNECTION '{publisher.conninfo}' PUBLICATION p"
        f" WITH ({options})"
    )
    node = local_node()
    node.node.sql(create)
    node.subscribe("s", publisher, "p", options)
    node.caught_up("s", publisher)
    wait_until(lambda: stock.value(_SYNCED), "copied tables", 90)
    foreign = "VALUES (50, 'foreign'), (60, 'foreign')"
    spark.sql(f"INSERT INTO delta.`{_uri(node, 't', 's')}` {foreign}").collect()
    foreign_version = node.cut().tables["public", "t"].version + 1
    stock.execute(f"INSERT INTO t {foreign}")
    told = re.compile(r"(Key \(id\).*?\))\.(?: It came|$)", re.MULTILINE)
    modified = re.compile(
        r'Key already exists in unique index "t_pkey", modified (\w+) in transaction \d+ at '
    )
    counts = (
        "SELECT confl_insert_exists, confl_update_exists, confl_multiple_unique_conflicts"
        " FROM pg_stat_subscription_stats"
    )
    disabled = "SELECT NOT subenabled FROM pg_subscription WHERE subname = 'stock'"
    try:
        for change, row, counted in (
            (
                "UPDATE t SET id = 50, v = 'moved' WHERE id = 1",
                "remote row (50, moved); replica identity (id)=(1)",
                (0, 1, 0),
            ),
            ("INSERT INTO t VALUES (60, 'new')", "remote row (60, new)", (1, 1, 0)),
        ):
            log_size = stock.server.log_path.stat().st_size
            publisher.execute(change)
            status = node.stopped("s")
            wait_until(lambda: stock.value(disabled), "the disabling", 60)
            server_log = stock.server.log_path.read_bytes()[log_size:].decode()
            kind = "update_exists" if "moved" in row else "insert_exists"
            message = f'conflict detected on relation "public.t": conflict={kind}'
            assert f"ERROR:  {message}\n" in server_log
            assert status.error == message
            key, detail = 50 if "moved" in row else 60, str(status.error_detail)
            row = f"Key (id)=({key}); existing local row ({key}, foreign); {row}"
            assert told.findall(server_log) == told.findall(detail) == [row]
            assert 'Key already exists in unique index "t_pkey", modified ' in server_log
            assert modified.findall(detail) == ["locally"]
            wait_until(partial(_gives, stock, counts, counted), "counts", 30)
            assert node.node.sql(counts).rows == (counted,)
            assert status.error_hint is not None
            xid, lsn = _FINISHED.findall(server_log)[0]
            (found,) = [c for c in conflicts(node.warehouse) if c["finish_lsn"] == lsn]
            assert (found["relation"], found["conflict_type"]) == ("public.t", kind)
            assert found["replica_identity"] == f'{{"id": {key}}}'
            assert (found["local_row"], found["remote_xid"]) == (f"({key}, foreign)", int(xid))
            assert (found["resolution"], found["changes"]) == ("error", 1)
            assert (found["local_origin"], found["local_version"]) == (None, foreign_version)
            assert f"SKIP (lsn = '{lsn}')" in status.error_hint
            node.node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{lsn}'); ALTER SUBSCRIPTION s ENABLE")
            stock.execute(
                f"ALTER SUBSCRIPTION stock SKIP (lsn = '{lsn}'); ALTER SUBSCRIPTION stock ENABLE"
            )
            node.caught_up("s", publisher)
        assert sorted(node.rows("t")) == [(1, "a"), (50, "foreign"), (60, "foreign")]
    finally:
        stock.execute("DROP SUBSCRIPTION stock")
