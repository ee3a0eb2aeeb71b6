"""Fixture ``both``: a node and a server with the same table, reached without a password."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.embedded import EmbeddedPostgres
from publishing.lake_node import LakeNode

_TRUST = ["host all all 127.0.0.1/32 trust"]
_TABLE = (
    "CREATE TABLE goods (id int PRIMARY KEY, name text, price numeric(8,2), sold bigint,"
    " ok boolean, added date, at timestamp, code char(4))",
    "INSERT INTO goods VALUES"
    " (1, 'ink', 3.50, 7, true, '2024-02-29', '2024-02-29 10:00:00.5', 'ab'),"
    " (2, 'Pen', 12.00, NULL, false, '2023-12-31', '2023-12-31 23:59:59', 'x'),"
    " (3, 'paper', NULL, -3, NULL, NULL, NULL, NULL)",
)


@dataclass(frozen=True)
class Both:
    """Ports of the two; role and database are called ``lake`` there and here."""

    node: int
    server: int
    lake: LakeNode


@pytest.fixture(scope="module")
def both(
    spark: Any, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """A node and a server of version 18."""
    port = int(conninfo_to_dict(postgres.conninfo())["port"] or 0)
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE ROLE lake LOGIN SUPERUSER")
        admin.execute("CREATE DATABASE lake OWNER lake")
        with psycopg.connect(postgres.conninfo("lake"), autocommit=True) as connection:
            for statement in _TABLE:
                connection.execute(statement)
        folder: Path = tmp_path_factory.mktemp("clients") / "node"
        with LakeNode(folder, spark, hba=_TRUST) as lake:
            lake.execute(*_TABLE)
            yield Both(lake.port, port, lake)
        admin.execute("DROP DATABASE lake WITH (FORCE)")
        admin.execute("DROP ROLE lake")
