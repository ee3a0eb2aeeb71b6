"""Hashes of partition keys, value by value beside a server's own functions."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from fix_postgres import Database
from penstock.pgtypes.hash_functions import row_hashes

pytestmark = pytest.mark.postgres

DICE = random.Random(7)
LENGTHS = (0, 1, 3, 4, 7, 8, 9, 11, 12, 13, 23, 24, 25, 100)
TEXTS = [*("x" * n for n in LENGTHS), "é", "ä€ß" * 5, "it's", "trailing   ", "\t", "漢字" * 9]
MOMENTS = [datetime(1900, 1, 1) + timedelta(microseconds=DICE.randrange(10**16)) for _ in range(50)]
COLUMNS: dict[str, tuple[int, pa.Array]] = {
    "smallint": (21, pa.array([0, 1, -1, 32767, -32768], pa.int16())),
    "integer": (23, pa.array([0, 1, -1, 2**31 - 1, -(2**31), 42], pa.int32())),
    "bigint": (
        20,
        pa.array(
            [0, 1, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]
            + [DICE.randrange(-(2**63), 2**63) for _ in range(50)],
            pa.int64(),
        ),
    ),
    "boolean": (16, pa.array([True, False])),
    "text": (25, pa.array(TEXTS)),
    "varchar": (1043, pa.array(TEXTS)),
    "bpchar": (1042, pa.array(TEXTS)),
    "bytea": (17, pa.array([text.encode() for text in TEXTS] + [b"\x00\xff" * 7])),
    "uuid": (2950, pa.array([str(uuid.UUID(int=DICE.getrandbits(128))) for _ in range(20)])),
    "date": (1082, pa.array([date(2000, 1, 1), date(1, 1, 1), date(1999, 12, 31)])),
    "timestamp": (1114, pa.array(MOMENTS, pa.timestamp("us"))),
    "timestamptz": (
        1184,
        pa.array([moment.replace(tzinfo=UTC) for moment in MOMENTS], pa.timestamp("us", "UTC")),
    ),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_one_column(database: Database, kind: str) -> None:
    oid, values = COLUMNS[kind]
    database.execute(f"CREATE TABLE h (i serial, v {kind}) PARTITION BY HASH (v)")
    rows = values.to_pylist()
    for remainder in range(3):
        database.execute(
            f"CREATE TABLE h{remainder} PARTITION OF h "
            f"FOR VALUES WITH (MODULUS 3, REMAINDER {remainder})"
        )
    for number, value in enumerate(rows):
        database.execute(f"INSERT INTO h VALUES (%s, %s::{kind})", (number, value))
    database.execute("INSERT INTO h VALUES (-1, NULL)")
    found = row_hashes([(pa.concat_arrays([values, pa.nulls(1, values.type)]), oid)])
    expected = dict(database.rows("SELECT i, right(tableoid::regclass::text, 1)::int FROM h"))
    assert [int(h % np.uint64(3)) for h in found] == [
        *(expected[number] for number in range(len(rows))),
        expected[-1],
    ]


def test_several_columns_with_nulls(database: Database) -> None:
    database.execute(
        "CREATE TABLE h (i int, a int, b text, c bigint) PARTITION BY HASH (a, b, c);"
        + "".join(
            f"CREATE TABLE h{r} PARTITION OF h FOR VALUES WITH (MODULUS 7, REMAINDER {r});"
            for r in range(7)
        )
    )
    rows = [
        (
            number,
            DICE.choice([None, 0, 1, DICE.randrange(-(2**31), 2**31)]),
            DICE.choice([None, "", "x", "y" * DICE.randrange(40)]),
            DICE.choice([None, DICE.randrange(-(2**63), 2**63)]),
        )
        for number in range(200)
    ]
    for row in rows:
        database.execute("INSERT INTO h VALUES (%s, %s, %s, %s)", row)
    expected = dict(database.rows("SELECT i, right(tableoid::regclass::text, 1)::int FROM h"))
    _, a, b, c = zip(*rows, strict=True)
    found = row_hashes(
        [
            (pa.array(a, pa.int32()), 23),
            (pa.array(b, pa.string()), 25),
            (pa.array(c, pa.int64()), 20),
        ]
    )
    assert [int(h % np.uint64(7)) for h in found] == [expected[number] for number in range(200)]
