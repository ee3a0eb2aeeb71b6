"""Settings of one session: SET, RESET, SHOW (guc.c).

In: the node's values, what the client asked for at the start, and SET. Out: values by name, and
which of them the client is to be told. Names and values are checked as PostgreSQL does (``guc``).
Nothing here changes what the node does: dates, numbers and bytea are always printed as a subscriber
asks for them, so the few settings that would change it are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.errors import FeatureNotSupported, UndefinedObject
from penstock.guc.guc_tables import settings
from penstock.protocol.answers import ParameterChange
from penstock.protocol.encoding import find_encoding

_ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "datestyle": ("iso", "iso, mdy", "iso, dmy", "iso, ymd", "iso,mdy", "default"),
    "intervalstyle": ("postgres",),
    "bytea_output": ("hex",),
    "standard_conforming_strings": ("on", "true", "yes", "1"),
    "timezone": ("utc", "gmt", "etc/utc", "+00:00", "0", "default"),
    "role": ("none",),
    "session_authorization": (),
}
"""Settings with effects, and the only values that there are here."""
_ROLES: Final = frozenset({"role", "session_authorization"})
_TOLD: Final[Mapping[str, str]] = {
    "application_name": "application_name",
    "client_encoding": "client_encoding",
    "datestyle": "DateStyle",
    "intervalstyle": "IntervalStyle",
    "timezone": "TimeZone",
    "standard_conforming_strings": "standard_conforming_strings",
    "search_path": "search_path",
}
_SHOWN_AS: Final[Mapping[str, str]] = {"datestyle": "ISO, MDY", "timezone": "UTC"}
_DEFAULTS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "server_encoding": "UTF8",
    "data_directory_mode": "0700",
    "timezone": "UTC",
    "wal_level": "logical",
    "default_table_access_method": "delta",
}
"""What differs from PostgreSQL's built-in values."""
_ZONE: Final = "timezone"


class SessionSettings:
    """``node``: values by lower-case name, as they are now; ``given``: from the startup packet, in
    order."""

    def __init__(
        self,
        node: Mapping[str, str],
        given: Iterable[tuple[str, str]],
        version: int,
        superuser: Callable[[], bool] | None = None,
    ) -> None:
        """``superuser``: whether the session's role is one now. Raises as ``set``."""
        self._known = settings(version)
        boot = {
            key: setting.shown(setting.boot)
            for key, setting in self._known.items()
            if setting.of_sessions
        }
        self._boot, self._node = {**boot, **_DEFAULTS}, node
        self._superuser = superuser or (lambda: node.get("is_superuser") == "on")
        self._own: dict[str, str] = {}
        self._starting = True
        for name, value in given:
            # JDBC sends the zone of its machine. What is printed has an offset, and stays right.
            if name.lower() != _ZONE or value.lower() in _ONLY[_ZONE]:
                self.set(name, value)
        self._starting = False
        self._at_start = dict(self._own)

    def values(self) -> Mapping[str, str]:
        """Every setting by its lower-case name."""
        return {**self._boot, **self._node, **self._own}

    def show(self, name: str) -> str:
        """The value of a setting. Raises UndefinedObject (42704)."""
        values = self.values()
        key = name.lower()
        if key in values:
            return values[key]
        raise _unknown(name)

    def title(self, name: str) -> str:
        """A setting's name as PostgreSQL writes it: ``TimeZone``."""
        setting = self._known.get(name.lower())
        return name if setting is None else setting.name

    def set(self, name: str, value: str | None) -> Iterator[ParameterChange]:
        """SET; None is DEFAULT. What the client is to be told of.

        Raises UndefinedObject (42704), PenstockError (55P02, 42501, 22023), FeatureNotSupported.
        """
        key = name.lower()
        setting = self._known.get(key)
        if setting is not None and key not in _ONLY:
            setting.check_context(name, starting=self._starting, superuser=self._superuser())
        elif "." not in key and key not in _ONLY:
            raise _unknown(name)
        if value is None:
            self._own.pop(key, None)
        else:
            checked = _check_value(key, name, value)
            if setting is not None and key not in _SHOWN_AS:
                checked = setting.shown(setting.read(checked))
            self._own[key] = checked
        return iter(self._changes_of(key))

    def reset(self, name: str | None) -> Iterator[ParameterChange]:
        """RESET name, or ALL (None): back to what the client began with."""
        names = list(self._own) if name is None else [name.lower()]
        told: list[ParameterChange] = []
        for key in names:
            if key in self._at_start:
                self._own[key] = self._at_start[key]
            else:
                self._own.pop(key, None)
            told += self._changes_of(key)
        return iter(told)

    def _changes_of(self, key: str) -> list[ParameterChange]:
        name = _TOLD.get(key)
        return [] if name is None else [ParameterChange(name, self.values().get(key, ""))]


def _check_value(key: str, name: str, value: str) -> str:
    allowed = _ONLY.get(key)
    if allowed is not None:
        if key in _ROLES and value.lower() not in allowed:
            raise FeatureNotSupported(
                f'parameter "{name}" is not supported: a session has one role'
            )
        if value.lower() not in allowed:
            raise FeatureNotSupported(
                f'parameter "{name}" cannot be set to "{value}"',
                hint=f'Values are always sent in the format that "{allowed[0]}" stands for.',
            )
        return _SHOWN_AS.get(key, value)
    if key == "client_encoding":
        return find_encoding(value).name
    return value


def _unknown(name: str) -> UndefinedObject:
    return UndefinedObject(f'unrecognized configuration parameter "{name}"')
