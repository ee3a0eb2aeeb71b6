"""``track_commit_timestamp``: changes of rows that somebody else has written last.

Beside a stock subscriber, PostgreSQL 18, which has it on as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from end_to_end.test_conflicts_table import conflicts
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TOLD = re.compile(
    r'detected on relation "(.*?)": conflict=(\w+_origin_differs)\n.*?DETAIL:  (.*?)'
    r" in (?:transaction|version) \d+ at \S+ \S+\.\n\s*(E.*?)\.$",
    re.MULTILINE,
)
_OID = "SELECT oid FROM pg_subscription WHERE subname = '{}'"
_COUNTS = (
    "SELECT sum(confl_update_origin_differs)::int, sum(confl_delete_origin_differs)::int,"
    " sum(apply_error_count)::int FROM pg_stat_subscription_stats"
)


def told(log: str) -> list[tuple[str, ...]]:
    """The order of two subscriptions, and the numbers of origins, are not the same."""
    return sorted(tuple(re.sub(r"pg_\d+", "pg_N", text) for text in m) for m in _TOLD.findall(log))


@part_of_make_faults
def test_rows_that_others_have_written(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    spark: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create = "CREATE TABLE t (id integer PRIMARY KEY, v text)"
    publishers = {"a": database_on(17), "b": database_on(17)}
    for name, publisher in publishers.items():
        publisher.execute(f"{create}; CREATE PUBLICATION p FOR TABLE t")
        if name == "b":
            publisher.execute("INSERT INTO t VALUES (5, 'b')")
    node = local_node(track_commit_timestamp=True, compact_small_files=2)
    with EmbeddedPostgres(18, settings={"track_commit_timestamp": "on"}) as server:
        stock = database_on(server)
        for run in (stock.execute, node.node.sql):
            run(create)
        for name, publisher in publishers.items():
            options = f"slot_name = {{}}_{name}, copy_data = false"
            stock.execute(
                f"CREATE SUBSCRIPTION {name} CONNECTION '{publisher.conninfo}' PUBLICATION p"
                f" WITH ({options.format('stock')})"
            )
            node.subscribe(name, publisher, "p", options.format("node"))

        def follow(name: str, *statements: str) -> None:
            for statement in statements:
                publishers[name].execute(statement)
            publishers[name].wait_confirmed(f"stock_{name}", 90)
            node.caught_up(name, publishers[name])

        try:
            follow("a", "INSERT INTO t SELECT i, 'a' FROM generate_series(1, 8) i")
            follow("b", "UPDATE t SET v = 'b2' WHERE id = 5")  # the row of another subscription
            uri = f"delta.`{node.warehouse}/public/t`"
            changes = "UPDATE {} SET v = 'local' WHERE id < 5", "INSERT INTO {} VALUES (9, 'l')"
            for change in changes:
                spark.sql(change.format(uri)).collect()
                stock.execute(change.format("t"))
            # files of its own are put together meanwhile
            for number in range(10, 14):
                follow("a", f"INSERT INTO t VALUES ({number}, 'a')")
            follow(
                "a",
                "UPDATE t SET v = 'a2' WHERE id IN (1, 5, 6)",
                "BEGIN; UPDATE t SET id = 20 WHERE id = 2; DELETE FROM t WHERE id = 20; COMMIT",
                "DELETE FROM t WHERE id IN (3, 7)",
                "UPDATE t SET v = 'a3' WHERE id IN (1, 6)",  # ours by now
            )
            theirs = stock.rows("SELECT * FROM t ORDER BY 1")
            assert sorted(node.rows("t", subscription="a")) == theirs
            wanted = told(server.log_path.read_text())
            assert len(wanted) == 5
            assert told("\n".join(caplog.messages)) == wanted
            wait_until(lambda: stock.rows(_COUNTS)[0] == (4, 1, 0), "the counts", 30)
            assert node.node.sql(_COUNTS).rows == ((4, 1, 0),)
        finally:
            for name in publishers:
                stock.execute(f"DROP SUBSCRIPTION {name}")
    found = [
        (row["conflict_type"], row["local_row"], row["local_origin"], row["resolution"])
        for row in conflicts(node.warehouse)
    ]
    oid = {name: f"pg_{node.node.sql(_OID.format(name)).rows[0][0]}" for name in publishers}
    assert sorted(found, key=str) == sorted(
        [
            ("update_origin_differs", "(5, a)", oid["a"], "apply_remote"),
            ("update_origin_differs", "(5, b2)", oid["b"], "apply_remote"),
            ("update_origin_differs", "(1, local)", None, "apply_remote"),
            ("update_origin_differs", "(2, local)", None, "apply_remote"),
            ("delete_origin_differs", "(3, local)", None, "apply_remote"),
        ],
        key=str,
    )
