"""``metadata_columns = true``: rows tell the transaction that wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from end_to_end.compare import Row, query
from end_to_end.local_node import LocalNode
from end_to_end.test_history import _TABLES, Story, history
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_NEWEST = """
SELECT a, b, big, _commit_lsn,
    CASE WHEN _change_type <> 'copy' THEN _commit_timestamp END AS at
FROM h WHERE _change_type IN ('insert', 'update_postimage', 'copy')
QUALIFY row_number() OVER (PARTITION BY a ORDER BY _commit_lsn DESC, _position DESC) = 1
"""


def stamped(warehouse: Path, table: str) -> Counter[Row]:
    """Whole rows."""
    sql = "SELECT a, b, big, _commit_lsn, _commit_timestamp FROM t"
    found = query(sql, t=DeltaTable(str(warehouse / "public" / table))).to_pylist()
    return Counter(tuple(row.values()) for row in found)


@pytest.mark.parametrize("seed", [1, in_make_faults(2), in_make_faults(3)])
def test_each_row_tells_what_its_history_tells(
    local_node: Callable[..., LocalNode], database: Database, seed: int
) -> None:
    """The history's LSNs are those of the publisher's states (``test_history``)."""
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    database.execute(_TABLES)
    before = Lsn.parse(database.value("SELECT pg_current_wal_lsn()"))
    node = local_node()
    node.subscribe("s", database, "p", "metadata_columns = true, history = true")
    node.caught_up("s", database)
    (copied,) = {row[3] for row in stamped(node.warehouse, "t")}
    assert before <= copied <= node.cut().lsn
    story = Story(database, seed)
    for number in range(30):
        story.step()
        if number % 10 == 5:
            story.step("UPDATE t SET b = 'streamed'", "INSERT INTO k SELECT * FROM t")
            node.caught_up("s", database)
    node.caught_up("s", database)
    _, wanted = story.states[-1]
    for table in "tw":
        newest = query(_NEWEST, h=history(node.warehouse, table)).to_pylist()
        by_key = {row["a"]: tuple(row.values()) for row in newest}
        rows = stamped(node.warehouse, table)
        assert rows == Counter(by_key[row[0]] for row in rows)
        assert Counter(row[:3] for row in rows.elements()) == wanted[table]
    of_k = stamped(node.warehouse, "k")
    came = "SELECT a, b, big, _commit_lsn FROM h WHERE _change_type <> 'delete'"
    known = {tuple(r.values()) for r in query(came, h=history(node.warehouse, "k")).to_pylist()}
    assert {row[:4] for row in of_k} <= known
    assert all(table.equal for table in node.node.verify().tables)
    assert Counter(row[:3] for row in of_k.elements()) == wanted["k"]


def test_rows_from_before_have_none_and_partitions_have_them(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text, big text);"
        "INSERT INTO t VALUES (1, 'old'), (2, 'old'), (11, 'old'); CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.node.sql(
        "CREATE TABLE t (a integer PRIMARY KEY, b text, big text) PARTITION BY RANGE (a);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)"
    )
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    node.node.sql("ALTER SUBSCRIPTION s SET (metadata_columns = true)")
    database.execute("UPDATE t SET b = 'new' WHERE a = 1")
    node.caught_up("s", database)
    first = node.cut()
    database.execute("UPDATE t SET a = 12 WHERE a = 2; INSERT INTO t VALUES (13, 'new')")
    node.caught_up("s", database)
    rows = stamped(node.warehouse, "low") + stamped(node.warehouse, "high")
    told = {row[0]: (row[3], row[4]) for row in rows}
    assert told[11] == (None, None)
    assert told[1][0] <= first.lsn < told[12][0] <= told[13][0] <= node.cut().lsn
    assert told[1][1] is not None and told[13][1] >= told[1][1]
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE t")
    node.caught_up("s", database)
    copied = stamped(node.warehouse, "low") + stamped(node.warehouse, "high")
    ((point, moment),) = {row[3:] for row in copied}
    assert told[13][0] < point <= node.cut().lsn and moment is None
    assert sorted(row[0] for row in copied) == [1, 11, 12, 13]


def test_a_column_of_that_name_is_an_error_of_its_table_and_they_can_go(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY); CREATE TABLE u (_commit_lsn integer PRIMARY KEY);"
        "INSERT INTO t VALUES (1); CREATE PUBLICATION p FOR TABLE t, u"
    )
    node = local_node()
    node.subscribe("s", database, "p", "metadata_columns = true")

    def told() -> bool:
        tables = {table.name: table for table in node.status("s").tables}
        error = tables["public.u"].error if "public.u" in tables else None
        return tables["public.t"].state == "r" and 'has a column "_commit_lsn"' in str(error)

    node.wait_for("s", "the error", lambda _: told(), fails=False)
    node.node.sql("ALTER SUBSCRIPTION s SET (metadata_columns = false)")
    database.execute("INSERT INTO t VALUES (2)")
    node.caught_up("s", database)
    assert [row[1] is None for row in node.rows("t")] == [False, False]
    node.node.sql(
        "ALTER TABLE t DROP COLUMN _commit_lsn; ALTER TABLE t DROP COLUMN _commit_timestamp"
    )
    database.execute("INSERT INTO t VALUES (3); INSERT INTO u VALUES (4)")
    node.caught_up("s", database)
    assert sorted(node.rows("t")) == [(1,), (2,), (3,)]
    assert node.rows("u") == [(4,)]
