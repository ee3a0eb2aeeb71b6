"""A node is killed between the commits of a transaction block's tables.

Part of ``make faults`` only: ``make test`` has ``publishing/test_transaction_blocks.py``. Readers
on the port see the block's rows in all of its tables or in none, before and after; another writer
at the same rows makes it none.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyroaring import BitMap

from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from penstock import failpoint
from penstock.catalog import Catalog
from penstock.embedded import free_port, wait_until
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn

pytestmark = [part_of_make_faults, pytest.mark.faults, pytest.mark.slow]

_PASSWORD = "secret of the bank"
BLOCK = (
    "BEGIN",
    "UPDATE a SET v = v - 10 WHERE id = 1",
    "UPDATE b SET v = v + 10 WHERE id = 1",
    "INSERT INTO c VALUES (1, 10)",
    "COMMIT",
)
BEFORE = {"a": [(1, 100)], "b": [(1, 100)], "c": []}
AFTER = {"a": [(1, 90)], "b": [(1, 110)], "c": [(1, 10)]}


class Bank:
    """A node that is killed, its tables and its log."""

    def __init__(self, folder: Path, **parameters: int) -> None:
        self.node, port = NodeProcess(folder / "node"), free_port()
        self.conninfo = (
            f"host=127.0.0.1 port={port} dbname=lake user=b password='{_PASSWORD}' "
            "connect_timeout=5"
        )
        self.node.init({"port": port, **parameters})
        self.node.sql(f"CREATE ROLE b LOGIN SUPERUSER PASSWORD '{_PASSWORD}'")

    def start(self, stop_at: str = "") -> None:
        self.node.start(stop_at) if stop_at else self.node.start()
        wait_until(self.there, "the port")

    def there(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.conninfo):
            return True
        return False

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            for statement in statements:
                session.execute(statement)

    def make_tables(self) -> None:
        self.start()
        for table in "abc":
            self.run(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
        self.run("INSERT INTO a VALUES (1, 100)", "INSERT INTO b VALUES (1, 100)")
        self.node.stop()

    def rows(self) -> dict[str, list[tuple[int, int]]]:
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            return {t: session.execute(f"SELECT id, v FROM {t}").fetchall() for t in "abc"}

    def logged_messages(self) -> list[str]:
        """Those of blocks in the log."""
        state = f"sqlite:///{self.node.folder / 'state.db'}"
        with Catalog.open(state) as catalog, catalog.read() as t:
            log = t.transactions.after(Lsn(0), 1000)
            return [text.decode() for one in log for text in t.transactions.contents(one)]

    def log(self) -> list[tuple[str, ...]]:
        """Tables of the transactions of the log; and nothing of a block is left."""
        state = f"sqlite:///{self.node.folder / 'state.db'}"
        with Catalog.open(state) as catalog, catalog.read() as t:
            assert t.block_commits.all() == ()
            assert not t.block_messages.relations()
            found = t.transactions.after(Lsn(0), 1000)
        return [tuple(sorted(m.uri.rpartition("/")[2] for m in one.members)) for one in found]


@pytest.mark.parametrize("place", failpoint.BLOCK_NAMES)
@pytest.mark.parametrize("passes", [1, 2])
def test_killed_between_two_tables(tmp_path: Path, place: str, passes: int) -> None:
    if passes == 2 and place != failpoint.BETWEEN_BLOCK_COMMITS:
        pytest.skip("a block passes it once")
    bank = Bank(tmp_path)
    try:
        bank.make_tables()
        bank.start(f"{place}:{passes}")
        with pytest.raises(psycopg.OperationalError):
            bank.run(*BLOCK)
        assert bank.node.wait_end(60) == -signal.SIGKILL, bank.node.log_tail()
        bank.start()
        assert bank.rows() == AFTER
        assert bank.log()[-1] == ("a", "b", "c")
        assert ("a",) not in bank.log()[2:]
    finally:
        bank.node.close()


@pytest.mark.parametrize("place", failpoint.BLOCK_NAMES)
def test_truncate_that_is_killed(tmp_path: Path, place: str) -> None:
    """All tables are empty after the next start."""
    bank = Bank(tmp_path)
    try:
        bank.make_tables()
        bank.start(place)
        with pytest.raises(psycopg.OperationalError):
            bank.run("TRUNCATE a, b, c")
        assert bank.node.wait_end(60) == -signal.SIGKILL, bank.node.log_tail()
        bank.start()
        assert bank.rows() == {"a": [], "b": [], "c": []}
        assert bank.log()[-1] == ("a", "b", "c")
    finally:
        bank.node.close()


MESSAGES = ("one", "two")
BLOCK_OF_MESSAGES = (
    BLOCK[0],
    "SELECT pg_logical_emit_message(true, 'p', 'one')",
    *BLOCK[1:-1],
    "SELECT pg_logical_emit_message(true, 'p', 'two')",
    BLOCK[-1],
)


@pytest.mark.parametrize("place", failpoint.BLOCK_NAMES)
@pytest.mark.parametrize("kind", ["tables", "one table", "no table"])
def test_messages_of_a_killed_block(tmp_path: Path, place: str, kind: str) -> None:
    """They are in the log once, with the rows."""
    if kind == "no table" and place == failpoint.BETWEEN_BLOCK_COMMITS:
        pytest.skip("it has no commits")
    block = BLOCK_OF_MESSAGES
    if kind != "tables":
        block = (*block[:2], *(block[2:3] if kind == "one table" else ()), *block[-2:])
    bank = Bank(tmp_path)
    try:
        bank.make_tables()
        bank.start(place)
        with pytest.raises(psycopg.OperationalError):
            bank.run(*block)
        assert bank.node.wait_end(60) == -signal.SIGKILL, bank.node.log_tail()
        bank.start()
        bank.rows()
        bank.node.stop()
        with (
            Catalog.open(f"sqlite:///{bank.node.folder / 'state.db'}") as catalog,
            catalog.read() as t,
        ):
            log = [found for found in t.transactions.after(Lsn(0), 1000) if found.messages]
            assert [len(found.members) for found in log] == [
                {"tables": 3, "one table": 1, "no table": 0}[kind]
            ]
            assert [c.decode() for c in t.transactions.contents(log[0])] == list(MESSAGES)
    finally:
        bank.node.close()


def another_writer_was_first(
    bank: Bank, block: tuple[str, ...], begun: Callable[[Warehouse], bool], killed: str
) -> Exception:
    """It takes away the row of b that a block changes whose commits have begun; the client's error.
    ``killed``: where the node is, "undone" for twice; "" for nowhere."""
    bank.make_tables()
    bank.start(f"{failpoint.BETWEEN_BLOCK_COMMITS}:1{'' if killed else ':stop'}")
    errors: list[Exception] = []

    def commit() -> None:
        try:
            bank.run(*block)
        except psycopg.Error as error:
            errors.append(error)

    client = threading.Thread(target=commit)
    client.start()
    warehouse = Warehouse(bank.node.warehouse_uri)
    wait_until(lambda: begun(warehouse), "the commit of the first table")
    other = warehouse.open("public", "b")
    assert other is not None
    (path,) = other.files
    other.stage(deleted={path: BitMap([0])})
    other.commit(app_id="somebody else", operation="DELETE")
    if not killed:
        bank.node.signal(signal.SIGCONT, group=True)
    else:
        assert bank.node.wait_end(60) == -signal.SIGKILL
        if killed == "undone":
            bank.node.start(failpoint.AFTER_BLOCK_UNDONE)
            assert bank.node.wait_end(60) == -signal.SIGKILL
        bank.start()
    client.join(60)
    (error,) = errors
    return error


@pytest.mark.parametrize("killed", ["", failpoint.BETWEEN_BLOCK_COMMITS, "undone"])
@pytest.mark.parametrize("with_messages", [False, True])
def test_another_writer_was_first(tmp_path: Path, killed: str, with_messages: bool) -> None:
    """It takes away the row of the second table that the block changes."""
    bank = Bank(tmp_path)
    block = BLOCK_OF_MESSAGES if with_messages else BLOCK
    try:
        error = another_writer_was_first(bank, block, lambda w: version_of(w, "a") == 2, killed)
        assert bank.rows() == {**BEFORE, "b": []}
        log = bank.log()
        assert log[-1] == ("b",), "of the other writer"
        assert log.count(("a",)) <= 1 and ("a", "b", "c") not in log
        assert not bank.logged_messages()
        assert killed or isinstance(error, psycopg.errors.SerializationFailure)
    finally:
        bank.node.close()


def version_of(warehouse: Warehouse, name: str) -> int:
    table = warehouse.open("public", name)
    return -1 if table is None else table.version
