"""A publication that is made, and followed at once, by a subscription that streams already."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("version", [14, *map(in_make_faults, (15, 16, 17)), 18])
@pytest.mark.parametrize("refresh", ["true", in_make_faults("false")])
def test_a_publication_is_followed_that_was_made_just_now(
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    version: int,
    refresh: str,
) -> None:
    """Servers before 18 look it up as it was at the time of each change that they send."""
    database = database_on(version)
    database.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION p0 FOR TABLE a")
    node = local_node()
    node.subscribe("s", database, "p0")
    node.caught_up("s", database)
    for i in range(1, 5):
        database.execute(f"CREATE TABLE t{i} (id int PRIMARY KEY)")
        database.execute(f"INSERT INTO t{i} VALUES (1); INSERT INTO a VALUES ({i})")
        database.execute(f"CREATE PUBLICATION p{i} FOR TABLE a, t{i}")
        node.node.sql(f"ALTER SUBSCRIPTION s SET PUBLICATION p{i} WITH (refresh = {refresh})")
        if refresh == "true":
            database.execute(f"INSERT INTO t{i} VALUES (2)")
        node.caught_up("s", database)
        assert sorted(node.rows("a")) == [(j,) for j in range(1, i + 1)]
        if refresh == "true":
            assert sorted(node.rows(f"t{i}")) == [(1,), (2,)]
    assert node.status("s").error is None
