"""Defaults of columns: a stock server refuses the same ones, and the rest has the same values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes.type_names import resolve
from penstock.sql import CreateTable
from penstock.sql.grammar.parser import parse
from penstock.sql.typed.column_default import check_default, coerced_default, shown_default

pytestmark = pytest.mark.postgres

_TYPES = (
    *("smallint", "int", "bigint", "real", "float8", "numeric", "numeric(4,1)", "numeric(3,-1)"),
    *("numeric(2,3)", "text", "varchar", "varchar(2)", "char(4)", "bpchar", "name", "boolean"),
    *("date", "timestamp", "timestamp(0)", "timestamptz", "timestamptz(2)", "uuid", "bytea"),
    *("json", "jsonb", "oid", "int[]", "numeric(4,1)[]", "varchar(2)[]", "char(2)[]", "text[]"),
    *("timestamp(1)[]", "interval", "time", "money", "inet", "bit(3)", "date[]"),
)
_DEFAULTS = (
    *("0", "1", "-1", "1.5", "-1.5", "2.5", "1.26", "-1.25", "999.94", "999.95", "12345", "99999"),
    *("2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808"),
    *("1e10", "1e-3", "1e60", "1e400", "0x1F", "1_000", "-0", "-0.0", "0.0125", "155", "144"),
    *("true", "false", "now()", "current_timestamp", "current_date", "localtimestamp", "NULL"),
    *("'0'", "' 7 '", "'1.26'", "'-1.25'", "'99999'", "'NaN'", "'infinity'", "'1e400'", "'0o17'"),
    *("''", "'a'", "'abc'", "'ab   '", "'  '", "'it''s'", "'äöü'", "E'a\\tb'", "'t'", "'tru'"),
    *("'2024-1-1'", "'2024-02-29'", "'2024-02-30'", "'20240102'", "'epoch'", "'0044-03-15 BC'"),
    *("'2024-01-01 10:11:12.345678'", "'2024-12-31 23:59:59.96+02'", "'1999-01-01 00:00:00.45'"),
    *("'{}'", "'{1,2}'", "'{1.26,NULL}'", "'{abc}'", "'{\"a \",b}'", "'{999.95}'", "'{1'"),
    *("'{1999-12-31 23:59:59.96}'", '\'{"b": 1.50, "a" :[1e2,-0,true,null], "b": "x"}\''),
    *("'[1, \"\\u00e4\\u0001\\n\"]'", "'[NaN]'", "'\"\\u0000\"'", "'[1,]'", "'\\x61'", "'\\x6'"),
    *("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'1 day'", "'10:11'", "'101'", "'10.0.0.1'"),
)
_UNREAD = frozenset({"interval", "time", "money", "inet", "bit(3)", "oid"})
"""Types of which the node reads no strings."""
_UNREAD_TEXTS = frozenset({"'{1999-12-31 23:59:59.96}'"})
"""Dates with signs around them, which PostgreSQL reads past."""
_SETTINGS = "SET timezone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = hex"


@dataclass(frozen=True)
class Outcome:
    """``step``: where it ends (create, use, value); ``said``: SQLSTATE and message, or a value."""

    step: str
    said: str | None


@pytest.fixture
def server(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.conninfo) as session:
        session.execute(_SETTINGS)  # now() is one time for all
        yield session


def test_defaults_have_the_types_and_values_of_a_server(
    server: psycopg.Connection[Any],
) -> None:
    ((now,),) = server.execute("SELECT now()").fetchall()
    wrong, refused, same = [], set(), 0
    for type_ in _TYPES:
        for default in _DEFAULTS:
            wanted = _theirs(server, type_, default)
            found = _ours(type_, default, now)
            if found is None:
                refused |= {(type_, default)} if wanted.step != "create" else set()
            elif found != wanted:
                wrong.append(f"{type_} DEFAULT {default}\n  {wanted}\n  {found}")
            else:
                same += 1
    assert not wrong, "\n".join(wrong)
    others = {default for type_, default in refused if type_ not in _UNREAD}
    assert others == _UNREAD_TEXTS, sorted(refused)
    assert same > 2000


def test_defaults_are_shown_as_by_a_server(server: psycopg.Connection[Any]) -> None:
    """What pg_get_expr prints of every default that the node accepts."""
    wrong, same = [], 0
    for type_ in _TYPES:
        for default in _DEFAULTS:
            column = _column(type_, default)
            wanted = None if column is None else _shown(server, type_, default)
            if column is None or wanted is None:
                continue
            found = shown_default(column)
            if found != wanted:
                wrong.append(f"{type_} DEFAULT {default}\n  {wanted}\n  {found}")
            same += found == wanted
    assert not wrong, "\n".join(wrong)
    assert same > 1000


def _column(type_: str, default: str) -> Attribute | None:
    """A column with its default; None: the node does not take it."""
    statement = parse(f"CREATE TABLE t (c {type_} DEFAULT {default})")
    assert isinstance(statement, CreateTable)
    (column,) = statement.columns
    if column.default is None:
        return None
    oid, typmod = resolve(column.type.name, column.type.modifiers, array=column.type.array)
    try:
        check_default("c", column.default, oid, typmod)
    except PenstockError:
        return None
    return Attribute("c", oid, typmod, default=column.default)


def _shown(session: psycopg.Connection[Any], type_: str, default: str) -> str | None:
    try:
        with session.transaction(force_rollback=True):
            session.execute(f"CREATE TEMP TABLE t (c {type_} DEFAULT {default})")
            ((text,),) = session.execute(
                "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 't'::regclass"
            ).fetchall()
            return str(text)
    except psycopg.Error:
        return None


def _ours(type_: str, default: str, now: datetime) -> Outcome | None:
    """None: not supported."""
    statement = parse(f"CREATE TABLE t (c {type_} DEFAULT {default})")
    assert isinstance(statement, CreateTable)
    (column,) = statement.columns
    if column.default is None:
        return Outcome("value", None)
    oid, typmod = resolve(column.type.name, column.type.modifiers, array=column.type.array)
    step = "create"
    try:
        check_default("c", column.default, oid, typmod)
        step = "use"
        return Outcome("value", coerced_default("c", column.default, oid, typmod, now))
    except FeatureNotSupported:
        return None
    except PenstockError as error:
        return Outcome(step, f"{error.sqlstate} {error.message}")


def _theirs(session: psycopg.Connection[Any], type_: str, default: str) -> Outcome:
    step = "create"
    try:
        with session.transaction(force_rollback=True):
            session.execute(f"CREATE TEMP TABLE t (c {type_} DEFAULT {default})")
            step = "use"
            session.execute("INSERT INTO t VALUES (DEFAULT)")
            # format() calls the output function; a cast to text is another one for boolean.
            query = "SELECT CASE WHEN num_nulls(c) = 0 THEN format('%s', c) END FROM t"
            ((value,),) = session.execute(query).fetchall()
            return Outcome("value", value)
    except psycopg.Error as error:
        return Outcome(step, f"{error.sqlstate} {error.diag.message_primary}")
