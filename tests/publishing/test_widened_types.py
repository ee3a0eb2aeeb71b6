"""A table whose types got wider: its rows of files from before by the port, and to subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode
from publishing.test_cascade import caught_up

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_COLUMNS: Final = "id int PRIMARY KEY, s smallint, r real, p numeric(6,2), d date"
_WIDE: Final = "id bigint PRIMARY KEY, s bigint, r float8, p numeric(9,3), d timestamp"
_ALTER: Final = (
    "ALTER TABLE wide.t ALTER id TYPE bigint, ALTER s TYPE bigint, ALTER r TYPE float8,"
    " ALTER p TYPE numeric(9,3), ALTER d TYPE timestamp"
)
_ALL: Final = "SELECT * FROM wide.t ORDER BY id"


def test_rows_of_narrower_files(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    source, early, late = subscriber(18), subscriber(18), subscriber(18)
    for database, columns in ((source, _COLUMNS), (early, _WIDE), (late, _WIDE)):
        database.execute(f"CREATE SCHEMA wide; CREATE TABLE wide.t ({columns})")
    source.execute(
        "INSERT INTO wide.t SELECT i, i, i / 7.0, i / 3.0, date '2024-02-01' + i"
        " FROM generate_series(1, 50) i; CREATE PUBLICATION p FOR TABLE wide.t"
    )
    lake.node.sql(
        f"CREATE SUBSCRIPTION wide CONNECTION '{source.conninfo}' PUBLICATION p"
        " WITH (schema_change = widen)"
    )
    lake.node.wait_for(source.value("SELECT pg_current_wal_flush_lsn()::text"), subscription="wide")
    lake.execute("CREATE PUBLICATION wide FOR TABLE wide.t WHERE (id <> 13)")
    lake.subscribe(early, "wide", "wide")
    source.execute("UPDATE wide.t SET s = s + 1 WHERE id < 9")
    source.execute(
        f"BEGIN; UPDATE wide.t SET r = r + 1 WHERE id = 20; {_ALTER};"
        "INSERT INTO wide.t VALUES (1::bigint << 40, 1::bigint << 41, 0.1, 1.125,"
        " '2024-01-01 10:00');"
        "UPDATE wide.t SET s = -s WHERE id IN (3, 30); DELETE FROM wide.t WHERE id = 40; COMMIT"
    )
    caught_up(lake, source, "wide")
    assert lake.rows(_ALL) == source.rows(_ALL)
    where = (
        "SELECT id, s, r, p, d FROM wide.t WHERE p > 9.333 AND d < '2024-03-09 00:00:01' ORDER BY 1"
    )
    assert lake.rows(where) == source.rows(where)
    some = "SELECT id, s, p, d FROM wide.t WHERE id <> 13 ORDER BY id"
    assert early.rows(some) == source.rows(some)  # its r are what a real's text is
    lake.subscribe(late, "wide_late", "wide")
    assert late.rows(_ALL) == source.rows("SELECT * FROM wide.t WHERE id <> 13 ORDER BY id")
    # The node's own changes read narrower files, too, as do those that it sends.
    lake.execute("UPDATE wide.t SET r = r * 2, s = s + 100 WHERE id BETWEEN 10 AND 12")
    lake.execute("DELETE FROM wide.t WHERE d = timestamp '2024-02-21'")
    lake.caught_up("wide_late")
    found = [row for row in lake.rows(_ALL) if row[0] != 13]
    assert late.rows(_ALL) == found
    assert len(found) == 48
    lake.node.sql("DROP SUBSCRIPTION wide")
