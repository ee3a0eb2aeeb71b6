"""Numbers in binary, however a client makes them: a server's numeric_recv takes the same ones."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from penstock.cells import Cells
from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError, ProtocolViolation, ValueNotRepresentable
from penstock.pgtypes import pg_type
from penstock.pgtypes.numeric import NumericFamily, printed_one

FAMILY = NumericFamily()
PRECISION_10_SCALE_3 = (10 << 16 | 3) + 4
SIGNS = (0, 0, 0, 0x4000, 0x4000, 0xC000, 0xD000, 0xF000, 1)


def cells_of(values: list[bytes]) -> Cells:
    lengths = np.array([len(each) for each in values], np.int32)
    ends = np.cumsum(lengths, dtype=np.int32)
    return Cells(np.frombuffer(b"".join(values), np.uint8), ends - lengths, lengths)


def random_number(random: Random) -> bytes:
    digits = [
        random.choice((0, 0, 1, 10, 100, 1000, 1230, 5678, 9999, 10_000, 40_000))
        if random.random() < 0.1
        else random.choice((0, 0, 1, 10, 100, 1000, 1230, 5678, 9999))
        for _ in range(random.randrange(5))
    ]
    head = (len(digits), random.randrange(-4, 4), random.choice(SIGNS), random.randrange(14))
    return struct.pack(f"!HhHH{len(digits)}H", *head, *digits)


def test_a_server_reads_the_same(postgres: EmbeddedPostgres) -> None:
    random = Random(1)
    numbers = [random_number(random) for _ in range(4000)]
    numbers += [bytes.fromhex(each) for each in (
        "0002ffff00000005000003e8", "0001ffff000000020000", "0002ffff4000000500001388"
    )]  # fmt: skip
    with psycopg.connect(postgres.conninfo()) as server:
        for raw in numbers:
            text = "SELECT $1::text, $1::numeric(10,3)::text"
            answer = server.pgconn.exec_params(text.encode(), [raw], [pg_type.NUMERIC], [1])
            read = column = None
            if answer.status == psycopg.pq.ExecStatus.TUPLES_OK:
                read = (answer.get_value(0, 0) or b"").decode()
                column = (answer.get_value(0, 1) or b"").decode()
            elif answer.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"22003":
                answer = server.pgconn.exec_params(b"SELECT $1::text", [raw], [1700], [1])
                read = (answer.get_value(0, 0) or b"").decode()
            server.rollback()
            assert printed_one(raw) == read, raw.hex()
            assert column_of(raw, -1) == read, raw.hex()
            exact = column_of(raw, PRECISION_10_SCALE_3)
            assert exact is None or str(exact) == column, raw.hex()


def column_of(raw: bytes, typmod: int) -> Any:
    """The value as a column reads it; None if it is malformed or does not fit exactly."""
    try:
        return FAMILY.binary_column(cells_of([raw]), typmod)[0].as_py()
    except (ProtocolViolation, ValueNotRepresentable):
        return None


def test_digits_that_no_memory_would_hold_are_refused() -> None:
    large = struct.pack("!HhHHH", 1, 32_767, 0, 0, 1)
    found = FAMILY.binary_column(cells_of([large] * 700), -1)
    assert pa.compute.utf8_length(found).unique().to_pylist() == [4 * 32_767 + 1]
    with pytest.raises(PenstockError, match="values of type numeric have") as refused:
        FAMILY.binary_column(cells_of([large] * 900), -1)
    assert refused.value.sqlstate == "54000"
    assert "binary = false" in (refused.value.hint or "")
