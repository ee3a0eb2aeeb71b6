"""Tables are compared with the publisher's in the background; what was damaged is found."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from end_to_end.compare import query
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, NodeProcess, wait_until
from penstock.failpoint import INSIDE_VERIFICATION
from penstock.node import standing_proof

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

LocalNodes = Callable[..., LocalNode]


def subscribed(node: LocalNode, database: Database, options: str = "") -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text);"
        "CREATE TABLE u (a text PRIMARY KEY, b text);"
        "INSERT INTO t SELECT i, repeat('b', 200) FROM generate_series(1, 2000) i;"
        "INSERT INTO u SELECT i, 'b' FROM generate_series(1, 100) i;"
        "ANALYZE; CREATE PUBLICATION p FOR TABLE t, u"
    )
    every = "verify_interval = '1 second', verify_rate = '1GB'"
    node.subscribe("s", database, "p", ", ".join(filter(None, (every, options))))
    node.caught_up("s", database)


def results(node: LocalNode) -> dict[str, str | None]:
    return {table.name: table.verify_result for table in node.status("s").tables}


def told(node: LocalNode | NodeProcess) -> list[dict[str, Any]]:
    """Rows of the lake's table."""
    uri = str(node.warehouse / "_penstock" / "verifications")
    if not DeltaTable.is_deltatable(uri):
        return []
    found: list[dict[str, Any]] = query("SELECT * FROM t", t=DeltaTable(uri)).to_pylist()
    return found


def proved(node: LocalNode, tables: int = 2, since: int = 0) -> None:
    """Wait until each table was found equal, by comparisons after the first ``since``."""

    def look() -> bool:
        equal = {row["relation"] for row in told(node)[since:] if row["result"] == "equal"}
        return len(equal) == tables and set(results(node).values()) == {"equal"}

    wait_until(look, "a proof", 60, state=lambda: (results(node), node.status("s").error))


def damage(node: LocalNode, spark: Any) -> None:
    uri = node.cut().tables["public", "t"].uri
    spark.sql(f"UPDATE delta.`{uri}` SET b = concat('c', substring(b, 2)) WHERE a = 1234")


def test_a_difference_put_in_by_hand_is_found_and_stops(
    local_node: LocalNodes,
    database: Database,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing_proof, "RANGE_BYTES", 100_000)
    node = local_node()
    subscribed(node, database)
    proved(node)
    ranges = [row for row in told(node) if row["relation"] == "public.t"]
    assert len({row["low"] for row in ranges}) > 2  # range by range
    assert len({row["lsn"] for row in ranges}) > 2  # at LSNs of their own
    damage(node, spark)
    status = node.stopped("s")
    assert status.error is not None
    assert 'table "public.t" differs from the publisher\'s at ' in status.error
    assert status.error_detail is not None
    assert "different: a = '1234' in b" in status.error_detail
    assert "REFRESH PUBLICATION" in (status.error_hint or "")
    assert results(node)["public.t"] == "different"
    assert [row["result"] for row in told(node)].count("different") == 2  # looked at twice
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    proved(node)


@part_of_make_faults
def test_keys_that_the_node_has_as_texts_are_compared_in_ranges(
    local_node: LocalNodes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_proof, "RANGE_BYTES", 100_000)
    node = local_node()
    node.node.sql("CREATE TABLE t (a varchar(9) PRIMARY KEY, b text)")
    subscribed(node, database)
    proved(node)
    ranges = [row for row in told(node) if row["relation"] == "public.t"]
    assert len({row["low"] for row in ranges}) > 2


def test_a_difference_parks_where_the_subscription_says_so(
    local_node: LocalNodes, database: Database, spark: Any
) -> None:
    node = local_node()
    subscribed(node, database, "on_table_error = park")
    proved(node)
    damage(node, spark)
    node.wait_for("s", "a parked table", lambda s: any(t.parked for t in s.tables))
    (parked,) = (table for table in node.status("s").tables if table.parked)
    assert parked.name == "public.t"
    assert "a = '1234' in b" in (parked.error_detail or "")
    database.execute("INSERT INTO u VALUES ('more', 'b')")
    node.caught_up_but_parked("s", database)
    assert len(node.rows("u")) == 101


@part_of_make_faults
def test_traffic_tables_that_come_and_go_and_the_option_itself(
    local_node: LocalNodes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_proof, "RANGE_BYTES", 100_000)
    node = local_node()
    subscribed(node, database)
    stop = threading.Event()
    writer = threading.Thread(target=_write_until, args=(database, stop))
    writer.start()
    try:
        proved(node)
        database.execute(
            "CREATE TABLE v (a integer PRIMARY KEY); INSERT INTO v VALUES (1);"
            "ALTER PUBLICATION p ADD TABLE v; ALTER PUBLICATION p DROP TABLE u"
        )
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        wait_until(lambda: results(node).get("public.v") == "equal", "the new table", 60)
        assert "public.u" not in results(node)
        assert not node.status("s").stopped
        node.node.sql("ALTER SUBSCRIPTION s SET (verify_interval = off)")
        (shown,) = node.node.sql("SELECT verify_interval FROM pg_stat_lake_subscription").rows
        assert shown == (0,)
    finally:
        stop.set()
        writer.join()
    node.caught_up("s", database)
    assert node.node.verify().equal


def _write_until(database: Database, stop: threading.Event) -> None:
    with database.connect(autocommit=True) as connection:
        number = 0
        while not stop.is_set():
            number += 1
            connection.execute("UPDATE t SET b = %s WHERE a %% 500 = %s", (number, number % 500))


def test_known_lacks_are_no_difference(local_node: LocalNodes, database: Database) -> None:
    node = local_node()
    subscribed(node, database)
    proved(node)
    database.execute(
        "ALTER TABLE t ADD COLUMN n integer DEFAULT 5; INSERT INTO t VALUES (5000, 'b', 1)"
    )
    node.caught_up("s", database)
    before = len(told(node))
    proved(node, since=before)
    node.node.sql("ALTER TABLE t DROP COLUMN n")
    wait_until(lambda: results(node)["public.t"] == "partial", "a partial proof", 60)
    assert not node.status("s").stopped


@part_of_make_faults
def test_operations_that_are_not_published_are_no_difference(
    local_node: LocalNodes, database: Database, spark: Any
) -> None:
    node = local_node()
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text); CREATE TABLE u (a integer PRIMARY KEY);"
        "INSERT INTO t SELECT i, 'b' FROM generate_series(1, 2000) i; INSERT INTO u VALUES (1);"
        "CREATE PUBLICATION p FOR TABLE t WITH (publish = 'insert, update');"
        "CREATE PUBLICATION q FOR TABLE u"
    )
    every = "verify_interval = '1 second', verify_rate = '1GB', on_table_error = park"
    node.subscribe("s", database, "p, q", every)
    node.caught_up("s", database)
    proved(node)
    database.execute("DELETE FROM t WHERE a <= 100; UPDATE t SET b = 'c' WHERE a = 200")
    node.caught_up("s", database)
    wait_until(lambda: results(node)["public.t"] == "partial", "a partial proof", 60)
    assert results(node)["public.u"] == "equal"
    damage(node, spark)  # what was left out explains no other kind
    node.wait_for("s", "a parked table", lambda s: any(t.parked for t in s.tables))
    (parked,) = (table for table in node.status("s").tables if table.parked)
    assert "a = '1234' in b" in (parked.error_detail or "")
    assert "extra" not in (parked.error_detail or "")


@part_of_make_faults
def test_a_transaction_that_keeps_slots_waiting_holds_the_worker_for_seconds(
    local_node: LocalNodes, database: Database
) -> None:
    node = local_node()
    subscribed(node, database)
    proved(node)
    with database.connect(autocommit=False) as writing:
        writing.execute("INSERT INTO u VALUES ('x', 'b')")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%verify%'"
        wait_until(lambda: database.value(slots) > 0, "a slot that is waited for", 60)
        database.execute("INSERT INTO t VALUES (6000, 'b')")
        node.caught_up("s", database, 30)  # the worker waits some seconds at most
        writing.commit()
    before = len(told(node))
    proved(node, since=before)


def test_a_key_that_is_text_here_and_one_subscription_beside_another(
    local_node: LocalNodes,
    database: Database,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing_proof, "RANGE_BYTES", 50_000)
    node = local_node()
    spark.sql(
        f"CREATE TABLE delta.`{node.warehouse}/public/t` (a string, b string) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text); CREATE TABLE u (a integer PRIMARY KEY);"
        "INSERT INTO t SELECT i, repeat('b', 100) FROM generate_series(-500, 500) i;"
        "ANALYZE; CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE u"
    )
    every = "verify_interval = '1 second', verify_rate = '1GB'"
    node.subscribe("s", database, "p", every)
    node.caught_up("s", database)
    proved(node, 1)
    assert len({row["low"] for row in told(node)}) > 2

    ranged = standing_proof._range

    def fails(publisher: Any, info: Any, low: int | None) -> Any:
        if info.relation.name == "t":
            raise ValueError("not foreseen")
        return ranged(publisher, info, low)

    monkeypatch.setattr(standing_proof, "_range", fails)
    node.subscribe("z", database, "q", every)
    wait_until(
        lambda: any(row["subscription"] == "z" for row in told(node)), "the other's proof", 60
    )


@part_of_make_faults
def test_a_large_table_does_not_keep_the_others_waiting(
    local_node: LocalNodes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_proof, "RANGE_BYTES", 100_000)
    database.execute(
        "CREATE TABLE a (a integer PRIMARY KEY, b text); CREATE TABLE b (a integer PRIMARY KEY);"
        "INSERT INTO a SELECT i, repeat('b', 200) FROM generate_series(1, 4000) i;"
        "ANALYZE; CREATE PUBLICATION p FOR TABLE a, b"
    )
    node = local_node()
    node.subscribe("s", database, "p", "verify_rate = '1GB'")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s SET (verify_interval = '1 hour')")
    proved(node, 2)
    ranges = sorted(told(node), key=lambda row: row["started"])
    assert "public.b" in [row["relation"] for row in ranges[:3]]
    assert len(ranges) > 4


def test_a_pass_begins_anew_where_the_key_is_another(
    local_node: LocalNodes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_proof, "RANGE_BYTES", 100_000)
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, k integer NOT NULL, b text);"
        "INSERT INTO t SELECT i, -i, repeat('b', 200) FROM generate_series(1, 4000) i;"
        "ANALYZE; CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("s", database, "p", "verify_interval = '1 second', verify_rate = '100kB'")
    node.caught_up("s", database)
    wait_until(lambda: len(told(node)) >= 2, "ranges by one key", 60)
    database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)")

    def by_the_other() -> list[dict[str, Any]]:
        found = (row for row in told(node) if row["key_column"] == "k")
        return sorted(found, key=lambda row: row["started"])

    wait_until(lambda: bool(by_the_other()), "a range by the other key", 60)
    assert by_the_other()[0]["low"] is None


@part_of_make_faults
def test_a_publisher_that_hangs_does_not_hold_the_node(
    local_node: LocalNodes, database_on: Callable[..., Database]
) -> None:
    """Its sessions neither answer nor end."""
    with EmbeddedPostgres(18) as server:
        database = database_on(server)
        database.execute(
            "CREATE TABLE t (a integer PRIMARY KEY, b text);"
            "INSERT INTO t SELECT i, repeat('b', 500) FROM generate_series(1, 100000) i;"
            "ANALYZE; CREATE PUBLICATION p FOR TABLE t"
        )
        node = local_node()
        node.subscribe("s", database, "p", "verify_interval = '1 second', verify_rate = '1GB'")
        node.caught_up("s", database)
        sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        reading = f"{sessions} AND application_name = 'penstock verify' AND query LIKE 'COPY%'"
        with database.connect() as looking:
            wait_until(lambda: looking.execute(reading).fetchall(), "a comparison", 60)
            all_ = looking.execute(f"{sessions} AND pid <> pg_backend_pid()").fetchall()
            for (pid,) in all_:
                os.kill(pid, signal.SIGSTOP)
            ending = threading.Thread(target=node.node.stop)
            ending.start()
            try:
                ending.join(60)
                assert not ending.is_alive()
            finally:
                for (pid,) in all_:
                    os.kill(pid, signal.SIGCONT)
                ending.join()


@part_of_make_faults
def test_killed_amid_a_comparison_it_goes_on(tmp_path: Any, database: Database) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text);"
        "INSERT INTO t SELECT i, 'b' FROM generate_series(1, 1000) i;"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node = NodeProcess(tmp_path / "node")
    node.init({})
    node.start(f"{INSIDE_VERIFICATION}:1")
    node.command(
        "sql",
        "-D",
        str(node.folder),
        f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
        " WITH (verify_interval = '1 second')",
    )
    node.wait_end(90)
    node.start()
    try:
        wait_until(lambda: bool(told(node)), "a comparison", 90)
        assert {(row["result"], row["node_rows"]) for row in told(node)} == {("equal", 1000)}
    finally:
        node.stop()
