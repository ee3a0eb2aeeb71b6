"""A role with LOGIN alone asks in fifty sessions; others hardly notice: not who reads a row by its
key, nor the changes of a subscription. The figures are in ``docs/performance.md``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock.embedded import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SESSIONS: Final = 50
_SAMPLES: Final = 200
_PASSWORD: Final = "one of the crowd"
_AT_MOST: Final = 2.0
_ATTEMPTS: Final = 3
_MAY_WAIT: Final = int(os.environ.get("PENSTOCK_CROWD_TURNS", "-1"))
"""max_running_statements; 0 shows what happens without turns."""
_RUNNING: Final = (
    "SELECT count(*)::int FROM pg_stat_activity WHERE usename = 'crowd' AND state = 'active'"
)


class _Crowd:
    """The node, its publisher and those who ask; a context manager."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.database = database
        self.node = NodeProcess(folder / "node", warehouse=folder / "warehouse")
        self._port = free_port()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Crowd:
        stack = self._stack
        self.database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 0);"
            "CREATE PUBLICATION p FOR TABLE t"
        )
        self.node.init({"port": self._port, "max_running_statements": _MAY_WAIT})
        stack.callback(self.node.close)
        roles = ("root SUPERUSER", "other", "crowd")
        self.node.sql(
            f"CREATE SUBSCRIPTION s CONNECTION '{self.database.conninfo}' PUBLICATION p;"
            + ";".join(f"CREATE ROLE {role} LOGIN PASSWORD '{_PASSWORD}'" for role in roles)
        )
        self.node.start()
        wait_until(lambda: self._listens(), "the port")
        self.root, self.other = (stack.enter_context(self.connect(r)) for r in ("root", "other"))
        rows = ", ".join(f"({n}, 'row {n}')" for n in range(1000))
        for statement in (
            "CREATE TABLE point (id int PRIMARY KEY, v text)",
            f"INSERT INTO point VALUES {rows}",
            "GRANT SELECT ON point TO other",
        ):
            self.root.execute(statement)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self.database.execute("SELECT 1")

    def _listens(self) -> bool:
        with contextlib.suppress(psycopg.Error):
            self.connect("root").close()
            return True
        return False

    def conninfo(self, role: str) -> str:
        return f"host=127.0.0.1 port={self._port} dbname=lake user={role} password='{_PASSWORD}'"

    def connect(self, role: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            self.conninfo(role), autocommit=True, cursor_factory=psycopg.ClientCursor
        )

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Fifty sessions of the role ask."""
        process = subprocess.Popen(
            [sys.executable, "-m", "faults.crowd", self.conninfo("crowd"), str(_SESSIONS)],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )
        try:
            wait_until(lambda: self._running() >= _SESSIONS * 4 // 5, "the crowd", 120)
            yield
        finally:
            process.communicate(timeout=60)

    def _running(self) -> int:
        ((number,),) = self.root.execute(_RUNNING).fetchall()
        return int(number)

    # What the others do

    def measures(self) -> dict[str, list[float]]:
        """Seconds of each kind of work, from the shortest to the longest."""
        works: dict[str, Callable[[int], object]] = {
            "point SELECT of a superuser": lambda n: self._point(self.root, n),
            "point SELECT of another role": lambda n: self._point(self.other, n),
            "a change, from COMMIT to its cut": self._change,
        }
        found: dict[str, list[float]] = {name: [] for name in works}
        for number in range(_SAMPLES):
            for name, work in works.items():
                began = time.perf_counter()
                work(number)
                found[name].append(time.perf_counter() - began)
        return {name: sorted(times) for name, times in found.items()}

    def _point(self, session: psycopg.Connection[Any], number: int) -> None:
        key = number * 7 % 1000
        rows = session.execute("SELECT v FROM point WHERE id = %s", [key]).fetchall()
        assert rows == [(f"row {key}",)]

    def _change(self, number: int) -> None:
        self.database.execute(f"UPDATE t SET v = {number} WHERE id = 1")
        (lsn,) = self.database.rows("SELECT pg_current_wal_flush_lsn()")[0]
        applied = f"SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '{lsn}'"
        while self.database.rows(applied) == [(0,)]:
            time.sleep(0.002)


def _at(times: list[float], share: float) -> float:
    return times[min(len(times) - 1, int(len(times) * share))]


@part_of_make_faults
def test_others_hardly_notice(
    tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with _Crowd(tmp_path, database) as crowd:
        crowd.measures()  # the first ones load and compile
        alone = crowd.measures()
        with crowd.asking():
            for attempt in range(_ATTEMPTS):  # other machines use the same processors
                beside = crowd.measures()
                with capsys.disabled():
                    _show(alone, beside)
                slower = {
                    name: _at(beside[name], 0.99) / _at(times, 0.99)
                    for name, times in alone.items()
                }
                if max(slower.values()) <= _AT_MOST or attempt == _ATTEMPTS - 1:
                    break
        crowd.node.sql("DROP SUBSCRIPTION s")
        assert max(slower.values()) <= _AT_MOST, slower


def _show(alone: dict[str, list[float]], beside: dict[str, list[float]]) -> None:
    print()
    for name, before in alone.items():
        shown = "; ".join(
            f"p{100 * share:.0f} {1000 * _at(before, share):.0f} -> "
            f"{1000 * _at(beside[name], share):.0f} ms"
            for share in (0.5, 0.95, 0.99)
        )
        print(f"{name}: {shown}")
