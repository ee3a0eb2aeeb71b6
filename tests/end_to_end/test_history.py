"""``history = true``: every change of a table is a row beside it, and any moment can be rebuilt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from end_to_end.compare import Row, delta_rows, query
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from faults.node_process import NodeProcess
from fix_postgres import Database
from penstock import failpoint
from penstock.embedded import wait_until
from penstock.lakehouse.history_table import ABOUT
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE t (a integer PRIMARY KEY, b text, big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
CREATE TABLE w (a integer PRIMARY KEY, b text, big text);
ALTER TABLE w ALTER big SET STORAGE EXTERNAL;
ALTER TABLE w REPLICA IDENTITY FULL;
CREATE TABLE k (a integer, b text, big text);
ALTER TABLE k REPLICA IDENTITY FULL;
INSERT INTO t SELECT i, 'b', repeat(i::text, 3000) FROM generate_series(1, 20) i;
INSERT INTO w SELECT * FROM t;
INSERT INTO k SELECT * FROM t;
CREATE PUBLICATION p FOR TABLE t, w, k
"""
_SINCE_THE_LAST_TRUNCATE = """
    FROM h LEFT JOIN (
        SELECT _commit_lsn AS lsn, _position AS place FROM h
        WHERE _change_type = 'truncate' AND _commit_lsn <= {lsn}
        ORDER BY 1 DESC, 2 DESC LIMIT 1
    ) AS emptied ON true
    WHERE _commit_lsn <= {lsn} AND _change_type <> 'truncate' AND (
        emptied.lsn IS NULL OR _commit_lsn > emptied.lsn
        OR (_commit_lsn = emptied.lsn AND _position > emptied.place)
    )
"""
_BY_KEY = (
    """
SELECT {columns} FROM (
    SELECT h.*, row_number() OVER (
        PARTITION BY a ORDER BY _commit_lsn DESC, _position DESC, _change_type
    ) AS newest"""
    + _SINCE_THE_LAST_TRUNCATE
    + """
) AS versions
WHERE newest = 1 AND _change_type IN ('insert', 'update_postimage', 'copy')
"""
)
_WITHOUT_KEY = (
    "SELECT {columns}, sum(CASE WHEN _change_type IN ('insert', 'update_postimage', 'copy') THEN 1"
    " ELSE -1 END) AS copies " + _SINCE_THE_LAST_TRUNCATE + " GROUP BY {columns}"
)


def history(warehouse: Path, table: str) -> DeltaTable:
    return DeltaTable(str(warehouse / "public" / f"{table}__history"))


def rebuilt(warehouse: Path, table: str, lsn: int, columns: str = "a, b, big") -> Counter[Row]:
    """The state of a table at an LSN, by the query of the documentation."""
    form = _WITHOUT_KEY if table == "k" else _BY_KEY
    found = query(form.format(columns=columns, lsn=lsn), h=history(warehouse, table)).to_pylist()
    if table != "k":
        return Counter(tuple(row.values()) for row in found)
    rows = {tuple(row.values())[:-1]: row["copies"] for row in found}
    assert min(rows.values(), default=0) >= 0
    return Counter(rows)


class Story:
    """A publisher whose every state is known."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._rng = random.Random(seed)
        self.states: list[tuple[int, dict[str, Counter[Row]]]] = []

    def step(self, *statements: str) -> None:
        """One transaction, and what the tables hold after it."""
        chosen = statements or [self._change() for _ in range(self._rng.randint(1, 6))]
        with self._database.connect() as connection:
            with connection.transaction():
                for statement in chosen:
                    connection.execute(statement.encode())
            (lsn,) = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone() or (0,)
            tables = {
                name: Counter(connection.execute(f"SELECT a, b, big FROM {name}".encode()))
                for name in "twk"
            }
        self.states.append((int(lsn), tables))

    def _change(self) -> str:
        table, row = self._rng.choice("twk"), self._rng.randint(1, 25)
        unchanged = f"UPDATE {table} SET b = '{self._rng.random()}' WHERE a = {row}"
        return self._rng.choice(
            [
                unchanged,
                unchanged,
                f"UPDATE {table} SET a = -a WHERE a = {row}"
                f" AND NOT EXISTS (SELECT FROM {table} WHERE a = -{row})",
                f"UPDATE {table} SET a = -a, b = 'moved' WHERE a = -{row}"
                f" AND NOT EXISTS (SELECT FROM {table} WHERE a = {row})",
                f"UPDATE {table} SET big = repeat('{row}', {self._rng.randint(1, 4000)})"
                f" WHERE a IN ({row}, {row + 1})",
                f"DELETE FROM {table} WHERE a = {row}",
                f"INSERT INTO {table} SELECT i, 'new', repeat('n', 3000) FROM"
                f" generate_series({row}, {row + 2}) i WHERE NOT EXISTS"
                f" (SELECT FROM {table} WHERE a = i)",
                *(["TRUNCATE " + table] if self._rng.random() < 0.2 else []),
            ]
        )

    def check(self, warehouse: Path) -> None:
        """All states, from the history as it is now."""
        for lsn, tables in self.states:
            for name, wanted in tables.items():
                assert rebuilt(warehouse, name, lsn) == wanted, (name, lsn)


@pytest.mark.parametrize("seed", [1, in_make_faults(2), in_make_faults(3), in_make_faults(4)])
def test_every_state_can_be_rebuilt(
    local_node: Callable[..., LocalNode], database: Database, seed: int
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p", "history = true")
    node.caught_up("s", database)
    story = Story(database, seed)
    story.step("UPDATE t SET b = 'first' WHERE a = 1")
    for _ in range(4):
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
        story.step("UPDATE t SET b = b || '1'", "UPDATE t SET b = b || '2'")
        story.step(*["UPDATE t SET b = b || '.' WHERE a = 2", "UPDATE t SET a = 99 WHERE a = 3"])
        story.step("UPDATE t SET b = 'kept' WHERE a = 99", "TRUNCATE t", "INSERT INTO t VALUES (3)")
        story.step(
            "INSERT INTO t SELECT i, 'b', repeat(i::text, 3000) FROM generate_series(4, 9) i"
        )
        for _ in range(8):
            story.step()
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.caught_up("s", database)
        story.step(
            "TRUNCATE t, w",
            "INSERT INTO t SELECT a, 'c', big FROM (VALUES"
            " (1, repeat('x', 3000)), (2, repeat('y', 3000)), (3, NULL)) v (a, big)",
        )
    node.caught_up("s", database)
    story.check(node.warehouse)
    pinned = node.cut().tables["public", "t__history"]
    # what may come after a cut is compaction, which changes no row
    at_the_cut, newest = delta_rows(pinned.uri, pinned.version), delta_rows(pinned.uri)
    assert Counter(at_the_cut) == Counter(newest)
    assert (
        node.node.read("t__history").count()
        == query("SELECT count(*) FROM h", h=history(node.warehouse, "t"))[0][0].as_py()
    )


_PARTITIONED = """
CREATE TABLE {name} (a integer PRIMARY KEY, b text, big text) PARTITION BY RANGE (a);
CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (MINVALUE) TO (3);
CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (3) TO (MAXVALUE)
"""


@part_of_make_faults
@pytest.mark.parametrize("seed", [11, in_make_faults(12), in_make_faults(13)])
def test_of_partitioned_tables_and_streamed_transactions(
    local_node: Callable[..., LocalNode], database: Database, seed: int
) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    database.execute(_TABLES)
    node = local_node()
    for name in "tw":
        for statement in _PARTITIONED.format(name=name).split(";"):
            node.node.sql(statement)
    node.subscribe("s", database, "p", "history = true, two_phase = true")
    node.caught_up("s", database)
    story = Story(database, seed)
    for number in range(6):
        story.step(*(f"UPDATE {t} SET b = repeat(b, {9 * number}), big = big || 'x'" for t in "tk"))
        for _ in range(4):
            story.step()
        story.step(
            "DELETE FROM t WHERE a NOT BETWEEN 1 AND 25",
            "INSERT INTO t SELECT i, 'b', repeat('i', 900) FROM generate_series(30, 99) i",
            "UPDATE t SET b = 'unchanged'",
            "UPDATE t SET a = -a WHERE a > 60",
            "DELETE FROM t WHERE a NOT BETWEEN 1 AND 25",
        )
    node.caught_up("s", database)
    story.check(node.warehouse)


def test_what_a_row_tells(local_node: Callable[..., LocalNode], database: Database) -> None:
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t;"
        " INSERT INTO t VALUES (1, 'copied')"
    )
    node = local_node()
    node.subscribe("s", database, "p", "history = true")
    node.caught_up("s", database)
    xid = int(
        database.value(
            "WITH made AS (INSERT INTO t VALUES (2, 'two')) SELECT pg_current_xact_id()::text::int"
        )
    )
    end = int(database.value("SELECT pg_current_wal_lsn() - '0/0'"))
    database.execute("BEGIN; UPDATE t SET a = 3 WHERE a = 2; DELETE FROM t WHERE a = 1; COMMIT")
    database.execute("ALTER TABLE t ADD COLUMN more int")
    node.looks("s", database)  # a TRUNCATE hides what rows got before
    database.execute("TRUNCATE t; INSERT INTO t VALUES (1, 'w', 5)")
    node.caught_up("s", database)
    rows = query(
        "SELECT * FROM h ORDER BY _commit_lsn, _position, _change_type DESC",
        h=history(node.warehouse, "t"),
    ).to_pylist()
    assert [(row["_change_type"], row["a"], row["v"], row["more"]) for row in rows] == [
        ("copy", 1, "copied", None),
        ("insert", 2, "two", None),
        ("update_preimage", 2, None, None),
        ("update_postimage", 3, "two", None),
        ("delete", 1, None, None),
        ("truncate", None, None, None),
        ("insert", 1, "w", 5),
    ]
    assert rows[1]["_xid"] == xid
    assert rows[0]["_commit_lsn"] < rows[1]["_commit_lsn"] <= end < rows[2]["_commit_lsn"]
    assert rows[2]["_position"] == rows[3]["_position"] < rows[4]["_position"]
    time = database.value("SELECT clock_timestamp()")
    assert rows[1]["_commit_timestamp"] <= rows[2]["_commit_timestamp"] <= time


def in_cuts(node: LocalNode, expected: bool) -> None:
    """Wait until the history is in the cuts, or is not any more."""
    wait_until(lambda: (("public", "t__history") in node.cut().tables) == expected, "a new cut")


def test_it_begins_again_after_a_time_without_it(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_TABLES)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    assert not (node.warehouse / "public" / "t__history").exists()
    story = Story(database, 1)
    for setting in ("true", "false", "true"):  # nothing tells of what came meanwhile
        node.node.sql(f"ALTER SUBSCRIPTION s SET (history = {setting})")
        in_cuts(node, setting == "true")
        if setting == "true":
            story.step()
        else:
            database.execute("UPDATE t SET b = 'unknown'; DELETE FROM w; TRUNCATE k")
        node.caught_up("s", database)
    story.check(node.warehouse)
    assert ("public", "t__history") in node.cut().tables
    of_one_table(node, database)


def of_one_table(node: LocalNode, database: Database) -> None:
    node.node.sql("ALTER SUBSCRIPTION s SET (history = 'public.k, w')")
    in_cuts(node, False)
    assert {("public", "k__history"), ("public", "w__history")} <= node.cut().tables.keys()
    shown = node.node.sql("SELECT history FROM pg_stat_lake_subscription")
    assert list(shown.rows) == [("public.k, public.w",)]
    ends = {table: history(node.warehouse, table).version() for table in "tw"}
    database.execute("INSERT INTO t VALUES (0); INSERT INTO w VALUES (0)")
    node.caught_up("s", database)
    newer = {table: history(node.warehouse, table).version() for table in "tw"}
    assert newer["t"] == ends["t"] and newer["w"] > ends["w"]


def test_what_a_history_cannot_hold_stops_and_is_not_copied_for_ever(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY, v int); CREATE PUBLICATION p FOR TABLE t;"
        " INSERT INTO t VALUES (1, 1)"
    )
    node = local_node()
    node.subscribe("s", database, "p", "history = true, schema_change = follow")
    node.caught_up("s", database)
    database.execute("ALTER TABLE t ALTER v TYPE text; INSERT INTO t VALUES (2, 'two')")
    status = node.stopped("s")
    assert 'the history of table "public.t" cannot hold its column "v"' in str(status.error)
    place = node.warehouse / "public" / "t__history"
    assert f'Move "{place.as_uri()}"' in str(status.error_hint)
    assert "REFRESH" not in str(status.error_hint)  # the copy would meet the same history
    place.rename(place.with_name("earlier"))
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    database.execute("DELETE FROM t WHERE a = 1")
    node.caught_up("s", database)
    wait_until(lambda: node.rows("t") == [(2, "two")], "the copy")
    rows = query("SELECT _change_type, a, v FROM h", h=history(node.warehouse, "t")).to_pylist()
    assert {"_change_type": "copy", "a": 2, "v": "two"} in rows


@pytest.mark.parametrize("name", [ABOUT[0], ABOUT[-1].upper()])
def test_a_column_named_as_one_of_the_history_is_told(
    local_node: Callable[..., LocalNode], database: Database, name: str
) -> None:
    database.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    node = local_node()
    node.subscribe("s", database, "p", "history = true, schema_change = follow")
    node.caught_up("s", database)
    database.execute(f'ALTER TABLE t ADD "{name}" text; INSERT INTO t VALUES (1)')
    status = node.stopped("s")
    assert f'cannot have a history: it has a column "{name.lower()}"' in str(status.error)
    assert "SET (history = ...)" in str(status.error_hint)
    assert "REFRESH" not in str(status.error_hint)  # the copy would meet the same history
    node.node.sql("ALTER SUBSCRIPTION s SET (history = false)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    assert node.rows("t") == [(1, None)]


def test_a_table_in_the_way_of_a_history_is_told(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE t__history (a int PRIMARY KEY);"
        "CREATE PUBLICATION p FOR TABLE t, t__history"
    )
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s SET (history = true)")
    status = node.stopped("s")
    assert 'table "public.t__history" is in the way of the history of "public.t"' in str(
        status.error
    )
    assert "REFRESH" not in str(status.error_hint)
    node.node.sql("ALTER SUBSCRIPTION s SET (history = false)")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    database.execute("INSERT INTO t VALUES (1); INSERT INTO t__history VALUES (2)")
    node.caught_up("s", database)
    assert (node.rows("t"), node.rows("t__history")) == ([(1,)], [(2,)])


def follow(node: NodeProcess, database: Database) -> None:
    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def reached() -> bool:
        return Lsn.parse(node.status()[0]["cut_lsn"] or "0/0") >= target

    node.wait_for("a cut with all of it", reached)


def kill_at(node: NodeProcess, name: str, changes: Sequence[Callable[[], Any]]) -> None:
    node.start(f"{name}:1")
    for change in changes:
        change()
    assert node.wait_end(60) == -9


@pytest.mark.parametrize(
    "name",
    [
        in_make_faults(failpoint.AFTER_HISTORY),
        in_make_faults(failpoint.BETWEEN_COMMITS),
        in_make_faults(failpoint.BEFORE_CUT),
        in_make_faults(failpoint.AFTER_CUT),
    ],
)
def test_a_kill_loses_and_doubles_nothing(tmp_path: Path, database: Database, name: str) -> None:
    database.execute(_TABLES)
    node, story = NodeProcess(tmp_path / "node"), Story(database, 5)
    try:
        node.init()
        node.sql(
            f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}' PUBLICATION p"
            " WITH (history = true)"
        )
        node.start()
        follow(node, database)
        node.kill9()
        for _ in range(2):
            kill_at(
                node,
                name,
                [lambda: story.step(*(f"UPDATE {t} SET b = b || '+'" for t in "twk")), story.step],
            )
            story.step()
        node.start()
        follow(node, database)
        story.check(node.warehouse)
    finally:
        node.close()
