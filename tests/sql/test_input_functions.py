"""Texts of values beside a real server: what input functions read, and what they refuse."""

from __future__ import annotations

import random
from typing import Final

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.identifiers import quote_literal
from penstock.pgtypes.pg_type import types_by_name
from penstock.sql.typed.input_functions import input_function

_TEXTS: Final = {
    "bool": ("true", "f", "yes", "0", "off"),
    "int2": ("32767", "-32768", "0x1F", "1_000", "32768"),
    "int4": ("2147483647", "-5", "0b101", "+7"),
    "int8": ("9223372036854775807", "-9223372036854775808", "0o17", "12"),
    "oid": ("4294967295", "-1", "0x10", "17"),
    "float4": ("1.5", "-0", "1e38", "1e-46", "NaN", "Infinity", "1e39"),
    "float8": ("1.5e-7", "-inf", "nan", "1e308", "1e309", "1e-400", "123456789.125"),
    "numeric": ("1.50", "-0.00", "1e10", "1e-5", "NaN", "-Infinity", "1e131071", "0x1F", "0e-9"),
    "date": ("2024-02-29", "0001-01-01 BC", "infinity", "20240229", "epoch", "5874897-12-31"),
    "time": ("12:34:56.789", "24:00:00", "23:59:60", "04:05"),
    "timetz": ("12:34:56.789+02", "24:00:00-15:59", "04:05Z", "12:00:00+05:30:15"),
    "timestamp": ("2024-02-29 12:34:56.789", "0044-03-15 10:00:00 BC", "-infinity", "epoch"),
    "timestamptz": ("2024-02-29 12:34:56.789+02", "2024-01-01T00:00:00Z", "294276-12-31 23:59"),
    "interval": ("1 mon -1 day", "1 year 2 mons 04:05:06.789", "1d2h", "5 min ago", "@ 1.5y"),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}"),
    "bytea": (r"\x00ff", r"abc\\d\001", r"\x"),
    "pg_lsn": ("16/B374D848", "0/0", "FFFFFFFF/FFFFFFFF"),
    "json": ('{"a": [1, 2.5e3, null, "x\\u00e9"]}', "[]", "true", '" "'),
    "jsonb": ('{"b": 1, "a": [1, 2.50, null, "x"], "b": 2}', "{}", "-1e3", '"\\u0041"'),
    "inet": ("192.168.0.1/24", "::1", "::ffff:12.3.4.5", "fe80::1/64", "10.0.0.1"),
    "cidr": ("192.168.0.0/24", "::/0", "fe80::/10", "10.0.0.0/8"),
    "macaddr": ("08:00:2b:01:02:03", "08-00-2b-01-02-03", "08002b:010203", "0800.2b01.0203"),
    "bit": ("101", "b1", "x1F"),
    "varbit": ("101", "B01", "X1f"),
}
_INSERTED: Final = "01279.:-+/eExX_ abnTZ{}\\\"'ffd"


def _changed(text: str, chosen: random.Random) -> str:
    for _ in range(chosen.choice((0, 1, 1, 1, 2, 2, 3))):
        at = chosen.randint(0, len(text))
        match chosen.randint(0, 5):
            case 0 | 1:
                text = text[:at] + chosen.choice(_INSERTED) + text[at:]
            case 2 | 3:
                text = text[:at] + text[at + 1 :]
            case 4:
                text = text[:at] + text[at + 1 :][:1] + text[at : at + 1] + text[at + 2 :]
            case _:
                text = chosen.choice((text.upper(), f" {text}", f"{text} ", text.replace(" ", "")))
    return text


def _ours(text: str, name: str) -> str | None:
    """Return None for what is refused by name."""
    try:
        return input_function(types_by_name()[name].oid, -1)(text)
    except FeatureNotSupported:
        return None
    except PenstockError as error:
        return f"{error.sqlstate} {error.message}"


def _theirs(connection: psycopg.Connection[tuple[str]], text: str, name: str) -> str:
    cast = {"bit": "varbit"}.get(name, name)  # ::bit without a length is bit(1)
    try:
        query = f"SELECT format('%s', {cast} {quote_literal(text)})"  # by the output function
        row = connection.execute(query).fetchone()
    except psycopg.Error as error:
        return f"{error.sqlstate} {error.diag.message_primary}"
    assert row is not None
    return row[0]


@pytest.mark.parametrize("name", _TEXTS)
def test_texts_are_read_as_by_a_server(postgres: EmbeddedPostgres, name: str) -> None:
    """Those that are not refused by name."""
    chosen, read = random.Random(name), 0
    texts = [*_TEXTS[name], *(_changed(chosen.choice(_TEXTS[name]), chosen) for _ in range(600))]
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for text in texts:
            found = _ours(text, name)
            if found is not None:
                assert found == _theirs(connection, text, name), text
                read += 1
    assert read > len(texts) / 4
