"""Types that a table takes over without a new copy hold the values that ALTER TYPE leaves: each
pair of types is tried on a server."""

from __future__ import annotations

from typing import Final

import psycopg
import pyarrow as pa
import pytest

from fix_postgres import Database
from penstock.attribute import Attribute
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.schema_changes import followed_types
from penstock.pgtypes import arrow_type, find
from penstock.pgtypes.gather import cells_of

pytestmark = pytest.mark.postgres

_NUMBERS: Final = ("0", "-1", "7", "123")
_FRACTIONS: Final = (*_NUMBERS, "0.1", "-1.5", "9.9999999")
_TEXTS: Final = ("", "a", " a ", "ab  ", "äöü", "7")
_MOMENTS: Final = ("2024-02-29 12:34:56.789", "0001-01-01 00:00:00.6", "9999-12-31 23:59:58.9")
_VALUES: Final = {
    ("smallint", "integer", "bigint"): _NUMBERS,
    ("real", "double precision"): (*_FRACTIONS, "NaN", "Infinity", "-0", "16777217"),
    (
        *("numeric(4,2)", "numeric(6,2)", "numeric(6,3)", "numeric(5,3)", "numeric(38,10)"),
        *("numeric(3,-2)", "numeric(5,0)", "numeric(2,4)", "numeric(40,2)", "numeric(50,2)"),
        *("numeric(50,3)", "numeric"),
    ): _FRACTIONS,
    ("date", "timestamp", "timestamp(0)", "timestamp(3)", "timestamp(6)"): _MOMENTS,
    ("timestamptz", "timestamptz(2)"): _MOMENTS,
    ("time", "time(1)", "time(4)", "timetz", "timetz(0)"): ("12:34:56.789", "23:59:59.9"),
    ("text", "varchar", "varchar(2)", "varchar(5)", "char(3)", "char(5)", "name"): _TEXTS,
    ("json", "jsonb"): ('{"b":1,  "a":2}', "7"),
    ("uuid",): ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",),
    ("boolean",): ("t", "f"),
    ("money", "bit(3)", "interval", "interval(2)", "bytea", "inet"): (),
}
_TYPES: Final = {name: values for names, values in _VALUES.items() for name in names}
_FOLLOWED: Final = {
    ("smallint", "integer"),
    ("integer", "bigint"),
    ("real", "double precision"),
    ("numeric(4,2)", "numeric(38,10)"),
    ("date", "timestamp"),
    ("varchar(2)", "text"),
}
"""Some of those that must be."""


def test_values_are_what_alter_type_makes_of_them(database: Database) -> None:
    followed: set[tuple[str, str]] = set()
    with database.connect() as connection:
        connection.autocommit = True
        columns = {name: _column(connection, name) for name in _TYPES}
        for old, values in _TYPES.items():
            for new in _TYPES:
                if old != new and _follows(columns[old], columns[new]):
                    followed.add((old, new))
                    _check(connection, columns, old, new, values)
    assert followed >= _FOLLOWED
    assert ("numeric(5,0)", "numeric(3,-2)") not in followed


def _column(connection: psycopg.Connection, name: str) -> Column:
    connection.execute(f"CREATE TEMP TABLE one (v {name})")
    query = "SELECT atttypid::int, atttypmod FROM pg_attribute WHERE attrelid = 'one'::regclass"
    row = connection.execute(f"{query} AND attnum = 1").fetchone()
    connection.execute("DROP TABLE one")
    assert row is not None
    return Column("v", Attribute("v", *row), arrow_type(*row))


def _follows(old: Column, new: Column) -> bool:
    return followed_types(TableSchema((old,)), TableSchema((new,)), widen=True).columns == (new,)


def _check(
    connection: psycopg.Connection,
    columns: dict[str, Column],
    old: str,
    new: str,
    values: tuple[str, ...],
) -> None:
    connection.execute(f"CREATE TEMP TABLE one (n serial, v {old})")
    for value in values:
        try:
            connection.execute("INSERT INTO one (v) VALUES (%s)", (value,))
        except psycopg.DataError:
            continue  # too large
    before = _rows(connection, columns[old])
    connection.execute(f"ALTER TABLE one ALTER v TYPE {new}")
    after = _rows(connection, columns[new])
    connection.execute("DROP TABLE one")
    widened = before.cast(columns[new].type)
    assert repr(widened.to_pylist()) == repr(after.to_pylist()), (old, new)


def _rows(connection: psycopg.Connection, column: Column) -> pa.Array:
    found = connection.execute("SELECT v::text FROM one ORDER BY n").fetchall()
    cells = cells_of(pa.array([text for (text,) in found], pa.string()))
    return find(column.attribute.type_oid).text_column(cells, column.attribute.typmod)
