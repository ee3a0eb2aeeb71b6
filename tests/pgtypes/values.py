"""What a server sends for a value: test-side encoders, and strategies of values per type."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

EPOCH = datetime.datetime(2000, 1, 1)
UTC = datetime.UTC
_WIDE = Context(prec=200)


def numeric_send(text: str) -> bytes:
    """numeric.c, numeric_send."""
    special = {"NaN": (0xC000, 0), "Infinity": (0xD000, 32), "-Infinity": (0xF000, 32)}
    if text in special:
        return struct.pack("!HhHH", 0, 0, *special[text])
    sign = 0x4000 if text.startswith("-") else 0
    whole, _, fraction = text.lstrip("-").partition(".")
    scale = len(fraction)
    whole = whole.rjust(-(-len(whole) // 4) * 4, "0")
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    weight = len(whole) // 4 - 1
    digits = [int((whole + fraction)[i : i + 4]) for i in range(0, len(whole + fraction), 4)]
    while digits and digits[0] == 0:
        digits.pop(0)
        weight -= 1
    while digits and digits[-1] == 0:
        digits.pop()
    if not digits:
        sign, weight = 0, 0
    return struct.pack(f"!HhHH{len(digits)}H", len(digits), weight, sign, scale, *digits)


def numeric_out(value: Decimal) -> str:
    """numeric.c, numeric_out: never an exponent, zero without a sign."""
    return f"{value:f}" if value else f"{abs(value):f}"


def timestamp_out(value: datetime.datetime) -> bytes:
    naive = value.replace(tzinfo=None)
    text = f"{naive.year:04}-{naive:%m-%d %H:%M:%S}"
    if naive.microsecond:
        text += f".{naive.microsecond:06}".rstrip("0")
    return (text + ("+00" if value.tzinfo else "")).encode()


def timestamp_send(value: datetime.datetime) -> bytes:
    return struct.pack("!q", (value.replace(tzinfo=None) - EPOCH) // datetime.timedelta(0, 0, 1))


@dataclass(frozen=True)
class Kind:
    """A type under test: oid, typmod, values, how the server sends them, what they become."""

    oid: int
    values: st.SearchStrategy[Any]
    text: Callable[[Any], bytes]
    binary: Callable[[Any], bytes] | None
    typmod: int = -1
    array_oid: int = 0
    result: Callable[[Any], Any] = lambda value: value


def _float_text(value: float) -> bytes:
    if value != value:
        return b"NaN"
    if value in (float("inf"), float("-inf")):
        return b"Infinity" if value > 0 else b"-Infinity"
    return repr(value).encode()


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    return st.integers(-bound, bound).map(lambda n: Decimal(n).scaleb(-scale, _WIDE))


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def _numeric(precision: int, scale: int) -> Kind:
    def sent(value: Decimal) -> str:
        with_scale = value.quantize(Decimal(1).scaleb(-max(scale, 0)), context=_WIDE)
        return numeric_out(with_scale)

    return Kind(
        1700,
        _decimals(precision, scale),
        lambda v: sent(v).encode(),
        lambda v: numeric_send(sent(v)),
        typmod=numeric_typmod(precision, scale),
        array_oid=1231,
    )


_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_tricky = st.one_of(
    _text, st.sampled_from(["", "NULL", "null", '"', "\\", "{}", "a,b", " x ", '\\"'])
)
_stamps = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59))
_free_numeric = st.one_of(
    st.sampled_from(["NaN", "Infinity", "-Infinity", "0", "0.000", "1" + "0" * 60]),
    st.builds(
        lambda n, s: numeric_out(Decimal(n).scaleb(-s, _WIDE)),
        st.integers(-(10**70), 10**70),
        st.integers(0, 80),
    ),
)


def _integer(oid: int, size: int, array: int) -> Kind:
    bound = 1 << (8 * size - 1)
    return Kind(
        oid,
        st.integers(-bound, bound - 1),
        lambda v: str(v).encode(),
        lambda v: int(v).to_bytes(size, "big", signed=True),
        array_oid=array,
    )


KINDS: dict[str, Kind] = {
    "smallint": _integer(21, 2, 1005),
    "integer": _integer(23, 4, 1007),
    "bigint": _integer(20, 8, 1016),
    "real": Kind(
        700,
        st.floats(width=32),
        lambda v: _float_text(v),
        lambda v: struct.pack("!f", v),
        array_oid=1021,
    ),
    "double precision": Kind(
        701, st.floats(), _float_text, lambda v: struct.pack("!d", v), array_oid=1022
    ),
    "numeric(18,4)": _numeric(18, 4),
    "numeric(9,3)": _numeric(9, 3),
    "numeric(38,10)": _numeric(38, 10),
    "numeric(5,-2)": _numeric(5, -2),
    "numeric(2,5)": _numeric(2, 5),
    "numeric": Kind(1700, _free_numeric, str.encode, numeric_send, array_oid=1231),
    "boolean": Kind(
        16,
        st.booleans(),
        lambda v: b"t" if v else b"f",
        lambda v: b"\1" if v else b"\0",
        array_oid=1000,
    ),
    "text": Kind(25, _tricky, str.encode, str.encode, array_oid=1009),
    "varchar": Kind(1043, _tricky, str.encode, str.encode, array_oid=1015),
    "char": Kind(1042, _tricky, str.encode, str.encode, array_oid=1014),
    "name": Kind(19, _tricky, str.encode, str.encode, array_oid=1003),
    "bytea": Kind(
        17,
        st.binary(max_size=12),
        lambda v: b"\\x" + v.hex().encode(),
        lambda v: v,
        array_oid=1001,
    ),
    "date": Kind(
        1082,
        st.dates(),
        lambda v: f"{v.year:04}-{v:%m-%d}".encode(),
        lambda v: struct.pack("!i", (v - EPOCH.date()).days),
        array_oid=1182,
    ),
    "timestamp": Kind(1114, _stamps, timestamp_out, timestamp_send, array_oid=1115),
    "timestamptz": Kind(
        1184,
        _stamps.map(lambda v: v.replace(tzinfo=UTC)),
        timestamp_out,
        timestamp_send,
        array_oid=1185,
    ),
    "uuid": Kind(
        2950,
        st.uuids(),
        lambda v: str(v).encode(),
        lambda v: v.bytes,
        array_oid=2951,
        result=lambda v: str(v),
    ),
    "json": Kind(114, _tricky, str.encode, str.encode, array_oid=199),
    "jsonb": Kind(3802, _tricky, str.encode, lambda v: b"\1" + v.encode(), array_oid=3807),
}
"""Scalar types by name; ``uuid.UUID`` values become text."""

OTHER = Kind(16_500, _tricky, str.encode, None)
"""An enum, a domain, or any other type without a family."""


def array_out(elements: list[bytes | None]) -> bytes:
    """arrayfuncs.c, array_out: quotes whatever needs them."""
    return b"{" + b",".join(_quoted(e) for e in elements) + b"}"


def _quoted(element: bytes | None) -> bytes:
    if element is None:
        return b"NULL"
    special = set(b'{},"\\ \t\n\r\v\f')
    if element and element.upper() != b"NULL" and not special & set(element):
        return element
    return b'"' + element.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def array_send(element_oid: int, elements: list[bytes | None]) -> bytes:
    """arrayfuncs.c, array_send."""
    null = int(None in elements)
    if not elements:
        return struct.pack("!iiI", 0, 0, element_oid)
    head = struct.pack("!iiIii", 1, null, element_oid, len(elements), 1)
    return head + b"".join(
        struct.pack("!i", -1) if e is None else struct.pack("!i", len(e)) + e for e in elements
    )
