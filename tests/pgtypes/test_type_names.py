"""Modifiers of types, beside a real server: what is packed, and what is refused."""

from __future__ import annotations

import psycopg
import pytest

from fix_postgres import Database
from penstock.errors import PenstockError
from penstock.pgtypes.pg_type import types_by_name
from penstock.pgtypes.type_names import numeric_modifiers, resolve

NAMES = ["bool", "bytea", "name", "int4", "text", "json", "float8", "bpchar", "varchar", "date"]
NAMES += ["time", "timestamp", "timestamptz", "interval", "timetz", "bit", "varbit", "numeric"]
NAMES += ["uuid", "pg_lsn", "jsonb", "int4range", "_numeric", "_varchar", "_text"]
MODIFIERS = [
    *((n,) for n in (-1, 0, 1, 4, 6, 7, 1000, 1001, 10485760, 10485761, 83886080, 83886081, 32767)),
    *((5, n) for n in (-1001, -1000, -2, 0, 2, 7, 1000, 1001)),
    *((32767, n) for n in (-1, 3, 9)),
    (4, 3),
    (1, 2, 3),
]


@pytest.mark.parametrize("name", NAMES)
def test_modifiers(database: Database, name: str) -> None:
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        for modifiers in MODIFIERS:
            written = f'"{name}"({", ".join(map(str, modifiers))})'
            try:
                connection.execute(f"CREATE TEMP TABLE t (c {written})")
                found = connection.execute(
                    "SELECT atttypmod FROM pg_attribute WHERE attrelid = 't'::regclass"
                    " AND attnum = 1"
                ).fetchone()
                connection.execute("DROP TABLE t")
                wanted: object = found and found[0]
            except psycopg.Error as error:
                wanted = error.sqlstate, error.diag.message_primary
            assert _ours(name, modifiers) == wanted, written


def _ours(name: str, modifiers: tuple[int, ...]) -> object:
    try:
        oid, typmod = resolve(name, modifiers)
    except PenstockError as error:
        return error.sqlstate, str(error)
    assert oid == types_by_name()[name].oid
    return typmod


def test_numeric_modifiers_come_back() -> None:
    for shape in ((5, 2), (5, -2), (2, 7), (1000, -1000)):
        assert numeric_modifiers(resolve("numeric", shape)[1]) == shape
    assert numeric_modifiers(-1) is None
