"""Compute numerics of any length as numeric.c does; DuckDB's decimals have at most 38 digits.

The functions take and return the text of numeric_out. A DuckDB connection calls them, and returns
NULL for a NULL argument.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

import duckdb

DIVISION: Final = "pg_numeric_div"
"""(dividend, divisor) -> their quotient."""
ROUND: Final = "pg_numeric_round"
"""(number, digits after the point, at least 0) -> the rounded number."""

_MIN_SIGNIFICANT: Final = 16
"""NUMERIC_MIN_SIG_DIGITS"""
_DEC_DIGITS: Final = 4
"""Decimal digits of a digit of base NBASE."""
MAX_SCALE: Final = 1000
"""NUMERIC_MAX_DISPLAY_SCALE"""
_SPARE_DIGITS: Final = 8
_NOT_A_NUMBER: Final = "NaN"


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the functions with a connection."""
    connection.create_function(DIVISION, numeric_division, ["VARCHAR", "VARCHAR"], "VARCHAR")
    connection.create_function(ROUND, numeric_round, ["VARCHAR", "INTEGER"], "VARCHAR")


def numeric_division(dividend: str, divisor: str) -> str:
    """Divide (numeric_div). Raises ZeroDivisionError."""
    first, second = Decimal(dividend), Decimal(divisor)
    if first.is_nan() or second.is_nan():
        return _NOT_A_NUMBER
    if first.is_infinite() and second.is_infinite():
        return _NOT_A_NUMBER
    if not second:
        raise ZeroDivisionError("division by zero")
    if first.is_infinite():
        return "-Infinity" if first.is_signed() != second.is_signed() else "Infinity"
    if second.is_infinite():
        return "0"
    scale = _division_scale(first, second)
    digits = max(first.adjusted() - second.adjusted(), 0) + scale + _SPARE_DIGITS
    # Truncate, so that the result is rounded only once; a last digit 1 stands for a remainder.
    cut = _truncated(first, second, digits)
    return _printed(cut, scale)


def _truncated(dividend: Decimal, divisor: Decimal, digits: int) -> Decimal:
    (_, first, up), (_, second, down) = dividend.as_tuple(), divisor.as_tuple()
    assert isinstance(up, int) and isinstance(down, int)
    shift = digits + max(len(second) - len(first), 0)
    number = int("".join(map(str, first))) * 10**shift
    quotient, rest = divmod(number, int("".join(map(str, second))))
    sign = "-" if dividend.is_signed() != divisor.is_signed() else ""
    return Decimal(f"{sign}{quotient}{1 if rest else 0}E{up - down - shift - 1}")


def numeric_round(number: str, digits: int) -> str:
    """Round (numeric_round). ``digits``: after the point, at least 0."""
    value = Decimal(number)
    if not value.is_finite():
        return number
    return _printed(value, digits)


def _printed(value: Decimal, scale: int) -> str:
    exact = Context(prec=max(value.adjusted(), 0) + scale + _SPARE_DIGITS, rounding=ROUND_HALF_UP)
    rounded = exact.quantize(value, Decimal(1).scaleb(-scale))
    return f"{rounded if rounded else abs(rounded):f}"


def _division_scale(dividend: Decimal, divisor: Decimal) -> int:
    """Return the scale of a quotient (select_div_scale)."""
    weight1, first1 = _weight(dividend)
    weight2, first2 = _weight(divisor)
    weight = weight1 - weight2
    if first1 <= first2:
        weight -= 1
    scale = _MIN_SIGNIFICANT - weight * _DEC_DIGITS
    scale = max(scale, _display_scale(dividend), _display_scale(divisor), 0)
    return min(scale, MAX_SCALE)


def _weight(number: Decimal) -> tuple[int, int]:
    """Return weight and value of the first nonzero digit of base 10000; (0, 0) for zero."""
    if not number:
        return 0, 0
    weight = number.adjusted() // _DEC_DIGITS
    first = int(
        number.copy_abs().scaleb(-weight * _DEC_DIGITS, Context(prec=len(number.as_tuple().digits)))
    )
    return weight, first


def _display_scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
