"""A node that publishes and has its state in a PostgreSQL, which goes away for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until
from publishing.lake_node import LakeNode, drop_subscriptions

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = "SELECT id, word FROM t ORDER BY id"


@pytest.fixture
def state_server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(18) as server:
        yield server


def test_a_stream_goes_on_when_the_state_has_been_away(
    spark: Any,
    tmp_path: Path,
    state_server: EmbeddedPostgres,
    subscriber: Callable[..., Database],
) -> None:
    there = subscriber(18)
    there.execute("CREATE TABLE t (id int PRIMARY KEY, word text)")
    state = f"postgresql://postgres@127.0.0.1:{state_server.port}/postgres"
    with LakeNode(tmp_path / "node", spark, state=state) as lake:
        lake.execute(
            "CREATE TABLE t (id int PRIMARY KEY, word text)",
            "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 100) i",
            "CREATE PUBLICATION p FOR TABLE t",
        )
        lake.subscribe(there, "s", "p")
        lake.execute("INSERT INTO t VALUES (1000, 'before'), (1001, 'before')")
        state_server.stop("immediate")
        with pytest.raises(psycopg.Error), lake.connect() as connection:
            connection.execute("DELETE FROM t WHERE id = 1000")
        state_server.start()
        wait_until(lambda: _answers(lake), "the node's port")
        lake.execute("UPDATE t SET word = 'after' WHERE id = 1001")
        lake.caught_up("s")
        wait_until(lambda: there.rows(ROWS) == lake.rows(ROWS), "the same rows")
        assert there.rows("SELECT word FROM t WHERE id = 1001") == [("after",)]
        drop_subscriptions(there)


def _answers(lake: LakeNode) -> bool:
    try:
        return lake.rows("SELECT count(*) FROM pg_subscription") == [(0,)]
    except psycopg.OperationalError:
        return False
