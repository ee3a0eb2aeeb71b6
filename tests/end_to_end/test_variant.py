"""``jsonb_as = variant``: what plain Spark reads of the columns is the publisher's jsonb."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.errors import PenstockError

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_VALUES = (
    "NULL",
    "'null'",
    "'{}'",
    "'[]'",
    "'[[], {}, [{}], {\"a\": {}}]'",
    """'{"a": {"b": 7, "c": [1, 2.50, {"d": null}]}, "id": 1, "zz": true}'""",
    "to_jsonb(repeat('x', 63))",
    "to_jsonb(repeat('ü', 64))",
    "to_jsonb(E'\"\\\\/\\b\\f\\n\\r\\t\\x01\\x7f é 😀 \\u2028'::text)",
    "'[0, -1, 127, 128, -129, 32768, 2147483648, 9223372036854775807, -9223372036854775808]'",
    "'[9223372036854775808, 99999999999999999999999999999999999999]'",
    "'[0.1, -0.0, 1.0, 100.00, 1e5, 1e-5, 1.5e300, 1e-300, 12345678901234567890.123456789]'",
    "'0.12345678901234567890123456789012345678'",
    """'{"": 0, "é": 1, "ｚ": 2, "😀": 3, "a.b": 4, "a b": 5, "A": 6}'""",
    "(SELECT jsonb_object_agg('k' || n, n) || '{\"ｚ\": 1, \"😀\": 2}'"
    " FROM generate_series(1, 300) n)",
    "(SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 3000) n)",
    "(repeat('[', 200) || '1' || repeat(']', 200))::jsonb",
)
_TABLES = f"""
CREATE TABLE t (id int PRIMARY KEY, v jsonb, j json, a jsonb[], note text);
ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, v jsonb);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE bag (n int, v jsonb);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO t (id, v) VALUES {", ".join(f"({n}, {v})" for n, v in enumerate(_VALUES))};
UPDATE t SET j = '{{"b": 1, "a": 1, "a": 2}}', a = ARRAY['{{"b":1}}'::jsonb, NULL] WHERE id < 3;
INSERT INTO whole SELECT id, v FROM t;
INSERT INTO bag SELECT id, v FROM t; INSERT INTO bag SELECT id, v FROM t WHERE id < 5;
CREATE PUBLICATION p FOR ALL TABLES
"""
_CHANGES = """
INSERT INTO t (id, v) SELECT id + 100, v FROM t;
UPDATE t SET note = 'unchanged values come from the old row' WHERE id < 100;
UPDATE t SET v = v || '{"more": 1.10}' WHERE id = 5;
UPDATE t SET v = NULL WHERE id = 101;
UPDATE t SET v = 'null' WHERE id = 100;
DELETE FROM t WHERE id BETWEEN 103 AND 105;
UPDATE whole SET v = jsonb_build_array(v) WHERE id % 2 = 0;
DELETE FROM whole WHERE id % 3 = 0;
DELETE FROM bag WHERE n % 4 = 3;
DELETE FROM bag WHERE ctid IN (SELECT min(ctid) FROM bag WHERE n < 2 GROUP BY n);
UPDATE bag SET v = jsonb_build_object('was', v) WHERE n % 5 = 4;
UPDATE bag SET n = n + 1000 WHERE n > 10
"""


def _read(text: str | None) -> str:
    """Whatever the order of keys is, and how a number is written."""

    def plain(value: Any) -> Any:
        match value:
            case Decimal():
                return f"number {value.normalize() if value else 0:f}"
            case list():
                return [plain(each) for each in value]
            case dict():
                return {key: plain(each) for key, each in value.items()}
        return value

    if text is None:
        return "NULL"
    return json.dumps(
        plain(json.loads(text, parse_int=_number, parse_float=_number)), sort_keys=True
    )


def _number(text: str) -> Decimal:
    return Decimal(text)


class _Lake:
    """A node's tables as plain Spark reads them, beside the publisher's."""

    def __init__(self, node: LocalNode, spark: Any, database: Database) -> None:
        self.node, self.spark, self.database = node, spark, database

    def sql(self, table: str, columns: str) -> list[Any]:
        """Live rows of the newest version."""
        live = "WHERE _deleted_at IS NULL" if "_deleted_at" in self.types(table) else ""
        return list(self.spark.sql(f"SELECT {columns} FROM {self.path(table)} {live}").collect())

    def path(self, table: str) -> str:
        """The table in Spark's words."""
        return f"delta.`{self.node.warehouse}/public/{table}`"

    def types(self, table: str) -> dict[str, str]:
        """Of its columns."""
        return dict(self.spark.sql(f"SELECT * FROM {self.path(table)} LIMIT 0").dtypes)

    def log(self, table: str) -> Iterator[dict[str, Any]]:
        for entry in sorted((self.node.warehouse / "public" / table / "_delta_log").glob("*.json")):
            yield from map(json.loads, entry.read_text().splitlines())

    def errors(self) -> dict[str, str]:
        """Of tables that have one."""
        tables = self.node.status("s").tables
        return {
            t.name.removeprefix("public."): f"{t.error} {t.error_hint}" for t in tables if t.error
        }

    def check(self, table: str, key: str, column: str = "v") -> None:
        """Every value, and how often it is there."""
        self.node.caught_up("s", self.database)
        ours = self.sql(table, f"{key}, to_json({column})")
        theirs = self.database.rows(f"SELECT {key}, {column}::text FROM {table}")
        here, there = (Counter((row[0], _read(row[1])) for row in rows) for rows in (ours, theirs))
        assert here == there, (here - there, there - here)

    def check_all(self) -> None:
        for table, key in (("t", "id"), ("whole", "id"), ("bag", "n")):
            self.check(table, key)


@part_of_make_faults
@pytest.mark.parametrize(
    "options",
    [
        "binary = true, history = true, soft_delete = true, metadata_columns = true",
        in_make_faults("streaming = off"),
    ],
)
def test_copy_and_stream(
    local_node: Callable[..., LocalNode], database: Database, spark: Any, options: str
) -> None:
    small = "64kB"  # the changes are one transaction, which is streamed
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '{small}'")
    database.execute(_TABLES)
    node = local_node(logical_decoding_work_mem=small)
    node.subscribe("s", database, "p", f"jsonb_as = variant, {options}")
    lake = _Lake(node, spark, database)
    lake.check_all()
    types = lake.types("t")
    assert [types[name] for name in "vja"] == ["variant", "string", "array<string>"]
    (protocol,) = [line["protocol"] for line in lake.log("t") if "protocol" in line]
    for features in (protocol["readerFeatures"], protocol["writerFeatures"]):
        assert "variantType" in features
    for line in lake.log("t"):
        stats = json.loads(line.get("add", {}).get("stats") or "{}")
        assert "v" not in {*stats.get("minValues", {}), *stats.get("maxValues", {})}
    (row,) = [
        row
        for row in lake.sql(
            "t", "id, v:a.b::int b, variant_get(v, '$.a.c[1]', 'decimal(3,2)') c, v:zz z"
        )
        if row.id == 5
    ]
    assert (row.b, row.c) == (7, Decimal("2.50"))
    names = lake.sql("t", "id, try_variant_get(v, '$[\"😀\"]', 'int') e")
    assert {row.e for row in names if row.id in (13, 14)} == {3, 2}
    database.execute(_CHANGES)
    lake.check_all()
    if "history" in options:
        ((deleted,),) = lake.sql("t__history", "count_if(id = 103 AND to_json(v) = '[]')")
        assert deleted > 0
    assert node.node.verify(subscription="s").equal
    spark.sql(f"UPDATE {lake.path('t')} SET v = parse_json('{{\"a\": 2}}') WHERE id = 5")
    told = node.node.verify(subscription="s")
    assert not told.equal


_OTHERS = """
CREATE TABLE own (id int PRIMARY KEY, v jsonb);
INSERT INTO own VALUES (1, '{"a": 1}'), (2, NULL);
CREATE TABLE bag (n int, v jsonb);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT n, jsonb_build_object('n', n, 'f', n / 7.0) FROM generate_series(1, 50) n;
CREATE TABLE leafy (id int PRIMARY KEY);
INSERT INTO leafy SELECT generate_series(1, 9);
CREATE TABLE exact (id int PRIMARY KEY, v jsonb);
CREATE TABLE copied (id int PRIMARY KEY, v jsonb);
INSERT INTO copied VALUES (1, '{"pi": %s}');
CREATE TABLE keyed (v jsonb PRIMARY KEY);
CREATE TABLE parted (id int PRIMARY KEY, v jsonb);
CREATE TABLE clustered (id int PRIMARY KEY, v jsonb);
CREATE PUBLICATION p FOR ALL TABLES
"""
_PI = f"3.{'14159' * 10}"


@part_of_make_faults
def test_others_and_limits(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    """Tables and files of other writers, columns that come later, what is refused."""
    database.execute(_OTHERS % _PI)
    node = local_node(compact_small_files=12)
    lake = _Lake(node, spark, database)
    spark.sql(
        f"CREATE TABLE {lake.path('own')} (id int, v variant) USING delta"
        " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    node.node.sql("CREATE TABLE leafy (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    leaf = "CREATE TABLE leafy_{0} PARTITION OF leafy FOR VALUES FROM ({0}) TO ({1})"
    for low, high in ((0, 5), (5, 50)):
        node.node.sql(leaf.format(low, high))
    node.subscribe(
        "s",
        database,
        "p",
        "jsonb_as = variant, on_table_error = park, schema_change = follow,"
        " partition_by = 'parted (v)', cluster_by = 'clustered (v)'",
    )
    wait_until(lambda: len(lake.errors()) == 4, "four tables that cannot be made", 90)
    node.wait_for(
        "s", "the others", lambda s: sum(t.state == "r" for t in s.tables) == 4, fails=False
    )
    errors = lake.errors()
    assert "cannot be a variant" in errors["keyed"]
    assert "is variant" in errors["parted"]
    assert "is variant" in errors["clustered"]
    assert "cannot be represented as a variant" in errors["copied"]
    database.execute("DROP TABLE keyed, parted, clustered")
    node.node.sql("ALTER SUBSCRIPTION s SET (jsonb_as = text)")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE copied")  # as the hint says
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    lake.check("own", "id")
    assert lake.types("copied")["v"] == "string"
    node.node.sql("ALTER SUBSCRIPTION s SET (jsonb_as = variant)")

    database.execute("INSERT INTO bag SELECT n + 50, v FROM bag")
    node.caught_up("s", database)
    (optimized,) = spark.sql(f"OPTIMIZE {lake.path('bag')}").collect()
    assert optimized.metrics.numFilesAdded == 1  # Spark's writer says what its columns are
    database.execute(
        "DELETE FROM bag WHERE n % 3 = 0; UPDATE bag SET v = v || '{\"x\": []}' WHERE n % 3 = 1;"
        "UPDATE own SET v = '[1.0]'; INSERT INTO own VALUES (3, 'null')"
    )
    database.execute(
        "ALTER TABLE leafy ADD COLUMN v jsonb; INSERT INTO leafy VALUES (10, '{\"k\": 1}');"
        "ALTER TABLE own ADD COLUMN w jsonb; UPDATE own SET w = v WHERE id > 1"
    )
    for n in range(5):  # small files, which are compacted
        database.execute(f"INSERT INTO bag VALUES ({n}, '{{\"later\": {n}}}')")
        node.caught_up("s", database)
    lake.check("bag", "n")
    lake.check("own", "id")
    lake.check("own", "id", "w")
    node.node.sql(leaf.format(50, 99))  # as its root is by now
    node.node.sql("CREATE TABLE leafy_99 (id int PRIMARY KEY, v jsonb)")
    with pytest.raises(PenstockError, match='different type for column "v"'):
        node.node.sql("ALTER TABLE leafy ATTACH PARTITION leafy_99 FOR VALUES FROM (99) TO (100)")
    database.execute("INSERT INTO leafy VALUES (60, '2.50')")
    node.caught_up("s", database)
    leaves = [row for n in (0, 5, 50) for row in lake.sql(f"leafy_{n}", "id, to_json(v)")]
    assert sorted(leaves) == [*((n, None) for n in range(1, 10)), (10, '{"k":1}'), (60, "2.5")]
    assert node.node.verify(subscription="s").equal

    database.execute(f"INSERT INTO exact VALUES (1, '{{\"pi\": {_PI}}}')")
    node.caught_up_but_parked("s", database)
    told = lake.errors()["exact"]
    assert "cannot be represented as a variant" in told
    assert "jsonb_as = text" in told
    node.node.sql("ALTER SUBSCRIPTION s SET (jsonb_as = text)")
    node.node.sql("ALTER SUBSCRIPTION s REFRESH TABLE exact, leafy")
    node.caught_up("s", database)
    assert lake.types("exact")["v"] == "string"
    assert {lake.types(f"leafy_{n}")["v"] for n in (0, 5, 50)} == {"string"}
    assert lake.sql("leafy_50", "id, v") == [(60, "2.50")]
    assert lake.types("own")["v"] == "variant"
    database.execute("ALTER TABLE bag ALTER v TYPE json; INSERT INTO bag VALUES (0, '{\"a\":1}')")
    node.wait_for("s", "a new copy", lambda status: lake.types("bag")["v"] == "string", fails=False)
    node.caught_up("s", database)
