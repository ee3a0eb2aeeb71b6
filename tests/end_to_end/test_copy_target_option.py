"""Copies into tables that have rows: ``copy_target = empty``, ``append``, ``replace``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from end_to_end.compare import delta_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.lsn import Lsn
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
_COPIED = "INSERT INTO t SELECT g, 'copied' FROM generate_series(1, 3) g"
_COPY = [(1, "copied"), (2, "copied"), (3, "copied")]
_PUBLICATION = f"{_TABLE}; {_COPIED}; CREATE PUBLICATION p FOR TABLE t"


def _insert(warehouse: Path, *ids: int, table: str = "t") -> None:
    """Another writer's rows."""
    target = DeltaTable(str(warehouse / "public" / table))
    rows = pa.table({"id": list(ids), "v": ["old"] * len(ids)})
    write_deltalake(target, rows.cast(pa.schema(target.schema().to_arrow())), mode="append")


def _failed(status: SubscriptionStatus) -> bool:
    return any(table.error for table in status.tables)


def _told(node: LocalNode, name: str = "s") -> str:
    node.wait_for(name, "the error of the copy", _failed)
    (table,) = (table for table in node.status(name).tables if table.error)
    return f"{table.error} {table.error_detail} {table.error_hint}"


def test_what_becomes_of_rows_that_are_there(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """Refused; added to, once no key is there; and from then on the table follows. A copy of it
    would take rows of others away, which has to be asked for."""
    database.execute(_PUBLICATION)
    node = local_node()
    node.node.sql(_TABLE)
    _insert(node.warehouse, 3, 10)
    node.subscribe("s", database, "p")
    told = _told(node)
    assert 'target table "public.t" is not empty' in told
    assert "copy_target = append" in told and "copy_target = replace" in told
    node.node.sql("ALTER SUBSCRIPTION s SET (copy_target = append)")
    duplicate = 'duplicate key value violates unique constraint "t_pkey"'
    node.wait_for("s", "the key", lambda s: duplicate in str(s.tables[0].error))
    assert "Key (id)=(3) already exists." in _told(node)
    assert node.status("s").tables[0].state in "id"
    uri = str(node.warehouse / "public" / "t")
    assert sorted(delta_rows(uri)) == [(3, "old"), (10, "old")]
    DeltaTable(uri).delete("id = 3")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == [*_COPY, (10, "old")]
    database.execute("UPDATE t SET v = 'new' WHERE id = 1; INSERT INTO t VALUES (4, 'new')")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == [(1, "new"), *_COPY[1:], (4, "new"), (10, "old")]
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
    assert "has rows that its copy was added to" in _told(node)
    node.node.sql("ALTER SUBSCRIPTION s SET (copy_target = replace)")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == [(1, "new"), *_COPY[1:], (4, "new")]
    (kept,) = node.node.sql("SELECT copy_target FROM pg_stat_lake_subscription").rows
    assert kept == ("replace",)
    node.node.sql("ALTER SUBSCRIPTION s SET (copy_target = empty)")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == [(1, "new"), *_COPY[1:], (4, "new")]


def test_refresh_and_replace(local_node: Callable[..., LocalNode], database: Database) -> None:
    """REFRESH says it of the tables that are not copied yet, and of no others."""
    database.execute(f"CREATE PUBLICATION p; {_TABLE}; {_COPIED}; CREATE TABLE u (LIKE t)")
    database.execute("ALTER TABLE u ADD PRIMARY KEY (id); INSERT INTO u VALUES (1, 'copied')")
    node = local_node()
    node.node.sql(_TABLE)
    _insert(node.warehouse, 1, 10)
    node.subscribe("s", database, "p")
    database.execute("ALTER PUBLICATION p ADD TABLE t")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert "is not empty" in _told(node)
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_target = replace)")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == _COPY
    node.node.sql(_TABLE.replace(" t ", " u "))
    _insert(node.warehouse, 10, table="u")
    database.execute("ALTER PUBLICATION p ADD TABLE u")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.wait_for("s", "the error", _failed)
    assert sorted(delta_rows(str(node.warehouse / "public" / "u"))) == [(10, "old")]


def test_two_databases_in_one_table(
    local_node: Callable[..., LocalNode], database_on: Callable[..., Database]
) -> None:
    """The second one's copy comes while the first one's changes do; each follows its own rows."""
    first, second = database_on(18), database_on(16)
    first.execute(_PUBLICATION)
    second.execute(_PUBLICATION.replace("(1, 3)", "(100001, 103000)"))
    node = local_node()
    node.subscribe("one", first, "p")
    node.caught_up("one", first)
    stop = threading.Event()

    def change() -> None:
        number = 10
        while not stop.is_set():
            first.execute(f"INSERT INTO t VALUES ({number}, 'one')")
            number += 1

    writer = threading.Thread(target=change)
    writer.start()
    try:
        node.subscribe("two", second, "p", "copy_target = append")
        node.caught_up("two", second)
    finally:
        stop.set()
        writer.join()
    second.execute("UPDATE t SET v = 'two' WHERE id = 100001; DELETE FROM t WHERE id = 100002")
    node.caught_up("two", second)
    node.caught_up("one", first)
    rows = delta_rows(str(node.warehouse / "public" / "t"))
    wanted = [*first.rows("SELECT id, v FROM t"), *second.rows("SELECT id, v FROM t")]
    assert sorted(rows) == sorted(wanted)


_PARTITIONS = """
CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (MINVALUE) TO (2);
CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (2) TO (MAXVALUE);
"""


def _cut(status: Any) -> int:
    ((table,), cut) = status[0]["tables"], status[0]["cut_lsn"]
    return Lsn.parse(cut) if table["state"] == "r" and cut else 0


@part_of_make_faults
@pytest.mark.faults
@pytest.mark.parametrize("mode", ["append", "replace"])
@pytest.mark.parametrize(
    ("target", "point"),
    [
        (_TABLE, f"{failpoint.INSIDE_COPY}:1"),
        (_TABLE, f"{failpoint.AFTER_COPY_COMMIT}:1"),
        (_PARTITIONS, f"{failpoint.BETWEEN_COMMITS}:1"),
        (_PARTITIONS, f"{failpoint.BETWEEN_COMMITS}:2"),
        (_PARTITIONS, f"{failpoint.AFTER_COPY_COMMIT}:1"),
    ],
)
def test_a_node_that_is_killed_amid_the_copy(
    tmp_path: Path, database: Database, mode: str, target: str, point: str
) -> None:
    """Nothing is there twice, and nothing of others is gone that is to stay."""
    database.execute(_PUBLICATION)
    node = NodeProcess(tmp_path / "node")
    try:
        node.init()
        node.sql(target)
        leaves = ["t_1", "t_2"] if target == _PARTITIONS else ["t"]
        _insert(node.warehouse, -1, table=leaves[0])
        _insert(node.warehouse, 10, table=leaves[-1])
        options = f"WITH (copy_target = {mode})"
        node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p {options}")
        node.start(point)
        assert node.wait_end(180) == -9, node.log_tail()
        node.start()
        database.execute("INSERT INTO t VALUES (4, 'new')")
        target_lsn = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))
        node.wait_for("a cut with all of it", lambda: _cut(node.status()) >= target_lsn, 180)
        found = [r for leaf in leaves for r in delta_rows(str(node.warehouse / "public" / leaf))]
        old = [(-1, "old"), (10, "old")] if mode == "append" else []
        assert sorted(found) == sorted([*_COPY, (4, "new"), *old])
    finally:
        node.close()
