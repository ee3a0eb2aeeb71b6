"""Slots with two_phase: PREPARE TRANSACTION and its verdict, as a stock server's test_decoding has
them; after a restart, beside others who write, for slots that were made later.

All of it without Spark: what is staged is written by files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyroaring import BitMap

from faults.heavy import part_of_make_faults
from fix_postgres import Database, _database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.lakehouse.change import StagedCommit
from penstock.lakehouse.warehouse import Warehouse
from publishing.lake_node import LakeNode
from publishing.test_prepared_transactions import gids
from publishing.test_transaction_blocks import parquet_files

pytestmark = [pytest.mark.postgres]

_OPTIONS = "'include-xids', '0', 'skip-empty-xacts', '1'"
_CHANGES = "SELECT data FROM pg_logical_slot_{}_changes('{}', NULL, NULL, {})"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    folder = tmp_path_factory.mktemp("two phase") / "node"
    with LakeNode(folder, None, max_prepared_transactions=8) as started:
        yield started


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """On a server that has test_decoding (18's package has not) and prepared transactions."""
    settings: dict[str, str | int | bool] = {"max_prepared_transactions": 8, "wal_level": "logical"}
    with (
        EmbeddedPostgres(17, settings=settings) as server,
        contextlib.closing(server),
        _database(server) as database,
    ):
        yield database


@pytest.fixture(params=["the node", "a server"])
def side(request: pytest.FixtureRequest) -> Side:
    """Each is asked the same, and answers what is expected."""
    if request.param == "the node":
        lake: LakeNode = request.getfixturevalue("lake")
        return Side(lake.connect)
    database: Database = request.getfixturevalue("database")
    return Side(lambda: database.connect(autocommit=True))


class Side:
    """Sessions of one of both."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect

    def run(self, *statements: str) -> None:
        """One session."""
        with contextlib.closing(self._connect()) as session:
            for statement in statements:
                session.execute(statement)

    def rows(self, query: str) -> list[Any]:
        with contextlib.closing(self._connect()) as session:
            return session.execute(query).fetchall()

    def slot(self, name: str, *, two_phase: bool = True) -> None:
        self.rows(
            f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding', false, "
            f"{str(two_phase).lower()})"
        )

    def changes(self, slot: str, way: str = "get", options: str = _OPTIONS) -> list[str]:
        return [data for (data,) in self.rows(_CHANGES.format(way, slot, options))]

    def prepare(self, gid: str, *statements: str) -> None:
        self.run("BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'")


def insert(table: str, id_: int) -> str:
    return f"table public.{table}: INSERT: id[integer]:{id_}"


@pytest.fixture
def slots(side: Side) -> Iterator[Sequence[str]]:
    """``told`` and ``untold``: with and without two_phase."""
    for name in ("told", "untold"):
        side.slot(name, two_phase=name == "told")
    yield "told", "untold"
    for name in ("told", "untold"):
        side.rows(f"SELECT pg_drop_replication_slot('{name}')")


def test_contrib_twophase(side: Side, slots: Sequence[str]) -> None:
    """contrib/test_decoding/sql/twophase.sql, without the DDL that blocks of a node refuse."""
    side.run(
        "CREATE TABLE test_prepared1(id integer primary key)",
        "CREATE TABLE test_prepared2(id integer primary key)",
        "CREATE TABLE test_prepared_savepoint(id integer primary key)",
    )
    told, untold = slots
    assert side.changes(told) == []
    begin, end, both = "BEGIN", "COMMIT", [insert("test_prepared1", n) for n in (1, 2)]
    side.prepare(
        "test_prepared#1",
        "INSERT INTO test_prepared1 VALUES (1)",
        "INSERT INTO test_prepared1 VALUES (2)",
    )
    assert side.changes(told) == [begin, *both, "PREPARE TRANSACTION 'test_prepared#1'"]
    assert side.changes(untold) == []
    side.run("COMMIT PREPARED 'test_prepared#1'")
    assert side.changes(told) == ["COMMIT PREPARED 'test_prepared#1'"]
    assert side.changes(untold) == [begin, *both, end]
    side.prepare("test_prepared#2", "INSERT INTO test_prepared1 VALUES (3)")
    three = [begin, insert("test_prepared1", 3), "PREPARE TRANSACTION 'test_prepared#2'"]
    assert side.changes(told) == three
    side.run("ROLLBACK PREPARED 'test_prepared#2'")
    assert side.changes(told) == ["ROLLBACK PREPARED 'test_prepared#2'"]
    assert side.changes(untold) == []
    side.prepare("test_prepared_lock", "UPDATE test_prepared1 SET id = 8 WHERE id = 2")
    side.run("INSERT INTO test_prepared2 VALUES (9)")
    assert side.changes(told) == [
        begin,
        "table public.test_prepared1: UPDATE: old-key: id[integer]:2 new-tuple: id[integer]:8",
        "PREPARE TRANSACTION 'test_prepared_lock'",
        begin,
        insert("test_prepared2", 9),
        end,
    ]
    side.run("COMMIT PREPARED 'test_prepared_lock'")
    assert side.changes(told) == ["COMMIT PREPARED 'test_prepared_lock'"]
    side.prepare(
        "test_prepared_savepoint",
        "INSERT INTO test_prepared_savepoint VALUES (1)",
        "SAVEPOINT test_savepoint",
        "INSERT INTO test_prepared_savepoint VALUES (2)",
        "ROLLBACK TO SAVEPOINT test_savepoint",
    )
    saved = [begin, insert("test_prepared_savepoint", 1)]
    assert side.changes(told) == [*saved, "PREPARE TRANSACTION 'test_prepared_savepoint'"]
    side.run("COMMIT PREPARED 'test_prepared_savepoint'")
    assert side.changes(told) == ["COMMIT PREPARED 'test_prepared_savepoint'"]
    side.prepare("test_prepared_nodecode", "INSERT INTO test_prepared1 VALUES (20)")
    assert side.changes(told) == [], "filter_prepare"
    side.run("COMMIT PREPARED 'test_prepared_nodecode'")
    assert side.changes(told) == [begin, insert("test_prepared1", 20), end]
    side.prepare("rolled_nodecode", "INSERT INTO test_prepared1 VALUES (21)")
    side.run("ROLLBACK PREPARED 'rolled_nodecode'")
    assert side.changes(told) == []
    side.run("BEGIN", "PREPARE TRANSACTION 'empty'", "COMMIT PREPARED 'empty'")
    assert side.changes(told) == []


def test_the_chapters_examples(side: Side, slots: Sequence[str]) -> None:
    """ "Logical Decoding Examples", with xids: each call as it is printed there."""
    told, _ = slots
    side.run("CREATE TABLE data(id integer primary key, data text)")
    side.changes(told)
    side.prepare("test_prepared1", "INSERT INTO data VALUES (5, '5')")
    ((xid,),) = side.rows("SELECT transaction::text FROM pg_prepared_xacts")
    five = "table public.data: INSERT: id[integer]:5 data[text]:'5'"
    before = [f"BEGIN {xid}", five, f"PREPARE TRANSACTION 'test_prepared1', txid {xid}"]
    on = "'include-xids', '1'"
    assert side.changes(told, "peek", on) == before
    side.run("COMMIT PREPARED 'test_prepared1'")
    after = f"COMMIT PREPARED 'test_prepared1', txid {xid}"
    assert side.changes(told, "peek", on) == [*before, after]
    query = _CHANGES.format("peek", told, on).replace("data FROM", "lsn, xid::text FROM")
    found = side.rows(query)
    assert {other for _, other in found} == {xid}
    lsns = [tuple(int(part, 16) for part in lsn.split("/")) for lsn, _ in found]
    assert lsns == sorted(lsns)
    at = side.changes(told, "get", f"{on}, 'include-timestamp', '1'")
    assert [re.sub(r"\(at \d{4}-.*\)", "(at)", line) for line in at] == [
        *before[:2],
        f"{before[2]} (at)",
        f"{after} (at)",
    ]
    side.prepare("test_prepared2", "INSERT INTO data VALUES (6, '6')")
    ((xid,),) = side.rows("SELECT transaction::text FROM pg_prepared_xacts")
    side.run("ROLLBACK PREPARED 'test_prepared2'")
    assert side.changes(told, "peek", on)[-2:] == [
        f"PREPARE TRANSACTION 'test_prepared2', txid {xid}",
        f"ROLLBACK PREPARED 'test_prepared2', txid {xid}",
    ]
    side.changes(told)
    side.run("INSERT INTO data VALUES (7, '7')")
    ordinary = side.changes(told, "get", on)
    assert ordinary[0] != f"BEGIN {xid}"
    side.run("DROP TABLE data")


class Node(Side):
    """A node of its own."""

    def __init__(self, lake: LakeNode) -> None:
        super().__init__(lake.connect)
        self.lake = lake

    def restart(self) -> None:
        self.lake.connection.close()
        self.lake.node.stop()
        self.lake.node.start()
        self.lake.connection = self.lake.connect()

    def as_others(self, table: str, deleted: int) -> None:
        """A commit to a table by a writer that knows nothing of the node: a row of its only file
        goes."""
        found = Warehouse(str(self.lake.node.folder / "warehouse")).open("public", table)
        assert found is not None
        (path,) = found.files
        found.stage(deleted={path: BitMap([deleted])})
        found.commit(app_id="somebody else", operation="DELETE")


@pytest.fixture
def node(lake: LakeNode) -> Node:
    return Node(lake)


@part_of_make_faults
def test_a_node_that_starts_again(tmp_path: Path) -> None:
    """Between the two phases: nothing is lost, and nothing comes twice, nor a transaction ID."""
    with LakeNode(tmp_path / "node", None, max_prepared_transactions=4) as lake:
        node = Node(lake)
        node.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
        node.slot("s")
        node.slot("late")
        for gid, number in (("one", 1), ("two", 2), ("three", 3)):
            node.prepare(gid, *(f"INSERT INTO {table} VALUES ({number})" for table in "ab"))
            if gid == "one":
                prepared = node.changes("s")
                before = parquet_files(lake)
        assert prepared == ["BEGIN", insert("a", 1), insert("b", 1), "PREPARE TRANSACTION 'one'"]
        node.restart()
        assert gids(lake) == ["one", "two", "three"]
        node.run("INSERT INTO a VALUES (10)", "COMMIT PREPARED 'one'", "ROLLBACK PREPARED 'two'")
        node.run("INSERT INTO a VALUES (11)")
        node.restart()
        node.run("COMMIT PREPARED 'three'", "INSERT INTO a VALUES (12)")
        rest = [
            *("BEGIN", insert("a", 2), insert("b", 2), "PREPARE TRANSACTION 'two'"),
            *("BEGIN", insert("a", 3), insert("b", 3), "PREPARE TRANSACTION 'three'"),
            *("BEGIN", insert("a", 10), "COMMIT"),
            *("COMMIT PREPARED 'one'", "ROLLBACK PREPARED 'two'"),
            *("BEGIN", insert("a", 11), "COMMIT"),
            "COMMIT PREPARED 'three'",
            *("BEGIN", insert("a", 12), "COMMIT"),
        ]
        assert node.changes("s") == rest
        assert len(parquet_files(lake) - before) == 2 + 2 + 3, "files wait for the other slot"
        lines = node.changes("late", "get", "'include-xids', '1'")
        begun = [line for line in lines if line.startswith("BEGIN")]
        assert len({*begun}) == len(begun) == 6
        assert [re.sub(r"(, txid)? \d+$", "", x) for x in lines if x[0] != "t"] == [
            line for line in [*prepared, *rest] if line[0] != "t"
        ]
        wait_until(lambda: len(parquet_files(lake) - before) == 2 + 3, "the end of the files")


def test_slots_that_were_made_after_the_prepare(node: Node) -> None:
    """All of it comes with COMMIT PREPARED (two_phase_at); of a rollback there is nothing but its
    name, as with a server."""
    node.run("CREATE TABLE made (id int PRIMARY KEY)")
    node.prepare("kept", "INSERT INTO made VALUES (1)")
    node.prepare("gone", "INSERT INTO made VALUES (2)")
    node.slot("later")
    node.run("COMMIT PREPARED 'kept'", "ROLLBACK PREPARED 'gone'")
    assert node.changes("later") == [
        *("BEGIN", insert("made", 1), "PREPARE TRANSACTION 'kept'", "COMMIT PREPARED 'kept'"),
        "ROLLBACK PREPARED 'gone'",
    ]
    node.rows("SELECT pg_drop_replication_slot('later')")


def test_others_who_write_the_tables_by_themselves(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that is taken back tells nobody of it."""
    for table in "xy":
        node.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)"
        )
    node.slot("s")
    node.prepare("p", "DELETE FROM x WHERE id = 1", "DELETE FROM y WHERE id = 1")
    assert len(node.changes("s")) == 4
    put = StagedCommit.put

    def after_the_first(commit: StagedCommit, *state: Any) -> int:
        version = put(commit, *state)
        if commit.change.name == "public.x":
            node.as_others("y", 0)
        return version

    with monkeypatch.context() as patched, pytest.raises(psycopg.errors.SerializationFailure):
        patched.setattr(StagedCommit, "put", after_the_first)
        node.run("COMMIT PREPARED 'p'")
    gone = ["BEGIN", "table public.y: DELETE: id[integer]:1", "COMMIT"]
    assert (node.changes("s"), gids(node.lake)) == (gone, ["p"])
    node.run("ROLLBACK PREPARED 'p'")
    assert node.changes("s") == ["ROLLBACK PREPARED 'p'"]
    node.rows("SELECT pg_drop_replication_slot('s')")
    node.run("DROP TABLE x", "DROP TABLE y")
