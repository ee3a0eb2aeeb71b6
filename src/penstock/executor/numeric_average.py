"""The quotient of a sum and a count as numeric_avg prints it (numeric.c, select_div_scale).

In: texts and counts. Out: texts. DuckDB's decimals have another scale than PostgreSQL's division.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

_MIN_SIGNIFICANT: Final = 16
"""NUMERIC_MIN_SIG_DIGITS"""
_DEC_DIGITS: Final = 4
"""Digits of a digit of base NBASE."""
_MAX_SCALE: Final = 1000
_EXACT: Final = Context(prec=2000, rounding=ROUND_HALF_UP)


def numeric_average(total: str, count: int) -> str:
    """``total``: a finite number as text; ``count``: above zero."""
    dividend, divisor = Decimal(total), Decimal(count)
    scale = _scale(dividend, divisor)
    quotient = _EXACT.divide(dividend, divisor)
    rounded = _EXACT.quantize(quotient, Decimal(1).scaleb(-scale))
    return f"{rounded if rounded else abs(rounded):f}"


def _scale(dividend: Decimal, divisor: Decimal) -> int:
    weight1, first1 = _weight(dividend)
    weight2, first2 = _weight(divisor)
    weight = weight1 - weight2
    if first1 <= first2:
        weight -= 1
    scale = _MIN_SIGNIFICANT - weight * _DEC_DIGITS
    scale = max(scale, _display_scale(dividend), _display_scale(divisor), 0)
    return min(scale, _MAX_SCALE)


def _weight(number: Decimal) -> tuple[int, int]:
    """Weight and value of the first digit of base 10000 that is not zero; (0, 0) for zero."""
    if not number:
        return 0, 0
    weight = number.adjusted() // _DEC_DIGITS
    first = int(abs(number).scaleb(-weight * _DEC_DIGITS, _EXACT))
    return weight, first


def _display_scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
