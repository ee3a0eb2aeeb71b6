"""A node is killed while sessions insert rows with values of a sequence: none comes twice.

Part of ``make faults`` only: ``make test`` has ``catalog/test_sequences.py``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from penstock.embedded import free_port, wait_until

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.slow]

_PASSWORD = "secret of the bank"
_KILLS, _SESSIONS, _SECONDS = 4, 3, 3.0


class Inserting(threading.Thread):
    """A session until it is killed. ``values``: what it was told that it has inserted."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(daemon=True)
        self._conninfo = conninfo
        self.values: list[int] = []

    def run(self) -> None:
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(self._conninfo, autocommit=True) as session,
        ):
            while True:
                session.execute("INSERT INTO t (w) VALUES ('x'), ('y')")
                ((value,),) = session.execute("SELECT lastval()").fetchall()
                self.values.append(value)


def test_no_value_comes_twice(tmp_path: Path) -> None:
    node, port = NodeProcess(tmp_path / "node"), free_port()
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=b password='{_PASSWORD}'"

    def there() -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(conninfo):
            return True
        return False

    def query(text: str) -> list[tuple[int, ...]]:
        with psycopg.connect(conninfo, autocommit=True) as session:
            return session.execute(text).fetchall()

    with contextlib.closing(node):
        node.init({"port": port})
        node.sql(f"CREATE ROLE b LOGIN SUPERUSER PASSWORD '{_PASSWORD}'")
        node.start()
        wait_until(there, "the port")
        with psycopg.connect(conninfo, autocommit=True) as session:
            session.execute("CREATE TABLE t (id bigserial PRIMARY KEY, w text)")
        highest = 0
        for _ in range(_KILLS):
            sessions = [Inserting(conninfo) for _ in range(_SESSIONS)]
            for each in sessions:
                each.start()
            time.sleep(_SECONDS)
            node.kill9()
            told = [value for each in sessions for value in each.values]
            assert told and min(told) > highest
            node.start()
            wait_until(there, "the port")
            ids = [value for (value,) in query("SELECT id FROM t")]
            assert len(ids) == len(set(ids))
            assert set(told) <= set(ids)
            highest = max(ids)
        ((last,),) = query("SELECT nextval('t_id_seq')")
        node.stop()
        node.start()
        wait_until(there, "the port")
        assert query("SELECT nextval('t_id_seq')") == [(last + 1,)]
