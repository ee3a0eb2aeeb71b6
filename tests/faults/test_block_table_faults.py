"""A node is killed while a transaction block that has made a table is open, or is committed.

Part of ``make faults`` only: ``make test`` has ``publishing/test_tables_of_blocks.py``. Before the
commit is written down there is no table; afterwards there is one with all its rows, or none where
another writer was first at the rows of another table.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.test_block_faults import Bank, another_writer_was_first, version_of
from penstock import failpoint

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.slow]

_BLOCK = (
    "BEGIN",
    "CREATE TABLE made (id serial PRIMARY KEY, v int)",
    "INSERT INTO made (v) VALUES (10), (20)",
    "UPDATE b SET v = v + 10 WHERE id = 1",
    "CREATE TABLE empty (id int)",
    "COMMIT",
)
_MADE = [(1, 10), (2, 20)]


def _folders(bank: Bank) -> set[str]:
    return {path.name for path in (bank.node.folder / "warehouse" / "public").glob("*")}


def _query(bank: Bank, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(bank.conninfo, autocommit=True) as session:
        return session.execute(query).fetchall()


def _there(bank: Bank) -> list[str]:
    query = "SELECT relname FROM pg_class WHERE relname IN ('made', 'empty') ORDER BY 1"
    return [str(name) for (name,) in _query(bank, query)]


@pytest.mark.parametrize("place", failpoint.BLOCK_TABLE_NAMES)
@pytest.mark.parametrize("passes", [1, 2])
def test_killed_at_its_commit(tmp_path: Path, place: str, passes: int) -> None:
    if passes == 2 and place in (failpoint.AFTER_BLOCK_INTENT, failpoint.AFTER_BLOCK_COMMITS):
        pytest.skip("a block passes it once")
    bank = Bank(tmp_path)
    try:
        bank.make_tables()
        bank.start(f"{place}:{passes}")
        bank.run("CREATE PUBLICATION every FOR ALL TABLES")
        bank.run("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        with pytest.raises(psycopg.OperationalError):
            bank.run(*_BLOCK)
        assert bank.node.wait_end(60) == -signal.SIGKILL, bank.node.log_tail()
        bank.start()
        assert _there(bank) == ["empty", "made"]
        assert sorted(_query(bank, "SELECT * FROM made")) == _MADE
        assert bank.rows()["b"] == [(1, 110)]
        bank.run("INSERT INTO made (v) VALUES (30)", "INSERT INTO empty VALUES (1)")
        assert _query(bank, "SELECT id FROM made WHERE v = 30") == [(3,)]
        changes = _query(
            bank,
            "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL, 'include-xids', '0')",
        )
        assert len(changes) == 5 + 3 + 3, changes
        assert bank.log()[-3:] == [("b", "made"), ("made",), ("empty",)]
    finally:
        bank.node.close()


def test_killed_before_its_commit(tmp_path: Path) -> None:
    """There is nothing of it, and its names are free."""
    bank = Bank(tmp_path)
    try:
        bank.make_tables()
        bank.start()
        with contextlib.closing(psycopg.connect(bank.conninfo, autocommit=True)) as session:
            for statement in _BLOCK[:-1]:
                session.execute(statement)
            bank.node.signal(signal.SIGKILL, group=True)
            assert bank.node.wait_end(60) == -signal.SIGKILL
        bank.start()
        assert _there(bank) == []
        assert bank.rows()["b"] == [(1, 100)]
        bank.run(*_BLOCK)
        assert sorted(_query(bank, "SELECT * FROM made")) == _MADE
        assert bank.log()[-1] == ("b", "made")
    finally:
        bank.node.close()


@pytest.mark.parametrize("killed", ["", failpoint.BETWEEN_BLOCK_COMMITS, "undone"])
def test_another_writer_was_first(tmp_path: Path, killed: str) -> None:
    """It takes away the row of another table that the block changes."""
    bank = Bank(tmp_path)
    try:
        error = another_writer_was_first(bank, _BLOCK, lambda w: version_of(w, "made") == 1, killed)
        assert _there(bank) == []
        assert _folders(bank).isdisjoint({"made", "empty"})
        assert bank.rows()["b"] == []
        assert not any("made" in one for one in bank.log())
        assert killed or isinstance(error, psycopg.errors.SerializationFailure)
        bank.run("CREATE TABLE made (other text)", "INSERT INTO made VALUES ('a')")
        assert _query(bank, "SELECT * FROM made") == [("a",)]
    finally:
        bank.node.close()
