"""Routing beside a server: the same partitions, the same rows, the same leaf or the same error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from fix_postgres import Database
from penstock.attribute import Attribute
from penstock.catalog import LakeTable
from penstock.errors import ReplicationConflict
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pgtypes import arrow_type
from penstock.pipeline.partition_tree import routing_of

pytestmark = pytest.mark.postgres

TYPES = {
    "int": 23,
    "bigint": 20,
    "text": 25,
    "numeric(6,2)": 1700,
    "date": 1082,
    "timestamp": 1114,
    "float8": 701,
    "boolean": 16,
    "uuid": 2950,
    "bytea": 17,
}
NUMERIC_6_2 = (6 << 16 | 2) + 4

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
    "dates": (
        ("date",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM (MINVALUE) TO ('2024-01-01')", None),
            "p2": ("root", "FOR VALUES FROM ('2024-01-01') TO ('2024-02-01')", None),
        },
    ),
    "moments": (
        ("timestamp",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM ('2024-01-01') TO ('2024-01-01 12:00:00.5')", None),
            "pd": ("root", "DEFAULT", None),
        },
    ),
    "numbers with NaN": (
        ("float8",),
        "RANGE (a)",
        {
            "p1": ("root", "FOR VALUES FROM (MINVALUE) TO (0)", None),
            "p2": ("root", "FOR VALUES FROM (0) TO ('Infinity')", None),
            "p3": ("root", "FOR VALUES FROM ('Infinity') TO (MAXVALUE)", None),
        },
    ),
    "booleans": (
        ("boolean",),
        "LIST (a)",
        {"p1": ("root", "FOR VALUES IN (true)", None), "pd": ("root", "DEFAULT", None)},
    ),
    "hash": (
        ("bigint", "uuid"),
        "HASH (a, b)",
        {f"p{r}": ("root", f"FOR VALUES WITH (modulus 4, remainder {r})", None) for r in (0, 1, 3)},
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

VALUES: dict[str, Sequence[Any]] = {
    "int": [None, -3, 0, 1, 2, 3, 5, 9, 10, 11, 12, 19, 20, 2**31 - 1],
    "bigint": [None, 0, -1, 7, 2**40, -(2**63)],
    "text": [None, "", "x", "X", "it's", "y", "é"],
    "numeric(6,2)": [None, Decimal("-5"), Decimal("0"), Decimal("10.49"), Decimal("10.5")],
    "date": [None, date(1900, 1, 1), date(2024, 1, 1), date(2024, 1, 31), date(2024, 2, 1)],
    "timestamp": [
        None,
        datetime(2024, 1, 1),
        datetime(2024, 1, 1, 12, 0, 0, 499999),
        datetime(2024, 1, 1, 12, 0, 0, 500000),
    ],
    "float8": [None, -0.0, 0.0, -1e300, 1.5, float("inf"), float("-inf"), float("nan")],
    "boolean": [None, True, False],
    "uuid": [None, "00000000-0000-4000-8000-000000000001", "ffffffff-0000-4000-8000-000000000001"],
}


@pytest.mark.parametrize("name", TREES)
def test_leaves_and_errors(database: Database, name: str) -> None:
    types, key, partitions = TREES[name]
    names = "abcd"[: len(types)]
    columns = ", ".join(f"{n} {t}" for n, t in zip(names, types, strict=True))
    database.execute(f"CREATE TABLE root ({columns}) PARTITION BY {key}")
    tree = [LakeTable(1, "public", "root", None, partition_key=key)]
    oids = {"root": 1}
    for number, (child, (parent, bound, own)) in enumerate(partitions.items(), 2):
        by = "" if own is None else f" PARTITION BY {own}"
        database.execute(f"CREATE TABLE {child} PARTITION OF {parent} {bound}{by}")
        tree.append(
            LakeTable(
                number, "public", child, None, parent=oids[parent], bound=bound, partition_key=own
            )
        )
        oids[child] = number
    schema = TableSchema(tuple(map(column, names, types)))
    routing, leaves = routing_of(tree, schema)
    routed = 0
    for row in rows_of(types):
        table = pa.Table.from_pylist([dict(zip(names, row, strict=True))], schema=schema.arrow())
        try:
            found = leaves[routing.leaves(table)[0]].name
            routed += 1
        except ReplicationConflict as error:
            assert error.sqlstate == "23514"
            found = f"{error.message}\n{error.detail}"
        assert found == leaf_on(database, types, row), row
    assert routed


def column(name: str, kind: str) -> Column:
    oid, typmod = TYPES[kind], NUMERIC_6_2 if kind.startswith("numeric") else -1
    return Column(name, Attribute(name, oid, typmod), arrow_type(oid, typmod))


def rows_of(types: Sequence[str]) -> list[tuple[Any, ...]]:
    dice = random.Random(3)
    return [tuple(dice.choice(VALUES[t]) for t in types) for _ in range(40)]


def leaf_on(database: Database, types: Sequence[str], row: Sequence[Any]) -> str:
    values = ", ".join(f"%s::{t}" for t in types)
    try:
        return str(
            database.value(f"INSERT INTO root VALUES ({values}) RETURNING tableoid::regclass", row)
        )
    except psycopg.errors.CheckViolation as error:
        return f"{error.diag.message_primary}\n{error.diag.message_detail}"
