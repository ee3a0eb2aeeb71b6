"""The node as a publisher of the same table: the lake's side of ``publishing.py``.

In: the PostgreSQL server whose table the lake gets. Out: a running node with its port, and
statements by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from penstock import Node
from penstock.embedded import NodeProcess, free_port
from penstock.lsn import Lsn
from servers import PUBLICATION, SUBSCRIPTION, Server

_START_S: Final = 180.0


class Lake(Server):
    """A session on the node's port."""

    def __init__(self, process: NodeProcess, conninfo: str) -> None:
        super().__init__(conninfo)
        self.process = process

    def end(self) -> int:
        """The end of the node's WAL, by IDENTIFY_SYSTEM."""
        with psycopg.connect(
            f"{self.conninfo} replication=database",
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
        ) as connection:
            row = connection.execute("IDENTIFY_SYSTEM").fetchone()
        return int(Lsn.parse(row[2])) if row else 0


@contextmanager
def lake(folder: Path, source: Server, *, fsync: bool) -> Iterator[Lake]:
    """A node with the source's published tables, copied once, published under the same name."""
    port = free_port()
    process = NodeProcess(folder)
    process.init({"port": port, "fsync": fsync, "hba": ["host all all 127.0.0.1/32 trust"]})
    process.environment["PENSTOCK_LOG"] = "DEBUG"
    node = Node(folder)
    node.sql("CREATE ROLE bench LOGIN REPLICATION SUPERUSER")
    node.sql(
        f"CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION '{source.conninfo}' "
        f"PUBLICATION {PUBLICATION} WITH (slot_name = lake)"
    )
    try:
        process.start()
        process.wait_until(lambda: node.cut(SUBSCRIPTION), "the lake's tables", _START_S)
        node.sql(f"DROP SUBSCRIPTION {SUBSCRIPTION}")
        node.sql(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE pgbench_accounts")
        conninfo = f"host=127.0.0.1 port={port} dbname=lake user=bench"
        with closing(Lake(process, conninfo)) as connected:
            yield connected
    finally:
        process.stop()
