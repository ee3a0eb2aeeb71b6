"""A node that publishes, inside the test's process, and PostgreSQL servers that subscribe to it.

In: a folder, a Spark session. Out: statements by the port, subscriptions on test databases, and
waiting until a database has what the lake has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg

from fix_postgres import Database
from penstock import Node
from penstock.embedded import free_port, wait_until

PASSWORD = "a lake of secrets"
Rows = list[tuple[Any, ...]]


class LakeNode:
    """A started node with a port; a context manager."""

    def __init__(self, folder: Path, spark: Any, **parameters: Any) -> None:
        Node.init(folder, state=parameters.get("state")).close()
        values = {
            "warehouse": str(folder / "warehouse"),
            "port": free_port(),
            "sequencer_interval": "50ms",
            "wal_receiver_status_interval": "1s",
            "max_wal_senders": 30,
            "max_replication_slots": 30,
            "max_logical_replication_workers": 30,
            "max_active_replication_origins": 30,
            **parameters,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        (folder / "penstock.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.port = values["port"]
        self.node = Node(folder, spark=spark)
        self._stack: list[psycopg.Connection[Any]] = []

    def __enter__(self) -> LakeNode:
        self.node.start()
        self.node.sql(f"CREATE ROLE lake LOGIN REPLICATION SUPERUSER PASSWORD '{PASSWORD}'")
        self.connection = self.connect()
        return self

    def __exit__(self, *error: Any) -> None:
        self.connection.close()
        self.node.close()

    def connect(self, user: str = "lake", **options: Any) -> psycopg.Connection[Any]:
        """A session on the port."""
        return psycopg.connect(
            self.conninfo(user),
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
            **options,
        )

    def conninfo(self, user: str = "lake") -> str:
        """For clients and for CREATE SUBSCRIPTION."""
        return (
            f"host=127.0.0.1 port={self.port} dbname=lake user={user} "
            f"password='{PASSWORD}' connect_timeout=20"
        )

    def execute(self, *statements: str) -> None:
        """Run statements by the port, each a commit of its own."""
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, query: str) -> Rows:
        """Rows of a SELECT by the port."""
        return self.connection.execute(query).fetchall()

    def subscribe(
        self, database: Database, name: str, publications: str, options: str = ""
    ) -> None:
        """CREATE SUBSCRIPTION on a test database, and wait for its initial copy."""
        self.begin_to_subscribe(database, name, publications, options)
        self.copied(database, name)

    def begin_to_subscribe(
        self, database: Database, name: str, publications: str, options: str = ""
    ) -> None:
        """CREATE SUBSCRIPTION on a test database."""
        conninfo = self.conninfo().replace("'", "''")
        database.execute(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {publications}"
            + (f" WITH ({options})" if options else "")
        )

    def copied(self, database: Database, name: str) -> None:
        """Wait until every table of a subscription is in state r."""
        wait_until(
            lambda: (
                {
                    state
                    for (state,) in database.rows(
                        "SELECT srsubstate::text FROM pg_subscription_rel r "
                        "JOIN pg_subscription s ON s.oid = r.srsubid WHERE subname = %s",
                        (name,),
                    )
                }
                <= {"r"}
            ),
            f"the initial copy of {name}",
        )

    def caught_up(self, slot: str) -> None:
        """Wait until a slot's subscriber has confirmed what the lake holds now."""
        target = self._end()
        wait_until(lambda: self._confirmed(slot) >= target, f"slot {slot} at {target}")

    def _end(self) -> int:
        serving = self.node.serving
        assert serving is not None
        return int(serving.sequencer.position().lsn)

    def _confirmed(self, slot: str) -> int:
        serving = self.node.serving
        assert serving is not None
        return max(
            (int(s.slot.confirmed_flush_lsn) for s in serving.slots.all() if s.slot.name == slot),
            default=0,
        )


def drop_subscriptions(database: Database) -> None:
    """So that the database can be dropped."""
    for (name,) in database.rows(
        "SELECT subname FROM pg_subscription WHERE subdbid = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    ):
        database.execute(f"DROP SUBSCRIPTION {name}")
