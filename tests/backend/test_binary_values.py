"""Parameters and results in binary, beside PostgreSQL 18: what it takes, and what it sends."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.pq.abc import PGconn

from penstock.attribute import Attribute
from penstock.backend.binary_values import in_formats, parameter_text
from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.pgtypes import pg_type
from penstock.protocol.backend_messages import BINARY_FORMAT, FieldDescription

_INT4_ARRAY, _OID_ARRAY = 1007, 1028


def array_of(*elements: bytes, element: int = pg_type.INT4, first: int = 1) -> bytes:
    head = struct.pack("!iiIii", 1, 0, element, len(elements), first)
    return head + b"".join(struct.pack("!i", len(each)) + each for each in elements)


FIVE = struct.pack("!i", 5)
PARAMETERS = [
    *((pg_type.CHAR, bytes([byte])) for byte in (0, 1, 32, 65, 92, 127, 128, 255)),
    (pg_type.CHAR, b""),
    (pg_type.CHAR, b"ab"),
    (pg_type.INTERVAL, bytes.fromhex("7fffffffffffffff7fffffff7fffffff")),
    (pg_type.INTERVAL, bytes.fromhex("80000000000000008000000080000000")),
    (pg_type.INTERVAL, bytes.fromhex("7fffffffffffffff7fffffff00000000")),
    (pg_type.NUMERIC, bytes.fromhex("0002ffff00000005000003e8")),
    (pg_type.NUMERIC, bytes.fromhex("0001ffff000000020000")),
    (_INT4_ARRAY, array_of(FIVE)),
    (_INT4_ARRAY, array_of(FIVE) + b"xyz"),
    (_INT4_ARRAY, array_of(FIVE)[:-1]),
    (_INT4_ARRAY, struct.pack("!iiIii", 1, 0, pg_type.INT4, -5, 1)),
    (_INT4_ARRAY, struct.pack("!iiIiii", 1, 0, pg_type.INT4, 1, 1, -1)),
    (_INT4_ARRAY, struct.pack("!iiIiii", 1, 0, pg_type.INT4, 1, 1, -2)),
    (_INT4_ARRAY, struct.pack("!iiI", 0, 0, pg_type.INT4)),
    (_INT4_ARRAY, struct.pack("!iiI", -1, 0, pg_type.INT4)),
    (_OID_ARRAY, array_of(FIVE, element=pg_type.OID) + b"xyz"),
]
RESULTS = [
    *((pg_type.CHAR, text) for text in ("", "a", "\\", "\\200", "\\377", "\x7f")),
    *(
        (pg_type.FLOAT4, text)
        for text in ("7.038531e-26", "1.0000000596046448", "0", "-0", "NaN", "-Infinity", "1e-45",
                     "3.4028235e38", ".5", "1.", "1.e5", "+1", "16777217", "33554431")
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres) -> Iterator[PGconn]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as connection:
        yield connection.pgconn


@pytest.mark.parametrize(("oid", "value"), PARAMETERS)
def test_a_parameter(server: PGconn, oid: int, value: bytes) -> None:
    answer = server.exec_params(b"SELECT $1::text", [value], [oid], [1])
    if answer.status == psycopg.pq.ExecStatus.TUPLES_OK:
        assert parameter_text(value, oid, 1) == answer.get_value(0, 0)
        return
    with pytest.raises(PenstockError) as refused:
        parameter_text(value, oid, 1)
    sqlstate = answer.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b""
    assert refused.value.sqlstate in (sqlstate.decode(), "22P03")


def test_an_array_that_does_not_begin_at_1_is_refused_by_name() -> None:
    value = array_of(FIVE, element=pg_type.OID, first=0)
    with pytest.raises(PenstockError, match="arrays with the lower bound 0 are not supported"):
        parameter_text(value, _OID_ARRAY, 1)


@pytest.mark.parametrize(("oid", "text"), RESULTS)
def test_a_result(server: PGconn, oid: int, text: str) -> None:
    name = {pg_type.CHAR: '"char"', pg_type.FLOAT4: "real"}[oid]
    query = f"SELECT $1::{name}".encode()
    answer = server.exec_params(query, [text.encode()], [pg_type.TEXT], [0], result_format=1)
    field = FieldDescription(Attribute("c", oid), format=BINARY_FORMAT)
    assert list(in_formats([(text.encode(),)], [field])) == [(answer.get_value(0, 0),)]
