"""``soft_delete = true``: rows that the publisher deletes stay, and nobody takes them for live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from end_to_end.compare import Row, query
from end_to_end.local_node import LocalNode
from end_to_end.test_history import _TABLES, Story, follow, history, kill_at
from faults.heavy import HEAVY, in_make_faults, part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.errors import PenstockError

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_PARTITIONS = """
CREATE TABLE t (a integer PRIMARY KEY, b text, big text) PARTITION BY RANGE (a);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (10);
CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (100)
"""


def found(warehouse: Path, *tables: str) -> tuple[Counter[Row], Counter[Row]]:
    """Live rows; dead ones with when they were deleted."""
    live, dead = Counter[Row](), Counter[Row]()
    for table in tables:
        sql = "SELECT a, b, big, _deleted_at FROM t"
        rows = query(sql, t=DeltaTable(str(warehouse / "public" / table))).to_pylist()
        for row in rows:
            values = tuple(row.values())
            if row["_deleted_at"] is None:
                live[values[:3]] += 1
            else:
                dead[values] += 1
    return live, dead


def _dead(warehouse: Path, *tables: str) -> list[tuple[Any, ...]]:
    """Without the times."""
    return sorted(row[:3] for row in found(warehouse, *tables)[1].elements())


@pytest.fixture
def shop(local_node: Callable[..., LocalNode], database: Database) -> Iterator[LocalNode]:
    """``t`` is partitioned on the node, ``w`` by Delta, ``k`` is not."""
    database.execute(_TABLES)
    node = local_node()
    for statement in _PARTITIONS.split(";"):
        node.node.sql(statement)
    options = "soft_delete = true, metadata_columns = true, partition_by = 'w (b)'"
    node.subscribe("s", database, "p", options)
    node.caught_up("s", database)
    yield node


def in_one_batch(node: LocalNode, database: Database, *statements: str) -> None:
    """Each a transaction."""
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    node.no_worker()
    for statement in statements:
        database.execute(statement)
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)


def equal(node: LocalNode, database: Database) -> None:
    """Live rows are the publisher's, and ``verify`` looks at no others."""
    more = [name for name in ("more",) if (node.warehouse / "public" / name).exists()]
    tables = {"t": ("low", "high", *more), "w": ("w",), "k": ("k",)}
    for name, parts in tables.items():
        wanted = Counter(database.rows(f"SELECT a, b, big FROM {name}"))
        assert found(node.warehouse, *parts)[0] == wanted, name
    verified = node.node.verify().tables
    assert all(table.equal for table in verified), verified


def test_what_stays(shop: LocalNode, database: Database) -> None:
    node, big = shop, {n: str(n) * 3000 for n in range(1, 21)}
    t, end = ("low", "high"), "FROM t WHERE a"
    began = database.value("SELECT clock_timestamp()")
    database.execute(f"DELETE {end} = 1; DELETE FROM w WHERE a = 1; DELETE FROM k WHERE a = 1")
    node.caught_up("s", database)
    for parts in (t, ("w",), ("k",)):
        assert _dead(node.warehouse, *parts) == [(1, "b", big[1])]
        ((*_, when),) = found(node.warehouse, *parts)[1]
        assert began <= when <= database.value("SELECT clock_timestamp()")
    sql = "SELECT * FROM t WHERE _deleted_at IS NOT NULL"
    (row,) = query(sql, t=DeltaTable(str(node.warehouse / "public" / "low"))).to_pylist()
    assert row["_commit_timestamp"] == row["_deleted_at"]
    assert row["_commit_lsn"] > 0

    # The key comes back, and goes again: a live row among dead ones is found.
    database.execute("INSERT INTO t VALUES (1, 'again', NULL); INSERT INTO w VALUES (1, 'w', 'w')")
    node.caught_up("s", database)
    equal(node, database)
    database.execute("UPDATE t SET b = 'changed' WHERE a = 1; DELETE FROM w WHERE a = 1")
    node.caught_up("s", database)
    database.execute(f"DELETE {end} = 1")
    node.caught_up("s", database)
    assert _dead(node.warehouse, *t) == [(1, "b", big[1]), (1, "changed", None)]
    assert _dead(node.warehouse, "w") == [(1, "b", big[1]), (1, "w", "w")]

    in_one_batch(
        node,
        database,
        f"BEGIN; UPDATE t SET b = 'last' WHERE a = 2; DELETE {end} = 2; COMMIT",
        f"INSERT INTO t VALUES (50, 'never shown', NULL); DELETE {end} = 50",
        f"UPDATE t SET a = 33, b = 'moved' WHERE a = 3; DELETE {end} = 33",
        f"DELETE {end} = 4; INSERT INTO t VALUES (4, 'other', NULL)",
        "UPDATE t SET a = 44, b = 'lives' WHERE a = 5",
        f"UPDATE t SET a = 5 WHERE a = 6; DELETE {end} = 5",
        "INSERT INTO k VALUES (7, 'k', 'k'), (7, 'k', 'k'); DELETE FROM k WHERE ctid ="
        " (SELECT min(ctid) FROM k WHERE b = 'k')",
        "UPDATE k SET b = 'last' WHERE a = 8; DELETE FROM k WHERE a IN (8, 9)",
    )
    equal(node, database)
    assert _dead(node.warehouse, *t)[2:] == [
        (2, "last", big[2]),
        (4, "b", big[4]),
        (5, "b", big[6]),
        (33, "moved", big[3]),
    ]
    assert _dead(node.warehouse, "k") == [
        (1, "b", big[1]),
        (8, "last", big[8]),
        (9, "b", big[9]),
    ]
    # TRUNCATE is a DELETE of all; what the same batch has done before and does after it counts.
    before = found(node.warehouse, *t)
    in_one_batch(
        node,
        database,
        "UPDATE t SET b = 'at the end' WHERE a = 10",
        "TRUNCATE t, w",
        "INSERT INTO t VALUES (1, 'after', 'it')",
        "TRUNCATE k",
    )
    equal(node, database)
    live, dead = found(node.warehouse, *t)
    assert live == Counter([(1, "after", "it")])
    gone = Counter(row[:3] for row in (dead - before[1]).elements())
    changed = Counter([(10, "b", big[10])]), Counter([(10, "at the end", big[10])])
    assert gone == before[0] - changed[0] + changed[1]
    assert found(node.warehouse, "w")[0] == Counter()
    assert found(node.warehouse, "w")[1].total() == 2 + 19


@part_of_make_faults
def test_on_and_off_and_copied_again(shop: LocalNode, database: Database) -> None:
    node = shop
    database.execute("DELETE FROM t WHERE a < 4; DELETE FROM w WHERE a = 1")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s SET (soft_delete = false)")
    database.execute(
        "DELETE FROM t WHERE a = 5; INSERT INTO t VALUES (1, 'one', NULL);"
        "DELETE FROM w WHERE a = 2; INSERT INTO w VALUES (1, 'one', NULL)"
    )
    node.caught_up("s", database)
    equal(node, database)
    assert [row[0] for row in _dead(node.warehouse, "low", "high")] == [1, 2, 3]
    node.node.sql("CREATE TABLE more PARTITION OF t FOR VALUES FROM (100) TO (200)")
    database.execute(
        "UPDATE t SET b = 'two' WHERE a = 1; DELETE FROM w WHERE a = 1;"
        "INSERT INTO t VALUES (100, 'more', NULL), (101, 'more', NULL)"
    )
    node.caught_up("s", database)
    equal(node, database)
    assert [row[0] for row in _dead(node.warehouse, "w")] == [1]

    # A history that begins now begins with live rows.
    node.node.sql("ALTER SUBSCRIPTION s SET (soft_delete = true, history = true)")
    database.execute(
        "DELETE FROM w WHERE a = 7; DELETE FROM t WHERE a = 100;"
        "INSERT INTO t VALUES (2, 'two', NULL), (100, 'again', NULL)"
    )
    node.caught_up("s", database)
    assert _dead(node.warehouse, "more") == [(100, "more", None)]
    equal(node, database)
    copied = query(
        "SELECT a FROM h WHERE _change_type = 'copy' ORDER BY a", h=history(node.warehouse, "w")
    )
    assert [row["a"] for row in copied.to_pylist()] == list(range(3, 21))
    assert [row[0] for row in _dead(node.warehouse, "w")] == [1, 7]

    with pytest.raises(PenstockError, match="rows that the publisher has deleted") as error:
        node.node.sql("ALTER TABLE w DROP COLUMN _deleted_at")
    assert error.value.hint == "DELETE FROM public.w WHERE _deleted_at IS NOT NULL"
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE w, t")
    node.caught_up("s", database)
    equal(node, database)
    assert _dead(node.warehouse, "w") == _dead(node.warehouse, "low", "high", "more") == []
    node.node.sql("ALTER TABLE w DROP COLUMN _deleted_at")
    database.execute("DELETE FROM w WHERE a = 8")
    node.caught_up("s", database)
    assert [row[0] for row in _dead(node.warehouse, "w")] == [8]


def test_a_column_of_that_name(local_node: Callable[..., LocalNode], database: Database) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY); CREATE TABLE u (_deleted_at date PRIMARY KEY);"
        "CREATE PUBLICATION p FOR TABLE t, u"
    )
    node = local_node()
    node.subscribe("s", database, "p", "soft_delete = true, on_table_error = park")

    def errors() -> dict[str, str]:
        return {table.name: str(table.error) for table in node.status("s").tables}

    def copied() -> bool:
        states = {table.name: table.state for table in node.status("s").tables}
        return states["public.t"] == "r" and 'has a column "_deleted_at"' in errors()["public.u"]

    node.wait_for("s", "the error of the copy", lambda _: copied(), fails=False)
    database.execute("ALTER TABLE t ADD COLUMN _deleted_at timestamptz; INSERT INTO t VALUES (1)")
    message = "has the name of a metadata column"
    node.wait_for(
        "s", "the error of the change", lambda _: message in errors()["public.t"], fails=False
    )


class _Model:
    """What a table's history says of its dead rows. ``must``: those that a cut has shown when they
    were deleted, and those of a TRUNCATE; ``may``: all that were deleted."""

    def __init__(self, cuts: list[int], keyless: bool) -> None:
        self._cuts = cuts
        self._keyless = keyless
        self._rows: list[tuple[Row, int]] = []
        self.must, self.may = Counter[Row](), Counter[Row]()

    def tell(self, change: dict[str, Any]) -> None:
        row, lsn = (change["a"], change["b"], change["big"]), change["_commit_lsn"]
        match change["_change_type"]:
            case "copy" | "insert":
                self._rows.append((row, lsn))
            case "update_preimage":
                self._came = self._take(row, lsn)[1]
            case "update_postimage":
                if not change["paired"]:
                    self._came = self._take(row, lsn)[1]
                self._rows.append((row, self._came))
            case "delete":
                self._end(*self._take(row, lsn), lsn, change["_commit_timestamp"])
            case "truncate":
                for row, _ in self._rows:
                    self._end(row, 0, lsn, change["_commit_timestamp"])
                self._rows = []

    def _take(self, row: Row, lsn: int) -> tuple[Row, int]:
        same = [r for r in self._rows if (r[0] == row if self._keyless else r[0][0] == row[0])]
        found = max(same, key=lambda each: each[1])
        self._rows.remove(found)
        return found

    def _end(self, row: Row, came: int, lsn: int, when: Any) -> None:
        self.may[(*row, when)] += 1
        if not came or any(came <= cut < lsn for cut in self._cuts):
            self.must[(*row, when)] += 1


def check_dead(warehouse: Path, cuts: list[int], table: str, *parts: str) -> tuple[int, int]:
    """How many dead rows there must be, and are; none is made up."""
    changes = query(
        "SELECT *, lag(_position) OVER w = _position AS paired FROM h WINDOW w AS"
        " (PARTITION BY _commit_lsn ORDER BY _position, _change_type DESC)"
        " ORDER BY _commit_lsn, _position, _change_type DESC",
        h=history(warehouse, table),
    )
    model = _Model(cuts, table == "k")
    for change in changes.to_pylist():
        model.tell(change)
    _, dead = found(warehouse, *(parts or (table,)))
    assert not model.must - dead, (table, model.must - dead)
    assert not dead - model.may, (table, dead - model.may)
    return model.must.total(), dead.total()


@pytest.mark.parametrize("seed", [1, in_make_faults(2), in_make_faults(3), in_make_faults(4)])
def test_random_changes(
    local_node: Callable[..., LocalNode], database: Database, seed: int
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", "soft_delete = true, history = true")
    node.caught_up("s", database)
    story = Story(database, seed)
    for _ in range(4 if HEAVY else 2):
        for _ in range(6):
            story.step()
        node.caught_up("s", database)
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
        for _ in range(8):
            story.step()
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.caught_up("s", database)
        _, wanted = story.states[-1]
        for table in "twk":
            assert found(node.warehouse, table)[0] == wanted[table]
    cuts = [int(cut.lsn) for cut in node.node.cuts("s")]
    story.check(node.warehouse)
    for table in "twk":
        must, there = check_dead(node.warehouse, cuts, table)
        assert must == there


@pytest.mark.parametrize(
    "name",
    [
        in_make_faults(failpoint.BETWEEN_COMMITS),
        in_make_faults(failpoint.AFTER_HISTORY),
        in_make_faults(failpoint.BEFORE_CUT),
        in_make_faults(failpoint.AFTER_CUT),
    ],
)
def test_a_kill_loses_and_doubles_nothing(tmp_path: Path, database: Database, name: str) -> None:
    database.execute(_TABLES)
    node, story = NodeProcess(tmp_path / "node"), Story(database, 6)
    try:
        node.init()
        for statement in _PARTITIONS.split(";"):
            node.sql(statement)
        node.sql(
            f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
            " WITH (soft_delete = true, history = true)"
        )
        node.start()
        follow(node, database)
        node.kill9()
        deletes = [f"DELETE FROM {t} WHERE a % 3 = {{}}" for t in "twk"]
        for number in range(2):
            moves = "UPDATE t SET a = a + 40 WHERE a % 3 = 2 AND a < 10"
            first = partial(story.step, moves, *(each.format(number) for each in deletes))
            kill_at(node, name, [first, story.step])
            story.step(*(["TRUNCATE w", "INSERT INTO w VALUES (1)"] if number else []))
        node.start()
        follow(node, database)
        _, wanted = story.states[-1]
        for table, parts in {"t": ("low", "high"), "w": ("w",), "k": ("k",)}.items():
            assert found(node.warehouse, *parts)[0] == wanted[table]
            check_dead(node.warehouse, [], table, *parts)
            assert found(node.warehouse, *parts)[1].total() >= 12
        story.check(node.warehouse)
    finally:
        node.close()
