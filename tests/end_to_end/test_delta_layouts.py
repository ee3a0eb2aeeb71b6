"""Tables that Delta lays out: partitioned and clustered targets, beside the publisher at every cut,
as plain Spark and delta-rs read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from deltalake import DeltaTable as DeltaRs

from end_to_end.compare import delta_rows
from end_to_end.local_node import LocalNode
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.lakehouse.actions import ENGINE

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_WIDE = ", ".join(f"c{i} int" for i in range(40))
_PUBLISHED = f"""
CREATE TABLE events (id int PRIMARY KEY, day date, region text, v int, big text);
ALTER TABLE events ALTER big SET STORAGE EXTERNAL;
CREATE TABLE keyed (region text, at timestamptz, l timestamp, b boolean, n numeric(6,2),
  f float8, i bigint, v text, big text, PRIMARY KEY (region, i));
ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL, ALTER region SET STORAGE EXTERNAL;
CREATE TABLE bag (kind text, f float8, v text);
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE wide (id int PRIMARY KEY, {_WIDE}, day date, big text);
CREATE TABLE fresh (id int PRIMARY KEY, "Day" date, region text, v int);
CREATE TABLE nearby (id int PRIMARY KEY, day date, region text, v int);
INSERT INTO events SELECT i, '2024-01-01'::date + i % 4, CASE i % 3 WHEN 0 THEN 'a b/ü%=:?#' WHEN 1
  THEN 'B' END, i, repeat('x', 3000) FROM generate_series(1, 40) i;
INSERT INTO keyed SELECT 'r' || i % 3, '2020-02-29 23:59:59.5+00'::timestamptz + i % 2 * interval
  '1 hour', '2020-01-01', i % 2 = 0, i % 2 - 0.01, 1.0 / (i % 2), i, 'v', repeat('y', 3000)
  FROM generate_series(1, 9, 2) i;
INSERT INTO keyed VALUES ('null', NULL, NULL, NULL, NULL, NULL, 0);
INSERT INTO bag VALUES ('a', 0.1, 'x'), ('a', 0.1, 'x'), (NULL, NULL, NULL), (NULL, NULL, NULL),
  ('a', 'NaN', 'x'), ('b', '-0', 'y'), ('b', '0', 'y'), ('b', '-infinity', 'y');
INSERT INTO wide (id, c39, day) SELECT i, i, '2024-01-01'::date + i FROM generate_series(1, 9) i;
INSERT INTO fresh SELECT i, '2024-01-01'::date + i % 3, 'r', i FROM generate_series(1, 9) i;
INSERT INTO nearby SELECT id, "Day", region, v FROM fresh;
CREATE PUBLICATION p FOR ALL TABLES
"""
_KEYED = ["own", "region", "at", "l", "b", "n", "f"]
_OF_SPARK = {
    "events": (
        "big STRING, v INT, region STRING, day DATE, id INT",
        "PARTITIONED BY (region, day)",
    ),
    "keyed": (
        "region STRING, at TIMESTAMP, l TIMESTAMP_NTZ, b BOOLEAN, n DECIMAL(6,2), f DOUBLE,"
        " i BIGINT, v STRING, big STRING, own STRING",
        f"PARTITIONED BY ({', '.join(_KEYED)})",
    ),
    "bag": ("v STRING, f DOUBLE, kind STRING", "PARTITIONED BY (kind, f)"),
    "wide": (
        "id INT, " + _WIDE.replace("int", "INT") + ", day DATE, big STRING",
        "CLUSTER BY (c39, day)",
    ),
}
_TABLES = ("events", "keyed", "bag", "wide", "fresh", "nearby")
_CHANGES = (
    # to another partition, with and without a value that is not sent, and to no partition
    "UPDATE events SET region = 'moved', day = NULL WHERE id % 5 = 0;"
    " UPDATE events SET v = v + 1 WHERE id < 10; UPDATE events SET id = id + 100 WHERE id = 7",
    "BEGIN; DELETE FROM events WHERE region IS NULL AND id < 20; INSERT INTO events VALUES"
    " (200, '0001-01-01', ' ', 1, 'z'), (201, NULL, E'\\t''\"', 2, NULL); COMMIT",
    # the key has the partition column; its value is long, and not sent
    "UPDATE keyed SET v = 'w' WHERE i < 5; UPDATE keyed SET region = 'R' WHERE i = 5;"
    " UPDATE keyed SET at = NULL, f = 'NaN' WHERE i = 7; DELETE FROM keyed WHERE i = 9;"
    " INSERT INTO keyed VALUES (repeat('L', 2400), '1969-12-31 12:00:00.000001+00',"
    " '2020-01-01 00:00:00.1', true, 0, '-0', 11, 'long', repeat('z', 5000))",
    "UPDATE keyed SET v = 'x', n = 1.5 WHERE i IN (0, 11); UPDATE keyed SET b = NULL",
    "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE kind = 'a');"
    " DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE kind IS NULL);"
    " UPDATE bag SET f = 7, kind = 'c' WHERE f = 'NaN'; UPDATE bag SET v = 'z' WHERE kind = 'b'",
    "UPDATE wide SET c39 = -c39 WHERE id < 4; DELETE FROM wide WHERE id = 9;"
    ' UPDATE fresh SET "Day" = "Day" + 1 WHERE id < 5; DELETE FROM nearby WHERE id < 3;'
    " UPDATE nearby SET region = 'q' WHERE id = 4; INSERT INTO fresh VALUES (10)",
)


def _publisher(database: Database) -> dict[str, Counter[tuple[str, ...]]]:
    return {
        table: _counted(database.rows(f"SELECT {_columns(table)} FROM {table}"))
        for table in _TABLES
    }


def _columns(table: str) -> str:
    match table:
        case "events":
            return "big, v, region, day, id"
        case "bag":
            return "v, f, kind"
        case "keyed":
            return "region, at, l, b, n, f, i, v, big, NULL"
    return "*"


def _counted(rows: Any) -> Counter[tuple[str, ...]]:
    return Counter(tuple(map(_text, row)) for row in rows)


def _text(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    return str(value).lower()


def _check(node: LocalNode, spark: Any, wanted: dict[str, Counter[tuple[str, ...]]]) -> None:
    """Every table at the last cut, by readers that are not ours. ``spark`` None: by delta-rs."""
    for (_, table), pin in node.cut().tables.items():
        by_rust = _counted(delta_rows(pin.uri, pin.version))
        assert by_rust == wanted[table], (table, by_rust - wanted[table], wanted[table] - by_rust)
        if spark is not None:
            reader = spark.read.format("delta").option("versionAsOf", pin.version)
            arrow = reader.load(pin.uri).toArrow()
            by_spark = _counted(zip(*(each.to_pylist() for each in arrow.columns), strict=True))
            assert by_spark == wanted[table], (table, by_spark - wanted[table])


@part_of_make_faults
def test_tables_that_delta_lays_out(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    database.execute(_PUBLISHED)
    node = local_node(compact_small_files=3)
    where = f"{node.warehouse}/public"
    for table, (columns, layout) in _OF_SPARK.items():
        spark.sql(
            f"CREATE TABLE delta.`{where}/{table}` ({columns}) USING delta {layout} TBLPROPERTIES"
            " ('delta.enableDeletionVectors' = 'true', 'delta.dataSkippingNumIndexedCols' = '42')"
        )
    node.subscribe(
        "s",
        database,
        "p",
        "partition_by = 'fresh (\"Day\", region)', cluster_by = 'public.nearby (region, day)'",
    )
    node.caught_up("s", database)
    _check(node, spark, _publisher(database))
    for change in _CHANGES:
        database.execute(change)
        node.caught_up("s", database)
        _check(node, None, _publisher(database))
    for table in ("events", "keyed"):
        spark.sql(f"UPDATE delta.`{where}/{table}` SET v = v WHERE length(region) < 100")
    for table in ("wide", "nearby"):
        spark.sql(f"OPTIMIZE delta.`{where}/{table}` FULL")
    # rows in files of Spark's, whose folders are named after partitions
    database.execute("UPDATE events SET v = 0; UPDATE keyed SET v = 'o'; UPDATE wide SET c0 = 1;")
    database.execute("UPDATE events SET day = day + 1 WHERE id > 20; UPDATE nearby SET v = 7;")
    database.execute("UPDATE keyed SET region = region || '/1', f = f + 1 WHERE i IN (1, 11)")
    node.caught_up("s", database)
    _check(node, spark, _publisher(database))
    database.execute("TRUNCATE events, bag, fresh; INSERT INTO events VALUES (1, NULL, 'x')")
    node.caught_up("s", database)
    _check(node, spark, _publisher(database))
    assert node.node.verify(subscription="s").equal
    _laid_out(node, spark)


_COMPACTED = {"events": {True}, "wide": {False}, "nearby": {False}}
"""By the node, or by Spark."""


def _laid_out(node: LocalNode, spark: Any) -> None:
    """As they were made, after checkpoints and compactions of the node and of Spark."""
    partitioned = {"events": ["region", "day"], "keyed": _KEYED, "bag": ["kind", "f"]}
    partitioned["fresh"] = ["Day", "region"]
    clustered = {"wide": ["c39", "day"], "nearby": ["region", "day"]}
    for (_, table), pin in node.cut().tables.items():
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{pin.uri}`").collect()[0]
        assert detail.partitionColumns == partitioned.get(table, []), table
        assert detail.clusteringColumns == clustered.get(table, []), table
        history = DeltaRs(pin.uri).history()
        compacted = {c.get("engineInfo") == ENGINE for c in history if c["operation"] == "OPTIMIZE"}
        assert compacted >= _COMPACTED.get(table, set()), (table, compacted)
