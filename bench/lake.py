"""The node as a publisher of the same tables: the lake's side of ``workloads/publishing.py``.

In: the PostgreSQL server whose tables the lake gets. Out: a running node with its port, and
statements by it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg

from penstock import Node
from penstock.embedded import NodeProcess, free_port
from penstock.lsn import Lsn
from servers import Server
from subject import Subject

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
def lake(
    folder: Path, source: Server, subjects: Sequence[Subject], *, fsync: bool
) -> Iterator[Lake]:
    """A node with the source's published tables, copied once, published under the same names."""
    port = free_port()
    process = NodeProcess(folder)
    process.init({"port": port, "fsync": fsync, "hba": ["host all all 127.0.0.1/32 trust"]})
    process.environment["PENSTOCK_LOG"] = "DEBUG"
    node = Node(folder)
    node.sql("CREATE ROLE bench LOGIN REPLICATION SUPERUSER")
    for subject in subjects:
        node.sql(
            f"CREATE SUBSCRIPTION {subject.name} CONNECTION '{source.conninfo}' "
            f"PUBLICATION {subject.name} WITH (slot_name = lake_{subject.name})"
        )
    try:
        process.start()
        for subject in subjects:
            cut = functools.partial(node.cut, subject.name)
            process.wait_until(cut, "the lake's tables", _START_S)
            node.sql(f"DROP SUBSCRIPTION {subject.name}")
            node.sql(f"CREATE PUBLICATION {subject.name} FOR TABLE {subject.table_names}")
        conninfo = f"host=127.0.0.1 port={port} dbname=lake user=bench"
        with closing(Lake(process, conninfo)) as connected:
            yield connected
    finally:
        process.stop()
