"""Routing beside a server: the same partitions, the same rows, the same leaf or the same error.

Every row is routed in this process and in a job of Spark's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from fix_postgres import Database
from penstock import pgtypes
from penstock.attribute import Attribute
from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported
from penstock.executor.routes import ROUTE, Route
from penstock.pgtypes import pg_type
from penstock.pipeline.partition_tree import membership, routing_of
from penstock.sql import parse_partition_bound
from penstock.walsender.lake_columns import LakeColumn, schema_of, spark_type

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

TYPES = {
    "smallint": (pg_type.INT2, -1),
    "int": (pg_type.INT4, -1),
    "bigint": (pg_type.INT8, -1),
    "text": (pg_type.TEXT, -1),
    'text COLLATE "C"': (pg_type.TEXT, -1),
    "varchar(3)": (pg_type.VARCHAR, 3 + 4),
    "char(3)": (pg_type.BPCHAR, 3 + 4),
    "numeric": (pg_type.NUMERIC, -1),
    "numeric(6,2)": (pg_type.NUMERIC, (6 << 16 | 2) + 4),
    "float4": (pg_type.FLOAT4, -1),
    "float8": (pg_type.FLOAT8, -1),
    "date": (pg_type.DATE, -1),
    "timestamp": (pg_type.TIMESTAMP, -1),
    "timestamptz": (pg_type.TIMESTAMPTZ, -1),
    "interval": (pg_type.INTERVAL, -1),
    "boolean": (pg_type.BOOL, -1),
    "bytea": (pg_type.BYTEA, -1),
    "uuid": (pg_type.UUID, -1),
    "inet": (pg_type.types_by_name()["inet"].oid, -1),
    "int[]": (pgtypes.registry.array_oid(pg_type.INT4), -1),
}

UUID = "a0000000-0000-4000-8000-00000000000b"

Trees = dict[str, tuple[tuple[str, ...], str, dict[str, tuple[str, str, str | None]]]]
"""Name -> types of a, b ..., PARTITION BY, partition -> (parent, bound, its PARTITION BY)."""

TREES: Trees = {
    "list": (
        ("int", "text"),
        "LIST (a)",
        {
            "p1": ("root", "FOR VALUES IN (1, 2, NULL)", None),
            "p2": ("root", "FOR VALUES IN (-3)", None),
        },
    ),
    "list with default": (
        ("text",),
        "LIST (a)",
        {
            "p1": ("root", "FOR VALUES IN ('x', '')", None),
            "p2": ("root", "FOR VALUES IN ('it''s')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "ranges of two columns": (
        ("int", "numeric(6,2)"),
        "RANGE (a, b)",
        {
            "p1": ("root", "FOR VALUES FROM (1, 0) TO (1, 10.5)", None),
            "p2": ("root", "FOR VALUES FROM (1, 10.5) TO (5, MINVALUE)", None),
            "p3": ("root", "FOR VALUES FROM (10, MINVALUE) TO (MAXVALUE, MAXVALUE)", None),
        },
    ),
    "integers at their ends": (
        ("smallint", "bigint"),
        "RANGE (a, b)",
        {
            "p1": ("root", f"FOR VALUES FROM (-32768, MINVALUE) TO (7, {2**63 - 1})", None),
            "p2": ("root", f"FOR VALUES FROM (7, {2**63 - 1}) TO (32767, {-(2**63)})", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "numbers of a scale": (
        ("numeric(6,2)",),
        "LIST (a)",
        {
            "p1": ("root", "FOR VALUES IN (1.0, '-5', 10.495)", None),
            "p2": ("root", "FOR VALUES IN ('0.00', 'NaN')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "numbers up to NaN": (
        ("numeric(6,2)",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM (1.00) TO (10.5)", None),
            "p2": ("root", "FOR VALUES FROM (10.5) TO ('NaN')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "dates": (
        ("date",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM (MINVALUE) TO ('2024-01-01')", None),
            "p2": ("root", "FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')", None),
        },
    ),
    "dates up to infinity": (
        ("date", "int"),
        "RANGE (a, b)",
        {
            "p1": ("root", "FOR VALUES FROM ('-infinity', 5) TO ('20240101', 2)", None),
            "p2": ("root", "FOR VALUES FROM ('2024-01-01', 2) TO ('infinity', 0)", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "dates of a list": (
        ("date",),
        "LIST (a)",
        {
            "p1": ("root", "FOR VALUES IN ('20240101', 'infinity', NULL)", None),
            "p2": ("root", "FOR VALUES IN ('-infinity', '0044-03-15 BC', '2024-01-31')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "moments": (
        ("timestamp",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM ('2024-01-01') TO ('2024-01-01 12:00:00.5')", None),
            "p2": ("root", "FOR VALUES FROM ('2024-01-01 12:00:00.5') TO ('infinity')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "moments of zones": (
        ("timestamptz",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM ('-infinity') TO ('2024-01-01 02:00+02')", None),
            "p2": (
                "root",
                "FOR VALUES FROM ('2024-01-01 00:00Z') TO ('2024-01-01 07:00-05')",
                None,
            ),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "a list of moments": (
        ("timestamptz", "timestamp"),
        "LIST (a)",
        {
            "p1": ("root", "FOR VALUES IN ('2024-01-01 01:00+01', '-infinity')", "LIST (b)"),
            "p1a": ("p1", "FOR VALUES IN ('2024-01-01 12:00:00.5', 'infinity')", None),
            "p1d": ("p1", "DEFAULT", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "numbers with NaN": (
        ("float8",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM (MINVALUE) TO (0)", None),
            "p2": ("root", "FOR VALUES FROM (0) TO ('Infinity')", None),
            "p3": ("root", "FOR VALUES FROM ('Infinity') TO ('NaN')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "a list of floats": (
        ("float8", "float4"),
        "LIST (a)",
        {
            "p1": ("root", "FOR VALUES IN ('-0', 'nan')", "LIST (b)"),
            "p1a": ("p1", "FOR VALUES IN (0.1, 'inf')", None),
            "p1d": ("p1", "DEFAULT", None),
            "p2": ("root", "FOR VALUES IN ('-inf', 15e-1)", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "booleans": (
        ("boolean",),
        "LIST (a)",
        {"p1": ("root", "FOR VALUES IN (true)", None), "pd": ("root", "DEFAULT", None)},
    ),
    "booleans in words": (
        ("boolean", "boolean"),
        "RANGE (a, b)",
        {
            "p1": ("root", "FOR VALUES FROM ('off', 'yes') TO ('1', 'n')", None),
            "p2": ("root", "FOR VALUES FROM ('on', 'F') TO (MAXVALUE, MAXVALUE)", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "bytes": (
        ("bytea",),
        "RANGE (a)",
        {
            "p1": ("root", r"FOR VALUES FROM ('\x') TO ('\x41')", None),
            "p2": ("root", r"FOR VALUES FROM ('A') TO ('\xFE00')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "a list of bytes": (
        ("bytea",),
        "LIST (a)",
        {
            "p1": ("root", r"FOR VALUES IN ('\x41', '\376')", None),
            "p2": ("root", r"FOR VALUES IN ('\000', '\x', NULL)", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "texts by their bytes": (
        ('text COLLATE "C"', "varchar(3)"),
        "RANGE (a, b)",
        {
            "p1": ("root", r"FOR VALUES FROM ('', 'b') TO ('X', MAXVALUE)", None),
            "p2": ("root", r"FOR VALUES FROM ('\n', MINVALUE) TO ('x', 'é')", None),
            "p3": ("root", r"FOR VALUES FROM ('x', 'é') TO ('é', '')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "uuids": (
        ("uuid",),
        "RANGE (a)",
        {
            "p1": ("root", f"FOR VALUES FROM (MINVALUE) TO ('{UUID.upper()}')", None),
            "p2": ("root", f"FOR VALUES FROM ('{{{UUID}}}') TO (MAXVALUE)", None),
        },
    ),
    "hash": (
        ("bigint", "uuid"),
        "HASH (a, b)",
        {f"p{r}": ("root", f"FOR VALUES WITH (modulus 4, remainder {r})", None) for r in (0, 1, 3)},
    ),
    "hash of texts": (
        ('text COLLATE "C"', "bytea", "char(3)"),
        "HASH (a, b, c)",
        {
            "p0": ("root", "FOR VALUES WITH (modulus 2, remainder 0)", "LIST (b)"),
            "p0d": ("p0", "DEFAULT", None),
            "p1": ("root", "FOR VALUES WITH (modulus 4, remainder 1)", None),
        },
    ),
    "hash of times": (
        ("timestamptz", "date", "boolean"),
        "HASH (a, b, c)",
        {f"p{r}": ("root", f"FOR VALUES WITH (modulus 3, remainder {r})", None) for r in (0, 2)},
    ),
    "levels": (
        ("int", "text"),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM (0) TO (10)", "LIST (b)"),
            "p1x": ("p1", "FOR VALUES IN ('x', NULL)", None),
            "p1d": ("p1", "DEFAULT", "HASH (a)"),
            "p1d0": ("p1d", "FOR VALUES WITH (modulus 2, remainder 0)", None),
            "p1d1": ("p1d", "FOR VALUES WITH (modulus 2, remainder 1)", None),
            "p2": ("root", "FOR VALUES FROM (10) TO (20)", "RANGE (a)"),
            "p2a": ("p2", "FOR VALUES FROM (10) TO (12)", None),
        },
    ),
}

VALUES: dict[str, Sequence[str | None]] = {
    "smallint": [None, "-32768", "-1", "7", "8", "32767"],
    "int": [None, "-3", "0", "1", "2", "3", "5", "9", "10", "11", "12", "19", "20", "2147483647"],
    "bigint": [None, "0", "-1", "7", str(2**40), str(-(2**63)), str(2**63 - 1)],
    "text": [None, "", "x", "X", "it's", "y", "é"],
    "numeric(6,2)": [None, "-5", "0", "1", "10.49", "10.5", "9999.99"],
    "date": [None, "0001-01-01", "1900-01-01", "2024-01-01", "2024-01-31", "9999-12-31"],
    "timestamp": [
        None,
        "0001-01-01 00:00:00",
        "2024-01-01 00:00:00",
        "2024-01-01 12:00:00.499999",
        "2024-01-01 12:00:00.5",
        "9999-12-31 23:59:59.999999",
    ],
    "timestamptz": [
        None,
        "0001-01-01 00:00:00+00",
        "2023-12-31 23:59:59.999999+00",
        "2024-01-01 00:00:00+00",
        "2024-01-01 11:59:59+00",
        "2024-01-01 12:00:00+00",
        "9999-12-31 23:59:59+00",
    ],
    "float4": [None, "0", "0.1", "0.2", "-0", "Infinity", "NaN"],
    "float8": [None, "-0", "0", "-1e300", "1.5", "Infinity", "-Infinity", "NaN"],
    "boolean": [None, "t", "f"],
    "uuid": [
        None,
        "00000000-0000-4000-8000-000000000001",
        "a0000000-0000-4000-8000-00000000000a",
        UUID,
        "ffffffff-0000-4000-8000-000000000001",
    ],
    "bytea": [None, r"\x", r"\x00", r"\x40ff", r"\x41", r"\x4100", r"\x5c", r"\xfe", r"\xff"],
    'text COLLATE "C"': [None, "", r"\n", "X", "Y", "a", "x", "xx", "é", "\U0001f600", "\uffff"],
    "varchar(3)": [None, "", "b", "é", "z"],
    "char(3)": [None, "   ", "a  ", "ab ", "é  "],
}


REFUSED = {
    "int[]": "'{1,2}'",
    "char(3)": "'a'",
    "interval": "'1 day'",
    "inet": "'10.0.0.1'",
    "numeric": "1",
}
"""Types whose values are not compared here, and a constant of each."""


@pytest.mark.parametrize("name", TREES)
def test_leaves_and_errors(database: Database, spark: Any, name: str) -> None:
    types, key, partitions = TREES[name]
    tree, columns = created(database, types, key, partitions)
    texts = rows_of(types)
    rows = rows_as_kept(texts, columns)
    casts = [f"CAST({c.delta} AS {spark_type(c.type)}) {c.delta}" for c in columns]
    frame = spark.createDataFrame(rows).selectExpr(*casts)
    found = {}
    for table in tree if name == "levels" else tree[:1]:
        route = route_of(table, tree, columns)
        expected = [leaf_on(database, table.name, types, row) for row in texts]
        assert [leaf_of(route, row) for row in rows.to_batches()[0].to_struct_array()] == expected
        found[table.name] = route.find(rows).tolist()
        frame = route.routed(frame).withColumnRenamed(ROUTE, table.name)
    assert frame.select(*found).toArrow().to_pydict() == found


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("root", [("1", None), ("9", "5")]),
        ("root", [("1", "5"), ("9", None), ("1", None)]),
        ("root", [("2", "é" * 40), ("9", "é" * 40), ("1", None)]),
        ("root", [("3", "x"), ("3", "é" * 40)]),
        ("p1", [("2", None)]),
        ("p1", [("1", None), ("2", "5")]),
        ("p1", [("1", "5"), ("2", "é" * 40)]),
        ("p3", [("1", None)]),
        ("p3", [("3", "x"), ("3", None)]),
        ("p3", [("3", "x"), ("3", "y" * 70)]),
    ],
)
def test_the_first_row_with_an_error_is_the_one_that_is_told(
    database: Database, name: str, rows: list[tuple[str | None, str | None]]
) -> None:
    columns = [column("a", "int"), column("select", 'text COLLATE "C"')]
    database.execute(
        'CREATE TABLE root (a int, "select" text COLLATE "C" NOT NULL) PARTITION BY LIST (a)'
    )
    tree = [LakeTable(1, "public", "root", None, partition_key="LIST (a)")]
    parts: list[tuple[str, int, str, str | None]] = [
        ("p1", 1, "IN ('1')", None),
        ("p2", 1, "IN ('2')", None),
    ]
    parts += [("p3", 1, "IN ('3')", 'LIST ("select")'), ("p4", 4, "IN ('x')", None)]
    for oid, (child, parent, values, key) in enumerate(parts, 2):
        above, bound = tree[parent - 1].name, f"FOR VALUES {values}"
        by = "" if key is None else f" PARTITION BY {key}"
        database.execute(f"CREATE TABLE {child} PARTITION OF {above} {bound}{by}")
        tree.append(
            LakeTable(oid, "public", child, None, parent=parent, bound=bound, partition_key=key)
        )
    table = next(each for each in tree if each.name == name)
    route = route_of(table, tree, columns)
    batch = rows_as_kept(rows, columns).to_batches()[0]
    error = route.place(batch, columns, [frozenset({"select"})] * len(route.leaves)).error
    assert error is not None
    with psycopg.connect(database.conninfo) as connection:
        with pytest.raises(psycopg.Error) as refused:
            for row in rows:
                connection.execute(f"INSERT INTO {name} VALUES (%s, %s)", row)
        assert (error.sqlstate, error.message, error.detail) == (
            *(refused.value.sqlstate, refused.value.diag.message_primary),
            refused.value.diag.message_detail,
        )


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("way", ["LIST", "RANGE"])
def test_what_is_not_compared_is_refused(kind: str, way: str) -> None:
    constant = REFUSED[kind]
    bound = f"IN ({constant})" if way == "LIST" else f"FROM ({constant}) TO (MAXVALUE)"
    tree = [
        LakeTable(1, "public", "root", None, partition_key=f"{way} (a)"),
        LakeTable(2, "public", "p", None, parent=1, bound=f"FOR VALUES {bound}"),
    ]
    for table in tree:
        with pytest.raises(FeatureNotSupported, match='partitioned by a column like "a"'):
            route_of(table, tree, [column("a", kind)])


def created(
    database: Database,
    types: Sequence[str],
    key: str,
    partitions: Mapping[str, tuple[str, str, str | None]],
) -> tuple[list[LakeTable], list[LakeColumn]]:
    """The tables on the server, and as a catalog has them; the columns."""
    names = "abcd"[: len(types)]
    columns = ", ".join(f"{n} {t}" for n, t in zip(names, types, strict=True))
    database.execute(f"CREATE TABLE root ({columns}) PARTITION BY {key}")
    tree = [LakeTable(1, "public", "root", None, partition_key=key)]
    oids = {"root": 1}
    for number, (child, (parent, bound, own)) in enumerate(partitions.items(), 2):
        by = "" if own is None else f" PARTITION BY {own}"
        database.execute(f"CREATE TABLE {child} PARTITION OF {parent} {bound}{by}")
        kept = str(parse_partition_bound(bound))
        above = oids[parent]
        tree.append(
            LakeTable(number, "public", child, None, parent=above, bound=kept, partition_key=own)
        )
        oids[child] = number
    return tree, list(map(column, names, types))


def column(name: str, kind: str) -> LakeColumn:
    oid, typmod = TYPES[kind]
    type = pgtypes.arrow_type(oid, typmod)
    return LakeColumn(Attribute(name, oid, typmod), name, name, type)


def route_of(table: LakeTable, tree: list[LakeTable], columns: Sequence[LakeColumn]) -> Route:
    schema = schema_of(columns)
    above = membership(table, tree, schema)
    if table.partition_key is None:
        return Route(table, (table,), None, above)
    routing, leaves = routing_of([table, *tree], schema)
    return Route(table, leaves, routing, above)


def leaf_of(route: Route, row: pa.StructScalar) -> str:
    batch = pa.RecordBatch.from_struct_array(pa.array([row], row.type))
    number = int(route.find(pa.Table.from_batches([batch]))[0])
    if number >= 0:
        return route.leaves[number].name
    error = route.error(batch, number)
    assert error.sqlstate == "23514"
    return f"{error.message}\n{error.detail}"


def rows_of(types: Sequence[str]) -> list[tuple[Any, ...]]:
    dice = random.Random(3)
    if len(types) == 1:
        return [(value,) for value in VALUES[types[0]]]
    return [tuple(dice.choice(VALUES[t]) for t in types) for _ in range(40)]


def rows_as_kept(rows: Sequence[Sequence[str | None]], columns: Sequence[LakeColumn]) -> pa.Table:
    def kept(text: str | None, column: LakeColumn) -> Any:
        family = pgtypes.find(column.attribute.type_oid)
        return None if text is None else family.text_value(text.encode(), column.attribute.typmod)

    return pa.table(
        {
            column.delta: pa.array([kept(row[n], column) for row in rows], column.type)
            for n, column in enumerate(columns)
        }
    )


def leaf_on(database: Database, table: str, types: Sequence[str], row: Sequence[Any]) -> str:
    values = ", ".join(f"%s::{t}" for t in types)
    insert = f"INSERT INTO {table} VALUES ({values}) RETURNING tableoid::regclass"
    try:
        return str(database.value(insert, row))
    except psycopg.errors.CheckViolation as error:
        return f"{error.diag.message_primary}\n{error.diag.message_detail}"
