"""``schema_change = widen``: types that get wider at the publisher, without another copy.

Files from before stay as they are, so everything that reads a table reads narrower ones, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake.exceptions import DeltaError

from end_to_end.after_copy import after_first_copy
from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.errors import ConnectionFailure
from penstock.failpoint import BEFORE_CUT

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLES: Final = """
CREATE TABLE t (id int PRIMARY KEY, s smallint, r real, p numeric(6,2), d date, v varchar(9),
    big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, i, i / 7.0, i / 3.0, date '2020-02-28' + i, 'v' || i,
    CASE WHEN i % 4 = 0 THEN repeat('x', 9000) || i END FROM generate_series(1, 60) i;
INSERT INTO t VALUES (-2147483648, -32768, '-0', -9999.99, '0001-01-01', ''),
    (2147483647, 32767, 'Infinity', 9999.99, '9999-12-31', NULL),
    (0, NULL, 'NaN', NULL, NULL, NULL);
CREATE TABLE bag (s smallint, r real, p numeric(6,2), d date);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT i / 2, (i / 2) / 7.0, (i / 2) / 3.0, date '2020-01-01' + i / 2
    FROM generate_series(1, 40) i;
CREATE PUBLICATION p FOR TABLE t, bag
"""
_WIDER: Final = (
    "ALTER TABLE t ALTER id TYPE bigint, ALTER s TYPE int, ALTER r TYPE double precision,"
    " ALTER p TYPE numeric(9,3), ALTER d TYPE timestamp, ALTER v TYPE text;"
    "ALTER TABLE bag ALTER s TYPE int, ALTER r TYPE double precision,"
    " ALTER p TYPE numeric(9,3), ALTER d TYPE timestamp;"
)
_WIDEST: Final = (
    "ALTER TABLE t ALTER s TYPE bigint, ALTER p TYPE numeric(38,10), ALTER d TYPE timestamp(6);"
    "ALTER TABLE bag ALTER s TYPE bigint, ALTER p TYPE numeric(38,10);"
)
_CHANGES: Final = """
UPDATE t SET s = s - 1 WHERE id % {n} = 0 AND s > 0;
UPDATE t SET id = id + 1000 * {n} WHERE id BETWEEN {n} AND {n} + 1;
DELETE FROM t WHERE id = 20 + {n};
UPDATE bag SET r = r + 1 WHERE s = {n};
DELETE FROM bag WHERE s = 7 + {n};
INSERT INTO t VALUES (100 + {n}, {n}, 0.1, 0.1, '2024-02-29', '{n}', repeat('y', 5000));
INSERT INTO bag VALUES ({n}, 0.1, 0.1, '2024-02-29'), ({n}, 0.1, 0.1, '2024-02-29');
"""
_WIDE_ROWS: Final = """
INSERT INTO t VALUES
    (1::bigint << 40, 1 << 20, 1e300, 99999.999, '2024-02-29 12:34:56.789', repeat('v', 99))
    ON CONFLICT (id) DO UPDATE SET s = t.s + 1;
INSERT INTO bag VALUES (1 << 20, 1e300, 99999.999, '2024-02-29 12:34:56.789');
"""


def assert_equal(node: LocalNode, database: Database, *tables: str) -> None:
    """As Spark and the node itself read them."""
    assert all(table.equal for table in node.node.verify().tables)
    for table in tables:
        with database.connect() as connection:
            wanted = publisher_rows(connection, f"public.{table}")
        found = [tuple(row) for row in node.node.read(("public", table)).collect()]
        assert not (lack := difference(table, _told(wanted), _told(found))), str(lack)


def _told(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """NaN equals nothing, and -0 equals 0."""
    return [tuple(_text(v) if isinstance(v, float) else v for v in row) for row in rows]


def _text(number: float) -> str:
    return "NaN" if math.isnan(number) else repr(number)


def log_of(node: LocalNode, table: str) -> list[dict[str, Any]]:
    folder = Path(node.warehouse / "public" / table / "_delta_log")
    entries = sorted(folder.glob("0*.json"))
    return [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]


def operations(node: LocalNode, table: str) -> list[str]:
    log = log_of(node, table)
    return [each["commitInfo"]["operation"] for each in log if "commitInfo" in each]


def copied(node: LocalNode, table: str) -> int:
    """How often."""
    return operations(node, table).count("COPY")


@part_of_make_faults
def test_wider_types_inside_of_batches(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    database.execute(_TABLES)
    node = local_node(checkpoint_commits=2, compact_small_files=5)
    node.subscribe("s", database, "p", "schema_change = widen")
    node.caught_up("s", database)
    before = node.cut()
    for number, wider in enumerate((_WIDER, _WIDEST), 1):
        node.node.stop()
        database.execute(_CHANGES.format(n=number))
        # in one transaction with what was sent before the column got its type
        narrow, wide = (_CHANGES.format(n=number + more) for more in (2, 4))
        database.execute(f"BEGIN; {narrow} {wider} {wide} {_WIDE_ROWS} COMMIT")
        database.execute(_CHANGES.format(n=number + 8))
        node.node.start()
        node.caught_up("s", database)
        assert_equal(node, database, "t", "bag")
    # Until files are compacted, and narrow ones are among them.
    for number in range(11, 16):
        database.execute(_CHANGES.format(n=number))
        node.caught_up("s", database)
    assert_equal(node, database, "t", "bag")
    for table in ("t", "bag"):
        assert copied(node, table) == 1
        (protocol,) = [each["protocol"] for each in log_of(node, table) if "protocol" in each][-1:]
        assert "typeWidening" in protocol["readerFeatures"]
    assert "OPTIMIZE" in operations(node, "t")
    fields = {f.name: f.dataType.simpleString() for f in node.node.read(("public", "t")).schema}
    # Statistics of narrower files rule no row out that Spark looks for.
    asked = "id = {0} AND s = {1} AND r = {2!r}D AND p = {3} AND d = timestamp_ntz'{4}'"
    query = "SELECT id, s, r, p, d FROM t WHERE id IN (55, 59, 1::bigint << 40) ORDER BY id"
    for row in (found := database.rows(query)):
        assert node.node.read(("public", "t")).where(asked.format(*row)).count() == 1, row
    assert len(found) == 3
    assert fields == {
        "id": "bigint",
        "s": "bigint",
        "r": "double",
        "p": "decimal(38,10)",
        "d": "timestamp_ntz",
        "v": "string",
        "big": "string",
    }
    # Readers that do not know of it say so.
    with pytest.raises(DeltaError, match="TypeWidening"):
        node.rows("t")
    # An older cut has what it had.
    pin = before.tables["public", "t"]
    old = node.node.spark.read.format("delta").option("versionAsOf", pin.version).load(pin.uri)
    assert [f.dataType.simpleString() for f in old.schema][:2] == ["int", "smallint"]
    assert old.count() == 63
    # What is no wider type is copied again.
    database.execute("ALTER TABLE t ALTER s TYPE text; UPDATE t SET s = 'text' WHERE id < 20")
    database.execute("ALTER TABLE bag ALTER s TYPE int USING 7; INSERT INTO bag VALUES (8)")
    node.caught_up("s", database)
    assert_equal(node, database, "t", "bag")
    assert (copied(node, "t"), copied(node, "bag")) == (2, 2)


@part_of_make_faults
def test_wider_types_between_copy_and_stream(
    local_node: Callable[..., LocalNode], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where the batch comes again after its commit."""
    database.execute(_TABLES)
    done = [0]

    def widen() -> None:
        narrow, wide = (_CHANGES.format(n=n) for n in (2, 4))
        database.execute(f"{narrow} BEGIN; {_WIDER} {wide} {_WIDE_ROWS} COMMIT")

    def once(name: str) -> None:
        if name == BEFORE_CUT and not done[0]:
            done[0] += 1
            raise ConnectionFailure("the connection was lost before the cut")

    widened = after_first_copy(monkeypatch, widen)
    monkeypatch.setattr("penstock.subscription.apply.failpoint", once)
    node = local_node()
    node.subscribe("s", database, "p", "schema_change = widen")
    widened()
    node.caught_up("s", database)
    assert_equal(node, database, "t", "bag")
    assert done == [1]
    assert (copied(node, "t"), copied(node, "bag")) == (1, 1)


def test_values_that_may_be_others_are_copied_again(
    local_node: Callable[..., LocalNode], database: Database
) -> None:
    """Types that are one to Delta, and a date that stands for infinity; types that are one to
    PostgreSQL are followed without a copy."""
    names = {
        "blanks": ("char(5)", "text", "'a'"),
        "json": ("json", "jsonb", """'{"b":1, "a":2}'"""),
        "rounded": ("numeric(7,0)", "numeric(5,-3)", "12345"),
        "digits": ("numeric", "numeric(60,3)", "1.5"),
        "moment": ("timestamp", "timestamp(0)", "'2024-01-01 00:00:00.6'"),
        "ever": ("date", "timestamp", "'infinity'"),
        "longer": ("varchar(3)", "varchar(5)", "'abc'"),
        "plain": ("varchar(3)", "text", "'abc'"),
    }
    database.execute(
        "".join(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v {old});INSERT INTO {name} VALUES (1, {v});"
            for name, (old, _, v) in names.items()
        )
        + f"CREATE PUBLICATION p FOR TABLE {', '.join(names)}"
    )
    node = local_node()
    node.subscribe("s", database, "p", "schema_change = widen, out_of_range = clamp")
    node.caught_up("s", database)
    node.node.stop()
    for name, (_, new, _) in names.items():
        database.execute(f"ALTER TABLE {name} ALTER v TYPE {new}; INSERT INTO {name} VALUES (2)")
    node.node.start()
    node.caught_up("s", database)
    assert all(table.equal for table in node.node.verify().tables)
    assert [name for name in names if copied(node, name) == 1] == ["longer", "plain"]
