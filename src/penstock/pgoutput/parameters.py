"""Options that a subscriber gives to pgoutput (pgoutput.c, parse_output_parameters).

In: the options of START_REPLICATION as sent, and the major version that the publisher reports. Out:
``PgoutputOptions``, or PostgreSQL's error for that version. The reverse of ``options``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.guc import def_get_boolean, option_bool
from penstock.identifiers import split_identifiers
from penstock.pgoutput.options import PgoutputOptions
from penstock.sqlstate import InvalidName

_HIGHEST: Final = {14: 2, 15: 3}
_LATEST: Final = 4
_LOWEST: Final = 1
_LARGEST: Final = (1 << 32) - 1
_ULONG_MAX: Final = (1 << 64) - 1
_DIGITS: Final = re.compile(r"[ \t\n\r\f\v]*([+-]?)(\d{1,4000})([ \t\n\r\f\v]*)", re.ASCII)

Pairs = Sequence[tuple[str, str | None]]


def parse_parameters(pairs: Pairs, version: int) -> PgoutputOptions:
    """Read the options. ``version``: major, 14 to 18.

    Raises errors with PostgreSQL's SQLSTATEs: 22023, 42601, 0A000.
    """
    given: dict[str, str | None] = {}
    known = _known(version)
    for name, value in pairs:
        if name not in known:
            raise PenstockError(f"unrecognized pgoutput option: {name}")
        if name in given:
            raise SqlSyntaxError("conflicting or redundant options")
        given[name] = value
        _CHECKS[name](name, value, version)
    proto_version = _proto_version("proto_version", given.get("proto_version", "0"), version)
    _check_given(given, version, proto_version)
    names = _publication_names("publication_names", given["publication_names"], version)
    return PgoutputOptions(
        proto_version=proto_version,
        publication_names=names,
        binary=_flag(given, "binary"),
        streaming=_streaming("streaming", given.get("streaming", "off"), version),
        two_phase=_flag(given, "two_phase"),
        origin=_origin("origin", given["origin"], version) if "origin" in given else None,
        messages=_flag(given, "messages"),
    )


def _known(version: int) -> frozenset[str]:
    names = {"proto_version", "publication_names", "binary", "messages", "streaming"}
    if version >= 15:
        names.add("two_phase")
    if version >= 16:
        names.add("origin")
    return frozenset(names)


def _check_given(given: dict[str, str | None], version: int, proto_version: int) -> None:
    if version >= 17 and "proto_version" not in given:
        raise InvalidParameterValue('option "proto_version" missing')
    highest = _HIGHEST.get(version, _LATEST)
    server = "server only supports" if version >= 16 else "we only support"
    shown = proto_version - (1 << 32) if proto_version >= 1 << 31 else proto_version  # as %d does
    if proto_version > highest:
        raise FeatureNotSupported(
            f"client sent proto_version={shown} but {server} protocol {highest} or lower"
        )
    if proto_version < _LOWEST:
        raise FeatureNotSupported(
            f"client sent proto_version={shown} but {server} protocol {_LOWEST} or higher"
        )
    if "publication_names" not in given:
        raise InvalidParameterValue(
            'option "publication_names" missing'
            if version >= 17
            else "publication_names parameter missing"
        )


def _proto_version(name: str, value: str | None, version: int) -> int:
    number = _scanned(value or "") if version < 15 else _unsigned_long(value)
    if number is None:
        raise InvalidParameterValue(f"invalid {name}")
    if not 0 <= number <= _LARGEST:
        raise InvalidParameterValue(f'{name} "{value}" out of range')
    return number


def _scanned(text: str) -> int | None:
    """Read an int64, with blanks around it, as scanint8 does."""
    found = _DIGITS.fullmatch(text)
    number = int(f"{found[1]}{found[2]}") if found else None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


def _unsigned_long(text: str | None) -> int | None:
    """Read a number as strtoul does: no text is 0, and a sign turns the number around."""
    if text == "":
        return 0
    found = _DIGITS.fullmatch(text or "-")
    if found is None or found[3] or int(found[2]) > _ULONG_MAX:
        return None
    return int(f"{found[1]}{found[2]}") & _ULONG_MAX


def _publication_names(name: str, value: str | None, version: int) -> tuple[str, ...]:
    names = split_identifiers(value or "")
    if names is None:
        raise InvalidName(f"invalid {name} syntax")
    if names:
        return names
    raise InvalidParameterValue(
        f"{name} parameter missing" if version < 17 else f'option "{name}" missing'
    )


def _boolean(name: str, value: str | None, version: int) -> bool:
    return def_get_boolean(name, value)


def _flag(given: dict[str, str | None], name: str) -> bool:
    return name in given and _boolean(name, given[name], 0)


def _streaming(name: str, value: str | None, version: int) -> str | None:
    if version >= 16:
        if (value or "").lower() == "parallel":
            return "parallel"
        if option_bool(value) is None:
            raise SqlSyntaxError(f'{name} requires a Boolean value or "parallel"')
    return "on" if _boolean(name, value, version) else None


def _origin(name: str, value: str | None, version: int) -> str:
    if (value or "").lower() not in ("none", "any"):
        raise InvalidParameterValue(f'unrecognized origin value: "{value}"')
    return (value or "").lower()


_CHECKS: Final = {
    "proto_version": _proto_version,
    "publication_names": _publication_names,
    "binary": _boolean,
    "messages": _boolean,
    "two_phase": _boolean,
    "streaming": _streaming,
    "origin": _origin,
}
