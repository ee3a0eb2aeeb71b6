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
from penstock.catalog import Catalog
from penstock.embedded import wait_until

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
_SLOT = "SELECT pg_create_logical_replication_slot('s', 'test_decoding', false, true)"
_CHANGES = (
    "SELECT data FROM pg_logical_slot_get_changes('s', NULL, NULL, 'include-xids', '0') "
    "WHERE data NOT LIKE 'table %'"
)
_UNTOLD = "SELECT pg_create_logical_replication_slot('u', 'test_decoding')"
_GIVEN = "SELECT data FROM pg_logical_slot_get_changes('{}', NULL, NULL)"
_EMIT = "SELECT pg_logical_emit_message(true, 'p', '{}')"
_MESSAGES = [
    f"message: transactional: 1 prefix: p, sz: 3 content:{content}" for content in ("one", "two")
]
_NOT_WITHOUT_ROWS = (
    failpoint.BETWEEN_BLOCK_COMMITS,
    failpoint.BEFORE_SEQUENCE,
    failpoint.AFTER_SEQUENCE,
)


class PreparedBank(Bank):
    """With what a block of it is, up to its end."""

    def __init__(self, folder: Path, tables: str) -> None:
        super().__init__(folder, max_prepared_transactions=2)
        self.block = tuple(s for s in BLOCK[:-1] if s == "BEGIN" or {*s.split()} & {*tables})

    def files(self) -> set[Path]:
        return set((self.node.folder / "warehouse").rglob("*.parquet"))

    def changes(self) -> list[str]:
        """What the slot has been told since the last call, less the rows."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            return [data for (data,) in session.execute(_CHANGES)]

    def messages(self, slot: str) -> list[str]:
        """What a slot has been told of messages since the last call."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            given = [data for (data,) in session.execute(_GIVEN.format(slot))]
        return [data for data in given if data.startswith("message")]

    def killed_at(self, place: str, statement: str) -> None:
        """``statement`` of a node that is killed on its way, with the block before PREPARE; another
        one finds it prepared. It runs again afterwards."""
        if statement != _PREPARE:
            self.run(*self.block, _PREPARE)
        self.node.stop()
        self.start(place)
        with pytest.raises(psycopg.OperationalError):
            self.run(*(self.block if statement == _PREPARE else ()), statement)
        assert self.node.wait_end(60) == -signal.SIGKILL, self.node.log_tail()
        self.start()

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
        bank.run("DELETE FROM c", *bank.block, _PREPARE, _ROLLBACK)
    finally:
        bank.node.close()


_SLOT_CASES = (
    *_CASES,
    (failpoint.BEFORE_SEQUENCE, _COMMIT, "committed"),
    (failpoint.AFTER_SEQUENCE, _COMMIT, "committed"),
)


@pytest.mark.parametrize("tables", ["abc", "a"])
@pytest.mark.parametrize(("place", "statement", "becomes"), _SLOT_CASES)
def test_a_slot_is_told_once(
    tmp_path: Path, place: str, statement: str, becomes: str, tables: str
) -> None:
    bank = PreparedBank(tmp_path, tables)
    try:
        bank.make_tables()
        bank.start()
        bank.run(_SLOT)
        bank.killed_at(place, statement)
        told = ["BEGIN", _PREPARE]
        if becomes == "prepared":
            assert bank.changes() == told
            bank.run(_COMMIT)
            told = [_COMMIT]
        elif becomes == "committed":
            told += [_COMMIT]
        else:
            told = [*told, _ROLLBACK] if statement == _ROLLBACK else []
        assert bank.changes() == told
        bank.node.restart()
        wait_until(bank.there, "the port")
        bank.run("INSERT INTO c VALUES (7, 7)")
        assert bank.changes() == ["BEGIN", "COMMIT"]
        assert bank.gids() == []
    finally:
        bank.node.close()


@pytest.mark.parametrize("tables", ["abc", "a", ""])
@pytest.mark.parametrize(("place", "statement", "becomes"), _SLOT_CASES)
def test_messages_are_told_once(
    tmp_path: Path, place: str, statement: str, becomes: str, tables: str
) -> None:
    if not tables and place in _NOT_WITHOUT_ROWS:
        pytest.skip("it has no commits")
    bank = PreparedBank(tmp_path, tables)
    bank.block = (bank.block[0], _EMIT.format("one"), *bank.block[1:], _EMIT.format("two"))
    try:
        bank.make_tables()
        bank.start()
        bank.run(_SLOT, _UNTOLD)
        bank.killed_at(place, statement)
        if becomes == "prepared":
            bank.run(_COMMIT)
        told = [] if statement == _PREPARE and becomes == "nothing" else _MESSAGES
        assert bank.messages("s") == told
        assert bank.messages("u") == ([] if becomes == "nothing" else _MESSAGES)
        bank.node.restart()
        wait_until(bank.there, "the port")
        assert bank.messages("s") == bank.messages("u") == []
        bank.node.stop()
        state = f"sqlite:///{bank.node.folder / 'state.db'}"
        with Catalog.open(state) as catalog, catalog.read() as t:
            assert not t.block_messages.relations()
    finally:
        bank.node.close()
