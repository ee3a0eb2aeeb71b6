"""ALTER SUBSCRIPTION ... RENAME TO: it goes on under the new name, from where it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.local_node import LocalNode
from fix_postgres import Database
from penstock.errors import DuplicateObject, UndefinedObject

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def test_a_renamed_subscription_goes_on(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    node = local_node()
    node.subscribe("before", database, "p")
    node.subscribe("other", database, "p", "connect = false, slot_name = NONE")
    node.caught_up("before", database)
    first = node.cut("before")
    with pytest.raises(DuplicateObject, match='subscription "other" already exists'):
        node.node.sql("ALTER SUBSCRIPTION before RENAME TO other")
    node.node.sql("ALTER SUBSCRIPTION before RENAME TO after")
    with pytest.raises(UndefinedObject):
        node.cut("before")
    database.execute("INSERT INTO t VALUES (2)")
    node.caught_up("after", database)
    last = node.cut("after")
    assert last.lsn > first.lsn
    assert last.tables["public", "t"].uri == first.tables["public", "t"].uri
    assert node.node.read("t").count() == 2
    node.node.sql("DROP SUBSCRIPTION after")
    assert (
        database.value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'before'") == 0
    )
