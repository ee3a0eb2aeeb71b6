"""Read numbers in literals: the input functions of int.c, int8.c, float.c and numeric.c.

A literal becomes the text that the output function prints. Raises PostgreSQL's errors (22P02,
22003); FeatureNotSupported for more than ``MAX_DIGITS`` digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes.floating import float_out, read_float
from penstock.sql.text.limits import MAX_DIGITS
from penstock.sqlstate import InvalidTextRepresentation, NumericValueOutOfRange

SPACE: Final = " \t\n\r\f\v"
_INTEGER: Final = re.compile(
    r"([+-]?)(\d+(?:_\d+)*|0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+)",
    re.ASCII,
)
_DIGITS: Final = re.compile(r"[+-]?(\d{1,1000})", re.ASCII)
_NUMERIC: Final = re.compile(
    r"[+-]?(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+(?:_\d+)*)?",
    re.ASCII,
)
_FLOAT: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX]")
_MAX_SHIFT: Final = 16_000
_SPECIAL: Final = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_UNSIGNED: Final = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|([1-9]\d*|0))", re.ASCII)


def integer_reader(bits: int, name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        match = _INTEGER.fullmatch(text.strip(SPACE))
        if match is None:
            begun = _DIGITS.match(text.strip(SPACE))
            if begun and int(begun[1][:-1] or 0) > (1 << bits - 1) // 10:
                # PostgreSQL reports an overflow before it reads the invalid text that follows.
                raise NumericValueOutOfRange(f'value "{text}" is out of range for type {name}')
            raise invalid(name, text)
        digits = match[2]
        _check_length(digits)
        value = int(digits, 0) if digits[1:2].isalpha() else int(digits)
        value = -value if match[1] == "-" else value
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise NumericValueOutOfRange(f'value "{text}" is out of range for type {name}')
        return str(value)

    return read


def read_numeric(text: str) -> str:
    stripped = text.strip(SPACE)
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


def float_reader(sql_name: str, kind: pa.DataType) -> Callable[[str], str]:
    def read(text: str) -> str:
        stripped = text.strip(SPACE)
        special = _special(stripped)
        if special is not None:
            return special
        if _HEX_FLOAT.match(stripped):
            raise FeatureNotSupported(f'"{text}" is not supported as a {sql_name}')
        if not _FLOAT.fullmatch(stripped):
            raise invalid(sql_name, text)
        value = read_float(stripped.removeprefix("+"), kind)
        if math.isinf(value) or (value == 0 and Decimal(stripped) != 0):
            raise NumericValueOutOfRange(f'"{stripped}" is out of range for type {sql_name}')
        return float_out(value, kind)

    return read


def unsigned_reader(bits: int, name: str) -> Callable[[str], str]:
    """Return a reader like oidin and xidin: negative numbers wrap around (strtoul)."""

    def read(text: str) -> str:
        match = _UNSIGNED.fullmatch(text.strip(SPACE))
        if match is None:
            raise invalid(name, text)
        sign, hexadecimal, octal, decimal = match.groups()
        digits, base = (hexadecimal, 16) if hexadecimal else (octal, 8) if octal else (decimal, 10)
        _check_length(digits)
        value = int(f"{sign}{digits}", base)
        if not -(1 << bits - 1) <= value < 1 << bits:
            raise NumericValueOutOfRange(f'value "{text}" is out of range for type {name}')
        return str(value % (1 << bits))

    return read


def invalid(name: str, text: str) -> PenstockError:
    """Return the error ``invalid input syntax for type integer: "x"``."""
    return InvalidTextRepresentation(f'invalid input syntax for type {name}: "{text}"')
