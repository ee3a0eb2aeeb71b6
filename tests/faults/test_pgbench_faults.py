"""pgbench's transactions on tables of the lake, from four clients, while the node is killed.

Part of ``make faults`` only. Sums of the accounts, tellers, branches and the history agree in every
query on the node, and at a stock subscriber at any time; what pgbench was told is committed is
there at the end, and nothing else but what it was told nothing about.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from penstock.embedded import EmbeddedPostgres, free_port, wait_until
from penstock.embedded.installation import clients
from penstock.failpoint import BLOCK_NAMES
from publishing.test_pgbench import SCRIPT, SUMS, TABLES

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.postgres, pytest.mark.slow]

_CLIENTS: Final = 4
_PASSWORD: Final = "secret of the bank"
_NAMES: Final = [f"pgbench_{name}" for name in ("branches", "tellers", "accounts", "history")]
_CYCLES: Final = max(4, int(os.environ.get("PENSTOCK_FAULT_CYCLES", "0")) // 4)


class Bench:
    """A node with pgbench's tables, and a PostgreSQL that subscribes to them; a context manager."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.acknowledged = self.kills = 0
        self.looked = {"node": 0, "subscriber": 0}
        self.wrong: list[str] = []
        self.subscriber = EmbeddedPostgres(18, settings={"wal_retrieve_retry_interval": "500ms"})
        self.node, port = NodeProcess(folder / "node"), free_port()
        self._port = port
        self.conninfo = (
            f"host=127.0.0.1 port={port} dbname=lake user=b password='{_PASSWORD}' "
            "connect_timeout=5"
        )
        self._stop = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Bench:
        self._stack.enter_context(self.subscriber)
        self._stack.callback(self.node.close)
        self.node.init({"port": self._port, "sequencer_interval": "50ms"})
        self.node.sql(f"CREATE ROLE b LOGIN SUPERUSER REPLICATION PASSWORD '{_PASSWORD}'")
        self.start()
        tables = [statement for statement in TABLES if statement.startswith("CREATE")]
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in (*TABLES, "CREATE PUBLICATION bench FOR ALL TABLES"):
                session.execute(statement.encode())
        with psycopg.connect(self.subscriber.conninfo(), autocommit=True) as session:
            for statement in tables:
                session.execute(statement.encode())
            quoted = self.conninfo.replace("'", "''")
            session.execute(
                f"CREATE SUBSCRIPTION b CONNECTION '{quoted}' PUBLICATION bench".encode()
            )
        wait_until(self._copied, "the subscriber's copy", 120)
        for name, conninfo in (("node", self.conninfo), ("subscriber", self.subscriber.conninfo())):
            thread = threading.Thread(target=self._look, args=(name, conninfo))
            self._stack.callback(thread.join, 60)
            thread.start()
        self._stack.callback(self._stop.set)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, failpoint: str = "") -> None:
        self.node.start(failpoint)
        wait_until(lambda: self._there() or not self.node.running, "the port", 60)

    def live(self, failpoint: str) -> None:
        """pgbench runs until the node is killed."""
        if not self.node.running:
            self.start(failpoint)
        log = self.folder / f"life-{self.kills}"
        with self._pgbench(log) as running:
            if failpoint:
                self.node.wait_end(20)
            else:
                time.sleep(self.rng.uniform(3, 12))
            self.node.kill9()
            running.wait(60)
        self.kills += 1
        for path in log.parent.glob(f"{log.name}.*"):
            lines = [line.split() for line in path.read_text().splitlines()]
            self.acknowledged += sum(line[2].isdigit() for line in lines if len(line) > 2)

    def sums(self, conninfo: str) -> tuple[int, ...]:
        with psycopg.connect(conninfo, autocommit=True) as session:
            row = session.execute(SUMS.encode()).fetchone()
        assert row is not None
        return tuple(int(value or 0) for value in row)

    @contextlib.contextmanager
    def _pgbench(self, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        script = self.folder / "script.sql"
        script.write_text(SCRIPT)
        where = ["-h", "127.0.0.1", "-p", str(self._port), "-U", "b"]
        how = ["-n", "-c", str(_CLIENTS), "-T", "60", "--max-tries=100", "-f", str(script)]
        said = ["--log", f"--log-prefix={log}"]
        with (self.folder / "pgbench.log").open("ab") as output:
            running = subprocess.Popen(
                [str(clients().program("pgbench")), *where, *how, *said, "lake"],
                env={**os.environ, "PGPASSWORD": _PASSWORD},
                stdout=output,
                stderr=output,
            )
            try:
                yield running
            finally:
                running.kill()
                running.wait()

    def _look(self, name: str, conninfo: str) -> None:
        """Again and again; a node that is down is not asked."""
        while not self._stop.wait(0.05) and not self.wrong:
            with contextlib.suppress(psycopg.OperationalError):
                *sums, _ = self.sums(conninfo)
                self.looked[name] += 1
                if len(set(sums)) > 1:
                    self.wrong.append(f"{name}: {sums}")

    def _copied(self) -> bool:
        with psycopg.connect(self.subscriber.conninfo()) as session:
            states = session.execute("SELECT srsubstate FROM pg_subscription_rel").fetchall()
        return len(states) == len(_NAMES) and {state for (state,) in states} == {"r"}

    def _there(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.conninfo):
            return True
        return False


def test_sums_agree_whatever_is_killed(tmp_path: Path) -> None:
    with Bench(tmp_path, seed=int(os.environ.get("PENSTOCK_FAULT_SEED", "1"))) as bench:
        began = time.monotonic()
        for cycle in range(_CYCLES):
            name = bench.rng.choice(BLOCK_NAMES) if cycle % 2 else ""
            bench.live(f"{name}:{bench.rng.randint(1, 6)}" if name else "")
            assert not bench.wrong
        taken = time.monotonic() - began
        bench.start()
        found = bench.sums(bench.conninfo)
        assert len(set(found[:-1])) == 1
        count = found[-1]
        print(f"{count} transactions in {taken:.0f} s, {bench.kills} kills, looks: {bench.looked}")
        assert bench.acknowledged <= count <= bench.acknowledged + _CLIENTS * bench.kills
        at_subscriber = bench.subscriber.conninfo()
        wait_until(lambda: bench.sums(at_subscriber) == found, "the subscriber", 120)
        assert not bench.wrong and count and min(bench.looked.values()) > _CYCLES
