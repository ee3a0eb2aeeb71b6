"""What goes wrong in daily life: one clear message with the remedy each, and no harm to the data.

Statements fail with exit status 1 and PostgreSQL's lines; a running subscription stops (or goes on
trying) with its error in the status, and goes on after the remedy.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node
from penstock.embedded import CommandFailed, EmbeddedPostgres, clients
from penstock.node.status import Health, SubscriptionStatus, health

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SECRET = "s3cr3t-passw0rd"
_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i;"
    "CREATE PUBLICATION p FOR TABLE t"
)


@pytest.fixture
def node_process(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that is run by the command line."""
    with contextlib.closing(NodeProcess(tmp_path / "node")) as node:
        node.init()
        yield node


def refused(node: NodeProcess, statement: str) -> str:
    """What ``penstock sql`` says about a statement that it refuses."""
    with pytest.raises(CommandFailed) as failed:
        node.command("sql", "-D", str(node.folder), statement)
    assert "exit status 1\n" in str(failed.value)
    said = str(failed.value)
    assert said.count("ERROR:") == 1
    assert "Traceback" not in said
    assert "HINT:  " in said
    return said


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    with database.connect() as connection:
        for table in tables:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def test_a_wrong_password_is_refused_and_never_shown(node_process: NodeProcess) -> None:
    with EmbeddedPostgres(18, hba=["host all bob all scram-sha-256"]) as server:
        server.psql("CREATE ROLE bob LOGIN REPLICATION PASSWORD 'right'; CREATE PUBLICATION p")
        said = refused(
            node_process,
            f"CREATE SUBSCRIPTION s CONNECTION '{server.conninfo(user='bob')} password={_SECRET}'"
            " PUBLICATION p",
        )
    assert 'password authentication failed for user "bob"' in said
    assert "Check user name and password" in said
    assert _SECRET not in said


def test_a_password_that_is_wrong_for_a_while_is_tried_again(
    local_node: Callable[..., LocalNode], caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedPostgres(18, hba=["host all bob all scram-sha-256"]) as server:
        database = Database(server, "postgres")
        database.execute(
            f"CREATE ROLE bob LOGIN SUPERUSER REPLICATION PASSWORD '{_SECRET}';" + _SETUP
        )
        node = local_node()
        conninfo = f"{server.conninfo(user='bob')} password={_SECRET}"
        node.node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p")
        node.caught_up("s", database)
        database.execute("ALTER ROLE bob PASSWORD 'another'")
        database.execute("INSERT INTO t VALUES (1000, 'later')")
        server.restart()
        node.wait_for("s", "tries", lambda s: s.error_count >= 3 and s.error is not None)
        status = node.status("s")
        assert "password authentication failed" in str(status.error)
        assert "CONNECTION '...'" in str(status.error_hint)
        assert "ENABLE" not in str(status.error_hint)
        assert health([status], running=True) is Health.TRIES_AGAIN
        said = f"{status} {caplog.text}"
        assert _SECRET not in said
        assert "another" not in said
        database.execute(f"ALTER ROLE bob PASSWORD '{_SECRET}'")
        node.caught_up("s", database)
        assert_equal(node, database, "t")
        # disable_on_error stops it.
        node.node.sql("ALTER SUBSCRIPTION s SET (disable_on_error = true)")
        database.execute("ALTER ROLE bob PASSWORD 'another'")
        server.restart()
        assert "password authentication failed" in str(node.stopped("s").error)
        conninfo = f"{server.conninfo(user='bob')} password=another"
        node.node.sql(f"ALTER SUBSCRIPTION s CONNECTION '{conninfo}'")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        database.execute("INSERT INTO t VALUES (1001, 'later')")
        node.caught_up("s", database)
        assert_equal(node, database, "t")


def test_a_missing_publication(node_process: NodeProcess, database: Database) -> None:
    database.execute(_SETUP)
    create = f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION "
    output = node_process.command("sql", "-D", str(node_process.folder), create + "nothing")
    # As PostgreSQL: a warning, since the publication may be made later.
    assert 'publication "nothing" does not exist on the publisher' in output
    assert "WARNING" in output


def test_a_publication_that_is_dropped_is_an_error_that_is_tried_again(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    # PostgreSQL 18 only warns in its own log and goes on without the publication's changes.
    database = database_on(17)
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    before = node.rows("t")
    database.execute("DROP PUBLICATION p")
    database.execute("INSERT INTO t VALUES (1000, 'later')")
    status = node.retrying("s")
    assert 'publication "p" does not exist' in str(status.error)
    assert status.error_hint
    assert node.rows("t") == before


def test_a_publication_that_is_younger_than_the_changes_is_added_later(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    database = database_on(17)
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    database.execute("INSERT INTO t VALUES (1000, 'later')")
    database.execute(
        "CREATE TABLE young (id int PRIMARY KEY); INSERT INTO young VALUES (1);"
        "CREATE PUBLICATION young FOR TABLE young"
    )
    node.node.sql("ALTER SUBSCRIPTION s ADD PUBLICATION young WITH (refresh = false)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    status = node.retrying("s")
    assert 'publication "young" does not exist' in str(status.error)
    remedy = "ALTER SUBSCRIPTION s DROP PUBLICATION young"
    assert str(status.error_hint).endswith(f"then ADD PUBLICATION again. Run {remedy}.")
    node.node.sql(remedy)
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s ADD PUBLICATION young")
    node.caught_up("s", database)
    assert (1000, "later") in node.rows("t")
    assert node.rows("young") == [(1,)]


def test_a_publisher_with_wal_level_replica(node_process: NodeProcess) -> None:
    with EmbeddedPostgres(18, settings={"wal_level": "replica"}) as server:
        server.psql("CREATE PUBLICATION p")
        said = refused(
            node_process, f"CREATE SUBSCRIPTION s CONNECTION '{server.conninfo()}' PUBLICATION p"
        )
    assert "wal_level" in said
    assert "ALTER SYSTEM SET wal_level = logical" in said


def test_a_slot_in_use_is_told_and_waited_for(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_SETUP)
    database.execute("SELECT pg_create_logical_replication_slot('busy', 'pgoutput')")
    other = subprocess.Popen(
        [
            *(clients().program("pg_recvlogical"), "-d", database.conninfo, "--slot", "busy"),
            *("--start", "-f", "/dev/null", "-o", "proto_version=1", "-o", "publication_names=p"),
        ]
    )
    try:
        slot = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'busy' AND active"
        while not database.value(slot):
            assert other.poll() is None
        node = local_node()
        node.subscribe("s", database, "p", "slot_name = 'busy', create_slot = false")

        def told(status: SubscriptionStatus) -> bool:
            return 'replication slot "busy" is active for PID' in str(status.error)

        node.wait_for("s", "the error", told)
        assert node.status("s").error_hint
    finally:
        other.terminate()
        other.wait()
    node.caught_up("s", database)
    assert_equal(node, database, "t")


def test_a_table_without_replica_identity(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE log (v text); INSERT INTO log SELECT 'v' FROM generate_series(1, 10);"
        "CREATE PUBLICATION p FOR TABLE log"
    )
    node = local_node()
    result = node.node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
    told = "\n".join(notice.report() for notice in result.notices)
    assert "log" in told
    assert "REPLICA IDENTITY" in told
    # The publisher itself refuses updates; inserts are replicated.
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        database.execute("UPDATE log SET v = 'x'")
    database.execute("INSERT INTO log VALUES ('v')")
    node.caught_up("s", database)
    assert_equal(node, database, "log")
    database.execute("ALTER TABLE log REPLICA IDENTITY FULL; UPDATE log SET v = 'x'")
    node.caught_up("s", database)
    assert_equal(node, database, "log")


def test_a_full_disk_under_the_warehouse(
    local_node: Callable[..., LocalNode], database: Database, small_disk: Path
) -> None:
    database.execute(_SETUP)
    node = local_node(warehouse=str(small_disk / "warehouse"))
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    at = node.cut().lsn
    before = node.rows("t")
    database.execute(
        "INSERT INTO t SELECT i, string_agg(md5(random()::text), '')"
        " FROM generate_series(1000, 41000) i, generate_series(1, 30) GROUP BY i"
    )

    def full(status: SubscriptionStatus) -> bool:
        return "No space left on device" in str(status.error)

    node.wait_for("s", "a full disk", full, timeout=120, fails=False)
    assert "Free disk space" in str(node.status("s").error_hint)
    # An idle cut may still have found room, but none with a part of the transaction.
    assert node.cut().lsn >= at
    assert node.rows("t") == before
    subprocess.run(["mount", "-o", "remount,size=256m", small_disk], check=True)
    if node.status("s").stopped:
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert_equal(node, database, "t")


def test_a_second_start_is_refused_and_does_no_harm(
    node_process: NodeProcess, database: Database
) -> None:
    database.execute(_SETUP)
    node_process.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
    node_process.start()

    with Node(node_process.folder) as beside:
        node_process.wait_for("the first cut", lambda: beside.cut("s") is not None)
    for command in (("start",), ("run", "--until-caught-up")):
        with pytest.raises(CommandFailed) as failed:
            node_process.command(*command, "-D", str(node_process.folder))
        assert "exit status 1\n" in str(failed.value)
        assert "is already running (PID" in str(failed.value)
        assert "HINT:" in str(failed.value)
        assert "Traceback" not in str(failed.value)
    # Other commands work beside it.
    assert [told["name"] for told in node_process.status()] == ["s"]
    assert node_process.running
    assert node_process.stop(group=True) == 0
