"""PostgreSQL A -> node -> PostgreSQL B, exactly once: node and servers are killed over and over.

``make test`` runs two cycles, ``make faults`` as many as PENSTOCK_FAULT_CYCLES says. While B
follows, one query sees one state of the bank: its balance never changes.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from faults.bank import BALANCE, SCHEMA, TABLES, Bank
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.failpoint import AFTER_SLOT_DROP, PUBLISHING_NAMES

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SERVER: Final = {"wal_level": "logical", "wal_retrieve_retry_interval": "500ms"}
_BALANCE: Final = (
    "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM savings)"
    " + (SELECT sum(balance) FROM loans)"
)
_PASSWORD: Final = "secret of the bank"


class Cascade:
    """State of a run; a context manager."""

    def __init__(self, folder: Path, seed: int, failpoint: str = "") -> None:
        """``failpoint``: of the node's first start."""
        self._failpoint = failpoint
        self.rng = random.Random(seed)
        self.source = EmbeddedPostgres(18, settings=_SERVER)
        self.target = EmbeddedPostgres(18, settings=_SERVER)
        self.bank = Bank(lambda: psycopg.connect(self.source.conninfo()), seed=seed, rate=20)
        self.node = NodeProcess(folder / "node", warehouse=folder / "warehouse")
        self.checks = self.kills = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Cascade:
        stack = self._stack
        for server in (self.source, self.target):
            stack.enter_context(server)
        self.bank.create()
        with psycopg.connect(self.target.conninfo(), autocommit=True) as connection:
            connection.execute(SCHEMA)
            connection.execute(f"TRUNCATE {', '.join(TABLES)}")
        with psycopg.connect(self.source.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE PUBLICATION bank FOR TABLE {', '.join(TABLES)}")
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        self.node.init({"port": port})
        stack.callback(self.node.close)
        self.node.sql(
            f"CREATE SUBSCRIPTION bank CONNECTION '{self.source.conninfo()}' PUBLICATION bank;"
            f"CREATE ROLE b LOGIN REPLICATION SUPERUSER PASSWORD '{_PASSWORD}'"
        )
        self.node.start(self._failpoint)
        self._wait(self._in_lake, "the first cut")
        self.node.sql("CREATE PUBLICATION bank FOR ALL TABLES")
        self.bank.start()
        stack.callback(self.bank.stop)
        self._conninfo = f"host=127.0.0.1 port={port} dbname=lake user=b password='{_PASSWORD}'"
        conninfo = self._conninfo.replace("'", "''")
        self._wait(lambda: _listens(port), "the port")
        with psycopg.connect(self.target.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE SUBSCRIPTION bank CONNECTION '{conninfo}' PUBLICATION bank")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def kill_node(self) -> None:
        self.pause()
        self.node.kill9()
        self.kills += 1
        self.node.start()

    def kill_at_failpoint(self) -> None:
        """It ends where it was told to, and starts again."""
        self.pause()
        self.node.kill9()
        name = self.rng.choice(PUBLISHING_NAMES)
        self.node.start(f"{name}:{self.rng.randint(1, 5)}")
        status = self.node.wait_end(120)
        assert status == -9, f"{name}: status {status}\n{self.node.log_tail()}"
        self.kills += 2
        self.node.start()

    def kill_target(self) -> None:
        self.pause()
        self.target.kill9()
        self.kills += 1
        self.target.start()

    def restart_source(self) -> None:
        self.pause()
        self.source.restart("immediate")

    def wait_ready(self) -> None:
        self._wait(self._ready, "B's initial copy")

    def pause(self) -> None:
        """Look at B for a moment."""
        until = time.monotonic() + self.rng.uniform(0.5, 6)
        while time.monotonic() < until:
            self.check()
            time.sleep(0.1)

    def check(self) -> None:
        """B holds whole transactions."""
        with contextlib.suppress(psycopg.OperationalError):
            if self._ready():
                assert self._value(self.target, _BALANCE) == BALANCE
                self.checks += 1

    def finish(self) -> dict[str, tuple[int, int]]:
        """Rows lost and made up by table, once B has all that A has."""
        self.bank.stop()
        if not self.node.running:
            self.node.start()
        self.wait_ready()
        self._wait(lambda: self._difference("totals") == (0, 0), "B to catch up")
        for table in TABLES:
            # The last transaction has arrived whole, or not at all.
            assert self._difference(table) == (0, 0), table
        return {table: self._difference(table) for table in TABLES}

    def slots(self) -> list[Any]:
        """Names of the node's slots."""
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            return connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()

    def _difference(self, table: str) -> tuple[int, int]:
        with contextlib.suppress(psycopg.OperationalError):
            wanted, found = (Counter(self._rows(s, table)) for s in (self.source, self.target))
            return (wanted - found).total(), (found - wanted).total()
        return -1, -1

    def _in_lake(self) -> bool:
        status = self.node.status()
        tables = status[0]["tables"] if status else []
        return len(tables) == len(TABLES) and all(table["state"] == "r" for table in tables)

    def _ready(self) -> bool:
        states = "SELECT count(*) FILTER (WHERE srsubstate = 'r') FROM pg_subscription_rel"
        with contextlib.suppress(psycopg.OperationalError):
            return bool(self._value(self.target, states) == len(TABLES))
        return False

    @staticmethod
    def _rows(server: EmbeddedPostgres, table: str) -> list[Any]:
        with psycopg.connect(server.conninfo()) as connection:
            found = connection.execute(f"SELECT t::text FROM {table} t")
            return found.fetchall()

    @staticmethod
    def _value(server: EmbeddedPostgres, query: str) -> Any:
        with psycopg.connect(server.conninfo(), connect_timeout=5) as connection:
            return connection.execute(query).fetchall()[0][0]

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float = 120) -> None:
        def logs() -> str:
            return f"{self.node.log_tail()}\n{self.target.log()[-3000:]}"

        wait_until(condition, what, timeout, state=logs, pause=0.2)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@part_of_make_faults
def test_a_node_that_is_killed_before_it_says_that_a_slot_is_dropped(tmp_path: Path) -> None:
    """B's worker drops a table's slot, then says that the table is done; it does both again."""
    with Cascade(tmp_path, 1, AFTER_SLOT_DROP) as cascade:
        assert cascade.node.wait_end(120) == -9, cascade.node.log_tail()
        cascade.node.start()
        differences = cascade.finish()
        assert set(differences.values()) == {(0, 0)}
        assert "is back: its client has not heard of its end" in cascade.node.log()
        assert [name for (name,) in cascade.slots()] == ["bank"]


@part_of_make_faults
def test_a_cascade_loses_nothing_and_doubles_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cycles = int(os.environ.get("PENSTOCK_FAULT_CYCLES", "2"))
    seed = int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))
    with Cascade(tmp_path, seed) as cascade:
        kinds = [
            cascade.kill_node,
            cascade.kill_target,
            cascade.kill_at_failpoint,
            cascade.restart_source,
        ]
        for number in range(cycles):
            if number:  # the first fault may hit the initial copy
                cascade.wait_ready()
            kind = kinds[number % len(kinds)]
            with capsys.disabled():
                said = f"cycle {number + 1} of {cycles}: {kind.__name__}"
                print(f"\n{said} ...", end="", flush=True)
            kind()
        differences = cascade.finish()
        with capsys.disabled():
            print(
                f"\nseed {seed}: {cycles} cycles, {cascade.kills} kills, "
                f"{cascade.bank.committed} transactions, {cascade.checks} states of B checked, "
                f"{sum(lost for lost, _ in differences.values())} rows lost, "
                f"{sum(more for _, more in differences.values())} rows doubled"
            )
