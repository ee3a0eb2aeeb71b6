"""A node is killed while a transaction block is prepared, or while a prepared one ends.

Part of ``make faults`` only: ``make test`` has ``publishing/test_prepared_transactions.py``. What
had no answer is there whole or not at all, and no file is left of what is not there.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from faults.test_block_faults import AFTER, BEFORE, BLOCK, Bank
from penstock import failpoint

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.slow]

_PREPARE, _COMMIT, _ROLLBACK = (
    "PREPARE TRANSACTION 'x'",
    "COMMIT PREPARED 'x'",
    "ROLLBACK PREPARED 'x'",
)
_CASES = (
    (failpoint.AFTER_PREPARE_INTENT, _PREPARE, "nothing"),
    (failpoint.AFTER_BLOCK_PREPARED, _PREPARE, "prepared"),
    *((place, _COMMIT, "committed") for place in failpoint.BLOCK_NAMES),
    (failpoint.AFTER_ROLLBACK_PREPARED, _ROLLBACK, "nothing"),
)


class PreparedBank(Bank):
    """With what a block of it is, up to its end."""

    def __init__(self, folder: Path, tables: str) -> None:
        super().__init__(folder, max_prepared_transactions=2)
        self.block = tuple(s for s in BLOCK[:-1] if s == "BEGIN" or {*s.split()} & {*tables})

    def files(self) -> set[Path]:
        return set((self.node.folder / "warehouse").rglob("*.parquet"))

    def gids(self) -> list[str]:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            return [gid for (gid,) in session.execute("SELECT gid FROM pg_prepared_xacts")]


@pytest.mark.parametrize("tables", ["abc", "a"])
@pytest.mark.parametrize(("place", "statement", "becomes"), _CASES)
def test_killed(tmp_path: Path, place: str, statement: str, becomes: str, tables: str) -> None:
    bank = PreparedBank(tmp_path, tables)
    try:
        bank.make_tables()
        files = bank.files()
        after = {**BEFORE, **{table: AFTER[table] for table in tables}}
        bank.start(place)
        with pytest.raises(psycopg.OperationalError):
            bank.run(*bank.block, _PREPARE)
            bank.run(statement)
        assert bank.node.wait_end(60) == -signal.SIGKILL, bank.node.log_tail()
        bank.start()
        if becomes == "prepared":
            assert (bank.gids(), bank.rows()) == (["x"], BEFORE)
            bank.run(_COMMIT)
        assert bank.gids() == []
        if becomes == "nothing":
            assert (bank.rows(), bank.files()) == (BEFORE, files)
        else:
            assert bank.rows() == after
            assert bank.log()[-1] == tuple(tables)
        for end in (_COMMIT, _ROLLBACK):
            with pytest.raises(psycopg.errors.UndefinedObject):
                bank.run(end)
        bank.run(*bank.block, _PREPARE, _ROLLBACK)
    finally:
        bank.node.close()
