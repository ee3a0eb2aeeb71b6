"""The node that is measured: ``penstock start`` in a process of its own, as users run it.

In: the publisher. Out: seconds, and the phases of each batch as the node's log tells them. What a
reader sees is taken from the log of the cuts table, never from the node.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from native import CHECKSUM_SQL
from penstock import Node
from penstock.embedded import NodeProcess
from penstock.lakehouse.warehouse import Warehouse
from report import logged
from servers import PUBLICATION, SUBSCRIPTION, Server

NAME: Final = "Penstock"
_LONG: Final = 3600.0
_START: Final = 180.0
_WARM: Final = "warm"


class PenstockSubscriber:
    """A subscription of a running node."""

    name = NAME

    def __init__(
        self, folder: Path, publisher: Server, *, fsync: bool, stream_backlog: bool = False
    ) -> None:
        self._publisher = publisher
        parameters: dict[str, Any] = {"fsync": fsync}
        if stream_backlog:
            parameters["backlog_copy_threshold"] = -1
        self._process = NodeProcess(folder)
        self._process.init(parameters)
        self._process.environment["PENSTOCK_LOG"] = "DEBUG"
        self._warehouse = folder / "warehouse"
        self._node = Node(folder)
        self._cuts = CutLog(self._warehouse, SUBSCRIPTION)

    # The process

    def start(self) -> float:
        """Start the node; seconds until a first subscription has its cut, large enough
        for Spark: all is warm."""
        began = time.monotonic()
        self._process.start()
        self._publisher.execute(
            f"CREATE TABLE {_WARM} AS SELECT i AS id, i AS n FROM generate_series(1, 400000) i"
        )
        self._publisher.execute(f"ALTER TABLE {_WARM} ADD PRIMARY KEY (id)")
        self._publisher.execute(f"CREATE PUBLICATION {_WARM} FOR TABLE {_WARM}")
        self._subscribe(_WARM, _WARM)
        cuts = CutLog(self._warehouse, _WARM)
        self._wait(lambda: cuts.newest() is not None, _START, "first cut of the node")
        taken = time.monotonic() - began
        before = int(self._publisher.value("SELECT pg_current_wal_insert_lsn() - '0/0'"))
        self._publisher.execute(f"UPDATE {_WARM} SET n = n + 1 WHERE id % 2 = 0")
        self._wait(lambda: (cuts.newest() or 0) > before, _START, "first batch of the node")
        self._sql(f"DROP SUBSCRIPTION {_WARM}")
        return taken

    def stop(self) -> None:
        self._process.stop()

    # What is measured

    def copy(self) -> float:
        """CREATE SUBSCRIPTION until a cut holds the table; seconds."""
        began = time.monotonic()
        self._subscribe(SUBSCRIPTION, PUBLICATION)
        self._wait(lambda: self._cuts.newest() is not None, _LONG, "cut with the copied table")
        return time.monotonic() - began

    def drop(self) -> None:
        self._sql(f"DROP SUBSCRIPTION {SUBSCRIPTION}")
        # Like the native side, which truncates: the next copy wants an empty table.
        subprocess.run(["rm", "-rf", self._warehouse / "public"], check=True)
        self._cuts.forget()

    def disable(self) -> None:
        self._sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} DISABLE")
        self._publisher.wait_for(
            f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{slot()}'", 60
        )

    def enable(self) -> None:
        self._sql(f"ALTER SUBSCRIPTION {SUBSCRIPTION} ENABLE")

    def wait_behind(self, lsn: int) -> None:
        """Wait until a cut lies behind ``lsn``."""
        self._wait(lambda: (self._cuts.newest() or 0) > lsn, _LONG, "cut behind the backlog")

    def checksum(self) -> tuple[int, ...]:
        """Rows and sums of pgbench_accounts at the newest cut, read by delta-rs."""
        cut = self._node.cut(SUBSCRIPTION)
        assert cut is not None
        member = cut.tables["public", "pgbench_accounts"]
        table = DeltaTable(member.uri, version=member.version)
        result = QueryBuilder().register("t", table).execute(CHECKSUM_SQL.format(table="t"))
        (row,) = pa.table(result.read_all()).to_pylist()
        return tuple(int(value) for value in row.values())

    def batches(self, since: int = 0) -> list[dict[str, float]]:
        """Phases of each batch in the log behind byte ``since``: seconds by name."""
        return logged(self._process.log_path, "batch", since)

    def log_size(self) -> int:
        """Bytes."""
        return self._process.log_path.stat().st_size

    def log_tail(self) -> str:
        return self._process.log_tail()

    @property
    def warehouse(self) -> Path:
        return self._warehouse

    def _subscribe(self, name: str, publication: str) -> None:
        slot_name = slot() if name == SUBSCRIPTION else f"penstock_{name}"
        self._sql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{self._publisher.conninfo}'"
            f" PUBLICATION {publication} WITH (slot_name = {slot_name})"
        )

    def _sql(self, statement: str) -> None:
        self._node.sql(statement)

    def _wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        self._process.wait_until(condition, what, seconds, pause=0.005)


def rows_at_cut(process: NodeProcess, node: Node, table: str) -> int | None:
    """Rows of a table of schema public at the newest cut of the subscription that is called like
    it; None before the first."""
    cut = node.cut(table)
    member = None if cut is None else cut.tables.get(("public", table))
    opened = Warehouse(str(process.warehouse), fsync=False).open("public", table)
    if member is None or opened is None or opened.version < member.version:
        return None
    return opened.rows


def slot() -> str:
    """Our slot's name; the native subscriber has the one that is called like the subscription."""
    return f"penstock_{SUBSCRIPTION}"


class CutLog:
    """The cuts table as a reader follows it: one small log entry a cut, read when it appears.

    The entry's statistics hold the highest LSN of the rows that it adds, so that the data file
    need not be opened.
    """

    def __init__(self, warehouse: Path, subscription: str) -> None:
        self._folder = warehouse / "_penstock" / "cuts" / "_delta_log"
        self._subscription = subscription
        # Old entries are removed behind checkpoints.
        self._next = min((int(entry.stem) for entry in self._folder.glob("*.json")), default=0)
        self._newest: int | None = None

    def __call__(self) -> int | None:
        return self.newest()

    def newest(self) -> int | None:
        """LSN of the newest cut of the subscription, None without one."""
        while (entry := self._entry()) is not None:
            self._next += 1
            lsn = _lsn_of(entry, self._subscription)
            if lsn is not None:
                self._newest = lsn
        return self._newest

    def forget(self) -> None:
        """Cuts of a subscription that has been dropped do not count for its successor."""
        self.newest()
        self._newest = None

    def _entry(self) -> str | None:
        try:
            return (self._folder / f"{self._next:020}.json").read_text("utf-8")
        except FileNotFoundError:
            return None


def _lsn_of(entry: str, subscription: str) -> int | None:
    """LSN of a cut; None for upkeep of the cuts table and for other subscriptions."""
    found: Mapping[str, Any] = {}
    for line in entry.splitlines():
        found = {**found, **json.loads(line)}
    if found.get("commitInfo", {}).get("operation") != "CUT":
        return None
    newest = json.loads(found["add"]["stats"])["maxValues"]
    return int(newest["lsn"]) if newest["subscription"] == subscription else None
