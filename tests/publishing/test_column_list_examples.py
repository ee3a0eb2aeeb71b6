"""The worked example of PostgreSQL's documentation, chapter "Column Lists": a node publishes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode
from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = "CREATE TABLE t1(id int, a text, b text, c text, d text, e text, PRIMARY KEY(id));"
_PARTIAL = "CREATE TABLE t1(id int, b text, a text, d text, PRIMARY KEY(id));"


def test_column_lists(pair: Pair, lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    target = subscriber(18)
    target.execute(_PARTIAL)
    pair.both(
        _TABLE
        + r"""
CREATE PUBLICATION p1 FOR TABLE t1 (id, a, b, d);
\dRp+
\d t1
"""
    )
    lake.subscribe(target, "s1", "p1")
    pair.both(
        """
INSERT INTO t1 VALUES(1, 'a-1', 'b-1', 'c-1', 'd-1', 'e-1');
INSERT INTO t1 VALUES(2, 'a-2', 'b-2', 'c-2', 'd-2', 'e-2');
INSERT INTO t1 VALUES(3, 'a-3', 'b-3', 'c-3', 'd-3', 'e-3');
SELECT * FROM t1 ORDER BY id;
"""
    )
    lake.caught_up("s1")
    rows = "SELECT * FROM t1 ORDER BY id"
    wanted = [(n, f"b-{n}", f"a-{n}", f"d-{n}") for n in (1, 2, 3)]
    assert target.rows(rows) == wanted
    pair.both("UPDATE t1 SET c = 'x', d = NULL WHERE id = 2;\nDELETE FROM t1 WHERE id = 3;")
    lake.caught_up("s1")
    assert target.rows(rows) == [wanted[0], (2, "b-2", "a-2", None)]
    # the initial copy has the listed columns only, too
    target.execute("DROP SUBSCRIPTION s1")
    target.execute("TRUNCATE t1")
    lake.subscribe(target, "s1", "p1")
    assert target.rows(rows) == [wanted[0], (2, "b-2", "a-2", None)]


def test_what_a_list_needs(pair: Pair) -> None:
    pair.both(
        r"""
CREATE TABLE lists (id int PRIMARY KEY, a text, b text);
CREATE PUBLICATION l1 FOR TABLE lists (a, b);
UPDATE lists SET a = 'x';
DELETE FROM lists;
INSERT INTO lists VALUES (1, 'a', 'b');
UPDATE lists SET a = 'x';
DELETE FROM lists;
ALTER PUBLICATION l1 SET TABLE lists (id, b);
UPDATE lists SET a = 'x';
ALTER PUBLICATION l1 SET TABLE lists (id, nothing);
ALTER PUBLICATION l1 SET TABLE lists (id, id);
ALTER PUBLICATION l1 SET TABLE lists WHERE (a = 'x');
UPDATE lists SET b = 'x';
ALTER PUBLICATION l1 SET (publish = 'insert');
UPDATE lists SET b = 'x';
\dRp+ l1
DROP PUBLICATION l1;
CREATE TABLE keyless (a int);
CREATE PUBLICATION l2 FOR TABLE keyless;
INSERT INTO keyless VALUES (1);
UPDATE keyless SET a = 2;
DELETE FROM keyless;
ALTER TABLE keyless REPLICA IDENTITY FULL;
UPDATE keyless SET a = 3;
SELECT * FROM keyless;
DROP PUBLICATION l2;
"""
    )
