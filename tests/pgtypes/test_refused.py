"""Values that the target cannot hold and bytes that are no value: an error that names them."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from penstock.errors import PenstockError, ProtocolViolation, ValueNotRepresentable
from penstock.pgtypes import find
from penstock.pgtypes.datetime import check_range
from pgtypes.test_families import cells
from pgtypes.values import numeric_send, numeric_typmod

_MONEY = numeric_typmod(10, 2)
_WIDE = numeric_typmod(30, 2)

UNFIT_TEXT = [
    (1082, b"infinity", -1, "22008"),
    (1082, b"-infinity", -1, "22008"),
    (1082, b"10000-01-01", -1, "22008"),
    (1082, b"0044-03-15 BC", -1, "22008"),
    (1114, b"infinity", -1, "22008"),
    (1114, b"-infinity", -1, "22008"),
    (1114, b"294276-12-31 23:59:59.999999", -1, "22008"),
    (1114, b"0044-03-15 00:00:00 BC", -1, "22008"),
    (1184, b"infinity", -1, "22008"),
    (1184, b"10000-01-01 00:00:00+00", -1, "22008"),
    (1184, b"0001-01-01 00:00:00+01", -1, "22008"),
    (1700, b"NaN", _MONEY, "22003"),
    (1700, b"Infinity", _WIDE, "22003"),
    (1700, b"-Infinity", _MONEY, "22003"),
    (1700, b"123456789.00", _MONEY, "22003"),
    (1700, b"0.001", _MONEY, "22003"),
    (1007, b"{{1,2},{3,4}}", -1, "2202E"),
    (1007, b"[0:1]={1,2}", -1, "2202E"),
    (1009, b'{{a},{"b}"}}', -1, "2202E"),
    (1182, b"{2020-01-01,infinity}", -1, "22008"),
    (1231, b"{1.50,NaN}", _MONEY, "22003"),
    (25, b"\xff", -1, "22021"),
]

UNFIT_BINARY = [
    (1082, struct.pack("!i", 2**31 - 1), -1, "infinity"),
    (1082, struct.pack("!i", -(2**31)), -1, "-infinity"),
    (1082, struct.pack("!i", 2_921_940), -1, "10000-01-01"),
    (1082, struct.pack("!i", -730_120), -1, "0001-12-31 BC"),
    (1114, struct.pack("!q", 2**63 - 1), -1, "infinity"),
    (1184, struct.pack("!q", -(2**63)), -1, "-infinity"),
    (1114, struct.pack("!q", 2_921_940 * 86_400_000_000 + 1), -1, "10000-01-01 00:00:00.000001"),
    (1184, struct.pack("!q", -730_119 * 86_400_000_000 - 10**6), -1, "0001-12-31 23:59:59+00 BC"),
    (1700, numeric_send("NaN"), _MONEY, "NaN"),
    (1700, numeric_send("Infinity"), _WIDE, "Infinity"),
    (1700, numeric_send("123456789.00"), _MONEY, "123456789.00"),
    (1700, numeric_send("0.001"), _MONEY, "0.001"),
    (1700, numeric_send("1" + "0" * 40), _MONEY, "1" + "0" * 40),
    (1007, struct.pack("!iiIiiii", 2, 0, 23, 1, 1, 2, 1) + bytes(16), -1, "[1:1][1:2]"),
    (1007, struct.pack("!iiIiiii", 1, 0, 23, 1, 0, 4, 7), -1, "[0:0]"),
]

MALFORMED_TEXT = [
    (23, b"0x10", -1),
    (23, b"", -1),
    (701, b"one", -1),
    (701, b"1e400", -1),
    (701, b"inf", -1),
    (700, b"1e39", -1),
    (16, b"true", -1),
    (16, b"x", -1),
    (17, b"\\x1", -1),
    (17, b"\\xzz", -1),
    (17, b"\\9", -1),
    (1082, b"2020-02-30", -1),
    (1114, b"2020-01-01 25:00:00", -1),
    (1184, b"2020-01-01 00:00:00", -1),
    (1700, b"", _MONEY),
    (1700, b"abc", _MONEY),
    (2950, b"c0ffee00-0000-4000-8000-00000000000g", -1),
    (2950, b"c0ffee0000004000-8000-00000000000000", -1),
    (1007, b"", -1),
    (1007, b"{", -1),
    (1007, b"1,2}", -1),
    (1007, b"{1,}", -1),
    (1007, b"{,1}", -1),
    (1007, b"{1,x}", -1),
    (1009, b'{"a}', -1),
    (1009, b'{"a"b}', -1),
    (1009, b'{a"b"}', -1),
    (1009, b"{a}{b}", -1),
    (1009, b"{a}b", -1),
]

MALFORMED_BINARY = [
    (21, b"\0\0\0", -1),
    (23, b"", -1),
    (20, b"\0\0\0\0", -1),
    (700, b"\0", -1),
    (16, b"", -1),
    (1082, b"\0", -1),
    (1114, b"\0\0\0\0", -1),
    (2950, b"\0" * 15, -1),
    (3802, b"", -1),
    (3802, b"\2{}", -1),
    (16_500, b"anything", -1),
    (1700, b"\0" * 7, -1),
    (1700, struct.pack("!HhHHH", 1, 0, 0, 0, 10_000), -1),
    (1700, struct.pack("!HhHHH", 2, 0, 0, 0, 1), -1),
    (1700, struct.pack("!HhHH", 0, 0, 0x1234, 0), -1),
    (1007, b"", -1),
    (1007, struct.pack("!iiIii", 1, 0, 25, 1, 1) + bytes(4), -1),
    (1007, struct.pack("!iiIii", 1, 0, 23, 2**31 - 1, 1), -1),
    (1007, struct.pack("!iiIiii", 1, 0, 23, 1, 1, 5) + bytes(4), -1),
    (1007, struct.pack("!iiIiii", 1, 0, 23, 1, 1, -2), -1),
    (1007, struct.pack("!iiIiii", 1, 0, 23, 1, 1, 3) + bytes(3), -1),
    (1007, struct.pack("!iiIiii", 1, 0, 23, 1, 1, 4) + bytes(5), -1),
    (1007, struct.pack("!iiI", 0, 0, 23) + b"\0", -1),
    (1007, struct.pack("!iiI", -1, 0, 23), -1),
]


def raised(oid: int, raw: bytes, typmod: int, form: str, good: bytes | None) -> list[PenstockError]:
    family = find(oid)
    column = [None, good, raw] if good is not None else [raw]
    errors = []
    calls: tuple[Callable[[], object], ...] = (
        lambda: getattr(family, f"{form}_column")(cells(column), typmod),
        lambda: getattr(family, f"{form}_value")(raw, typmod),
    )
    for call in calls:
        with pytest.raises(PenstockError) as caught:
            call()
        errors.append(caught.value)
    return errors


GOOD_TEXT = {1082: b"2020-01-01", 1114: b"2020-01-01 00:00:00", 1700: b"1.00", 1007: b"{1}"}


@pytest.mark.parametrize(("oid", "raw", "typmod", "sqlstate"), UNFIT_TEXT)
def test_unfit_text(oid: int, raw: bytes, typmod: int, sqlstate: str) -> None:
    for error in raised(oid, raw, typmod, "text", GOOD_TEXT.get(oid)):
        assert isinstance(error, ValueNotRepresentable)
        assert error.sqlstate == sqlstate
        assert error.hint
        if oid in GOOD_TEXT:
            assert raw.decode() in error.message


@pytest.mark.parametrize(("oid", "raw", "typmod", "named"), UNFIT_BINARY)
def test_unfit_binary(oid: int, raw: bytes, typmod: int, named: str) -> None:
    for error in raised(oid, raw, typmod, "binary", None):
        assert isinstance(error, ValueNotRepresentable)
        assert f'"{named}"' in error.message


@pytest.mark.parametrize(("oid", "raw", "typmod"), MALFORMED_TEXT)
def test_malformed_text(oid: int, raw: bytes, typmod: int) -> None:
    for error in raised(oid, raw, typmod, "text", GOOD_TEXT.get(oid)):
        assert isinstance(error, ProtocolViolation)
        assert error.sqlstate == "22P02"


@pytest.mark.parametrize(
    ("oid", "raw", "name"), [(21, b"32768", "smallint"), (23, b"-2147483649", "integer")]
)
def test_integers_out_of_range(oid: int, raw: bytes, name: str) -> None:
    for error in raised(oid, raw, -1, "text", None):
        assert error.message == f'value "{raw.decode()}" is out of range for type {name}'
        assert error.sqlstate == "22003"


@pytest.mark.parametrize(("oid", "raw", "typmod"), MALFORMED_BINARY)
def test_malformed_binary(oid: int, raw: bytes, typmod: int) -> None:
    for error in raised(oid, raw, typmod, "binary", None):
        assert isinstance(error, ProtocolViolation)
        assert error.sqlstate == "22P03"


def test_uncommon_timestamps_are_read_among_common_ones() -> None:
    raws = [
        b"2020-01-01 12:00:00+02",
        b"1800-01-01 00:00:00+00:53:28",
        None,
        b"10000-01-01 00:30:00+01",
        b"0001-12-31 23:00:00-05 BC",
        b"2020-06-01 00:00:00.25-03:30",
    ]
    column = find(1184).text_column(cells(raws), -1)
    assert column.cast(pa.timestamp("us")).cast(pa.string()).to_pylist() == [
        "2020-01-01 10:00:00.000000",
        "1799-12-31 23:06:32.000000",
        None,
        "9999-12-31 23:30:00.000000",
        "0001-01-01 04:00:00.000000",
        "2020-06-01 03:30:00.250000",
    ]
    singles = [None if raw is None else find(1184).text_value(raw, -1) for raw in raws]
    assert column.to_pylist() == singles


def test_bytea_in_escape_format() -> None:
    raws = [b"\\x00ff", b"a\\\\b\\000\\377", b"", None]
    wanted = [b"\0\xff", b"a\\b\0\xff", b"", None]
    assert find(17).text_column(cells(raws), -1).to_pylist() == wanted


def test_an_infinity_is_refused_however_its_maker_wrapped_it() -> None:
    for kind, values in (
        (pa.date32(), [-2_147_472_692, -2_147_472_691]),
        (pa.timestamp("us"), [2**63 - 1, -(2**63) + 946_684_799_999_999]),
        (pa.timestamp("us", "UTC"), [2**63 - 1, -(2**63) + 946_684_799_999_999]),
    ):
        for value in values:
            array = pa.array([value], pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
            with pytest.raises(ValueNotRepresentable):
                check_range(array)
