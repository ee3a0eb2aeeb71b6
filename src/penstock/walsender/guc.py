"""PostgreSQL's settings: which there are, who may set them when, to what (guc.c, guc_tables.c).

In: ``settings.tsv``, read from servers of 14 to 18. Out: ``Setting`` by lower-case name for one
major version, values checked and printed as SHOW does. Most have no effect on a node: clients set
them all the same, and are told what they have set.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from penstock.errors import InvalidParameterValue, PenstockError

_BOOLEANS: Final = {
    **dict.fromkeys(("on", "true", "yes", "1", "t", "tr", "tru", "y", "ye"), "on"),
    **dict.fromkeys(("off", "false", "no", "0", "of", "f", "fa", "fal", "fals", "n"), "off"),
}
_SWITCHES: Final = {"true": "on", "yes": "on", "1": "on", "false": "off", "no": "off", "0": "off"}
"""What enums with on and off take for them."""
_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([a-zA-Z]*)\s*\Z")
_MEMORY: Final = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_TIME: Final = {
    "us": 1,
    "ms": 1000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_BASE: Final = re.compile(r"(\d*)([a-zA-Z]+)")
_AT_START: Final = frozenset(("backend", "superuser-backend"))
_SUPERUSERS: Final = frozenset(("superuser", "superuser-backend"))
_SESSION: Final = _AT_START | _SUPERUSERS | {"user", "internal"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of pg_settings. ``unit``: of numbers, "" for none; ``low``, ``high``: "" for none;
    ``choices``: of an enum; ``boot``: the built-in value, numbers in ``unit``.
    """

    name: str
    context: str
    kind: str
    unit: str
    low: str
    high: str
    choices: tuple[str, ...]
    boot: str

    @property
    def of_sessions(self) -> bool:
        """Whether it is a session's own; the others are a server's, which a node is not."""
        return self.context in _SESSION

    def check_context(self, name: str, *, starting: bool, superuser: bool) -> None:
        """Whether a client may set it now. Raises PenstockError (55P02, 42501)."""
        if self.context == "internal":
            raise _cannot(f'parameter "{name}" cannot be changed')
        if self.context == "postmaster":
            raise _cannot(f'parameter "{name}" cannot be changed without restarting the server')
        if self.context == "sighup":
            raise _cannot(f'parameter "{name}" cannot be changed now')
        if self.context in _AT_START and not starting:
            raise _cannot(f'parameter "{name}" cannot be set after connection start')
        if self.context in _SUPERUSERS and not superuser:
            raise PenstockError(f'permission denied to set parameter "{name}"', sqlstate="42501")

    def read(self, text: str) -> str:
        """A value as pg_settings.setting has it. Raises InvalidParameterValue (22023)."""
        match self.kind:
            case "bool":
                found = _BOOLEANS.get(text.lower())
                if found is None:
                    raise InvalidParameterValue(f'parameter "{self.name}" requires a Boolean value')
                return found
            case "enum":
                return self._choice(text)
            case "integer" | "real":
                return self._number(text)
        return text

    def shown(self, value: str) -> str:
        """``value`` as SHOW prints it: in the largest unit that leaves it whole."""
        units = _units(self.unit)
        if not units or self.kind not in ("integer", "real") or float(value) <= 0:
            return value  # 0 and -1 have meanings of their own
        base = round(float(value) * _factor(self.unit))
        fits = [name for name, factor in units.items() if base % factor == 0]
        return f"{base // units[fits[-1]]}{fits[-1]}"

    def _choice(self, text: str) -> str:
        word = _HIDDEN_CHOICES.get(self.name, {}).get(text.lower(), text.lower())
        if word in self.choices:
            return word
        if {"on", "off"} <= set(self.choices) and word in _SWITCHES:
            return _SWITCHES[word]
        raise InvalidParameterValue(
            f'invalid value for parameter "{self.name}": "{text}"',
            hint=f"Available values: {', '.join(self.choices)}.",
        )

    def _number(self, text: str) -> str:
        match, units = _NUMBER.match(text), _units(self.unit)
        if match is None or (match[2] and match[2] not in units):
            hint = (
                f"Valid units for this parameter are {_listed(units)}." if match and units else None
            )
            raise InvalidParameterValue(
                f'invalid value for parameter "{self.name}": "{text}"', hint=hint
            )
        number = float(match[1])
        if match[2]:
            number = number * units[match[2]] / _factor(self.unit)
        value: float = number if self.kind == "real" else _rounded(number)
        if self.low and not float(self.low) <= value <= float(self.high):
            unit = f" {self.unit}" if self.unit else ""
            raise InvalidParameterValue(
                f'{_plain(value)}{unit} is outside the valid range for parameter "{self.name}"'
                f" ({self.low}{unit} .. {self.high}{unit})"
            )
        return _plain(value)


_HIDDEN_CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "client_min_messages": {"info": "info", "debug": "debug2"},
    "wal_compression": dict.fromkeys(("on", "true", "yes", "1"), "pglz"),
}
"""Words of enums that pg_settings does not list."""


@functools.cache
def settings(version: int) -> Mapping[str, Setting]:
    """All settings of a major version by lower-case name."""
    out = {}
    text = resources.files(__package__).joinpath("settings.tsv").read_text("utf-8")
    for line in text.splitlines():
        first, last, name, context, kind, unit, low, high, choices, boot = line.split("\t")
        if int(first) <= version <= int(last):
            values = tuple(choices.split(",")) if choices else ()
            out[name.lower()] = Setting(name, context, kind, unit, low, high, values, boot)
    return out


def _units(base: str) -> Mapping[str, int]:
    match = _BASE.fullmatch(base)
    if match is None:
        return {}
    units = _MEMORY if match[2] in _MEMORY else _TIME
    return units if match[2] in units else {}


def _factor(base: str) -> int:
    """Bytes or microseconds of a unit such as ms or 8kB."""
    match = _BASE.fullmatch(base)
    assert match is not None
    return int(match[1] or 1) * _units(base)[match[2]]


def _listed(units: Mapping[str, int]) -> str:
    quoted = [f'"{name}"' for name in units]
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def _rounded(number: float) -> int:
    """rint: halves go to the even number."""
    return round(number) if math.isfinite(number) else 0


def _plain(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _cannot(message: str) -> PenstockError:
    return PenstockError(message, sqlstate="55P02")
