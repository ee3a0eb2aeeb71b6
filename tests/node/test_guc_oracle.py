"""Values of parameters: a stock server takes and refuses the same, with the same words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fix_postgres import Database
from penstock.errors import InvalidParameterValue
from penstock.node import guc
from penstock.node.guc import Boolean, Integer, ParameterKind, Real

_FIELDS = {field.name: field for field in dataclasses.fields(guc.Parameters)}
_KINDS: dict[str, ParameterKind] = {
    name: field.metadata["kind"] for name, field in _FIELDS.items() if "kind" in field.metadata
}
_OTHERS = {"port", "server_version"}
"""Not the same on purpose: a node need not listen, and is told which version it is."""

_INTEGERS = (
    *("0", "1", "-1", "63", "64", "65536", "600", "601", "262143", "262144", "2147483647"),
    *("2147483648", "-2147483649", "99999999999", "0x40", "0x", "1e3", "1.5", "0.4", ".5", "5."),
    *("10s", "10 s", " 10 s ", "1h", "1d", "0.5min", "3us", "1500us", "2500us", "1 min x", "-1s"),
    *("30.1GB", "1TB", "64kB", "0.3MB", "100B", "-1kB", "10 KB", "10 MS", "10 parsecs", "3 3"),
    *(
        "",
        " ",
        "nan",
        "inf",
        "infinity",
        "-infinity",
        "true",
        "off",
        "ten",
        "1_000",
        "+5",
        "--5",
        "010",
        "0100kB",
    ),
)
_REALS = ("0", "1", "0.3", "-0.1", "100", "100.5", "1e2", "inf", "-inf", "nan", "x", "", "1 s")
_BOOLEANS = ("on", "OFF", "of", "o", "t", "tr", "True", "yes", "n", "1", "0", "2", "", "null")


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        yield connection


def said_by_the_server(
    connection: psycopg.Connection[Any], name: str, value: str
) -> tuple[str, str | None] | None:
    """Message and hint, or None; ALTER SYSTEM checks a value, and without a reload sets nothing."""
    parameter = sql.Identifier(name)
    try:
        connection.execute(
            sql.SQL("ALTER SYSTEM SET {} = {}").format(parameter, sql.Literal(value))
        )
    except psycopg.Error as error:
        return str(error.diag.message_primary), error.diag.message_hint
    connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(parameter))
    return None


def said_by_us(kind: ParameterKind, name: str, value: str) -> tuple[str, str | None] | None:
    try:
        kind.read(name, value)
    except InvalidParameterValue as error:
        return error.message, error.hint
    return None


def shared(connection: psycopg.Connection[Any]) -> list[tuple[str, ParameterKind, Any]]:
    """Parameters that both have: name, kind, (unit, min_val, max_val) of the server."""
    rows = connection.execute(
        "SELECT name, unit, min_val, max_val FROM pg_settings WHERE name = ANY(%s)",
        (sorted(_KINDS.keys() - _OTHERS),),
    ).fetchall()
    return [(name, _KINDS[name], limits) for name, *limits in rows]


def test_units_and_limits_are_the_servers(connection: psycopg.Connection[Any]) -> None:
    numbers = [(n, k, limits) for n, k, limits in shared(connection) if isinstance(k, Integer)]
    assert len(numbers) == 17, [name for name, _, _ in numbers]
    for name, kind, limits in numbers:
        assert [kind.unit or None, str(kind.minimum), str(kind.maximum)] == limits, name


def test_values_are_taken_and_refused_as_there(connection: psycopg.Connection[Any]) -> None:
    compared = 0
    for name, kind, _ in shared(connection):
        values = _INTEGERS if isinstance(kind, Integer) else _BOOLEANS
        for value in values if isinstance(kind, (Integer, Boolean)) else ():
            found = said_by_us(kind, name, value)
            assert found == said_by_the_server(connection, name, value), (name, value)
            compared += 1
    fraction = "autovacuum_vacuum_scale_factor"
    for value in _REALS:
        found = said_by_us(Real(0.0, 100.0), fraction, value)
        assert found == said_by_the_server(connection, fraction, value), value
    assert compared > 500


def test_values_are_rounded_as_there(connection: psycopg.Connection[Any]) -> None:
    for name in ("logical_decoding_work_mem", "maintenance_work_mem", "wal_sender_timeout"):
        kind = _KINDS[name]
        factor = 1024 if "mem" in name else 0.001
        for value in _INTEGERS:
            if said_by_us(kind, name, value) is not None:
                continue
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            ((setting,),) = connection.execute(
                "SELECT setting::int FROM pg_settings WHERE name = %s", (name,)
            ).fetchall()
            assert kind.read(name, value) == pytest.approx(setting * factor), (name, value)
            connection.execute("RESET ALL")
