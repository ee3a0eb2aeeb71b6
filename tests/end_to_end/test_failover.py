"""Option failover: the publisher's standby takes over, as docs/failover.md says."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import NotInPrerequisiteState, PublisherError
from standby import primary_and_standby, standby_of, synchronised, telling_what_runs

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = """
CREATE TABLE t (id integer PRIMARY KEY, v text);
INSERT INTO t SELECT i, 'first' FROM generate_series(1, 100) i;
CREATE PUBLICATION p FOR TABLE t
"""


def _same(node: LocalNode, database: Database) -> None:
    node.caught_up("s", database)
    rows = sorted(map(tuple, node.node.read("t", subscription="s").collect()))
    assert rows == database.rows("SELECT id, v FROM t ORDER BY id")


@pytest.mark.parametrize("version", [in_make_faults(17), 18])
def test_a_promoted_standby_goes_on(version: int, tmp_path: Path, spark: Any) -> None:
    with (
        primary_and_standby(version) as (first, second),
        LocalNode(tmp_path / "node", spark) as node,
    ):
        primary, standby = Database(first, "postgres"), Database(second, "postgres")
        primary.execute(_TABLE)
        node.subscribe("s", primary, "p", "failover = true")
        _same(node, primary)
        synchronised(first, second, "s")
        primary.execute("UPDATE t SET v = 'before' WHERE id <= 50; DELETE FROM t WHERE id = 100")
        _same(node, primary)
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
        # Not yet with the node when the primary ends, and on the standby only by its WAL.
        primary.execute("INSERT INTO t SELECT i, 'between' FROM generate_series(101, 200) i")
        end = primary.value("SELECT pg_current_wal_flush_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{end}'"
        wait_until(lambda: bool(standby.value(reached)), "the standby's replay")
        first.kill9()
        second.psql("SELECT pg_promote()")
        standby.execute("INSERT INTO t SELECT i, 'after' FROM generate_series(201, 300) i")
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{standby.conninfo}'")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        _same(node, standby)
        standby.execute("UPDATE t SET v = 'new' WHERE id = 150")
        _same(node, standby)
        numbers = node.node.sql(
            "SELECT confl_insert_exists, confl_update_missing, confl_delete_missing"
            " FROM pg_stat_subscription_stats"
        )
        assert numbers.rows == ((0, 0, 0),)


@part_of_make_faults
def test_the_primary_is_killed_under_load(tmp_path: Path, spark: Any) -> None:
    """What the standby has not is not with the node either, so it needs no statement to go on."""
    with primary_and_standby(18) as (first, second), LocalNode(tmp_path / "node", spark) as node:
        primary, standby = Database(first, "postgres"), Database(second, "postgres")
        primary.execute(_TABLE)
        hosts = f"host=127.0.0.1,127.0.0.1 port={first.port},{second.port} dbname=postgres"
        node.node.sql(
            f"CREATE SUBSCRIPTION s CONNECTION '{hosts} user=postgres "
            "target_session_attrs=primary' PUBLICATION p WITH (failover)"
        )
        _same(node, primary)
        synchronised(first, second, "s")
        writer = threading.Thread(target=_write_until_it_ends, args=(primary,))
        writer.start()
        for _ in range(5):
            node.new_cut("s")
        first.kill9()
        writer.join()
        second.psql("SELECT pg_promote()")
        standby.execute("INSERT INTO t SELECT i, 'after' FROM generate_series(-100, -1) i")
        _same(node, standby)
        assert standby.value("SELECT max(id) FROM t") > 1000


def test_a_standby_that_lacks_what_the_node_has_is_refused(tmp_path: Path, spark: Any) -> None:
    """Without synchronized_standby_slots the node may be ahead of the standby."""
    with primary_and_standby(18) as (first, second), LocalNode(tmp_path / "node", spark) as node:
        primary, standby = Database(first, "postgres"), Database(second, "postgres")
        primary.execute(_TABLE)
        node.subscribe("s", primary, "p", "failover")
        _same(node, primary)
        synchronised(first, second, "s")
        primary.execute("ALTER SYSTEM SET synchronized_standby_slots = ''")
        primary.execute("SELECT pg_reload_conf()")
        standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        standby.execute("SELECT pg_reload_conf()")
        alone = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'walreceiver'"
        wait_until(lambda: primary.value(alone) == 0, "the end of the standby's walreceiver")
        primary.execute("INSERT INTO t SELECT i, 'lost' FROM generate_series(101, 200) i")
        _same(node, primary)
        first.kill9()
        second.psql("SELECT pg_promote()")
        standby.execute("INSERT INTO t SELECT i, 'other' FROM generate_series(101, 2000) i")
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{standby.conninfo}'")
        status = node.stopped("s")
        assert "has another history since" in str(status.error), status
        rows = node.node.read("t", subscription="s").collect()
        assert {row.v for row in rows} == {"first", "lost"}


@part_of_make_faults
@pytest.mark.parametrize("mode", [in_make_faults("fast"), "immediate"])
def test_a_standby_is_promoted_while_it_is_followed(mode: Any, tmp_path: Path, spark: Any) -> None:
    """Its walsender goes on with the new timeline and tells nobody of it."""
    with primary_and_standby(18) as (first, second), LocalNode(tmp_path / "node", spark) as node:
        primary, standby = Database(first, "postgres"), Database(second, "postgres")
        primary.execute("ALTER SYSTEM SET synchronized_standby_slots = ''")
        primary.execute("SELECT pg_reload_conf()")
        primary.execute(_TABLE)
        there = "SELECT count(*) FROM pg_publication_tables"
        wait_until(lambda: standby.value(there) == 1, "the publication on the standby")
        with telling_what_runs(first):
            node.subscribe("s", standby, "p")
            node.wait_for("s", "the copy", lambda s: [t.state for t in s.tables] == ["r"])
        first.stop(mode)
        second.psql("SELECT pg_promote()")
        standby.execute("INSERT INTO t SELECT i, 'after' FROM generate_series(101, 200) i")
        _same(node, standby)
        confirmed = "SELECT confirmed_flush_lsn >= '{}' FROM pg_replication_slots"
        query = confirmed.format(standby.value("SELECT pg_current_wal_flush_lsn()"))
        _same(node, standby)
        wait_until(lambda: bool(standby.value(query)), "the acknowledgement")
        standby.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        standby.execute("UPDATE t SET v = 'new' WHERE id = 150")
        _same(node, standby)


@part_of_make_faults
def test_another_standby_that_lacks_what_the_node_has_is_refused(
    tmp_path: Path, spark: Any
) -> None:
    """Also where it has a slot of that name, which was confirmed on its own timeline."""
    settings = {"full_page_writes": True}  # for a backup of a standby
    with (
        EmbeddedPostgres(18, settings=settings) as first,
        standby_of(first) as second,
        standby_of(second) as third,
        LocalNode(tmp_path / "node", spark) as node,
    ):
        primary, standby, behind = (Database(s, "postgres") for s in (first, second, third))
        primary.execute(_TABLE)
        there = "SELECT count(*) FROM pg_publication_tables"
        wait_until(lambda: behind.value(there) == 1, "the publication on the standbys")
        with telling_what_runs(first):
            node.subscribe("s", standby, "p")
            node.wait_for("s", "the copy", lambda s: [t.state for t in s.tables] == ["r"])
        behind.execute("ALTER SYSTEM SET primary_conninfo = ''")
        behind.execute("SELECT pg_reload_conf()")
        alone = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'walreceiver'"
        wait_until(lambda: standby.value(alone) == 0, "the end of the walreceiver")
        primary.execute("INSERT INTO t SELECT i, 'lost' FROM generate_series(101, 2000) i")
        node.wait_for("s", "the rows", lambda _: len(node.rows("t")) == 2000)
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
        third.psql("SELECT pg_promote()")
        behind.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        confirmed = behind.value("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots")
        assert confirmed < node.cut().lsn
        behind.execute("INSERT INTO t SELECT i, 'other' FROM generate_series(101, 9000) i")
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{behind.conninfo}'")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        status = node.stopped("s")
        assert "has another history since" in str(status.error), status
        assert len(node.rows("t")) == 2000


def _write_until_it_ends(database: Database) -> None:
    with contextlib.suppress(psycopg.OperationalError), database.connect() as connection:
        for number in itertools.count(1001):
            connection.execute("INSERT INTO t VALUES (%s, 'load')", (number,))
            connection.execute("UPDATE t SET v = %s WHERE id = 1", (str(number),))


@pytest.mark.parametrize("version", [in_make_faults(17), 18])
def test_slot_and_row_say_the_same(version: int, database_on: Any, tmp_path: Path) -> None:
    database = database_on(version)
    database.execute(_TABLE)
    with LocalNode(tmp_path / "node", None) as node:

        def both() -> tuple[bool, bool]:
            ((row,),) = node.node.sql("SELECT subfailover FROM pg_subscription").rows
            slot = "SELECT failover FROM pg_replication_slots WHERE slot_name = 's_failover'"
            return row, database.value(slot)

        node.subscribe("s", database, "p", "failover, enabled = false, slot_name = s_failover")
        assert both() == (True, True)
        node.node.sql("ALTER SUBSCRIPTION s SET (failover = false)")
        assert both() == (False, False)
        node.node.sql("ALTER SUBSCRIPTION s SET (failover)")
        assert both() == (True, True)
        node.node.sql("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        node.node.sql("DROP SUBSCRIPTION s")
        # As with PostgreSQL: a slot that is there stays as it is.
        existing = "create_slot = false, enabled = false, slot_name = s_failover"
        node.subscribe("s", database, "p", existing)
        assert both() == (False, True)
        node.node.sql("ALTER SUBSCRIPTION s SET (failover = false)")
        assert both() == (False, False)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        with pytest.raises(NotInPrerequisiteState, match='"failover" for enabled subscription'):
            node.node.sql("ALTER SUBSCRIPTION s SET (failover)")
        assert both() == (False, False)
        node.node.sql("DROP SUBSCRIPTION s")


@pytest.mark.parametrize("version", [in_make_faults(14), 16])
def test_an_older_publisher_has_no_failover(version: int, database_on: Any, tmp_path: Path) -> None:
    """What the server says, as to PostgreSQL's own subscriber; nothing stays behind."""
    database = database_on(version)
    database.execute(_TABLE)
    with LocalNode(tmp_path / "node", None) as node:
        with pytest.raises(PublisherError, match="could not create replication slot"):
            node.subscribe("s", database, "p", "failover")
        assert node.node.sql("SELECT 1 FROM pg_subscription").rows == ()
        node.subscribe("s", database, "p", "enabled = false, slot_name = s_old")
        with pytest.raises(PublisherError, match='could not alter replication slot "s_old"'):
            node.node.sql("ALTER SUBSCRIPTION s SET (failover)")
        assert node.node.sql("SELECT subfailover FROM pg_subscription").rows == ((False,),)
        node.node.sql("DROP SUBSCRIPTION s")
