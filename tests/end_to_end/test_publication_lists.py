"""Lists of publications that are altered while the worker has the old one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.node.running import RunningNode
from penstock.node.status import SubscriptionStatus

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def test_a_table_is_copied_as_its_publication_has_it(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the launcher looks: only the new list has the columns and rows of the table."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION pa FOR TABLE a;"
        "CREATE TABLE b (id int PRIMARY KEY, x int, secret text);"
        "INSERT INTO b SELECT i, i, 'hidden' FROM generate_series(1, 10) i;"
        "CREATE PUBLICATION pb FOR TABLE b (id, x) WHERE (id <= 3)"
    )
    node = local_node()
    node.subscribe("s", database, "pa")
    node.caught_up("s", database)
    with monkeypatch.context() as late:
        late.setattr(RunningNode, "_look", lambda self, before: before)
        node.node.sql("ALTER SUBSCRIPTION s ADD PUBLICATION pb")
        database.execute("INSERT INTO a VALUES (1)")
        node.wait_for("s", "an end of the worker, or its copy", worker_ended_or_copied)
    database.execute("INSERT INTO a VALUES (2); UPDATE b SET x = -x, secret = 'changed'")
    node.caught_up("s", database)
    assert sorted(node.rows("a")) == [(1,), (2,)]
    published = [(1, -1), (2, -2), (3, -3)]
    assert (node.node.read("b").columns, sorted(node.rows("b"))) == (["id", "x"], published)


def worker_ended_or_copied(status: SubscriptionStatus) -> bool:
    copied = any(table.name == "public.b" and table.state in "fsr" for table in status.tables)
    return copied or status.state == "starting"  # the next worker has not begun
