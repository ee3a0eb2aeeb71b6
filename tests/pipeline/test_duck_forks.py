"""Connections of DuckDB in a process that forks."""

from __future__ import annotations

import multiprocessing
import threading

from penstock.pipeline import duck


def _answer() -> int:
    with duck.lent() as lent:
        pass
    (row,) = duck.connection().execute("SELECT 42").fetchall()
    assert lent.execute("SELECT 42").fetchall() == [row]
    return int(row[0])


def test_a_fork_neither_crashes_nor_uses_what_threads_of_its_parent_have() -> None:
    asked, over = threading.Event(), threading.Event()

    def hold() -> None:
        assert _answer() == 42
        asked.set()
        over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        asked.wait()
        before = duck.connection()
        forking = multiprocessing.get_context("fork")
        with forking.Pool(1) as pool:
            assert pool.apply(_answer) == 42
        assert duck.connection() is before
        assert _answer() == 42
    finally:
        over.set()
        holder.join()
