"""A copy that holds its snapshot for too long goes on at another one; what it holds is shown."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SLOW = "md5(repeat(note, 1000)) <> ''"
"""A row filter that takes the publisher a quarter of a millisecond."""
_TABLES = {"large": 6000, "middle": 4500, "small": 3000}
_HELD = (
    "SELECT copy_snapshot_at IS NOT NULL, copy_snapshot_xmin IS NOT NULL, copy_retained_bytes >= 0"
    " FROM pg_stat_lake_subscription"
)


@part_of_make_faults
def test_rounds_of_their_own(
    local_node: Callable[..., LocalNode], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for table, rows in _TABLES.items():
        database.execute(
            f"CREATE TABLE {table} (id integer PRIMARY KEY, note text);"
            f"INSERT INTO {table} SELECT i, repeat('x', 100) FROM generate_series(1, {rows}) i"
        )
    filtered = ", ".join(f"{table} WHERE ({_SLOW})" for table in _TABLES)
    database.execute(f"CREATE PUBLICATION p FOR TABLE {filtered} WITH (publish = 'insert')")
    caplog.set_level(logging.INFO)
    node = local_node(copy_unit_size="64kB", copy_snapshot_timeout="500ms")
    node.subscribe("s", database, "p")
    wait_until(lambda: node.node.sql(_HELD).rows == ((True, True, True),), "what is held")
    for number in range(10):
        for table in _TABLES:
            database.execute(f"INSERT INTO {table} VALUES ({100_000 + number}, 'late')")
    node.caught_up("s", database)
    told = "held for longer than copy_snapshot_timeout"
    assert 1 <= sum(told in message for message in caplog.messages) <= 2
    copied = [message for message in caplog.messages if message.endswith("has finished")]
    assert [message.split('"')[3] for message in copied] == [f"public.{name}" for name in _TABLES]
    assert node.status("s").error_count == 0
    with database.connect() as connection:
        for table in _TABLES:
            wanted = publisher_rows(connection, f"public.{table}")
            assert not (lack := difference(table, wanted, node.rows(table))), str(lack)
    wait_until(lambda: node.node.sql(_HELD).rows == ((False, False, None),), "nothing held")
