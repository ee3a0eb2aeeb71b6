"""Settings of one session: SET, RESET, SHOW (guc.c).

A session's values come from the node, the startup packet and SET; the end of a transaction may
change them. Changes are reported to the client. Names and values are checked as PostgreSQL does
(``guc``). Dates, numbers and bytea are always printed in the formats that subscribers set; the few
settings that would change them, or what an expression means, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    UndefinedObject,
)
from penstock.guc.guc_tables import settings
from penstock.identifiers import split_identifiers
from penstock.protocol.answers import ParameterChange
from penstock.protocol.encoding import find_encoding
from penstock.protocol.startup import clean_ascii, reported_parameters

_ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "datestyle": ("iso", "iso, mdy", "iso, dmy", "iso, ymd", "iso,mdy", "default"),
    "intervalstyle": ("postgres",),
    "bytea_output": ("hex",),
    "standard_conforming_strings": ("on", "true", "yes", "1"),
    "timezone": ("utc", "gmt", "etc/utc", "+00:00", "0", "default"),
    "role": ("none",),
    "session_authorization": (),
}
"""Settings with effects that are not supported, and the only values that each may have here."""
_FIXED: Final[Mapping[str, str]] = {"array_nulls": "on", "transform_null_equals": "off"}
"""Settings that change what an expression means, and the value that each has here."""
_OF_A_SERVER: Final = frozenset(
    [
        *("config_file", "data_directory", "external_pid_file", "hba_file", "ident_file"),
        *("dynamic_library_path", "extension_control_path", "krb_server_keyfile"),
        *("log_directory", "log_filename", "oauth_validator_libraries", "primary_conninfo"),
        *("session_preload_libraries", "shared_preload_libraries", "ssl_passphrase_command"),
        *("stats_temp_directory", "unix_socket_directories"),
    ]
)
"""A server's files and libraries (GUC_SUPERUSER_ONLY), which a node does not have."""
_ROLES: Final = frozenset({"role", "session_authorization"})
_SHOWN_AS: Final[Mapping[str, str]] = {"datestyle": "ISO, MDY", "timezone": "UTC"}
_DEFAULTS: Final[Mapping[str, str]] = {
    "client_encoding": "UTF8",
    "server_encoding": "UTF8",
    "data_directory_mode": "0700",
    "timezone": "UTC",
    "wal_level": "logical",
}
"""Defaults that differ from PostgreSQL's built-in defaults."""
_ZONE: Final = "timezone"


@dataclass(frozen=True, slots=True)
class OwnValues:
    """Values that a session has set, by lower-case name. ``now``: the present values; ``lasting``:
    the values after COMMIT. Without SET LOCAL both are the same object."""

    now: Mapping[str, str]
    lasting: Mapping[str, str]

    def with_value(self, key: str, value: str | None, *, local: bool) -> OwnValues:
        """Return the values with ``key`` set to ``value``, or removed if ``value`` is None."""
        now = _with(self.now, key, value)
        if local:
            return OwnValues(now, self.lasting)
        shared = self.now is self.lasting
        return OwnValues(now, now if shared else _with(self.lasting, key, value))


def _with(values: Mapping[str, str], key: str, value: str | None) -> Mapping[str, str]:
    others = {name: held for name, held in values.items() if name != key}
    return others if value is None else {**others, key: value}


class SessionSettings:
    """The settings of one session. ``node``: the node's present values by lower-case name;
    ``given``: the startup packet's values, in order. Savepoints keep ``own`` for ROLLBACK TO."""

    def __init__(
        self,
        node: Mapping[str, str],
        given: Iterable[tuple[str, str]],
        version: int,
        superuser: Callable[[], bool] | None = None,
    ) -> None:
        """``superuser`` returns whether the role is a superuser now. Raises as ``set``."""
        self._known = settings(version)
        boot = {
            key: setting.shown(setting.boot)
            for key, setting in self._known.items()
            if key not in _OF_A_SERVER
        }
        self._boot, self._node = {**boot, **_DEFAULTS}, node
        self._superuser = superuser or (lambda: node.get("is_superuser") == "on")
        self._at_start: Mapping[str, str] = {}
        self.own = OwnValues(self._at_start, self._at_start)
        self._starting = True
        for name, value in given:
            # JDBC sends its machine's time zone. It can be ignored, because times are printed with
            # their UTC offset.
            if name.lower() != _ZONE or value.lower() in _ONLY[_ZONE]:
                self.set(name, value)
        self._starting = False
        self._at_start = self.own.now
        self._settled = self._told_of = self.own
        reported = reported_parameters(version)
        self._told = {name: held for name in reported if (held := self._value(name)) is not None}

    def values(self) -> Mapping[str, str]:
        """Return all settings by lower-case name."""
        return {**self._boot, **self._node, **self.own.now}

    def _value(self, name: str) -> str | None:
        key = name.lower()
        held = (values[key] for values in (self.own.now, self._node, self._boot) if key in values)
        return next(held, None)

    def show(self, name: str) -> str:
        """Return the value of a setting. Raises UndefinedObject (42704)."""
        value = self._value(name)
        if value is None:
            raise _unknown(name)
        return value

    def title(self, name: str) -> str:
        """Return a setting's name as PostgreSQL writes it: ``TimeZone``."""
        setting = self._known.get(name.lower())
        return name if setting is None else setting.name

    def set(self, name: str, value: str | None, *, local: bool = False) -> None:
        """Set a value. ``local``: only until the end of the transaction. The value None (DEFAULT,
        RESET) restores the value from the start of the session.

        Raises UndefinedObject (42704), PenstockError (55P02, 42501, 22023), FeatureNotSupported.
        """
        key = name.lower()
        checked = self.check(name, value)
        if "." in key and key not in self._known:
            self._boot.setdefault(key, "")  # a placeholder stays defined even after a rollback
        self.own = self.own.with_value(key, checked, local=local)

    def check(self, name: str, value: str | None) -> str | None:
        """Return the value that ``set`` would set. Raises as ``set``."""
        key = name.lower()
        setting = self._known.get(key)
        if setting is not None and key not in _ONLY:
            setting.check_context(name, starting=self._starting, superuser=self._superuser())
        elif key in self._node and key not in _ONLY:  # only a node has it
            raise PenstockError(
                f'parameter "{name}" cannot be changed now',
                hint="Change it in penstock.toml, and send the node SIGHUP.",
                sqlstate="55P02",
            )
        elif "." not in key and key not in _ONLY:
            raise _unknown(name)
        if value is None:
            return self._at_start.get(key)
        checked = _check_value(key, name, value)
        if setting is not None and key not in _SHOWN_AS:
            checked = setting.shown(setting.read(checked))
        if _FIXED.get(key, checked) != checked:
            raise FeatureNotSupported(f'parameter "{name}" cannot be set to "{value}"')
        return checked

    def reset_all(self) -> None:
        """Restore all settings from the start of the session (RESET ALL)."""
        self.own = OwnValues(self._at_start, self._at_start)

    # Transactions (AtEOXact_GUC)

    def commit(self) -> None:
        """Commit the transaction: discard values of SET LOCAL."""
        if self.own.now is not self.own.lasting:
            self.own = OwnValues(self.own.lasting, self.own.lasting)
        self._settled = self.own

    def abort(self) -> None:
        """Roll back: restore the values from before the transaction."""
        self.own = self._settled

    def changed(self) -> list[ParameterChange]:
        """Return the changes that are not yet reported to the client (ReportChangedGUCOptions)."""
        if self.own is self._told_of:
            return []
        self._told_of = self.own
        now = {name: self._value(name) or "" for name in self._told}
        changes = [
            ParameterChange(name, now[name]) for name in now if now[name] != self._told[name]
        ]
        self._told = now
        return changes


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
    if key == "search_path" and split_identifiers(value) is None:
        raise InvalidParameterValue(
            f'invalid value for parameter "{name}": "{value}"', detail="List syntax is invalid."
        )
    if key == "application_name":
        return clean_ascii(value)
    return value


def _unknown(name: str) -> UndefinedObject:
    return UndefinedObject(f'unrecognized configuration parameter "{name}"')
