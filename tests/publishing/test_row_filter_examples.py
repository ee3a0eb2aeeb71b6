"""The worked examples of PostgreSQL's documentation, chapter "Row Filters": a node publishes.

Every statement and display also runs on a real server, and both print the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES = """
CREATE TABLE t1(a int, b int, c text, PRIMARY KEY(a,c));
CREATE TABLE t2(d int, e int, f int, PRIMARY KEY(d));
CREATE TABLE t3(g int, h int, i int, PRIMARY KEY(g));
"""

_PUBLICATIONS = r"""
CREATE PUBLICATION p1 FOR TABLE t1 WHERE (a > 5 AND c = 'NSW');
CREATE PUBLICATION p2 FOR TABLE t1, t2 WHERE (e = 99);
CREATE PUBLICATION p3 FOR TABLE t2 WHERE (d = 10), t3 WHERE (g = 10);
\dRp
\dRp+
\d t1
\d t2
\d t3
\d+ t1
\dt
"""

_ROWS = """
INSERT INTO t1 VALUES (2, 102, 'NSW');
INSERT INTO t1 VALUES (3, 103, 'QLD');
INSERT INTO t1 VALUES (4, 104, 'VIC');
INSERT INTO t1 VALUES (5, 105, 'ACT');
INSERT INTO t1 VALUES (6, 106, 'NSW');
INSERT INTO t1 VALUES (7, 107, 'NT');
INSERT INTO t1 VALUES (8, 108, 'QLD');
INSERT INTO t1 VALUES (9, 109, 'NSW');
SELECT * FROM t1 ORDER BY a;
"""

_CHANGES = [
    # (statement, what the subscriber has then)
    ("UPDATE t1 SET b = 999 WHERE a = 6;", [(6, 999, "NSW"), (9, 109, "NSW")]),
    ("UPDATE t1 SET a = 555 WHERE a = 2;", [(6, 999, "NSW"), (9, 109, "NSW"), (555, 102, "NSW")]),
    ("UPDATE t1 SET c = 'VIC' WHERE a = 9;", [(6, 999, "NSW"), (555, 102, "NSW")]),
]


def test_row_filters(pair: Pair, lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    target = subscriber(18)
    target.execute(_TABLES)
    pair.both(_TABLES + _PUBLICATIONS)
    lake.subscribe(target, "s1", "p1")
    pair.both(_ROWS)
    lake.caught_up("s1")
    rows = "SELECT * FROM t1 ORDER BY a"
    assert target.rows(rows) == [(6, 106, "NSW"), (9, 109, "NSW")]
    for statement, wanted in _CHANGES:
        pair.both(f"{statement}\nSELECT * FROM t1 ORDER BY a;")
        lake.caught_up("s1")
        assert target.rows(rows) == wanted


_PARTITIONED = """
CREATE TABLE parent(a int PRIMARY KEY) PARTITION BY RANGE(a);
CREATE TABLE child PARTITION OF parent DEFAULT;
"""

_VALUES = """
INSERT INTO parent VALUES (2), (4), (6);
INSERT INTO child VALUES (3), (5), (7);
SELECT * FROM parent ORDER BY a;
"""


def test_filters_of_partitions(
    pair: Pair, lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    target = subscriber(18)
    target.execute(_PARTITIONED)
    pair.both(
        _PARTITIONED
        + r"""
CREATE PUBLICATION p4 FOR TABLE parent WHERE (a < 5), child WHERE (a >= 5)
WITH (publish_via_partition_root=true);
\dRp+ p4
\d+ parent
\d child
"""
    )
    lake.subscribe(target, "s4", "p4")
    pair.both(_VALUES)
    lake.caught_up("s4")
    assert target.rows("SELECT * FROM parent ORDER BY a") == [(2,), (3,), (4,)]
    pair.both(
        r"""
DROP PUBLICATION p4;
CREATE PUBLICATION p4 FOR TABLE parent, child WHERE (a >= 5)
WITH (publish_via_partition_root=false);
\dRp+ p4
"""
    )
    target.execute("ALTER SUBSCRIPTION s4 REFRESH PUBLICATION")
    lake.copied(target, "s4")
    pair.both(f"TRUNCATE TABLE parent;\n{_VALUES}\nSELECT * FROM child ORDER BY a;")
    lake.caught_up("s4")
    assert target.rows("SELECT * FROM child ORDER BY a") == [(5,), (6,), (7,)]
