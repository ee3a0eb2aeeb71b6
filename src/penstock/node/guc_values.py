"""What a parameter may be, and how a value is read (guc.c, parse_and_validate_value).

In: a value as it stands in a TOML file. Out: the parameter's value, or PostgreSQL's error for it.
A number has a base unit, that of PostgreSQL's parameter of the name: without a unit of its own it
is in that one, and its range is told in it. Once read, times are seconds and sizes are bytes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final, Protocol

from penstock.errors import InvalidParameterValue

INT_MAX: Final = 2**31 - 1
_INT_MIN: Final = -(2**31)

_TIME_UNITS: Final[Mapping[str, Decimal]] = {
    "us": Decimal("0.000001"),
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_SIZE_UNITS: Final[Mapping[str, Decimal]] = {
    "B": Decimal(1),
    "kB": Decimal(1 << 10),
    "MB": Decimal(1 << 20),
    "GB": Decimal(1 << 30),
    "TB": Decimal(1 << 40),
}
_FAMILIES: Final = (_TIME_UNITS, _SIZE_UNITS)
_HINTS: Final = (
    'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".',
    'Valid units for this parameter are "B", "kB", "MB", "GB", and "TB".',
)

_DECIMAL: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBER: Final = re.compile(rf"\s*([+-]?0[xX][0-9a-fA-F]+|{_DECIMAL})\s*(.*?)\s*")
_OCTAL: Final = re.compile(r"[+-]?0[0-7]+")
_REAL_WORDS: Final = re.compile(r"\s*([+-]?inf(?:inity)?)\s*", re.IGNORECASE)
_BOOLEANS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
"""parse_bool_with_len: unique prefixes."""


class Kind(Protocol):
    """What a parameter may be."""

    def read(self, name: str, value: Any) -> Any:
        """The value. Raises InvalidParameterValue with PostgreSQL's message."""

    def show(self, value: Any) -> str:
        """The value as the parameter file has it."""


@dataclass(frozen=True, slots=True)
class Integer:
    """config_int. ``unit``: ms, s, kB or nothing; the limits are in it."""

    minimum: int
    maximum: int = INT_MAX
    unit: str = ""

    def read(self, name: str, value: Any) -> Any:
        """As the Protocol says; seconds (float), bytes (int) or the number itself."""
        number = _parse_int(name, value, self.unit)
        _check_range(name, number, self.minimum, self.maximum, self.unit)
        if self.unit in _TIME_UNITS:
            return float(number * _TIME_UNITS[self.unit])
        return number * int(_SIZE_UNITS[self.unit]) if self.unit else number

    def show(self, value: Any) -> str:
        """As the Protocol says: with the greatest unit that gives a whole number."""
        for units in _FAMILIES:
            if self.unit not in units:
                continue
            exact = Decimal(str(value))
            fitting = [unit for unit, size in units.items() if exact % size == 0 and exact >= size]
            unit = next((u for u in reversed(fitting) if u in ("MB", "kB", "s", "ms")), self.unit)
            return f'"{int(exact / units[unit])}{unit}"'
        return str(value)


@dataclass(frozen=True, slots=True)
class Real:
    """config_real without a unit."""

    minimum: float
    maximum: float

    def read(self, name: str, value: Any) -> float:
        """As the Protocol says."""
        text = _text(value)
        number, match = math.nan, _NUMBER.fullmatch(text)
        if match is not None and not match[2]:
            number = float.fromhex(match[1]) if "x" in match[1].lower() else float(match[1])
        elif (word := _REAL_WORDS.fullmatch(text)) is not None:
            number = float(word[1])
        if math.isnan(number):
            raise _invalid(name, value)
        _check_range(name, number, self.minimum, self.maximum, "")
        return number

    def show(self, value: Any) -> str:
        """As the Protocol says."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    """config_bool."""

    def read(self, name: str, value: Any) -> bool:
        """As the Protocol says."""
        found = _BOOLEANS.get(_text(value).lower())
        if found is None:
            raise InvalidParameterValue(f'parameter "{name}" requires a Boolean value')
        return found

    def show(self, value: Any) -> str:
        """As the Protocol says."""
        return str(value).lower()


@dataclass(frozen=True, slots=True)
class String:
    """config_string. ``pattern``: what the whole text must be; ``hint``: how it is written."""

    pattern: str = r".*"
    hint: str | None = None

    def read(self, name: str, value: Any) -> str:
        """As the Protocol says. Numbers and booleans must be quoted, so that none is meant for
        another parameter."""
        if not isinstance(value, str):
            raise _invalid(name, value, f'Put it in quotes: {name} = "{_text(value)}".')
        if "\0" in value or not re.fullmatch(self.pattern, value, re.DOTALL):
            raise _invalid(name, value, self.hint)
        return value

    def show(self, value: Any) -> str:
        """As the Protocol says."""
        return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Strings:
    """A list of texts."""

    def read(self, name: str, value: Any) -> tuple[str, ...]:
        """As the Protocol says."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _invalid(name, value, f'Write a list of texts: {name} = ["...", "..."].')
        return tuple(value)

    def show(self, value: Any) -> str:
        """As the Protocol says."""
        return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Settings:
    """A table of settings for somebody else, who checks them: Spark."""

    def read(self, name: str, value: Any) -> dict[str, str]:
        """As the Protocol says."""
        if not isinstance(value, dict):
            raise _invalid(name, value, f"Write a table: [spark.{name}].")
        found = {}
        for key, item in value.items():
            if isinstance(item, (dict, list)):
                raise _invalid(key, item, f'Write "{key}" = "..." with the whole name in quotes.')
            found[key] = _text(item)
        return found

    def show(self, value: Any) -> str:
        """As the Protocol says."""
        return json.dumps(value)


def _parse_int(name: str, value: Any, base: str) -> int:
    """parse_int: hexadecimal, fractions and units, rounded to the base unit."""
    match = _NUMBER.fullmatch(_text(value))
    if match is None:
        raise _invalid(name, value)
    digits, unit = match[1], match[2]
    number = _c_integer(digits)
    if unit:
        number = _in_base_unit(name, value, number, unit, base)
    if not _INT_MIN <= number <= INT_MAX:
        raise _invalid(name, value, "Value exceeds integer range.")
    return int(number.to_integral_value(ROUND_HALF_EVEN))


def _c_integer(digits: str) -> Decimal:
    """strtol with base 0, or a fraction by strtod."""
    if "x" in digits.lower():
        return Decimal(int(digits, 16))
    octal = _OCTAL.fullmatch(digits) is not None
    return Decimal(int(digits, 8)) if octal else Decimal(digits)


def _in_base_unit(name: str, value: Any, number: Decimal, unit: str, base: str) -> Decimal:
    """convert_to_base_unit: a fraction is rounded to the next smaller unit first (30.1GB)."""
    for units, hint in zip(_FAMILIES, _HINTS, strict=True):
        if base not in units:
            continue
        if unit not in units:
            raise _invalid(name, value, hint)
        smaller = [size for size in units.values() if size < units[unit]]
        converted = number * units[unit]
        if smaller and smaller[-1] >= units[base]:
            converted = (converted / smaller[-1]).to_integral_value(ROUND_HALF_EVEN) * smaller[-1]
        return converted / units[base]
    raise _invalid(name, value)


def _check_range(name: str, value: float, low: float, high: float, unit: str) -> None:
    if low <= value <= high:
        return
    after = f" {unit}" if unit else ""
    told, least, greatest = (_number_text(number) + after for number in (value, low, high))
    raise InvalidParameterValue(
        f'{told} is outside the valid range for parameter "{name}" ({least} .. {greatest})'
    )


def _number_text(number: float) -> str:
    """As printf's %d and %g in PostgreSQL."""
    if isinstance(number, int):
        return str(number)
    return f"{number:g}".replace("inf", "Infinity")


def _invalid(name: str, value: Any, hint: str | None = None) -> InvalidParameterValue:
    return InvalidParameterValue(
        f'invalid value for parameter "{name}": "{_text(value)}"', hint=hint
    )


def _text(value: Any) -> str:
    """As it would stand in postgresql.conf."""
    return str(value).lower() if isinstance(value, bool) else str(value)
