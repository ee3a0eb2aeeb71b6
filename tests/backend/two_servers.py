"""A node without Spark and a stock server with the same roles and tables; both are asked alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from fix_lake import LakeServer
from fix_postgres import Database
from penstock.executor.lake import SparkLake
from penstock.node.session_commands import SessionCommands

PASSWORD = "open sesame"
Outcome = tuple[str | None, str | None, str | None]
"""SQLSTATE, message, detail; all None: it was done."""


class Node:
    """``LakeServer`` with commands, and a lake that refuses; what Spark would read is not asked."""

    def __init__(self, folder: Path, version: int) -> None:
        self.lake = LakeServer(
            folder, run_command=self._run, lake=_Lake(self), version=version, blocks=_Blocks(self)
        )
        spark: Any = None
        server = self.lake
        self.spark_lake = SparkLake(spark, server.warehouse, server.catalog, server.sequencer)
        self.name = "lake"

    @property
    def commands(self) -> SessionCommands:
        server = self.lake
        return SessionCommands(server.catalog, server.warehouse, server.sequencer, "lake")

    def _run(self, *arguments: Any) -> Any:
        return self.commands(*arguments)

    def connect(self, user: str = "repl", replication: str = "false", **options: Any) -> Any:
        return self.lake.connect(replication, user, **options)

    def execute(self, *statements: str) -> None:
        with self.connect() as session:
            for statement in statements:
                session.execute(statement)


class _Lake:
    """The lake of a node that is being made."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.spark_lake, name)


class _Blocks:
    """Its commands in transaction blocks."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.commands, name)


class Stock:
    """A database of a stock server, with roles that go with it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.name = database.name

    def connect(self, user: str | None = None, replication: str = "false", **options: Any) -> Any:
        values = {**options} if user is None else {"user": user, "password": PASSWORD, **options}
        if replication != "false":
            values["replication"] = replication
        conninfo = psycopg.conninfo.make_conninfo(self.database.conninfo, **values)
        return psycopg.connect(
            conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor, connect_timeout=20
        )

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.database.execute(statement)


Server = Node | Stock


@contextmanager
def two_servers(
    folder: Path, database: Database, setup: list[str], version: int = 18
) -> Iterator[list[Server]]:
    """(stock server, node), each with the same statements done."""
    with ExitStack() as stack:
        stock = Stock(database)
        stack.callback(_forget_roles, database)
        node = Node(folder, version)
        stack.callback(node.lake.close)
        for server in (stock, node):
            server.execute(*setup)
        yield [stock, node]


def _forget_roles(database: Database) -> None:
    """Roles are the cluster's and go."""
    for (role,) in database.rows(
        "SELECT quote_ident(rolname) FROM pg_roles WHERE oid >= 16384 AND rolname ~ '^t_'"
    ):
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def outcome(session: Any, statement: str, server: Server | None = None) -> Outcome:
    """What a statement comes to, without names that differ by server."""
    try:
        if statement.upper().startswith("COPY"):
            with session.cursor() as cursor, cursor.copy(statement) as copy:
                copy.read()
        else:
            session.execute(statement)
    except psycopg.Error as error:
        message, detail = error.diag.message_primary, error.diag.message_detail
        name = "" if server is None else server.name
        return (
            error.diag.sqlstate,
            message and message.replace(name or "\0", "DATABASE"),
            detail,
        )
    return None, None, None
