"""Options of roles (user.c, the loops over DefElems).

In: options as written. Out: ``RoleChanges``, or PostgreSQL's error. What the node has no use for is
accepted where it changes nothing, and refused otherwise.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.civil import MICROSECONDS, parse_timestamp
from penstock.commands.define import conflicting_options
from penstock.commands.scope import notice
from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.protocol.answers import Notice
from penstock.protocol.scram_verifier import SALT_SIZE, ScramVerifier, is_verifier
from penstock.sql import RoleOption
from penstock.sql.text.datetime_literals import read_timestamp

_FIELDS: Final = {
    "superuser": "superuser",
    "canlogin": "login",
    "isreplication": "replication",
}
_NOT_HERE: Final = {
    "createdb": "CREATEDB",
    "createrole": "CREATEROLE",
    "bypassrls": "BYPASSRLS",
}
"""Attributes that no role of a node can have."""
_MD5_LENGTH: Final = 35


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """``names``: options written; ``values``: fields of ``Role``, the verifier among them."""

    names: frozenset[str] = frozenset()
    values: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    notices: tuple[Notice, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Keywords for ``Role``."""
        return dict(self.values)


def role_changes(options: Sequence[RoleOption]) -> RoleChanges:
    """Raises SqlSyntaxError for repetitions, InvalidParameterValue, FeatureNotSupported."""
    names: set[str] = set()
    values: list[tuple[str, Any]] = []
    notices: list[Notice] = []
    for option in options:
        if option.name in names:
            raise conflicting_options()
        names.add(option.name)
    for option in options:
        if option.name in _FIELDS:
            values.append((_FIELDS[option.name], option.value))
        elif option.name == "password":
            values.append(("verifier", _verifier(option.value, notices)))
        elif option.name == "connectionlimit":
            values.append(("connection_limit", _limit(option.value)))
        elif option.name == "validUntil":
            values.append(("valid_until", _time(str(option.value))))
        elif option.name == "sysid":
            notices.append(notice("SYSID can no longer be specified"))
        else:
            _check_unused(option)
    return RoleChanges(frozenset(names), tuple(values), tuple(notices))


def _check_unused(option: RoleOption) -> None:
    if option.name in _NOT_HERE and option.value:
        raise FeatureNotSupported(f"role attribute {_NOT_HERE[option.name]} is not supported")
    if option.value == "":
        raise FeatureNotSupported("membership in roles is not supported")


def _verifier(password: Any, notices: list[Notice]) -> str | None:
    """encrypt_password; None clears it."""
    if password is None:
        return None
    if password == "":
        notices.append(notice("empty string is not a valid password, clearing password"))
        return None
    if is_verifier(password):
        return str(ScramVerifier.parse(password))
    if password.startswith("md5") and len(password) == _MD5_LENGTH:
        raise FeatureNotSupported(
            "MD5-encrypted passwords are not supported",
            hint="Give the password itself, or a SCRAM-SHA-256 verifier.",
        )
    return str(ScramVerifier.of_password(password, secrets.token_bytes(SALT_SIZE)))


def _limit(limit: Any) -> int:
    if limit < -1:
        raise InvalidParameterValue(f"invalid connection limit: {limit}")
    return int(limit)


def _time(text: str) -> float | None:
    """timestamptz_in; without a zone it is UTC. None is for ever."""
    printed = read_timestamp(text, zone=True)
    if printed == "infinity":
        return None
    moment = parse_timestamp(printed.encode(), zone=True)
    if moment is None:
        raise FeatureNotSupported(f'VALID UNTIL "{printed}" is not supported')
    return moment / MICROSECONDS
