"""Fixtures ``lake`` (one publishing node a module) and ``subscriber`` (databases on servers)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.executor import modify
from penstock.executor.modify import ModifyByFiles, TruncateTables
from publishing.lake_node import PASSWORD, LakeNode, drop_subscriptions
from publishing.psql_pair import SUPERUSER, Pair

_WAY = "PENSTOCK_TESTS_WRITE_BY"


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    """A node that publishes, on the shared Spark session."""
    folder: Path = tmp_path_factory.mktemp("lake") / "node"
    with LakeNode(folder, spark) as started:
        yield started


@pytest.fixture(scope="module")
def kept_log(lake: LakeNode) -> None:
    """Nothing of its log is pruned."""
    lake.execute("SELECT pg_create_logical_replication_slot('keeps_the_log', 'pgoutput')")


@pytest.fixture(scope="module")
def superuser(lake: LakeNode) -> str:
    """The name of the test servers' superuser, on the node too."""
    lake.execute(f"CREATE ROLE {SUPERUSER} LOGIN SUPERUSER REPLICATION PASSWORD '{PASSWORD}'")
    return SUPERUSER


@pytest.fixture
def pair(lake: LakeNode, superuser: str, database: Database) -> Pair:
    """The node and a fresh database of a PostgreSQL 18."""
    return Pair(lake, database)


@pytest.fixture
def subscriber(database_on: Callable[..., Database]) -> Iterator[Callable[..., Database]]:
    """``subscriber(16)``: a fresh database there; its subscriptions are dropped afterwards."""
    with contextlib.ExitStack() as stack:

        def create(version: int = 18) -> Database:
            database = database_on(version)
            stack.callback(drop_subscriptions, database)
            return database

        yield create


@pytest.fixture
def both(
    lake: LakeNode, database_on: Callable[..., Database]
) -> Iterator[Callable[..., tuple[Any, Any]]]:
    """``both(*statements)``: sessions on the node and on a server that have run them."""
    with contextlib.ExitStack() as stack:

        def connect(*statements: str) -> tuple[Any, Any]:
            lake.execute(*statements)
            server = stack.enter_context(
                psycopg.connect(
                    database_on(18).conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
                )
            )
            for statement in statements:
                server.execute(statement)
            return stack.enter_context(lake.connect()), server

        yield connect


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are changed as in tables that are large, or that Delta alone may write."""
    monkeypatch.setattr(modify, "MAX_BYTES", -1)
    monkeypatch.setattr(ModifyByFiles, "insert_alone", lambda *_: None)
    monkeypatch.setattr(TruncateTables, "_by_files", lambda *_: False)


@pytest.fixture(autouse=True)
def by_spark_where_asked(request: pytest.FixtureRequest) -> None:
    """``make faults`` runs some modules once more that way."""
    if os.environ.get(_WAY) == "spark":
        request.getfixturevalue("by_spark")
