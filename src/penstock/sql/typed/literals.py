"""Literals to constants: input functions, and what the output functions print of them.

In: a literal's text and the type it must have. Out: a ``Const`` whose text is canonical. Raises
PostgreSQL's errors (22P02, 22003, 22007, 22008) for what the type cannot hold, FeatureNotSupported
for types whose values we do not read.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from penstock.errors import FeatureNotSupported, InvalidParameterValue, PenstockError
from penstock.identifiers import truncated
from penstock.sql.builtin import Type
from penstock.sql.builtin.type_cache import ENUM, types
from penstock.sql.text.array_literals import read_array
from penstock.sql.text.datetime_literals import read_date, read_timestamp
from penstock.sql.text.limits import MAX_DIGITS
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.primnodes import UNKNOWN, Const
from penstock.sqlstate import InvalidTextRepresentation, NumericValueOutOfRange

_SPACE: Final = " \t\n\r\f\v"
_INTEGER: Final = re.compile(
    r"([+-]?)(\d+(?:_\d+)*|0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+)",
    re.ASCII,
)
_NUMERIC: Final = re.compile(
    r"[+-]?(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+(?:_\d+)*)?",
    re.ASCII,
)
_FLOAT: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MAX_SHIFT: Final = 16_000
_SPECIAL: Final = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_UUID: Final = re.compile(r"\{?(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\}?")
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
REG_TYPES: Final = frozenset({24, 2202, 2203, 2204, 2205, 2206, 3734, 3769, 4089, 4096, 4191})
"""regproc, regclass and the like: what a text names is found when it is run."""
_SCIENTIFIC: Final = {"float4": (-5, 6), "float8": (-5, 15)}


def read_literal(text: str | None, type_oid: int) -> Const:
    """The constant of a type that a literal is."""
    if text is None:
        return Const(type_oid, None)
    return Const(type_oid, canonical(text, type_oid))


def canonical(text: str, type_oid: int) -> str:
    """What the output function prints of what the input function reads."""
    type_ = types().get(type_oid)
    if type_ is not None and type_.element and type_oid not in _READERS:
        return read_array(text, lambda item: canonical(item, type_.element))
    if type_ is not None and type_.kind == ENUM:
        return _enum(text, type_)
    reader = _READERS.get(type_oid)
    if reader is None:
        raise FeatureNotSupported(f"constants of type {type_name(type_oid)} are not supported")
    return reader(text)


def _enum(text: str, type_: Type) -> str:
    """enum_in: a label, to the letter."""
    if text not in type_.labels:
        message = f'invalid input value for enum {type_.sql_name}: "{text}"'
        raise InvalidTextRepresentation(message)
    return text


def _integer(bits: int, name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        match = _INTEGER.fullmatch(text.strip(_SPACE))
        if match is None:
            raise invalid(name, text)
        digits = match[2]
        _check_length(digits)
        value = int(digits, 0) if digits[1:2].isalpha() else int(digits)
        value = -value if match[1] == "-" else value
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise NumericValueOutOfRange(f'value "{text}" is out of range for type {name}')
        return str(value)

    return read


def _numeric(text: str) -> str:
    stripped = text.strip(_SPACE)
    special = _special(stripped)
    if special is not None:
        return special
    _check_length(stripped)
    match = _INTEGER.fullmatch(stripped)
    if match and match[2][1:2].isalpha():
        value = int(match[2], 0)
        return str(-value if match[1] == "-" else value)
    if not _NUMERIC.fullmatch(stripped):
        raise invalid("numeric", text)
    mantissa, _, exponent = stripped.replace("_", "").lower().partition("e")
    sign, digits = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa.lstrip("+"))
    whole, _, fraction = digits.partition(".")
    shift = int(exponent or 0)
    if abs(shift) > _MAX_SHIFT:
        raise NumericValueOutOfRange("value overflows numeric format")
    scale = max(len(fraction) - shift, 0)
    unscaled = (whole + fraction + "0" * max(shift - len(fraction), 0)).lstrip("0")
    padded = unscaled.rjust(scale + 1, "0")
    body = f"{padded[:-scale]}.{padded[-scale:]}" if scale else padded
    return f"{sign if unscaled else ''}{body}"


def _check_length(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise FeatureNotSupported(f"numbers of more than {MAX_DIGITS} digits are not supported")


def _special(text: str) -> str | None:
    lower = text.lower()
    sign = lower[:1] if lower[:1] in ("+", "-") else ""
    found = _SPECIAL.get(lower[len(sign) :])
    if found is None or (found == "NaN" and sign):
        return None
    return f"-{found}" if sign == "-" else found


def _float(name: str, format_: str) -> Callable[[str], str]:
    sql_name = "double precision" if name == "float8" else "real"

    def read(text: str) -> str:
        stripped = text.strip(_SPACE)
        special = _special(stripped)
        if special is not None:
            return special
        if not _FLOAT.fullmatch(stripped):
            raise invalid(sql_name, text)
        exact = Decimal(stripped)
        value = float(stripped)
        try:
            (value,) = struct.unpack(format_, struct.pack(format_, value))
        except OverflowError:
            value = math.inf
        if math.isinf(value) or (value == 0 and exact != 0):
            raise NumericValueOutOfRange(f'"{stripped}" is out of range for type {sql_name}')
        return print_float(value, name)

    return read


def print_float(value: float, name: str) -> str:
    """float4out and float8out with extra_float_digits 1 and more: the shortest that comes back."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if name == "float4":
        digits = next(
            text
            for text in (f"{value:.{n}e}" for n in range(9))
            if struct.unpack("f", struct.pack("f", float(text)))[0] == value
        )
    else:
        shortest = Decimal(repr(value))
        digits = f"{shortest.normalize():e}" if value else repr(value * 0.0)
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if value == 0:
        return f"{sign}0"
    number = Decimal(digits)
    exponent = number.adjusted()
    unscaled = "".join(map(str, number.as_tuple().digits)).rstrip("0")
    low, high = _SCIENTIFIC[name]
    if low < exponent < high:
        return f"{sign}{abs(number):f}" if exponent < 0 else sign + _plain(unscaled, exponent)
    point = f".{unscaled[1:]}" if len(unscaled) > 1 else ""
    return f"{sign}{unscaled[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _plain(unscaled: str, exponent: int) -> str:
    whole = unscaled[: exponent + 1].ljust(exponent + 1, "0")
    fraction = unscaled[exponent + 1 :]
    return f"{whole}.{fraction}" if fraction else whole


def _boolean(text: str) -> str:
    word = text.strip(_SPACE).lower()
    if word and (any(w.startswith(word) for w in _TRUE) or any(w.startswith(word) for w in _FALSE)):
        if word == "o":
            raise invalid("boolean", text)
        return "t" if any(w.startswith(word) for w in _TRUE) else "f"
    raise invalid("boolean", text)


def _uuid(text: str) -> str:
    braces = text.startswith("{") == text.endswith("}")
    if not _UUID.fullmatch(text) or not braces:
        raise invalid("uuid", text)
    digits = re.sub(r"[{}-]", "", text).lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bytea(text: str) -> str:
    if text.startswith("\\x"):
        digits = re.sub(r"[ \n\t\r]", "", text[2:])
        wrong = re.search(r"[^0-9a-fA-F]", digits)
        if wrong:
            raise InvalidParameterValue(f'invalid hexadecimal digit: "{wrong[0]}"')
        if len(digits) % 2:
            raise InvalidParameterValue("invalid hexadecimal data: odd number of digits")
        return "\\x" + digits.lower()
    if not re.fullmatch(r"(?:[^\\]|\\\\|\\[0-3][0-7][0-7])*", text, re.DOTALL):
        raise InvalidTextRepresentation("invalid input syntax for type bytea")
    parts = re.findall(r"\\(\\|[0-7]{3})|([^\\]+)", text)
    data = b"".join(
        plain.encode() if plain else (b"\\" if escape == "\\" else bytes([int(escape, 8)]))
        for escape, plain in parts
    )
    return "\\x" + data.hex()


def _same(text: str) -> str:
    return text


def _char(text: str) -> str:
    return text[:1]


def _unsigned(bits: int, name: str) -> Callable[[str], str]:
    """oidin, xidin: negative numbers are what they are as unsigned ones."""

    def read(text: str) -> str:
        stripped = text.strip(_SPACE)
        if not re.fullmatch(r"[+-]?\d+", stripped, re.ASCII):
            raise invalid(name, text)
        _check_length(stripped)
        value = int(stripped)
        if not -(1 << bits - 1) <= value < 1 << bits:
            raise NumericValueOutOfRange(f'value "{text}" is out of range for type {name}')
        return str(value % (1 << bits))

    return read


def _lsn(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}/[0-9a-fA-F]{1,8}", text):
        raise invalid("pg_lsn", text)
    return "/".join(f"{int(half, 16):X}" for half in text.split("/"))


def _vector(item: int) -> Callable[[str], str]:
    """int2vectorin, oidvectorin: numbers with blanks between them."""
    return lambda text: " ".join(canonical(number, item) for number in text.split())


def invalid(name: str, text: str) -> PenstockError:
    """``invalid input syntax for type integer: "x"``; to be raised."""
    return InvalidTextRepresentation(f'invalid input syntax for type {name}: "{text}"')


_READERS: Final[dict[int, Callable[[str], str]]] = {
    16: _boolean,
    17: _bytea,
    18: _char,
    19: truncated,
    20: _integer(64, "bigint"),
    21: _integer(16, "smallint"),
    23: _integer(32, "integer"),
    22: _vector(21),
    25: _same,
    26: _unsigned(32, "oid"),
    28: _unsigned(32, "xid"),
    30: _vector(26),
    114: _same,
    700: _float("float4", "f"),
    701: _float("float8", "d"),
    1042: _same,
    1043: _same,
    1082: read_date,
    1114: lambda text: read_timestamp(text, zone=False),
    1184: lambda text: read_timestamp(text, zone=True),
    1700: _numeric,
    2950: _uuid,
    3220: _lsn,
    5069: _unsigned(64, "xid8"),
    **dict.fromkeys(REG_TYPES, _same),
    UNKNOWN: _same,
}
