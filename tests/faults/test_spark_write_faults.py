"""Spark is killed while Delta commits a statement: the client is told what is known."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.test_block_faults import Bank
from processes import below, command_line

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.slow]

_UPDATE = "UPDATE t SET k = -k WHERE k % 1000 = 0"


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Bank]:
    bank = Bank(tmp_path)
    with contextlib.closing(bank.node):
        bank.start()
        bank.run(
            "CREATE TABLE t (k int PRIMARY KEY, v text)",
            *(
                "INSERT INTO t SELECT i, repeat(md5(i::text), 30)"
                f" FROM generate_series({n * 20000 + 1}, {n * 20000 + 20000}) i"
                for n in range(6)
            ),
            "CREATE PUBLICATION p FOR TABLE t",
            "SELECT pg_create_logical_replication_slot('s', 'test_decoding')",
            "UPDATE t SET v = v || 'x' WHERE k % 1000 = 0",  # Spark is there
        )
        yield bank


@pytest.mark.parametrize("late", [False, True])
def test_what_may_be_committed_is_not_to_be_tried_again(bank: Bank, late: bool) -> None:
    log = bank.node.warehouse / "public" / "t" / "_delta_log"
    newest = max(int(file.stem) for file in log.glob("*.json"))
    entry = log / f"{newest + 1:020}.json"
    (jvm,) = [p for p in below(bank.node.pid) if command_line(p).split(b"\0")[0].endswith(b"java")]
    with ThreadPoolExecutor(1) as pool:
        statement = pool.submit(bank.run, _UPDATE)
        while late and not entry.exists() and not statement.done():
            time.sleep(0.0005)
        if not late:
            time.sleep(1.0)
        os.kill(jvm, signal.SIGKILL)
        failed = statement.exception(120)
    with psycopg.connect(bank.conninfo, autocommit=True) as session:
        changed = session.execute("SELECT count(*) FROM t WHERE k < 0").fetchone() != (0,)
        assert changed == entry.exists()
        if failed is None:
            assert changed
        else:
            assert isinstance(failed, psycopg.Error)
            assert failed.sqlstate == "40003" or not changed, str(failed)
        kinds = session.execute(
            "SELECT split_part(data, ' ', 3), count(*)"
            " FROM pg_logical_slot_get_changes('s', NULL, NULL)"
            " WHERE data ~ 'old-key|DELETE|INSERT' GROUP BY 1"
        ).fetchall()
        assert kinds == ([("UPDATE:", 120)] if changed else [])
