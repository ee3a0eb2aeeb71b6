"""Two-phase commit: prepared transactions of stock servers, between their phases and after them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database, _database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.errors import InvalidParameterValue, NotInPrerequisiteState
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.table_locks import TableLocks

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "max_prepared_transactions": 20,
    "logical_decoding_work_mem": "64kB",
}
_TABLES = """
CREATE TABLE a (id integer PRIMARY KEY, v text);
CREATE TABLE b (id integer PRIMARY KEY, v text);
INSERT INTO a SELECT i, 'first' FROM generate_series(1, 20) i;
CREATE PUBLICATION p FOR TABLE a, b
"""
_LARGE = "INSERT INTO b SELECT i, repeat('b', 200) FROM generate_series(1, 3000) i"


@pytest.fixture(scope="module")
def two_phase_server() -> Iterator[Callable[[int], EmbeddedPostgres]]:
    with contextlib.ExitStack() as stack:
        servers: dict[int, EmbeddedPostgres] = {}

        def of(version: int) -> EmbeddedPostgres:
            if version not in servers:
                server = EmbeddedPostgres(version, settings=_SETTINGS)
                servers[version] = stack.enter_context(server)
            return servers[version]

        yield of


@pytest.fixture
def publisher(
    two_phase_server: Callable[[int], EmbeddedPostgres],
) -> Iterator[Callable[..., Database]]:
    """A database with tables on a server that has two-phase commit."""
    with contextlib.ExitStack() as stack:

        def make(version: int = 18) -> Database:
            database = stack.enter_context(_database(two_phase_server(version)))
            stack.callback(_roll_back_prepared, database)
            database.execute(_TABLES)
            return database

        yield make


def _roll_back_prepared(database: Database) -> None:
    """What a failed test leaves: slots of others would wait for it."""
    for (gid,) in database.rows("SELECT gid FROM pg_prepared_xacts"):
        database.execute(f"ROLLBACK PREPARED '{gid}'")


def prepare(database: Database, gid: str, *statements: str) -> None:
    with database.connect(autocommit=False) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PREPARE TRANSACTION '{gid}'")
        connection.commit()


def gids(node: LocalNode) -> list[str]:
    return [gid for (gid,) in node.node.sql("SELECT gid FROM pg_prepared_xacts").rows]


def state(node: LocalNode) -> str:
    ((found,),) = node.node.sql("SELECT subtwophasestate FROM pg_subscription").rows
    return str(found)


def kept(node: LocalNode) -> list[Path]:
    folder = node.warehouse / "_penstock" / "prepared"
    return [path for path in folder.rglob("*") if path.is_file()]


def assert_equal(node: LocalNode, database: Database) -> None:
    with database.connect() as connection:
        for table in ("a", "b"):
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)


def follows(node: LocalNode, database: Database, options: str = "two_phase = true") -> None:
    node.subscribe("s", database, "p", options)
    node.caught_up("s", database)
    wait_until(lambda: state(node) == "e", "two-phase commit to be enabled")


@pytest.mark.parametrize(
    ("version", "streaming"), [(15, "off"), in_make_faults(15, "on"), (18, "parallel")]
)
def test_from_prepare_to_the_second_phase(
    local_node: Callable[..., LocalNode],
    publisher: Callable[..., Database],
    version: int,
    streaming: str,
) -> None:
    database = publisher(version)
    node = local_node(logical_decoding_work_mem="64kB")
    follows(node, database, f"two_phase = true, streaming = {streaming}")
    prepare(database, "small", "UPDATE a SET v = 'small' WHERE id <= 10")
    prepare(database, "large", "UPDATE a SET v = 'large' WHERE id > 15", _LARGE)
    prepare(database, "undone", "DELETE FROM a WHERE id = 12", "INSERT INTO a VALUES (77, 'no')")
    prepare(database, "empty", "SELECT 1")
    prepare(database, "locks only", "SELECT 1 FROM a WHERE id = 13 FOR UPDATE")
    database.execute("INSERT INTO a VALUES (50, 'beside them')")
    node.caught_up("s", database)
    assert_equal(node, database)  # nobody sees them, on either side
    assert 3 <= len(gids(node)) <= 4 and all(gid.startswith("pg_gid_") for gid in gids(node))
    assert len(kept(node)) >= 3
    database.execute("COMMIT PREPARED 'large'")
    database.execute("ROLLBACK PREPARED 'undone'")
    database.execute("UPDATE a SET v = 'after it' WHERE id = 16")
    node.caught_up("s", database)
    assert_equal(node, database)
    database.execute("COMMIT PREPARED 'small'")
    database.execute("COMMIT PREPARED 'empty'")
    database.execute("COMMIT PREPARED 'locks only'")
    node.caught_up("s", database)
    assert_equal(node, database)
    wait_until(lambda: gids(node) == [], "the end of them all")
    assert kept(node) == []
    assert not list(node.folder.rglob("*.frames"))


@part_of_make_faults
def test_a_type_that_is_read_as_text_only_is_not_kept_in_binary(
    local_node: Callable[..., LocalNode], publisher: Callable[..., Database]
) -> None:
    """What is prepared is not sent again."""
    database = publisher()
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    node = local_node()
    follows(node, database, "two_phase = true, binary = true")
    prepare(database, "made", "ALTER TABLE b ADD m mood", "INSERT INTO b VALUES (1, 'x', 'sad')")
    prepare(database, "other", "UPDATE a SET v = 'other'")
    node.caught_up("s", database)
    database.execute("COMMIT PREPARED 'other'")
    database.execute("COMMIT PREPARED 'made'")
    node.caught_up("s", database)
    assert node.rows("b") == [(1, "x", "sad")]
    assert set(node.rows("a")) == set(database.rows("SELECT * FROM a"))
    assert node.status("s").error_count == 0


def test_it_is_kept_over_restarts_of_both(
    local_node: Callable[..., LocalNode], publisher: Callable[..., Database], spark: Any
) -> None:
    database = publisher()
    node = local_node()
    follows(node, database)
    prepare(database, "kept", "UPDATE a SET v = 'kept'")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    # The publisher does not send it again.
    confirmed = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = 's'"
    assert database.value(confirmed) > 0
    database.server.restart("fast")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    database.execute("COMMIT PREPARED 'kept'")
    node.caught_up("s", database)
    assert_equal(node, database)
    wait_until(lambda: gids(node) == [], "its end")


def test_what_was_prepared_before_it_was_enabled_comes_at_its_commit(
    local_node: Callable[..., LocalNode], publisher: Callable[..., Database]
) -> None:
    """All of it then, with the position of a PREPARE that is long past."""
    database = publisher()
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    prepare(database, "before", "UPDATE a SET v = 'before' WHERE id = 1")
    database.execute("INSERT INTO a VALUES (60, 'after it')")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    node.node.sql("ALTER SUBSCRIPTION s SET (two_phase = true)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    wait_until(lambda: state(node) == "e", "two-phase commit to be enabled")
    node.caught_up("s", database)
    assert gids(node) == []
    database.execute("COMMIT PREPARED 'before'")
    database.execute("INSERT INTO a VALUES (61, 'after both')")
    node.caught_up("s", database)
    assert_equal(node, database)
    wait_until(lambda: gids(node) == [], "its end")


def test_statements(
    local_node: Callable[..., LocalNode], publisher: Callable[..., Database]
) -> None:
    database = publisher()
    node = local_node()
    node.subscribe("s", database, "p", "two_phase = true, copy_data = false")
    assert state(node) == "e", "nothing is to be copied"
    two_phase = "SELECT two_phase FROM pg_replication_slots WHERE slot_name = 's'"
    assert database.value(two_phase)
    node.caught_up("s", database)
    for statement, message in [
        ("REFRESH PUBLICATION", r"REFRESH with copy_data is not allowed when two_phase is enabled"),
        ("ADD PUBLICATION q", r"refresh and copy_data is not allowed when two_phase is enabled"),
        ("REFRESH TABLE a", r"REFRESH TABLE is not allowed when two_phase is enabled"),
        ("SET (two_phase = false)", r'cannot set option "two_phase" for enabled subscription'),
    ]:
        with pytest.raises(NotInPrerequisiteState, match=message):
            node.node.sql(f"ALTER SUBSCRIPTION s {statement}")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)")
    prepare(database, "open", "INSERT INTO a VALUES (90, 'open')")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    with pytest.raises(NotInPrerequisiteState, match="when prepared transactions exist"):
        node.node.sql("ALTER SUBSCRIPTION s SET (two_phase = false)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    database.execute("COMMIT PREPARED 'open'")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    node.node.sql("ALTER SUBSCRIPTION s SET (two_phase = false)")
    assert state(node) == "d" and not database.value(two_phase)
    node.node.sql("ALTER SUBSCRIPTION s SET (two_phase = true)")
    assert state(node) == "p"
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    wait_until(lambda: state(node) == "e", "two-phase commit to be enabled")
    assert database.value(two_phase)
    prepare(database, "again", "INSERT INTO a VALUES (91, 'again')")
    node.caught_up("s", database)
    assert len(gids(node)) == 1
    node.node.sql("DROP SUBSCRIPTION s")
    assert gids(node) == [] and kept(node) == []
    database.execute("ROLLBACK PREPARED 'again'")


_FINISHED = re.compile(r"finished at ([0-9A-F]+/[0-9A-F]+)")


class _Stock:
    """A stock subscriber with rows of its own, which prepared transactions meet."""

    def __init__(self, server: EmbeddedPostgres, publisher: Database) -> None:
        self.database = Database(server, "postgres")
        tables = "CREATE TABLE a (id integer PRIMARY KEY, v text); CREATE TABLE b (LIKE a)"
        self.database.execute(tables)
        self.database.execute(
            f"CREATE SUBSCRIPTION stock CONNECTION '{publisher.conninfo}' PUBLICATION p"
            " WITH (two_phase, disable_on_error)"
        )
        enabled = "SELECT subtwophasestate = 'e' FROM pg_subscription"
        wait_until(lambda: self.database.value(enabled), "two-phase commit of the stock subscriber")

    def stopped(self) -> str:
        """Where the transaction finishes that has stopped it: its PREPARE."""
        enabled = "SELECT subenabled FROM pg_subscription"
        wait_until(lambda: not self.database.value(enabled), "the conflict")
        return str(_FINISHED.findall(self.database.server.log())[-1])

    def skip(self, lsn: str) -> None:
        self.database.execute(f"ALTER SUBSCRIPTION stock SKIP (lsn = '{lsn}')")
        self.database.execute("ALTER SUBSCRIPTION stock ENABLE")


@part_of_make_faults
def test_what_was_prepared_is_skipped_by_the_lsn_of_its_prepare(
    local_node: Callable[..., LocalNode], publisher: Callable[..., Database]
) -> None:
    """Before the node has it, when it is kept, and when its rows have met a conflict: as by a stock
    subscriber, its rows are left out, and it stays prepared until its second phase."""
    database, node = publisher(), local_node()
    with EmbeddedPostgres(18, settings=_SETTINGS) as server:
        stock = _Stock(server, database)
        follows(node, database)

        def prepared(number: int) -> str:
            stock.database.execute(f"INSERT INTO a VALUES ({number}, 'local')")
            rows = [f"INSERT INTO {table} VALUES ({number}, 'skipped')" for table in "ab"]
            prepare(database, f"x{number}", *rows)
            lsn = stock.stopped()
            stock.skip(lsn)
            is_there = "SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE 'pg_gid%'"
            wait_until(lambda: stock.database.value(is_there) == 1, "the empty transaction")
            return lsn

        def ended(number: int) -> None:
            database.execute(f"INSERT INTO a VALUES ({number + 50}, 'after')")
            node.caught_up("s", database)
            wait_until(lambda: gids(node) == [], "its end")
            assert node.node.sql("SELECT subskiplsn FROM pg_subscription").rows == (("0/0",),)
            there = f"SELECT count(*) FROM a WHERE id = {number + 50}"
            wait_until(lambda: stock.database.value(there) == 1, "the row that comes next")
            theirs = stock.database.rows("SELECT * FROM a WHERE v <> 'local' ORDER BY id")
            assert sorted(row for row in node.rows("a") if row[1] != "local") == theirs
            assert node.rows("b") == stock.database.rows("SELECT * FROM b") == []

        kept = prepared(100)
        node.caught_up("s", database)
        with pytest.raises(InvalidParameterValue, match="must be greater than origin LSN"):
            node.node.sql("ALTER SUBSCRIPTION s SKIP (lsn = '0/1')")
        node.node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{kept}')")
        none = "SELECT count(*) FROM pg_subscription WHERE subskiplsn = '0/0'"
        wait_until(lambda: node.node.sql(none).rows == ((1,),), "the skip")
        assert len(gids(node)) == 1
        database.execute("COMMIT PREPARED 'x100'")
        ended(100)

        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
        coming = prepared(101)
        node.node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{coming}')")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        wait_until(lambda: len(gids(node)) == 1, "the PREPARE")
        assert node.node.sql(none).rows == ((1,),)
        database.execute("COMMIT PREPARED 'x101'")
        ended(101)

        met = prepared(102)
        node.caught_up("s", database)
        table = pa.table({"id": pa.array([102], pa.int32()), "v": ["local"]})
        write_deltalake(str(node.warehouse / "public" / "a"), table, mode="append")
        database.execute("COMMIT PREPARED 'x102'")
        assert "conflict=insert_exists" in str(node.stopped("s").error)
        node.node.sql(f"ALTER SUBSCRIPTION s SKIP (lsn = '{met}')")
        ended(102)
        stock.database.execute("DROP SUBSCRIPTION stock")


@pytest.mark.parametrize("version", [14, 18])
def test_the_hint_of_a_lock_shows_a_prepared_transaction(
    publisher: Callable[..., Database], version: int
) -> None:
    """It has no session."""
    database = publisher(version)
    prepare(database, "holds", "LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
    with TableLocks(ConnInfo(database.conninfo), "locks", lambda: None) as locks:
        error = locks.look([("public", "a")])["public", "a"]
    locks_of_table, prepared = str(error.hint).split("publisher: ")[1].rstrip(";").split(";")
    assert database.rows(locks_of_table) == [(None, "AccessExclusiveLock", True)]
    assert [gid for gid, *_ in database.rows(prepared)] == ["holds"]
