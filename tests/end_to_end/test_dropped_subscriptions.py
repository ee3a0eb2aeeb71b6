"""Tables that a dropped subscription has left: another one goes on with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from end_to_end.compare import delta_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import Node
from penstock.failpoint import BEFORE_CUT
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_KEPT = "copy_data = false, create_slot = false"
_TABLE = """
CREATE TABLE f (a int);
ALTER TABLE f REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES
"""


@pytest.fixture
def node(tmp_path: Path, database: Database) -> Iterator[NodeProcess]:
    """It is not started yet; ``s`` follows the table ``f``, which has no key."""
    database.execute(_TABLE)
    made = NodeProcess(tmp_path / "node")
    try:
        made.init()
        made.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p")
        yield made
    finally:
        made.close()


def follow(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def reached() -> bool:
        ((status),) = node.status()
        ready = all(table["state"] == "r" for table in status["tables"])
        return ready and Lsn.parse(status["cut_lsn"] or "0/0") >= target

    node.wait_for("a cut with all of it", reached, 120)


def rows(node: NodeProcess, subscription: str = "s") -> list[tuple[int]]:
    with Node(node.folder) as reader:
        cut = reader.cut(subscription)
    assert cut is not None
    pin = cut.tables["public", "f"]
    return sorted(delta_rows(pin.uri, pin.version))


@part_of_make_faults
@pytest.mark.faults
def test_after_a_kill_nothing_comes_twice(node: NodeProcess, database: Database) -> None:
    """The table has a batch that is in no cut, and the slot is behind it."""
    node.start()
    follow(node, database)
    node.kill9()
    database.execute("INSERT INTO f VALUES (2)")
    node.start(f"{BEFORE_CUT}:1")
    assert node.wait_end(60) == -9
    database.rows("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots")
    node.sql(
        "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE);"
        "DROP SUBSCRIPTION s;"
        f"CREATE SUBSCRIPTION again CONNECTION '{database.conninfo}' PUBLICATION p"
        f" WITH ({_KEPT}, slot_name = s)"
    )
    database.execute("INSERT INTO f VALUES (3)")
    node.start()
    follow(node, database)
    assert rows(node, "again") == [(2,), (3,)]


def drop(node: LocalNode, name: str = "s") -> None:
    """Without its slot, whose worker has ended."""
    node.node.sql(f"ALTER SUBSCRIPTION {name} DISABLE")
    node.no_worker()
    node.node.sql(f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE)")
    node.node.sql(f"DROP SUBSCRIPTION {name}")


def test_a_slot_beyond_the_table_is_refused_until_it_is_accepted(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_TABLE)
    node = local_node()
    node.subscribe("s", database, "p")
    database.execute("INSERT INTO f VALUES (1)")
    node.caught_up("s", database)
    drop(node)
    database.execute("INSERT INTO f VALUES (2)")
    database.execute("SELECT pg_replication_slot_advance('s', pg_current_wal_flush_lsn())")
    node.subscribe("s", database, "p", _KEPT)
    status = node.stopped("s")
    assert 'and table "public.f" ends at' in str(status.error), status
    database.execute("INSERT INTO f VALUES (3)")
    _, statements = str(status.error_hint).split("they may be lost: ")
    for statement in statements.rstrip(".").split("; "):
        node.node.sql(statement)
    node.caught_up("s", database)
    assert sorted(node.rows("f")) == [(1,), (3,)]


_KEYED = """
CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE, gone text);
INSERT INTO t SELECT i, -i, 'x' FROM generate_series(1, 10) i;
CREATE PUBLICATION p FOR TABLE t
"""


def equal(node: LocalNode, database: Database, name: str) -> None:
    node.caught_up(name, database)
    columns = "id, other, gone" if "gone" in columns_of(database) else "id, other"
    found = node.node.read("t", subscription=name).collect()
    assert sorted(map(tuple, found)) == database.rows(f"SELECT {columns} FROM t ORDER BY id")
    verified = node.node.verify(subscription=name)
    assert verified.tables and all(table.equal for table in verified.tables), verified


def columns_of(database: Database) -> list[str]:
    query = "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND NOT attisdropped"
    return [name for (name,) in database.rows(query)]


@pytest.mark.parametrize("moved", [in_make_faults(False), True])
def test_the_next_one_has_the_tables_for_itself(
    local_node: Callable[..., LocalNode],
    database_on: Callable[[int], Database],
    moved: bool,
) -> None:
    """``moved``: to another publisher with the same rows."""
    first = second = database_on(18)
    first.execute(_KEYED)
    if moved:
        second = database_on(17)
        second.execute(_KEYED)
    node = local_node()
    node.subscribe("s", first, "p")
    node.caught_up("s", first)
    drop(node)
    if moved:
        first.execute("SELECT pg_drop_replication_slot('s')")
        node.subscribe("n", second, "p", "copy_data = false, schema_change = follow")
    else:
        node.subscribe("n", second, "p", f"{_KEPT}, slot_name = s, schema_change = follow")
    equal(node, second, "n")
    node.node.sql("ALTER SUBSCRIPTION n REFRESH TABLE t")
    equal(node, second, "n")
    second.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key")
    second.execute("UPDATE t SET id = 77 WHERE id = 3")
    equal(node, second, "n")
    second.execute("ALTER TABLE t DROP COLUMN gone; INSERT INTO t VALUES (20, -20)")
    equal(node, second, "n")
    node.node.sql("DROP SUBSCRIPTION n")
