"""Parameters that are read again while a node runs, seen by its workers, its sessions and its log;
the parameters that bound its workers."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.node.status import SubscriptionStatus
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_OUT = (
    "WARNING:  out of logical replication worker slots\n"
    'HINT:  You might need to increase "max_logical_replication_workers".'
)


class Reloading:
    """A node, and its parameter file."""

    def __init__(self, lake: LakeNode, log: pytest.LogCaptureFixture) -> None:
        self.lake = lake
        self.log = log
        self.file = lake.node.folder / "penstock.toml"

    def write(self, **parameters: Any) -> None:
        lines = dict(
            line.split(" = ", 1) for line in self.file.read_text("utf-8").splitlines() if line
        )
        lines |= {name: json.dumps(value) for name, value in parameters.items()}
        text = "".join(f"{name} = {value}\n" for name, value in lines.items())
        self.file.write_text(text, encoding="utf-8")

    def set(self, **parameters: Any) -> None:
        """And have them read by SQL."""
        self.write(**parameters)
        assert self.lake.rows("SELECT pg_reload_conf()") == [(True,)]

    def status(self, name: str) -> SubscriptionStatus:
        (found,) = [status for status in self.lake.node.status() if status.name == name]
        return found

    def ready(self, name: str) -> None:
        wait_until(
            lambda: all(table.ready for table in self.status(name).tables),
            f"the copy of {name}",
            state=lambda: self.status(name),
        )

    def cuts(self, database: Database) -> int:
        """Changes something, and counts cuts once it has arrived."""
        database.execute("UPDATE one SET v = v + 1")
        self.lake.node.wait_for(
            str(database.value("SELECT pg_current_wal_flush_lsn()")), subscription="one"
        )
        return len(self.lake.node.cuts("one"))


@part_of_make_faults
def test_a_node_that_runs(
    spark: Any, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute(
        "CREATE TABLE one (id integer PRIMARY KEY, v integer); INSERT INTO one VALUES (1, 0);"
        "CREATE TABLE two (id integer PRIMARY KEY, v integer); INSERT INTO two VALUES (1, 0);"
        "CREATE PUBLICATION one FOR TABLE one; CREATE PUBLICATION two FOR TABLE two"
    )
    few = {
        "max_logical_replication_workers": 1,
        "max_active_replication_origins": 1,
        "max_sync_workers_per_subscription": 0,
        "wal_retrieve_retry_interval": "200ms",
    }
    caplog.set_level(logging.INFO)
    with LakeNode(tmp_path / "node", spark, **few) as lake:
        node = Reloading(lake, caplog)
        for name in ("one", "two"):
            lake.node.sql(
                f"CREATE SUBSCRIPTION {name} CONNECTION '{database.conninfo}' PUBLICATION {name}"
            )
        workers_and_origins(node)
        holds_for_a_running_worker(node, database)
        holds_for_running_sessions(node)
        who_may_connect(node)
        what_changes_nothing(node)
        a_failing_worker_gives_way(node, database)


def workers_and_origins(node: Reloading) -> None:
    wait_until(lambda: _OUT in node.log.messages, "the warning")
    assert [table.state for table in node.status("one").tables] == ["i"], "nothing is copied"
    node.set(max_sync_workers_per_subscription=2)
    node.ready("one")
    assert node.status("two").state == "starting"
    node.set(max_logical_replication_workers=2)
    wait_until(lambda: node.status("two").error is not None, "an error")
    oid = node.lake.rows("SELECT oid FROM pg_subscription WHERE subname = 'two'")[0][0]
    two = node.status("two")
    assert (two.error, two.error_hint, two.stopped) == (
        f"could not find free replication state slot for replication origin with ID {oid}",
        'Increase "max_active_replication_origins" and try again.',
        False,
    )
    node.write(max_active_replication_origins=2)
    node.lake.node.reload()
    node.ready("two")
    assert node.log.messages.count(_OUT) == 1


def holds_for_a_running_worker(node: Reloading, database: Database) -> None:
    pid = node.lake.rows("SELECT pid FROM pg_stat_subscription WHERE subname = 'one'")
    assert max(node.cuts(database) for _ in range(4)) >= 4
    node.set(checkpoint_commits=1, cuts_kept=1, wal_receiver_timeout="7s")
    assert min(node.cuts(database) for _ in range(4)) <= 2
    node.set(apply_batch_delay="20ms", logical_decoding_work_mem="1MB", apply_queue_mem="2MB")
    node.cuts(database)
    assert node.lake.rows("SELECT pid FROM pg_stat_subscription WHERE subname = 'one'") == pid


def holds_for_running_sessions(node: Reloading) -> None:
    lake = node.lake
    assert lake.rows("SHOW wal_sender_timeout") == [("1min",)]
    block = lake.connect()
    block.execute("BEGIN")
    node.set(wal_sender_timeout="30s", idle_session_timeout="300ms")
    assert lake.rows("SHOW wal_sender_timeout") == [("30s",)]
    wait_until(lambda: ended(lake.connection, pause=0.6), "an idle session's end")
    assert not ended(block, pause=0.6), "a transaction may be idle"
    block.close()
    node.write(idle_session_timeout=0)
    lake.node.reload()
    lake.connection = lake.connect()


def ended(connection: psycopg.Connection[Any], pause: float) -> bool:
    try:
        connection.execute("SELECT 1")
        time.sleep(pause)
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def who_may_connect(node: Reloading) -> None:
    lake = node.lake
    node.set(hba=["host all lake 127.0.0.1/32 scram-sha-256"])
    lake.execute("CREATE ROLE other LOGIN PASSWORD 'x'")
    with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
        lake.connect("other")
    node.set(hba=["host all all 127.0.0.1/32 trust"])
    with (
        lake.connect("other") as other,
        pytest.raises(
            psycopg.errors.InsufficientPrivilege,
            match="permission denied for function pg_reload_conf",
        ),
    ):
        other.execute("SELECT pg_reload_conf()")


def what_changes_nothing(node: Reloading) -> None:
    before = node.lake.node.parameters
    node.set(cuts_kept=3, hba=["nonsense"])
    assert node.lake.node.parameters == before
    mistake = f'configuration file "{node.file}" contains errors; no changes were applied'
    assert mistake in node.log.messages
    node.set(hba=["host all all 127.0.0.1/32 trust"], max_connections=7, ssl_cert_file="none.pem")
    assert node.lake.node.parameters.max_connections == before.max_connections
    assert 'parameter "max_connections" cannot be changed without restarting the server' in (
        node.log.messages
    )
    assert "SSL configuration was not reloaded" in node.log.messages
    assert node.lake.node.parameters.cuts_kept == 3


def a_failing_worker_gives_way(node: Reloading, database: Database) -> None:
    lake = node.lake
    lake.execute("ALTER SUBSCRIPTION two DISABLE")
    wait_until(lambda: node.status("two").state == "disabled", "its end")
    node.set(max_logical_replication_workers=1)
    lake.execute("ALTER SUBSCRIPTION one CONNECTION 'host=127.0.0.1 port=1'")
    wait_until(lambda: node.status("one").error is not None, "an error")
    database.execute("UPDATE one SET v = -1; UPDATE two SET v = -1")
    lake.execute("ALTER SUBSCRIPTION two ENABLE")
    lsn = str(database.value("SELECT pg_current_wal_flush_lsn()"))
    lake.node.wait_for(lsn, subscription="two")
    assert node.status("one").error is not None and not node.status("one").stopped
    lake.execute(f"ALTER SUBSCRIPTION one CONNECTION '{database.conninfo}'")
    node.set(max_logical_replication_workers=2)
    lake.node.wait_for(lsn, subscription="one")
