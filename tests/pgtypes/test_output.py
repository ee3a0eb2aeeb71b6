"""Columns as PostgreSQL 18 prints and sends them: random values go there and come back.

Our text and our bytes are given to COPY; what the server then prints and sends of them must be what
we gave it, byte for byte, whichever way the values went in.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from random import Random
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.errors import FeatureNotSupported, ValueNotRepresentable
from penstock.pgtypes import pg_type
from penstock.pgtypes.binary_output import binary_output, has_binary_output
from penstock.pgtypes.registry import array_oid, type_of_arrow
from penstock.pgtypes.text_output import text_output
from penstock.protocol.copy_columns import BINARY_HEADER, binary_rows, text_rows

VALUES: Final = 400
_WIDE: Final = Context(prec=100)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DAY_US: Final = 86_400_000_000
TEXTS: Final = [
    "", " ", "NULL", "null", "nUll", "NULLs", '"', "\\", "\\\\", "\\N", "\\.", "{}", "{", "a,b",
    "\t", "line\nbreak", "\r", "\x0b", "\x0b\x0c\b\x01\x7f", " x ", "žluťoučký 🐘", "\u2028",
    "\xa0", "\u3000", "'", 'a\\"b', "e\u0301", "\u0085", "\x1f", "$$",
]  # fmt: skip


def integer(bits: int) -> Callable[[Random], int]:
    edges = [0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1), 10, 100, -100]
    return lambda r: r.choice(edges) if r.random() < 0.2 else r.getrandbits(bits) - (1 << bits - 1)


def float8(r: Random) -> float:
    match r.randrange(6):
        case 0:
            return r.choice(
                (0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 2.2250738585072014e-308, 1e15,
                 1.7976931348623157e308, 0.1, 1e-4, 1e-5, 9.999e-5, 999999999999999.9, 1e14, 1e16,
                 123456789012345.6, 1e22, 1e23, 2.0**53, 2.0**63, 9007199254740993.0, 1.5e-10)
            )  # fmt: skip
        case 1:
            return round(r.uniform(-1e6, 1e6), 2)
        case 2:
            return float(r.randrange(-(10**16), 10**16))
        case 3:
            return r.choice((1, -1)) * 10.0 ** r.randrange(-320, 308) * r.randrange(1, 10)
    value = struct.unpack("<d", r.randbytes(8))[0]
    return math.nan if math.isnan(value) else float(value)


def float4(r: Random) -> float:
    match r.randrange(5):
        case 0:
            return r.choice(
                (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 1.17549435e-38, 3.4028235e38, 0.1,
                 1e5, 1e6, 999999.0, 1e-4, 1e-5, 16777216.0, 16777218.0, 123456.7, 1234567.0)
            )  # fmt: skip
        case 1:
            return round(r.uniform(-1e4, 1e4), 2)
        case 2:
            return float(r.randrange(-(10**7), 10**7))
    value = struct.unpack("<f", r.randbytes(4))[0]
    return math.nan if math.isnan(value) else float(value)


def decimal(precision: int, scale: int) -> Callable[[Random], Decimal]:
    def draw(r: Random) -> Decimal:
        digits = r.choice((0, 1, 2, scale, precision, r.randrange(precision + 1)))
        number = r.randrange(-(10**digits) + 1, 10**digits) if digits else 0
        if r.random() < 0.2:
            number = r.choice((1, -1, 10**digits - 1, 10 ** min(scale, precision - 1)))
        if r.random() < 0.3:
            number -= number % 10 ** r.randrange(precision)
        return Decimal(max(min(number, 10**precision - 1), 1 - 10**precision)).scaleb(-scale, _WIDE)

    return draw


def numeric_text(r: Random) -> str:
    if r.random() < 0.1:
        return r.choice(
            ("NaN", "Infinity", "-Infinity", "0", "0.000", "0.00000", "1" + "0" * 60,
             "1" + "0" * 4300, "-" + "9" * 5000 + "." + "1" * 33)
        )  # fmt: skip
    digits = r.randrange(1, 60)
    scale = r.randrange(0, 40)
    number = Decimal(r.randrange(-(10**digits), 10**digits)).scaleb(-scale, _WIDE)
    return f"{number:f}" if number else f"{abs(number):f}"


def text(r: Random) -> str:
    if r.random() < 0.4:
        return r.choice(TEXTS)
    length = r.choice((1, 3, 20))
    alphabet = "abcXYZ019,{}\"\\ \t\n\r'é🐘\x0b\x0c\b"
    return "".join(r.choice(alphabet) for _ in range(length))


def timestamp(r: Random) -> int:
    low, high = _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1
    if r.random() < 0.15:
        return r.choice((low, low + 1, high, high - 999_999, 0, -1, 1, 10, 100_000, -500_000))
    value = r.randrange(low, high)
    return value - value % r.choice((1, 10, 1000, 100_000, 1_000_000, 60_000_000, _DAY_US))


def uuid(r: Random) -> str:
    h = r.randbytes(16).hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def day(r: Random) -> int:
    return r.choice((_FIRST_DAY, _LAST_DAY, 0, -1, r.randrange(_FIRST_DAY, _LAST_DAY)))


def json_text(r: Random) -> str:
    return r.choice(('{"a" : 1, "a": 2}', "[]", '"q\\""', "1.10", "null", '{"b":[1, {"c":"é"}]}'))


def jsonb_text(r: Random) -> str:
    return r.choice(('{"a": 1, "b": [1.10, null]}', "[]", '"é\\n"', "1.10", "null", '{"": ""}'))


UTC: Final = pa.timestamp("us", "UTC")
Column = tuple[str, int, pa.DataType, Callable[[Random], Any]]
SCALARS: Final[dict[str, tuple[int, pa.DataType, Callable[[Random], Any]]]] = {
    "boolean": (16, pa.bool_(), lambda r: r.random() < 0.5),
    "smallint": (21, pa.int16(), integer(16)),
    "integer": (23, pa.int32(), integer(32)),
    "bigint": (20, pa.int64(), integer(64)),
    "real": (700, pa.float32(), float4),
    "double precision": (701, pa.float64(), float8),
    **{
        f"numeric({p},{s})": (1700, pa.decimal128(p, s), decimal(p, s))
        for p, s in [(1, 0), (4, 4), (5, 0), (9, 3), (10, 7), (18, 4), (20, 18), (38, 0), (38, 10),
                     (38, 20), (38, 38)]
    },
    "numeric": (1700, pa.string(), numeric_text),
    "text": (25, pa.string(), text),
    "varchar(40)": (1043, pa.string(), text),
    "char(24)": (1042, pa.string(), lambda r: text(r).ljust(24)),
    "bytea": (17, pa.binary(), lambda r: r.randbytes(r.choice((0, 1, 2, 40)))),
    "date": (1082, pa.date32(), day),
    "timestamp": (1114, pa.timestamp("us"), timestamp),
    "timestamptz": (1184, UTC, timestamp),
    "uuid": (2950, pa.string(), uuid),
    "json": (114, pa.string(), json_text),
    "jsonb": (3802, pa.string(), jsonb_text),
}  # fmt: skip
CASES: Final[list[Column]] = [
    *((name, *rest) for name, rest in SCALARS.items()),
    *(
        (f"{name}[]", array_oid(oid), pa.list_(kind), draw)
        for name, (oid, kind, draw) in SCALARS.items()
    ),
]


def far_day(r: Random) -> int:
    return r.choice((r.randrange(-2_440_588, 2_145_042_906), day(r), -2_440_588, 2_145_042_905))


def far_moment(r: Random) -> int:
    lowest = -2_440_588 * _DAY_US
    far = r.randrange(lowest, 1 << 63)
    return r.choice((far, far - far % _DAY_US, timestamp(r), lowest, (1 << 63) - 1))


FAR: Final[list[Column]] = [
    ("date", 1082, pa.date32(), far_day),
    ("timestamp", 1114, pa.timestamp("us"), far_moment),
    ("timestamptz", 1184, UTC, far_moment),
]
"""Years that Spark does not write, and other writers may."""
CASES.extend(FAR)


@pytest.fixture(scope="module")
def connection(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    settings = "-c timezone=UTC -c datestyle=ISO -c intervalstyle=postgres"
    with psycopg.connect(postgres.conninfo(), autocommit=True, options=settings) as found:
        yield found


def column(kind: pa.DataType, draw: Callable[[Random], Any], seed: str) -> pa.Array:
    random = Random(seed)

    def one() -> Any:
        if random.random() < 0.1:
            return None
        if not pa.types.is_list(kind):
            return draw(random)
        size = random.choice((0, 1, 1, 2, 3, 7))
        return [None if random.random() < 0.2 else draw(random) for _ in range(size)]

    values = [one() for _ in range(VALUES // 2 if pa.types.is_list(kind) else VALUES)]
    stored = kind.value_type if pa.types.is_list(kind) else kind
    if pa.types.is_timestamp(stored) and not pa.types.is_list(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_timestamp(stored):
        return pa.array(values, pa.list_(pa.int64())).cast(kind)
    return pa.array(values, kind)


def rows_of(messages: bytes) -> list[bytes]:
    """The contents of CopyData messages."""
    rows, at = [], 0
    while at < len(messages):
        end = at + 1 + int.from_bytes(messages[at + 1 : at + 5], "big")
        assert messages[at : at + 1] == b"d"
        rows.append(messages[at + 5 : end])
        at = end
    return rows


def given(connection: psycopg.Connection[Any], data: bytes, how: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE given RESTART IDENTITY")
        with cursor.copy(f"COPY given (v) FROM STDIN {how}") as copy:
            copy.write(data)


def sent(connection: psycopg.Connection[Any], how: str) -> list[bytes]:
    query = f"COPY (SELECT v FROM given ORDER BY id) TO STDOUT {how}"
    with connection.cursor() as cursor, cursor.copy(query) as copy:
        return [bytes(data) for data in copy]


IDS: Final = [*(case[0] for case in CASES[: -len(FAR)]), *(f"any {case[0]}" for case in FAR)]


@pytest.mark.parametrize(("name", "oid", "kind", "draw"), CASES, ids=IDS)
def test_the_server_prints_and_sends_what_we_do(
    connection: psycopg.Connection[Any],
    name: str,
    oid: int,
    kind: pa.DataType,
    draw: Callable[[Random], Any],
) -> None:
    array = column(kind, draw, name)
    connection.execute(f"CREATE TEMP TABLE given (id serial, v {name})")
    try:
        ours = rows_of(text_rows([text_output(array, oid)], len(array)))
        given(connection, b"".join(ours), "")
        check(sent(connection, ""), ours)
        if not has_binary_output(oid, kind):
            return
        bytes_ = rows_of(binary_rows([binary_output(array, oid)], len(array)))
        theirs = b"".join(sent(connection, "(FORMAT binary)"))
        assert theirs == BINARY_HEADER + b"".join(bytes_) + b"\xff\xff"
        given(connection, theirs, "(FORMAT binary)")
        check(sent(connection, ""), ours)
    finally:
        connection.execute("DROP TABLE given")


def check(theirs: list[bytes], ours: list[bytes]) -> None:
    wrong = [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]]
    assert not wrong, wrong[:5]


def test_there_are_enough_values() -> None:
    assert sum(VALUES // 2 if name.endswith("[]") else VALUES for name, *_ in CASES) >= 5000


def test_parts_of_columns_are_printed_and_sent_as_the_whole() -> None:
    for name, oid, kind, draw in CASES:
        array = column(kind, draw, name)
        part = array.slice(17, 50)
        assert text_output(part, oid).to_pylist() == text_output(array, oid).to_pylist()[17:67]
        if has_binary_output(oid, kind):
            whole = binary_output(array, oid).to_pylist()
            assert binary_output(part, oid).to_pylist() == whole[17:67], name
        for empty in (array.slice(0, 0), pa.nulls(3, kind)):
            wanted = [None] * len(empty)
            assert text_output(empty, oid).to_pylist() == wanted, name
            if has_binary_output(oid, kind):
                assert binary_output(empty, oid).to_pylist() == wanted, name


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.bool_(), (16, -1)),
        (pa.int8(), (21, -1)),
        (pa.float32(), (700, -1)),
        (pa.decimal128(10, 2), (1700, (10 << 16 | 2) + 4)),
        (pa.timestamp("us"), (1114, -1)),
        (UTC, (1184, -1)),
        (pa.list_(pa.decimal128(10, 2)), (1231, (10 << 16 | 2) + 4)),
        (pa.list_(pa.binary()), (1001, -1)),
    ],
    ids=str,
)
def test_the_type_of_a_column_that_spark_has_made(
    kind: pa.DataType, expected: tuple[int, int]
) -> None:
    assert type_of_arrow(kind) == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.list_(pa.int32())),
        pa.timestamp("ns"),
        pa.null(),
    ],
    ids=str,
)
def test_types_that_are_not_published(kind: pa.DataType) -> None:
    with pytest.raises(FeatureNotSupported, match="cannot be published"):
        type_of_arrow(kind)


@pytest.mark.parametrize("number", [-2_440_589, 2_145_042_906, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("output", [text_output, binary_output])
def test_dates_that_the_server_refuses(number: int, output: Callable[..., pa.Array]) -> None:
    array = pa.array([0, None, number], pa.int32()).cast(pa.date32())
    with pytest.raises(ValueNotRepresentable, match="date out of range"):
        output(array, 1082)


@pytest.mark.parametrize("number", [-2_440_588 * _DAY_US - 1, -(2**63)])
@pytest.mark.parametrize(("kind", "oid"), [(pa.timestamp("us"), 1114), (UTC, 1184)])
@pytest.mark.parametrize("output", [text_output, binary_output])
def test_timestamps_that_the_server_refuses(
    number: int, kind: pa.DataType, oid: int, output: Callable[..., pa.Array]
) -> None:
    with pytest.raises(ValueNotRepresentable, match="timestamp out of range"):
        output(pa.array([number, None], pa.int64()).cast(kind), oid)


def test_a_uuid_that_somebody_else_has_written() -> None:
    digits = "0123456789abcdef" * 2
    given = pa.array([digits, f"{digits[:20]}-{digits[20:]}".upper(), None], pa.string())
    raw = bytes.fromhex(digits)
    assert binary_output(given, pg_type.UUID).to_pylist() == [raw, raw, None]
    for wrong in ("", digits[1:], digits + "0", digits[1:] + "g", digits[1:] + "é"):
        with pytest.raises(ValueNotRepresentable, match="invalid input syntax for type uuid"):
            binary_output(pa.array([digits, wrong]), pg_type.UUID)


@pytest.mark.parametrize("text", ["abc", "", "1 2", "0x1F", "1.2.3", "nan"])
def test_a_number_that_another_writer_has_left_as_text(text: str) -> None:
    with pytest.raises(ValueNotRepresentable, match="invalid input syntax for type numeric"):
        binary_output(pa.array(["1", text]), pg_type.NUMERIC)
