"""The demo's comparison finds every difference, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from fix_postgres import Database
from penstock.demo import story
from penstock.demo.story import ComparedTable, Result

T = ComparedTable("public", "t")

COLUMNS = {
    "id": "bigint PRIMARY KEY",
    "amount": "numeric(10,2)",
    "ratio": "real",
    "at": "timestamptz",
    "local": "timestamp",
    "day": "date",
    "doc": "jsonb",
    "who": "uuid",
    "peer": "inet",
    "code": "char(4)",
    "bytes": "bytea",
    "words": "text[]",
    "sizes": "integer[]",
    "ratios": "real[]",
    "peers": "inet[]",
    "any_number": "numeric",
}


@pytest.fixture
def table(database: Database, tmp_path: Path) -> tuple[Database, str]:
    """Three rows of all types, in PostgreSQL and copied by hand to Delta."""
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    database.execute(f"CREATE TABLE t ({columns})")
    database.execute(
        "INSERT INTO t SELECT n, n * 1.5, n / 3.0, timestamptz '2026-01-02 03:04:05.678901+02',"
        " timestamp '1999-12-31 23:59:59', date '2000-02-29', '{\"b\": 1.0,  \"a\": [null]}',"
        " '00000000-0000-0000-0000-00000000000a', '10.1.2.3/8', 'ab', '\\x00ff',"
        " ARRAY['a,b', NULL, ''], ARRAY[1, n, NULL], ARRAY[0.1, 1e10], ARRAY['::1'::inet],"
        " 1.5000 FROM generate_series(1, 2) AS n"
    )
    database.execute("INSERT INTO t (id) VALUES (3)")
    kinds = {
        "id": pa.int64(),
        "amount": pa.decimal128(10, 2),
        "ratio": pa.float32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "bytes": pa.binary(),
        "words": pa.list_(pa.string()),
        "sizes": pa.list_(pa.int32()),
        "ratios": pa.list_(pa.float32()),
    }
    # format() gives what the types' output functions give, and that is what is replicated.
    texts = ("doc", "who", "peer", "peers", "any_number")
    chosen = ", ".join(
        f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END" if name in texts else name
        for name in COLUMNS
    )
    rows = database.rows(f"SELECT {chosen} FROM t ORDER BY id")
    arrays = [
        pa.array(values, kinds.get(name, pa.string()))
        for name, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)
    ]
    uri = str(tmp_path / "delta")
    write_deltalake(uri, pa.table(arrays, names=list(COLUMNS)))
    return database, uri


def result(table: tuple[Database, str], what: ComparedTable = T, limit: int = 1000) -> Result:
    database, uri = table
    connection = database.connect()
    connection.execute("SET timezone TO 'UTC'")
    return story.compare(connection, what, uri, 0, limit=limit)


def test_equal_tables_of_all_types(table: tuple[Database, str]) -> None:
    assert result(table) == Result("public.t", 3, 3)


@pytest.mark.parametrize(
    "change",
    [
        "amount = amount + 0.01",
        "ratio = 0.1",
        "at = at + interval '1 microsecond'",
        "doc = '{}'",
        "bytes = '\\x00fe'",
        "words = ARRAY['a', 'b']",
        "sizes = NULL",
        "peers = ARRAY['::2'::inet]",
        "code = 'abc'",
        "any_number = 1.500",
    ],
)
def test_a_changed_value_is_found(table: tuple[Database, str], change: str) -> None:
    table[0].execute(f"UPDATE t SET {change} WHERE id = 1")
    found = result(table)
    assert (found.equal, found.missing, found.extra) == (False, 1, 1)
    assert [e.split(":")[0] for e in found.examples] == ["only at the publisher", "only in Delta"]


def test_lost_made_up_and_doubled_rows_are_found(table: tuple[Database, str]) -> None:
    database, _ = table
    database.execute("INSERT INTO t (id) VALUES (4)")
    assert (result(table).missing, result(table).extra) == (1, 0)
    database.execute("DELETE FROM t WHERE id IN (1, 4)")
    assert (result(table).missing, result(table).extra) == (0, 1)
    database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t SELECT * FROM t WHERE id = 2"
    )
    assert (result(table).missing, result(table).extra) == (1, 1)


def test_column_lists_row_filters_and_limits(table: tuple[Database, str]) -> None:
    database, _ = table
    database.execute("CREATE PUBLICATION p FOR TABLE t (id, doc) WHERE (id > 1)")
    connection = database.connect()
    (published,) = story.published_tables(connection, "p")
    assert (published.full_name, published.columns) == ("public.t", ("id", "doc"))
    found = result(table, published)
    assert (found.publisher_rows, found.delta_rows, found.missing, found.extra) == (2, 3, 0, 1)
    counted = result(table, limit=2)
    assert (counted.counted_only, counted.equal) == (True, True)
