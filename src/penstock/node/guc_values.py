"""What a parameter may be, and how a value is read (guc.c, parse_and_validate_value).

In: a value as it stands in a TOML file. Out: the parameter's value, or PostgreSQL's error for it.
A number has a base unit, that of PostgreSQL's parameter of the name: without a unit of its own it
is in that one, and its range is told in it. Once read, times are seconds and sizes are bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from penstock.errors import InvalidParameterValue
from penstock.guc import (
    INT_MAX,
    TIMES,
    check_range,
    in_seconds_or_bytes,
    invalid,
    read_bool,
    read_integer,
    read_real,
    shown,
)


class ParameterKind(Protocol):
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
        number = read_integer(name, _text(value), self.unit)
        check_range(name, number, self.minimum, self.maximum, self.unit)
        exact = in_seconds_or_bytes(number, self.unit)
        return float(exact) if self.unit in TIMES else int(exact)

    def show(self, value: Any) -> str:
        """As the Protocol says: with the greatest unit that gives a whole number."""
        if not self.unit:
            return str(value)
        return f'"{shown(int(Decimal(str(value)) / in_seconds_or_bytes(1, self.unit)), self.unit)}"'


@dataclass(frozen=True, slots=True)
class Real:
    """config_real without a unit."""

    minimum: float
    maximum: float

    def read(self, name: str, value: Any) -> float:
        """As the Protocol says."""
        number = read_real(name, _text(value), "")
        check_range(name, number, self.minimum, self.maximum, "")
        return number

    def show(self, value: Any) -> str:
        """As the Protocol says."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Boolean:
    """config_bool."""

    def read(self, name: str, value: Any) -> bool:
        """As the Protocol says."""
        return read_bool(name, _text(value))

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
class Checked:
    """config_string with a check of its own, which raises PostgreSQL's error."""

    check: Callable[[str], object]

    def read(self, name: str, value: Any) -> str:
        """As the Protocol says."""
        text = String().read(name, value)
        self.check(text)
        return text

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


def _invalid(name: str, value: Any, hint: str | None = None) -> InvalidParameterValue:
    return invalid(name, _text(value), hint)


def _text(value: Any) -> str:
    """As it would stand in postgresql.conf."""
    return str(value).lower() if isinstance(value, bool) else str(value)
