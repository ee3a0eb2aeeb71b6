"""The node that is measured: ``penstock start`` in a process of its own, as users run it.

In: the publisher. Out: seconds, and the phases of each batch as the node's log tells them. What a
reader sees is taken from the log of the cuts table, never from the node.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cut_log import CutLog, Place
from penstock import Node
from penstock.embedded import NodeProcess
from penstock.lakehouse.warehouse import Warehouse
from penstock.node import guc
from process_tree import cpu_by_process
from report import logged, phase_report
from servers import Server
from side import Side
from subject import Checksum, Subject, numbers

NAME: Final = "Penstock"
_LONG: Final = 3600.0
_START: Final = 180.0
_LOOK: Final = 0.005
_WARM: Final = "warm"


class BenchNode:
    """A node; the publisher is the one that it is warmed by."""

    def __init__(
        self,
        folder: Path,
        publisher: Server,
        *,
        fsync: bool,
        stream_backlog: bool = False,
        bucket: Place | None = None,
    ) -> None:
        """``bucket``: an object store's, for the warehouse; None: the warehouse is in ``folder``.
        The environment says how to reach the store."""
        self.publisher = publisher
        parameters: dict[str, Any] = {"fsync": fsync}
        if stream_backlog:
            parameters["backlog_copy_threshold"] = -1
        self.process = NodeProcess(folder)
        self.process.init(parameters)
        if bucket is not None:
            file = folder / guc.FILE_NAME
            text = guc.with_value(file.read_text("utf-8"), "warehouse", f"s3://{bucket.path}")
            file.write_text(text, encoding="utf-8")
        self.process.environment["PENSTOCK_LOG"] = "DEBUG"
        self.warehouse = Place.local(folder / "warehouse") if bucket is None else bucket
        self.node = Node(folder)

    def start(self) -> float:
        """Start the node; seconds until a first subscription has its cut, large enough
        for Spark: all is warm."""
        began = time.monotonic()
        self.process.start()
        self.publisher.execute(
            f"CREATE TABLE {_WARM} AS SELECT i AS id, i AS n FROM generate_series(1, 400000) i"
        )
        self.publisher.execute(f"ALTER TABLE {_WARM} ADD PRIMARY KEY (id)")
        self.publisher.execute(f"CREATE PUBLICATION {_WARM} FOR TABLE {_WARM}")
        self.subscribe(_WARM, f"penstock_{_WARM}")
        cuts = CutLog(self.warehouse, _WARM)
        self.wait(lambda: cuts.newest() is not None, _START, "first cut of the node")
        taken = time.monotonic() - began
        before = int(self.publisher.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))
        self.publisher.execute(f"UPDATE {_WARM} SET n = n + 1 WHERE id % 2 = 0")
        self.wait(lambda: (cuts.newest() or 0) > before, _START, "first batch of the node")
        self.node.sql(f"DROP SUBSCRIPTION {_WARM}")
        return taken

    def stop(self) -> None:
        self.process.stop()

    def subscribe(self, name: str, slot: str, *, binary: bool = False) -> None:
        """To the publication that is called like the subscription."""
        self.node.sql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{self.publisher.seen_at}'"
            f" PUBLICATION {name} WITH (slot_name = {slot}, binary = {str(binary).lower()})"
        )

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        self.process.wait_until(condition, what, seconds, pause=0.005)


class PenstockSubscriber(Side):
    """A subscription of a running node to one subject."""

    def __init__(self, running: BenchNode, subject: Subject, *, binary: bool = False) -> None:
        # The native subscription's slot is called like the subscription.
        super().__init__(NAME, f"penstock_{subject.name}", _LOOK)
        self._running = running
        self._subject = subject
        self._binary = binary
        self._cuts = CutLog(running.warehouse, subject.name)

    def copy(self) -> float:
        """CREATE SUBSCRIPTION until a cut holds the tables; seconds."""
        self._cuts.forget()
        began = time.monotonic()
        self._running.subscribe(self._subject.name, self.slot, binary=self._binary)
        self._running.wait(self._copied, _LONG, "cut with the copied tables")
        return time.monotonic() - began

    def drop(self) -> None:
        self._running.node.sql(f"DROP SUBSCRIPTION {self._subject.name}")
        # Like the native side, which truncates: the next copy wants empty tables.
        for table in self._subject.tables:
            self._running.warehouse.at("public", table.name).remove()

    def disable(self) -> None:
        self._running.node.sql(f"ALTER SUBSCRIPTION {self._subject.name} DISABLE")
        self._running.publisher.wait_for(
            f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{self.slot}'", 60
        )

    def enable(self) -> None:
        self._running.node.sql(f"ALTER SUBSCRIPTION {self._subject.name} ENABLE")

    def wait_behind(self, lsn: int) -> None:
        """Wait until a cut lies behind ``lsn``."""
        self._running.wait(
            lambda: (self._cuts.newest() or 0) > lsn, _LONG, "cut behind the backlog"
        )

    def checksum(self) -> Checksum:
        """Rows and sums of the tables at the newest cut, read by delta-rs."""
        cut = self._running.node.cut(self._subject.name)
        assert cut is not None
        found: Checksum = ()
        for table in self._subject.tables:
            member = cut.tables["public", table.name]
            opened = DeltaTable(member.uri, version=member.version)
            result = QueryBuilder().register("t", opened).execute(table.checksum_sql("t"))
            columns = pa.table(result.read_all()).columns
            found += numbers([column[0].as_py() for column in columns])
        return found

    def cpu_seconds(self) -> Mapping[int, float]:
        return cpu_by_process(os.getpid(), left_out=os.getpid())

    def make_look(self) -> Callable[[], Callable[[], int | None]]:
        """For a reader in another process: the newest cut."""
        return functools.partial(CutLog, self._running.warehouse, self._subject.name)

    def log_size(self) -> int:
        """Bytes of the node's log so far."""
        return self._running.process.log_path.stat().st_size

    def where_time_goes(self, since: int, seconds: float, what: str, *, idle: bool = False) -> str:
        """Phases of the batches in the log behind byte ``since``."""
        batches = logged(self._running.process.log_path, "batch", since)
        return phase_report(batches, seconds, what, idle=idle)

    def _copied(self) -> bool:
        if self._cuts.newest() is None:
            return False
        if len(self._subject.tables) == 1:
            return True
        cut = self._running.node.cut(self._subject.name)
        return cut is not None and all(
            ("public", table.name) in cut.tables for table in self._subject.tables
        )


def rows_at_cut(
    process: NodeProcess, node: Node, table: str, subscription: str | None = None
) -> int | None:
    """Rows of a table of schema public at the newest cut of a subscription, which is called like
    the table unless it is given; None before the first."""
    cut = node.cut(subscription or table)
    member = None if cut is None else cut.tables.get(("public", table))
    opened = Warehouse(str(process.warehouse), fsync=False).open("public", table)
    if member is None or opened is None or opened.version < member.version:
        return None
    return opened.rows
