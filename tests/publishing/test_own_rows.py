"""Rows that are written on a node to a table that a subscription of it maintains."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode
from publishing.test_cascade import follows

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = "CREATE SCHEMA own; CREATE TABLE own.t (id integer PRIMARY KEY, v text)"
_ALL = "SELECT id, v FROM own.t ORDER BY id"


def test_own_rows_go_to_every_subscriber(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    """Stock subscribers with origin = any and none, as a stock node would send them: at once, in
    order with what the subscription applies, and nothing that it applies to origin = none."""
    source, every, none = subscriber(18), subscriber(18), subscriber(18)
    for database in (source, every, none):
        database.execute(_TABLE)
    source.execute("CREATE PUBLICATION own FOR TABLE own.t")
    lake.node.sql(f"CREATE SUBSCRIPTION own CONNECTION '{source.conninfo}' PUBLICATION own")
    follows(lake, source, "own")
    lake.execute("CREATE PUBLICATION own FOR TABLE own.t")
    lake.subscribe(every, "own_any", "own")
    lake.subscribe(none, "own_none", "own", "copy_data = false, origin = none")

    def arrived(local: list[int]) -> None:
        def both() -> bool:
            found = [(number, "local") for number in local]
            mine = every.rows("SELECT id, v FROM own.t WHERE v = 'local' ORDER BY id")
            return mine == found == none.rows(_ALL)

        wait_until(both, f"the rows {local}")

    lake.execute("INSERT INTO own.t VALUES (9001, 'local')")
    arrived([9001])  # nothing has come from the publisher since
    source.execute("INSERT INTO own.t SELECT i, 'source' FROM generate_series(1, 5) i")
    follows(lake, source, "own")
    lake.execute("INSERT INTO own.t VALUES (9002, 'local')")
    arrived([9001, 9002])
    lake.execute("UPDATE own.t SET v = 'local' WHERE id = 3")
    wait_until(lambda: (3, "local") in every.rows(_ALL), "a local change of the publisher's row")
    lake.execute("DELETE FROM own.t WHERE id IN (3, 9001)")
    wait_until(lambda: none.rows(_ALL) == [(9002, "local")], "the local deletion")

    def write() -> None:
        for number in range(10, 40):
            source.execute(f"INSERT INTO own.t VALUES ({number}, 'source')")

    writer = threading.Thread(target=write)
    writer.start()
    for number in range(9010, 9015):
        lake.execute(f"INSERT INTO own.t VALUES ({number}, 'local')")
    writer.join()
    follows(lake, source, "own")
    arrived([9002, *range(9010, 9015)])
    lake.caught_up("own_any")
    wanted = [(i, "source") for i in (1, 2, 4, 5, *range(10, 40))]
    wanted += [(i, "local") for i in (9002, *range(9010, 9015))]
    assert every.rows(_ALL) == wanted
    errors = "SELECT sum(apply_error_count) FROM pg_stat_subscription_stats"
    assert (every.value(errors), none.value(errors)) == (0, 0)
    every.execute("DROP SUBSCRIPTION own_any")
    none.execute("DROP SUBSCRIPTION own_none")
    lake.node.sql("DROP SUBSCRIPTION own")
