"""PostgreSQL's settings, with their contexts and values (guc.c, guc_tables.c).

``settings.tsv`` was read from servers of 14 to 18. It gives a ``Setting`` by lower-case name for
one major version; values are checked, and printed as SHOW does. Most settings have no effect on a
node, but clients may set all of them, and SHOW returns their values.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from penstock.errors import InsufficientPrivilege, InvalidParameterValue, PenstockError
from penstock.guc import check_range, number_text, read_bool, read_integer, read_real, shown
from penstock.sqlstate import CantChangeRuntimeParam

_SWITCHES: Final = {"true": "on", "yes": "on", "1": "on", "false": "off", "no": "off", "0": "off"}
"""Other words that enums with on and off accept."""
_AT_START: Final = frozenset(("backend", "superuser-backend"))
_SUPERUSERS: Final = frozenset(("superuser", "superuser-backend"))
_MODES: Final = frozenset(("data_directory_mode", "log_file_mode", "unix_socket_permissions"))
"""Permissions of files, which are shown in octal digits (show_log_file_mode)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of pg_settings. ``unit``: a number's unit or ""; ``low``, ``high``: limits or "";
    ``choices``: an enum's values; ``boot``: the built-in value, in ``unit``.
    """

    name: str
    context: str
    kind: str
    unit: str
    low: str
    high: str
    choices: tuple[str, ...]
    boot: str

    def check_context(self, name: str, *, starting: bool, superuser: bool) -> None:
        """Raise PenstockError (55P02, 42501) unless a client may set it now."""
        if self.context == "internal":
            raise _cannot(f'parameter "{name}" cannot be changed')
        if self.context == "postmaster":
            raise _cannot(f'parameter "{name}" cannot be changed without restarting the server')
        if self.context == "sighup":
            raise _cannot(f'parameter "{name}" cannot be changed now')
        if self.context in _AT_START and not starting:
            raise _cannot(f'parameter "{name}" cannot be set after connection start')
        if self.context in _SUPERUSERS and not superuser:
            raise InsufficientPrivilege(f'permission denied to set parameter "{name}"')

    def read(self, text: str) -> str:
        """Return a value as pg_settings.setting has it. Raises InvalidParameterValue (22023)."""
        match self.kind:
            case "bool":
                return "on" if read_bool(self.name, text) else "off"
            case "enum":
                return self._choice(text)
            case "integer" | "real":
                return self._number(text)
        return text

    def shown(self, value: str) -> str:
        """Return ``value`` as SHOW prints it: in the largest unit that leaves it whole."""
        if self.kind not in ("integer", "real"):
            return value
        if self.name in _MODES:
            return f"{int(value):04o}"
        number = int(value) if self.kind == "integer" else float(value)
        return shown(number, self.unit)

    def _choice(self, text: str) -> str:
        word = _HIDDEN_CHOICES.get(self.name, {}).get(text.lower(), text.lower())
        for choice in self.choices:
            if choice.lower() == word:
                return choice
        if {"on", "off"} <= set(self.choices) and word in _SWITCHES:
            return _SWITCHES[word]
        raise InvalidParameterValue(
            f'invalid value for parameter "{self.name}": "{text}"',
            hint=f"Available values: {', '.join(self.choices)}.",
        )

    def _number(self, text: str) -> str:
        if self.kind == "integer":
            value: float = read_integer(self.name, text, self.unit)
            check_range(self.name, value, int(self.low), int(self.high), self.unit)
        else:
            value = read_real(self.name, text, self.unit)
            check_range(self.name, value, float(self.low), float(self.high), self.unit)
        return number_text(value)


_HIDDEN_CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "client_min_messages": {"info": "info", "debug": "debug2"},
    "wal_compression": dict.fromkeys(("on", "true", "yes", "1"), "pglz"),
}
"""Further words that enums accept, which pg_settings does not list."""


@functools.cache
def settings(version: int) -> Mapping[str, Setting]:
    """Return all settings of a major version by lower-case name."""
    out = {}
    text = resources.files(__package__).joinpath("settings.tsv").read_text("utf-8")
    for line in text.splitlines():
        first, last, name, context, kind, unit, low, high, choices, boot = line.split("\t")
        if int(first) <= version <= int(last):
            values = tuple(choices.split(",")) if choices else ()
            out[name.lower()] = Setting(name, context, kind, unit, low, high, values, boot)
    return out


def _cannot(message: str) -> PenstockError:
    return CantChangeRuntimeParam(message)
