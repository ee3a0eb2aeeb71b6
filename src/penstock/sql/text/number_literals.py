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
_NUMERIC: Final = re.compile(
    r"[+-]?(?:\d+(?:_\d+)*(?:\.(?:\d+(?:_\d+)*)?)?|\.\d+(?:_\d+)*)(?:[eE][+-]?\d+(?:_\d+)*)?",
    re.ASCII,
)
_FLOAT: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX]")
_MAX_WHOLE: Final = 131_072
_MAX_SCALE: Final = 16_383
"""The most digits of a numeric before and behind its point (numeric.h)."""
_SPECIAL: Final = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_UNSIGNED: Final = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|([1-9]\d*|0))", re.ASCII)


def integer_reader(bits: int, name: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        match = _INTEGER.fullmatch(text.strip(SPACE))
        if match is None:
            begun = _INTEGER.match(text.strip(SPACE))
            if begun and _overflows(begun[2], 1 << bits - 1):
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


def _overflows(digits: str, limit: int) -> bool:
    """Return whether pg_strtoint32_safe stops at the last digit, before it adds it."""
    base = {"x": 16, "o": 8, "b": 2}.get(digits[1:2].lower(), 10)
    plain = (digits if base == 10 else digits[2:]).replace("_", "")
    return int(plain[:-1][:MAX_DIGITS] or "0", base) > limit // base


def read_numeric(text: str) -> str:
    stripped = text.strip(SPACE)
    special = _special(stripped)
    if special == "-NaN" or stripped.lower() == "+nan":
        raise invalid("numeric", text)
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
    scale = max(len(fraction) - shift, 0)
    unscaled = (whole + fraction).lstrip("0")
    leading = len(unscaled) - len(fraction) + shift if unscaled else 0
    if scale > _MAX_SCALE or leading > _MAX_WHOLE:
        raise NumericValueOutOfRange("value overflows numeric format")
    unscaled += "0" * (leading - len(unscaled) + scale)
    padded = unscaled.rjust(scale + 1, "0")
    body = f"{padded[:-scale]}.{padded[-scale:]}" if scale else padded
    return f"{sign if unscaled.strip('0') else ''}{body}"


def _check_length(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise FeatureNotSupported(f"numbers of more than {MAX_DIGITS} digits are not supported")


def _special(text: str) -> str | None:
    lower = text.lower()
    sign = lower[:1] if lower[:1] in ("+", "-") else ""
    found = _SPECIAL.get(lower[len(sign) :])
    return f"-{found}" if sign == "-" and found else found


def float_reader(sql_name: str, kind: pa.DataType) -> Callable[[str], str]:
    def read(text: str) -> str:
        stripped = text.strip(SPACE)
        special = _special(stripped)
        if special is not None:
            return special.removeprefix("-") if "NaN" in special else special
        if _HEX_FLOAT.match(stripped):
            raise FeatureNotSupported(f'"{text}" is not supported as a {sql_name}')
        match = _FLOAT.match(stripped)
        if match is None:
            raise invalid(sql_name, text)
        # The range is checked before what follows the number (strtod, then the rest).
        number = match[0]
        value = read_float(number.removeprefix("+"), kind)
        if math.isinf(value) or (value == 0 and Decimal(number) != 0):
            raise NumericValueOutOfRange(f'"{number}" is out of range for type {sql_name}')
        if len(number) < len(stripped):
            raise invalid(sql_name, text)
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
