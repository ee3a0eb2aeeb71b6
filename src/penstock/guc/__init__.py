"""Values of parameters as PostgreSQL reads and shows them.

The code follows guc.c (parse_bool, parse_int, parse_real, convert_to_base_unit, ShowGUCOption) and
define.c (defGetBoolean).

A number without a unit is in the parameter's base unit, as pg_settings has it ("ms", "8kB", "" for
none); invalid text raises PostgreSQL's errors. Other rooms declare the parameters and their limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final

from penstock.errors import InvalidParameterValue, SqlSyntaxError

INT_MAX: Final = 2**31 - 1
_INT_MIN: Final = -(2**31)

TIMES: Final[Mapping[str, Decimal]] = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
"""Units of time, in seconds."""
SIZES: Final[Mapping[str, Decimal]] = {
    "B": Decimal(1),
    "kB": Decimal(1 << 10),
    "MB": Decimal(1 << 20),
    "GB": Decimal(1 << 30),
    "TB": Decimal(1 << 40),
}
"""Units of size, in bytes."""
_BASE: Final = re.compile(r"([0-9]*)([a-zA-Z]+)")

_DECIMAL: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER: Final = re.compile(rf"\s*([+-]?0[xX][0-9a-fA-F]+|{_DECIMAL})\s*(.*?)\s*", re.DOTALL)
_OCTAL: Final = re.compile(r"[+-]?0[0-7]+")
_REAL_WORDS: Final = re.compile(r"\s*([+-]?inf(?:inity)?)\s*", re.IGNORECASE)
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
"""Words of booleans, with their unique prefixes (parse_bool_with_len)."""
_OPTION_WORDS: Final = {"true": True, "on": True, "false": False, "off": False}


def read_bool(name: str, text: str) -> bool:
    """Read a boolean parameter. Raises InvalidParameterValue."""
    found = parse_bool(text)
    if found is None:
        raise InvalidParameterValue(f'parameter "{name}" requires a Boolean value')
    return found


def parse_bool(text: str) -> bool | None:
    """Read a boolean's word or its unique prefix; None if the text is neither."""
    return _BOOLEANS.get(text.lower())


def option_bool(value: object) -> bool | None:
    """Return the boolean value of an option of a statement or a command. An option without a value
    means true. None if the value is no boolean."""
    if value is None or value == 1:
        return True
    if value == 0:
        return False
    return _OPTION_WORDS.get(str(value).lower())


def def_get_boolean(name: str, value: object) -> bool:
    """Return an option's boolean value (defGetBoolean). Raises SqlSyntaxError."""
    found = option_bool(value)
    if found is None:
        raise SqlSyntaxError(f"{name} requires a Boolean value")
    return found


def read_integer(name: str, text: str, base: str) -> int:
    """Read an integer, which may be hexadecimal, octal, a fraction, or have a unit. It is rounded
    to the base unit.

    Raises InvalidParameterValue.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise invalid(name, text)
    digits, unit = match[1], match[2]
    number = _in_base_unit(name, text, _c_integer(digits), unit, base)
    if not _INT_MIN <= number <= INT_MAX:
        raise invalid(name, text, "Value exceeds integer range.")
    return int(number.to_integral_value(ROUND_HALF_EVEN))


def read_real(name: str, text: str, base: str) -> float:
    """Read a real number, never NaN. Raises InvalidParameterValue."""
    match, word = _NUMBER.fullmatch(text), _REAL_WORDS.fullmatch(text)
    if match is None:
        if word is None:
            raise invalid(name, text)
        return float(word[1])
    digits = match[1]
    number = Decimal(int(digits, 16)) if "x" in digits.lower() else Decimal(digits)
    return float(_in_base_unit(name, text, number, match[2], base))


def check_range(name: str, value: float, low: float, high: float, base: str) -> None:
    """Raise InvalidParameterValue if a number is outside the range."""
    if low <= value <= high:
        return
    after = f" {base}" if base else ""
    told, least, greatest = (number_text(number) + after for number in (value, low, high))
    raise InvalidParameterValue(
        f'{told} is outside the valid range for parameter "{name}" ({least} .. {greatest})'
    )


def shown(value: float, base: str) -> str:
    """Return a number as SHOW prints it: in the largest unit that leaves it whole."""
    units = _units(base)
    if not units or value <= 0:
        return number_text(value)  # 0 and -1 mean something special
    exact = Decimal(str(value)) * _factor(base)
    unit = [name for name, factor in units.items() if exact % factor == 0][-1]
    return f"{int(exact / units[unit])}{unit}"


def number_text(number: float) -> str:
    """Return a number as printf's %d and %g give it in PostgreSQL."""
    if isinstance(number, int):
        return str(number)
    return f"{number:g}".replace("inf", "Infinity")


def invalid(name: str, text: str, hint: str | None = None) -> InvalidParameterValue:
    """Return the error for a value that a parameter does not accept."""
    return InvalidParameterValue(f'invalid value for parameter "{name}": "{text}"', hint=hint)


def _c_integer(digits: str) -> Decimal:
    """Read an integer as strtol with base 0 does, or a fraction as strtod does."""
    if "x" in digits.lower():
        return Decimal(int(digits, 16))
    octal = _OCTAL.fullmatch(digits) is not None
    return Decimal(int(digits, 8)) if octal else Decimal(digits)


def _in_base_unit(name: str, text: str, number: Decimal, unit: str, base: str) -> Decimal:
    """Convert a number to the base unit (convert_to_base_unit). A fraction is first rounded to the
    next smaller unit (30.1GB)."""
    if not unit:
        return number
    units = _units(base)
    if unit not in units:
        raise invalid(name, text, _valid_units(units) if units else None)
    converted = number * units[unit]
    smaller = [size for size in units.values() if size < units[unit]]
    if smaller:
        converted = (converted / smaller[-1]).to_integral_value(ROUND_HALF_EVEN) * smaller[-1]
    return converted / _factor(base)


def _valid_units(units: Mapping[str, Decimal]) -> str:
    *names, last = [f'"{name}"' for name in units]
    return f"Valid units for this parameter are {', '.join(names)}, and {last}."


def _units(base: str) -> Mapping[str, Decimal]:
    match = _BASE.fullmatch(base)
    families = (TIMES, SIZES) if match is not None else ()
    return next((units for units in families if match and match[2] in units), {})


def _factor(base: str) -> Decimal:
    """Return the seconds or bytes of a unit such as ms or 8kB."""
    match = _BASE.fullmatch(base)
    if match is None:
        return Decimal(1)
    return int(match[1] or 1) * _units(base)[match[2]]


def in_seconds_or_bytes(value: float, base: str) -> Decimal:
    """Return the seconds or bytes of a value in its base unit; without a unit the value itself."""
    return Decimal(str(value)) * _factor(base)
