"""Publishers, slots, nodes, warehouses and tables that went back, went away, or are others.

Each ends in a stop that says so, nothing is lost, and what the hint says leads on.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable as DeltaRs

from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from fix_proxy import Proxy
from penstock import Node
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import ConfigurationError, StateMismatch, StorageError
from penstock.node.status import SubscriptionStatus
from penstock.subscription.consistency import ConsistencyCheck


@contextmanager
def following(folder: Path, spark: Any, database: Database) -> Iterator[LocalNode]:
    """A node whose subscription ``s`` has copied table ``t`` and follows it."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, 'zero');"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    with LocalNode(folder, spark) as node:
        node.subscribe("s", database, "p")
        node.caught_up("s", database)
        yield node


def insert(database: Database, *ids: int) -> None:
    for number in ids:
        database.execute(f"INSERT INTO t VALUES ({number}, 'row {number}')")


def same_rows(node: LocalNode, database: Database) -> None:
    node.caught_up("s", database)
    rows = node.node.read("t", subscription="s").collect()
    assert sorted(map(tuple, rows)) == database.rows("SELECT id, v FROM t ORDER BY id")


def stopped(node: LocalNode, text: str) -> SubscriptionStatus:
    status = node.stopped("s")
    assert text in str(status.error), status
    return status


def drop(node: LocalNode) -> None:
    """As the hints say it."""
    for statement in ("DISABLE", "SET (slot_name = NONE)"):
        node.node.sql(f"ALTER SUBSCRIPTION s {statement}")
    node.node.sql("DROP SUBSCRIPTION s")


def copied_again(node: LocalNode, database: Database) -> None:
    """The way back of every hint: a new subscription, and its tables copied again."""
    drop(node)
    shutil.rmtree(node.warehouse / "public")
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    node.subscribe("s", database, "p")
    same_rows(node, database)


def disable(node: LocalNode, database: Database) -> None:
    """Disable the subscription, and wait until no worker reads the slot or is about to."""
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    wait_until(lambda: reader_of_the_slot(database) is None, "the end of the stream")


def reader_of_the_slot(database: Database) -> int | None:
    """Its walsender's pid: another worker has another one."""
    pid = database.value("SELECT active_pid FROM pg_replication_slots WHERE slot_name = 's'")
    return None if pid is None else int(pid)


def timeline(node: LocalNode) -> int | None:
    """The publisher's, as the catalog has it."""
    (followed,) = node.node._catalog.subscriptions()
    return None if followed.publisher is None else followed.publisher.timeline


def reopened(node: LocalNode, spark: Any) -> None:
    """The node again, after it was closed."""
    node.node = Node(node.folder, spark=spark)
    node.node.start()


@part_of_make_faults
def test_a_publisher_that_was_promoted_goes_on_and_one_that_was_restored_stops(
    tmp_path: Path, spark: Any
) -> None:
    with EmbeddedPostgres(18) as server:
        database = Database(server, "postgres")
        with following(tmp_path / "node", spark, database) as node:
            # A walsender of the standby would go on after the promotion without telling of it.
            disable(node, database)
            server.stop()
            signal = server.data_dir / "standby.signal"
            signal.touch()
            shutil.chown(signal, signal.parent.owner(), signal.parent.group())
            server.start()
            database.execute("SELECT pg_promote()")
            assert database.value("SELECT timeline_id FROM pg_control_checkpoint()") >= 1
            node.node.sql("ALTER SUBSCRIPTION s ENABLE")
            insert(database, 1)
            same_rows(node, database)
            node.wait_for("s", "the new timeline", lambda _: timeline(node) == 2)

            server.stop()
            copy = server.data_dir.with_name("copy")
            subprocess.run(["cp", "-a", server.data_dir, copy], check=True)
            server.start()
            insert(database, 2, 3)
            same_rows(node, database)
            server.stop("immediate")
            shutil.rmtree(server.data_dir)
            copy.rename(server.data_dir)
            server.start()
            status = stopped(node, "went back to")
            assert "restored from an older copy" in str(status.error_detail)
            insert(database, 4)
            copied_again(node, database)


def test_another_cluster_is_refused_and_the_way_back_leads_on(
    tmp_path: Path, spark: Any, database_on: Callable[..., Database]
) -> None:
    first, other = database_on(18), database_on(16)
    other.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t")
    other.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    with following(tmp_path / "node", spark, first) as node:
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{other.conninfo}'")
        status = stopped(node, "another publisher")
        assert "system identifier" in str(status.error_detail)
        with pytest.raises(StateMismatch, match="another publisher"):
            node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        insert(first, 1)
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{first.conninfo} connect_timeout=9'")
        same_rows(node, first)
        # Without pg_upgrade's slot: the same rows, and a slot where the old cluster ended.
        assert "SET (system_identifier = " in str(status.error_hint)
        other.execute("INSERT INTO t VALUES (0, 'zero'), (1, 'row 1')")
        other.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_flush_lsn())")
        insert(other, 2)
        drop(node)
        node.subscribe("s", other, "p", "create_slot = false, copy_data = false")
        same_rows(node, other)
        node.node.sql("DROP SUBSCRIPTION s")


@part_of_make_faults
def test_a_name_that_leads_to_another_server_within_a_session(
    tmp_path: Path,
    spark: Any,
    database: Database,
    make_proxy: Callable[[int], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first connection of a session is to the publisher, those that copy and stream are not."""
    setup = (
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, '{}');"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    database.execute(setup.format("zero"))
    proxy = make_proxy(database.server.port)
    check, leads_to = ConsistencyCheck.check, database.server.port

    def then_to(*arguments: Any) -> None:
        check(*arguments)
        proxy.target = leads_to

    with EmbeddedPostgres(18) as other, LocalNode(tmp_path / "node", spark) as node:
        with psycopg.connect(other.conninfo(), autocommit=True) as admin:
            admin.execute(f'CREATE DATABASE "{database.name}"')
        with psycopg.connect(other.conninfo(database.name), autocommit=True) as there:
            there.execute(setup.format("of another"))
            there.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            slots = "SELECT count(*) FROM pg_replication_slots"
            monkeypatch.setattr(ConsistencyCheck, "check", then_to)
            leads_to = other.port
            node.node.sql(
                f"CREATE SUBSCRIPTION s CONNECTION '{proxy.conninfo(database.conninfo)}' "
                "PUBLICATION p"
            )
            text = "another publisher"
            stopped(node, text)  # by the next session: this one has nothing to stream
            assert there.execute(slots).fetchone() == (1,), "nothing is left there"
            leads_to = proxy.target = database.server.port
            node.node.sql("ALTER SUBSCRIPTION s ENABLE")
            same_rows(node, database)
            leads_to = other.port
            there.execute("INSERT INTO t VALUES (9, 'of another')")
            proxy.cut()
            stopped(node, text)
        leads_to = proxy.target = database.server.port
        insert(database, 1)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        same_rows(node, database)
        node.node.sql("DROP SUBSCRIPTION s")


def test_a_slot_that_was_advanced_and_the_loss_accepted(
    tmp_path: Path, spark: Any, database: Database
) -> None:
    with following(tmp_path / "node", spark, database) as node:
        disable(node, database)
        insert(database, 1)
        database.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_flush_lsn())")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        status = stopped(node, "the slot of subscription")
        assert "pg_replication_origin_advance" in str(status.error_hint)
        drop(node)
        # Another subscription of the name does not lose them silently either.
        node.subscribe("s", database, "p", "create_slot = false, copy_data = false")
        status = stopped(node, 'and table "public.t" ends at')
        for statement in str(status.error_hint).partition("may be lost: ")[2][:-1].split("; "):
            node.node.sql(statement)
        insert(database, 2)
        node.caught_up("s", database)
        assert [row[0] for row in sorted(map(tuple, node.node.read("t").collect()))] == [0, 2]
        node.node.sql("DROP SUBSCRIPTION s")


def test_a_node_that_was_put_back_from_a_backup(
    tmp_path: Path, spark: Any, database: Database
) -> None:
    with following(tmp_path / "node", spark, database) as node:
        node.node.close()
        backup = shutil.copytree(node.folder, tmp_path / "backup")
        reopened(node, spark)
        insert(database, 1, 2)
        same_rows(node, database)
        node.node.close()
        shutil.rmtree(node.folder)
        shutil.copytree(backup, node.folder)
        reopened(node, spark)
        stopped(node, "the slot of subscription")
        insert(database, 3)
        copied_again(node, database)
        node.node.sql("DROP SUBSCRIPTION s")


@part_of_make_faults
def test_a_warehouse_that_is_not_mounted(tmp_path: Path, spark: Any, database: Database) -> None:
    with following(tmp_path / "node", spark, database) as node:
        away = node.folder / "away"

        def unmount() -> None:
            node.warehouse.rename(away)
            node.warehouse.mkdir()

        def mount() -> None:
            created = [path for path in node.warehouse.rglob("*") if path.is_file()]
            assert not created, "nothing is made in an empty mount point"
            shutil.rmtree(node.warehouse)
            away.rename(node.warehouse)

        unmount()
        insert(database, 1)
        node.wait_for("s", "the error", lambda status: "is not there" in str(status.error))
        assert not node.status("s").stopped
        mount()
        same_rows(node, database)

        node.node.close()
        unmount()
        node.node = Node(node.folder, spark=spark)
        with pytest.raises(StorageError, match="is not there"):
            node.node.start()
        mount()
        insert(database, 2)
        node.node.start()
        same_rows(node, database)

        with pytest.raises(ConfigurationError, match="belongs to another node"):
            LocalNode(tmp_path / "other", spark, {"warehouse": str(node.warehouse)}).__enter__()
        cuts = node.warehouse / "_penstock" / "cuts"
        node.node.close()
        cuts.rename(away)
        reopened(node, spark)
        stopped(node, "the cuts of subscription")
        away.rename(cuts)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        insert(database, 3)
        same_rows(node, database)
        node.node.sql("DROP SUBSCRIPTION s")


@part_of_make_faults
def test_restore_of_a_followed_table(tmp_path: Path, spark: Any, database: Database) -> None:
    with following(tmp_path / "node", spark, database) as node:
        insert(database, 1, 2)
        same_rows(node, database)
        table = f"delta.`{node.cut().tables[next(iter(node.cut().tables))].uri}`"

        def restore(version: int) -> None:
            spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")

        def newest() -> int:
            return int(spark.sql(f"DESCRIBE HISTORY {table}").agg({"version": "max"}).first()[0])

        before = newest()
        restore(1)
        insert(database, 3)
        status = stopped(node, "was restored to an older state")
        assert f"VERSION AS OF {before}" in str(status.error_hint)
        restore(before)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        same_rows(node, database)

        disable(node, database)
        before = newest()
        restore(2)
        insert(database, 4)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        stopped(node, "was restored to an older state")
        restore(before)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        same_rows(node, database)

        disable(node, database)
        before = newest()
        spark.sql(f"DELETE FROM {table} WHERE id = 1")
        restore(before)
        insert(database, 5)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        same_rows(node, database)

        # It is the table's own error; a copy in its place heals it for good.
        disable(node, database)
        node.node.sql("ALTER SUBSCRIPTION s SET (on_table_error = park)")
        restore(2)
        insert(database, 6)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.wait_for("s", "the parked table", lambda status: status.tables[0].state == "p")
        hint = str(node.status("s").tables[0].error_hint)
        assert "REFRESH PUBLICATION" in hint and "RESTORE" not in hint
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        same_rows(node, database)
        disable(node, database)
        insert(database, 7)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        same_rows(node, database)
        node.node.sql("DROP SUBSCRIPTION s")


@part_of_make_faults
def test_compactions_of_a_followed_table(tmp_path: Path, spark: Any, database: Database) -> None:
    """Another program's costs a lost race; one that does not see that another was first doubles
    rows (delta-rs), and the hint of it leads back."""
    with following(tmp_path / "node", spark, database) as node:
        folder = node.warehouse / "public" / "t"

        def compact(*programs: DeltaRs) -> None:
            for program in programs:
                assert program.optimize.compact()["numFilesAdded"]

        def more_files(first: int) -> None:
            for number in range(first, first + 3):
                insert(database, number)
                same_rows(node, database)

        more_files(1)
        compact(DeltaRs(folder))
        more_files(11)
        one, other = DeltaRs(folder), DeltaRs(folder)
        compact(one, other)
        insert(database, 20)
        status = stopped(node, "was rewritten from an older state")
        version = other.version() - 1
        restore = f"RESTORE TABLE delta.`{folder.as_uri()}` TO VERSION AS OF {version}"
        assert restore in str(status.error_hint)
        spark.sql(restore)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        same_rows(node, database)

        more_files(21)
        reader = reader_of_the_slot(database)
        node.node.sql("ALTER SUBSCRIPTION s SET (on_table_error = park)")
        wait_until(lambda: reader_of_the_slot(database) not in (None, reader), "the next worker")
        one, other = DeltaRs(folder), DeltaRs(folder)
        compact(one, other)
        insert(database, 30)
        node.wait_for("s", "the parked table", lambda status: status.tables[0].state == "p")
        assert "from an older state" in str(node.status("s").tables[0].error)
        node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
        same_rows(node, database)
        node.node.sql("DROP SUBSCRIPTION s")
