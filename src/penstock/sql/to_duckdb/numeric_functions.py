"""Compute numbers as numeric.c, int.c and float.c do, where DuckDB does not.

A numeric is the text of numeric_out, of any length. DuckDB calls the functions by the names in
``FUNCTIONS`` (``fmgr``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.pgtypes.floating import float_out
from penstock.sql.to_duckdb.fmgr import PythonFunction
from penstock.sqlstate import NumericValueOutOfRange

_MIN_SIGNIFICANT: Final = 16
"""NUMERIC_MIN_SIG_DIGITS"""
_DEC_DIGITS: Final = 4
"""Decimal digits of a digit of base NBASE."""
MAX_SCALE: Final = 1000
"""NUMERIC_MAX_DISPLAY_SCALE"""
_MAX_STORED_SCALE: Final = 16383
"""NUMERIC_DSCALE_MAX"""
_MAX_WHOLE: Final = 131072
"""The most digits before the point (NUMERIC_WEIGHT_MAX)."""
_SPARE_DIGITS: Final = 8
_NAN: Final = "NaN"
_EXACT: Final = Context(prec=400_000, Emax=999_999, Emin=-999_999)
_DIVISION_BY_ZERO: Final = "division by zero"


def _overflow() -> PenstockError:
    return NumericValueOutOfRange("value overflows numeric format")


def by_zero() -> PenstockError:
    """Return the error of a division."""
    return PenstockError(_DIVISION_BY_ZERO, sqlstate="22012")


def _printed(value: Decimal, scale: int) -> str:
    """Print a number with so many digits after the point, rounding halves away from zero."""
    if value.is_nan():
        return _NAN
    if value.is_infinite():
        return "-Infinity" if value.is_signed() else "Infinity"
    exact = Context(
        prec=max(value.adjusted(), 0) + scale + _SPARE_DIGITS,
        rounding=ROUND_HALF_UP,
        Emax=999_999,
        Emin=-999_999,
    )
    rounded = exact.quantize(value, Decimal(1).scaleb(-scale))
    if rounded.adjusted() >= _MAX_WHOLE:
        raise _overflow()
    return f"{rounded if rounded else abs(rounded):f}"


def _scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def added(one: str, other: str, sign: int = 1) -> str:
    """Add, or subtract if ``sign`` is negative (numeric_add, numeric_sub)."""
    first, second = Decimal(one), Decimal(other)
    if sign < 0:
        second = second.copy_negate()
    opposite = first.is_infinite() and second.is_infinite() and first != second
    if first.is_nan() or second.is_nan() or opposite:
        return _NAN
    return _printed(_EXACT.add(first, second), max(_scale(first), _scale(second)))


def _product(one: str, other: str) -> str:
    first, second = Decimal(one), Decimal(other)
    if first.is_nan() or second.is_nan():
        return _NAN
    if first.is_infinite() or second.is_infinite():
        return _NAN if not (first and second) else _printed(first * second, 0)
    scale = min(_scale(first) + _scale(second), _MAX_STORED_SCALE)
    return _printed(_EXACT.multiply(first, second), scale)


def numeric_division(dividend: str, divisor: str) -> str:
    """Divide (numeric_div). Raises PenstockError (22012)."""
    first, second = Decimal(dividend), Decimal(divisor)
    special = _special_quotient(first, second)
    if special is not None:
        return special
    scale = _division_scale(first, second)
    digits = max(first.adjusted() - second.adjusted(), 0) + scale + _SPARE_DIGITS
    # Truncate, so that the result is rounded only once; a last digit 1 stands for a remainder.
    return _printed(_truncated(first, second, digits), scale)


def _special_quotient(first: Decimal, second: Decimal) -> str | None:
    if first.is_nan() or second.is_nan():
        return _NAN
    if first.is_infinite() and second.is_infinite():
        return _NAN
    if not second:
        raise by_zero()
    if first.is_infinite():
        return "-Infinity" if first.is_signed() != second.is_signed() else "Infinity"
    return "0" if second.is_infinite() else None


def _truncated(dividend: Decimal, divisor: Decimal, digits: int) -> Decimal:
    (_, first, up), (_, second, down) = dividend.as_tuple(), divisor.as_tuple()
    assert isinstance(up, int) and isinstance(down, int)
    shift = digits + max(len(second) - len(first), 0)
    # Not by way of texts: Python limits the digits of integers in them.
    whole = int(Decimal((0, first, 0))) * 10**shift
    quotient, rest = divmod(whole, int(Decimal((0, second, 0))))
    made = Decimal(quotient * 10 + bool(rest)).scaleb(up - down - shift - 1, _EXACT)
    return made.copy_negate() if dividend.is_signed() != divisor.is_signed() else made


def _division_scale(dividend: Decimal, divisor: Decimal) -> int:
    """Return the scale of a quotient (select_div_scale)."""
    weight1, first1 = _weight(dividend)
    weight2, first2 = _weight(divisor)
    weight = weight1 - weight2
    if first1 <= first2:
        weight -= 1
    scale = _MIN_SIGNIFICANT - weight * _DEC_DIGITS
    scale = max(scale, _scale(dividend), _scale(divisor), 0)
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


def _remainder(one: str, other: str) -> str:
    first, second = Decimal(one), Decimal(other)
    if first.is_nan() or second.is_nan():
        return _NAN
    if not second:
        raise by_zero()
    if first.is_infinite():
        return _NAN
    if second.is_infinite():
        return _printed(first, _scale(first))
    return _printed(_EXACT.remainder(first, second), max(_scale(first), _scale(second)))


def _whole_quotient(one: str, other: str) -> str:
    """Divide and truncate (numeric_div_trunc)."""
    first, second = Decimal(one), Decimal(other)
    special = _special_quotient(first, second)
    return _printed(_EXACT.divide_int(first, second), 0) if special is None else special


def numeric_round(number: str, digits: int = 0) -> str:
    """Round halves away from zero (numeric_round)."""
    value = Decimal(number)
    if not value.is_finite():
        return number
    scale = min(max(digits, -_MAX_WHOLE - 1), _MAX_STORED_SCALE)
    return _at_scale(value, scale, ROUND_HALF_UP)


def _truncate(number: str, digits: int = 0) -> str:
    value = Decimal(number)
    if not value.is_finite():
        return number
    return _at_scale(value, min(max(digits, -_MAX_WHOLE - 1), _MAX_STORED_SCALE), ROUND_DOWN)


def _at_scale(value: Decimal, scale: int, rounding: str) -> str:
    if rounding == ROUND_DOWN and scale >= _scale(value):
        return _printed(value, scale)
    return _printed(value.quantize(Decimal(1).scaleb(-scale), rounding, _EXACT), max(scale, 0))


def _each(of: Callable[[Decimal], Decimal], scale: int | None = None) -> Callable[[str], str]:
    """Return a function of numbers with the argument's scale; NaN and infinities are passed on."""

    def call(number: str) -> str:
        value = Decimal(number)
        if value.is_nan():
            return number
        return _printed(of(value), _scale(value) if scale is None else scale)

    return call


def _integral(rounding: str) -> Callable[[Decimal], Decimal]:
    return lambda value: (
        value if value.is_infinite() else value.quantize(Decimal(1), rounding, _EXACT)
    )


def _sign(value: Decimal) -> Decimal:
    return Decimal(0) if not value else Decimal(-1 if value.is_signed() else 1)


def _square_root(number: str) -> str:
    """Return the square root (numeric_sqrt): it has 16 significant digits or more."""
    value = Decimal(number)
    if value.is_nan():
        return _NAN
    if value < 0:
        raise PenstockError("cannot take square root of a negative number", sqlstate="2201F")
    if value.is_infinite():
        return number
    significant = _weight(value)[0] * _DEC_DIGITS // 2 + 1
    scale = min(max(_MIN_SIGNIFICANT - significant, _scale(value), 0), MAX_SCALE)
    shifted = int(value.scaleb(2 * scale + 2, _EXACT))
    root = math.isqrt(shifted)
    return _printed(Decimal(root).scaleb(-scale - 1, _EXACT), scale)


def _integer(of: Callable[..., int | Decimal]) -> Callable[..., str]:
    """Return a function of two numbers that works on them as on integers (gcd_var)."""

    def call(one: str, other: str) -> str:
        first, second = Decimal(one), Decimal(other)
        if not first.is_finite() or not second.is_finite():
            return _NAN
        scale = max(_scale(first), _scale(second))
        numbers = (int(value.scaleb(scale, _EXACT)) for value in (first, second))
        return _printed(Decimal(of(*numbers)).scaleb(-scale, _EXACT), scale)

    return call


def _factorial(number: int) -> str:
    if number < 0:
        raise NumericValueOutOfRange("factorial of a negative number is undefined")
    if number > 32177:
        raise _overflow()
    return f"{Decimal(math.factorial(number)):f}"


def _min_scale(number: str) -> int | None:
    value = Decimal(number)
    if not value.is_finite():
        return None
    return len(number.partition(".")[2].rstrip("0"))


def _trim_scale(number: str) -> str:
    return number.rstrip("0").removesuffix(".") if "." in number else number


def _scale_of(number: str) -> int | None:
    return _scale(Decimal(number)) if Decimal(number).is_finite() else None


def _width_bucket(operand: Any, low: Any, high: Any, count: int) -> int:
    if count <= 0:
        raise PenstockError("count must be greater than zero", sqlstate="2201G")
    if any(map(math.isnan, (operand, low, high))):
        raise PenstockError("operand, lower bound, and upper bound cannot be NaN", sqlstate="2201G")
    if math.isinf(low) or math.isinf(high):
        raise PenstockError("lower and upper bounds must be finite", sqlstate="2201G")
    if low == high:
        raise PenstockError("lower bound cannot equal upper bound", sqlstate="2201G")
    up = low < high
    if operand < low if up else operand > low:
        return 0
    if operand >= high if up else operand <= high:
        if count == (1 << 31) - 1:
            raise NumericValueOutOfRange("integer out of range")
        return count + 1
    return _bucket(operand, low, high, count)


def _bucket(operand: Any, low: Any, high: Any, count: int) -> int:
    if isinstance(operand, float):
        if math.isinf(high - low):
            return int((operand / 2 - low / 2) / (high / 2 - low / 2) * count) + 1
        return min(int((operand - low) / (high - low) * count), count - 1) + 1
    place = _EXACT.multiply(_EXACT.subtract(operand, low), Decimal(count))
    return int(_EXACT.divide_int(place, _EXACT.subtract(high, low))) + 1


def _numeric_bucket(operand: str, low: str, high: str, count: int) -> int:
    return _width_bucket(Decimal(operand), Decimal(low), Decimal(high), count)


# Casts of numerics


_NAMES: Final = {16: "smallint", 32: "integer", 64: "bigint"}


def to_integer(bits: int) -> Callable[[str], int]:
    """Return the cast of a numeric to an integer type (numeric_int4)."""
    name = _NAMES[bits]

    def cast(number: str) -> int:
        value = Decimal(number)
        if not value.is_finite():
            shown = "NaN" if value.is_nan() else "infinity"
            raise PenstockError(f"cannot convert {shown} to {name}", sqlstate="0A000")
        rounded = int(value.quantize(Decimal(1), ROUND_HALF_UP, _EXACT))
        if not -(1 << bits - 1) <= rounded < 1 << bits - 1:
            raise NumericValueOutOfRange(f"{name} out of range")
        return rounded

    return cast


def _of_float(kind: pa.DataType, digits: int) -> Callable[[float], str]:
    """Return the cast of a float, which has so many significant digits (float8_numeric)."""

    def cast(value: float) -> str:
        if not math.isfinite(value):
            return float_out(value, kind)
        number = Decimal(f"{value:.{digits - 1}e}").normalize(_EXACT)
        return _printed(number, _scale(number))

    return cast


def numeric_fitted(number: str, precision: int, scale: int) -> str:
    """Round to a modifier (apply_typmod). Raises PenstockError (22003)."""
    value = Decimal(number)
    if value.is_nan():
        return number
    found = number if value.is_infinite() else numeric_round(number, scale)
    if value.is_infinite() or (Decimal(found) and Decimal(found).adjusted() >= precision - scale):
        raise NumericValueOutOfRange("numeric field overflow")
    return found


def _sort_key(number: str) -> str:
    """Return a string that sorts like the number (numeric_cmp); equal numbers have one string.

    It has the sign, the number of digits before the point, and the digits; for negative numbers
    their nines' complement. NaN equals NaN and is the greatest.
    """
    if number in _SPECIAL_KEYS:
        return _SPECIAL_KEYS[number]
    whole, _, fraction = number.lstrip("-").partition(".")
    whole = whole.lstrip("0")
    key = f"{len(whole):06}{whole}{fraction.rstrip('0')}"
    if number.startswith("-") and key != _ZERO_KEY:
        return f"1{key.translate(_COMPLEMENT)}~"
    return f"2{key}"


_ZERO_KEY: Final = "000000"
_SPECIAL_KEYS: Final = {"NaN": "4", "Infinity": "3", "-Infinity": "0"}
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")


# Aggregates, over the list of all values


def _known(numbers: list[str | None], distinct: bool) -> list[str]:
    known = [number for number in numbers if number is not None]
    if not distinct:
        return known
    return list({_sort_key(number): number for number in reversed(known)}.values())


def _sum(numbers: list[str | None], distinct: bool) -> str | None:
    known = _known(numbers, distinct)
    return functools.reduce(lambda one, other: added(one, other), known) if known else None


def _average(numbers: list[str | None], distinct: bool) -> str | None:
    total, count = _sum(numbers, distinct), len(_known(numbers, distinct))
    return None if total is None else numeric_division(total, str(count))


def _extreme(greatest: bool) -> Callable[[list[str | None]], str | None]:
    """Return GREATEST or LEAST; of equal numbers, the first."""
    of = max if greatest else min

    def call(numbers: list[str | None]) -> str | None:
        return of((n for n in numbers if n is not None), key=_sort_key, default=None)

    return call


# Integers and floats


def _gcd(bits: int) -> Callable[[int, int], int]:
    def call(one: int, other: int) -> int:
        return _ranged(math.gcd(one, other), bits)

    return call


def _lcm(bits: int) -> Callable[[int, int], int]:
    def call(one: int, other: int) -> int:
        return _ranged(math.lcm(one, other), bits)

    return call


def _ranged(number: int, bits: int) -> int:
    if number >= 1 << bits - 1:
        raise NumericValueOutOfRange(f"{_NAMES[bits]} out of range")
    return number


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> bits - 1 else number


def _shifted_left(bits: int) -> Callable[[int, int], int]:
    width = max(bits, 32)  # C shifts a smallint as an int
    return lambda number, count: _signed(number << (count & width - 1), bits)


def _shifted_right(bits: int) -> Callable[[int, int], int]:
    width = max(bits, 32)
    return lambda number, count: number >> (count & width - 1)


_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "numeric_add": lambda one, other: added(one, other),
    "numeric_sub": lambda one, other: added(one, other, -1),
    "numeric_mul": _product,
    "numeric_div": numeric_division,
    "numeric_mod": _remainder,
    "numeric_div_trunc": _whole_quotient,
    "numeric_round": numeric_round,
    "numeric_trunc": _truncate,
    "numeric_uminus": _each(lambda value: value.copy_negate()),
    "numeric_abs": _each(lambda value: value.copy_abs()),
    "numeric_sign": _each(_sign, 0),
    "numeric_ceil": _each(_integral("ROUND_CEILING"), 0),
    "numeric_floor": _each(_integral("ROUND_FLOOR"), 0),
    "numeric_sqrt": _square_root,
    "numeric_gcd": _integer(math.gcd),
    "numeric_lcm": _integer(math.lcm),
    "numeric_fac": _factorial,
    "numeric_scale": _scale_of,
    "numeric_min_scale": _min_scale,
    "numeric_trim_scale": _trim_scale,
    "width_bucket_numeric": _numeric_bucket,
    "width_bucket_float8": _width_bucket,
    "numeric_int2": to_integer(16),
    "numeric_int4": to_integer(32),
    "numeric_int8": to_integer(64),
    "float4_numeric": _of_float(pa.float32(), 6),
    "float8_numeric": _of_float(pa.float64(), 15),
    "numeric": numeric_fitted,
    "numeric_key": _sort_key,
    "numeric_sum": _sum,
    "numeric_greatest": _extreme(True),
    "numeric_least": _extreme(False),
    "numeric_avg": _average,
    "int4gcd": _gcd(32),
    "int8gcd": _gcd(64),
    "int4lcm": _lcm(32),
    "int8lcm": _lcm(64),
    **{f"int{n // 8}shl": _shifted_left(n) for n in _NAMES},
    **{f"int{n // 8}shr": _shifted_right(n) for n in _NAMES},
}
FUNCTIONS: Final = {name: PythonFunction(call) for name, call in _CALLS.items()}
