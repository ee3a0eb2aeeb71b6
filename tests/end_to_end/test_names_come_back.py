"""A subscription that has the name of a dropped one begins with nothing of that one's state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode


@pytest.fixture
def lake(tmp_path: Path, spark: Any) -> Iterator[LakeNode]:
    with LakeNode(tmp_path / "node", spark) as lake:
        yield lake


def position(database: Database) -> int:
    return int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))


def far_ahead(database: Database, of: Database) -> None:
    """Segments of WAL, until the one server's position is far behind the other's."""
    while position(database) < position(of) + (64 << 20):
        database.execute("SELECT pg_logical_emit_message(false, 'x', 'x'); SELECT pg_switch_wal()")


@part_of_make_faults
@pytest.mark.parametrize("by_port", [True, in_make_faults(False)], ids=["port", "Node.sql"])
def test_a_new_subscription_at_another_cluster(
    lake: LakeNode, database_on: Callable[..., Database], by_port: bool
) -> None:
    """Its slot was pushed to the old cut's LSN, and every row until there was lost."""
    first, second = database_on(16), database_on(18)
    first.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    second.execute("CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE u")
    far_ahead(first, of=second)

    def run(text: str) -> None:
        if by_port:
            lake.execute(text)
        else:
            lake.node.sql(text)

    def subscribe(database: Database) -> None:
        conninfo = database.conninfo.replace("'", "''")
        run(f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p")

    def caught_up(database: Database, table: str) -> None:
        wanted = position(database)

        def there() -> bool:
            cut = lake.node.cut("s")
            return cut is not None and cut.lsn >= wanted and f"public.{table}" in names(cut)

        wait_until(there, "a cut")
        here = sorted(row.id for row in lake.node.read(table, subscription="s").collect())
        assert here == [i for (i,) in database.rows(f"SELECT id FROM {table} ORDER BY id")]

    subscribe(first)
    first.execute("INSERT INTO t SELECT generate_series(1, 10)")
    caught_up(first, "t")
    run("DROP SUBSCRIPTION s")
    subscribe(second)
    assert lake.node.cut("s") is None or lake.node.cut("s").lsn < position(first)  # type: ignore[union-attr]
    second.execute("INSERT INTO u SELECT generate_series(1, 20)")
    caught_up(second, "u")
    second.execute("DELETE FROM u WHERE id > 15")
    caught_up(second, "u")
    run("DROP SUBSCRIPTION s")


def names(cut: Any) -> set[str]:
    """``schema.table`` of a cut's tables."""
    return {name if isinstance(name, str) else ".".join(name) for name in cut.tables}
