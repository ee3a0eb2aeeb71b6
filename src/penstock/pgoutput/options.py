"""Options of the output plugin pgoutput (pgoutput.c, parse_output_parameters).

A subscription's options become the option list of START_REPLICATION, in the order of PostgreSQL's
subscriber (libpqwalreceiver.c, libpqrcv_startstreaming), or the arguments of the slot functions.
``PgoutputOptions`` is also parsed from such a list, with PostgreSQL's errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.guc import def_get_boolean, option_bool
from penstock.identifiers import quoted, split_identifiers
from penstock.sqlstate import InvalidName

_STREAMING_SINCE = {"on": 2, "parallel": 4}
_TWO_PHASE_SINCE = 3

_PROTO_VERSIONS: Final = {160000: 4, 150000: 3, 140000: 2}
"""The publisher's version -> the newest protocol that it knows."""
_ORIGIN_SINCE: Final = 160000
_ORIGIN_NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class PgoutputOptions:
    """Options of pgoutput. ``streaming``: None, ``on`` or ``parallel``.

    ``origin``: None (not sent), ``any``, ``none``. Raises InvalidParameterValue if the protocol
    version does not know an option.
    """

    proto_version: int
    publication_names: tuple[str, ...]
    binary: bool = False
    streaming: str | None = None
    two_phase: bool = False
    origin: str | None = None
    messages: bool = False

    def __post_init__(self) -> None:
        if self.streaming is not None and self.streaming not in _STREAMING_SINCE:
            raise InvalidParameterValue('streaming requires a Boolean value or "parallel"')
        since = _STREAMING_SINCE.get(self.streaming or "", 1)
        if self.proto_version < since:
            mode = "parallel streaming" if self.streaming == "parallel" else "streaming"
            raise self._too_old(mode, since)
        if self.two_phase and self.proto_version < _TWO_PHASE_SINCE:
            raise self._too_old("two-phase commit", _TWO_PHASE_SINCE)

    def filters_origin(self, origin: str | None) -> bool:
        """Tell whether changes are left out by their origin, which is None for local ones
        (pgoutput_origin_filter)."""
        return self.origin == _ORIGIN_NONE and origin is not None

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return names and values as the plugin gets them."""
        options = [("proto_version", str(self.proto_version))]
        if self.streaming is not None:
            options.append(("streaming", self.streaming))
        if self.two_phase:
            options.append(("two_phase", "on"))
        if self.origin is not None:
            options.append(("origin", self.origin))
        options.append(("publication_names", ",".join(map(quoted, self.publication_names))))
        if self.binary:
            options.append(("binary", "true"))
        if self.messages:
            options.append(("messages", "true"))
        return tuple(options)

    def text(self) -> str:
        """Return START_REPLICATION's options without parentheses (repl_scanner.l quoting)."""
        return ", ".join(
            f"{name} '{value.replace(chr(39), 2 * chr(39))}'" for name, value in self.pairs()
        )

    def arguments(self) -> tuple[str, ...]:
        """Return the VARIADIC options of pg_logical_slot_get_binary_changes and its kin."""
        return tuple(part for pair in self.pairs() for part in pair)

    def _too_old(self, what: str, since: int) -> InvalidParameterValue:
        return InvalidParameterValue(
            f"requested proto_version={self.proto_version} does not support {what}, "
            f"need {since} or higher"
        )


def subscriber_options(
    publisher_version: int,
    publications: Sequence[str],
    *,
    binary: bool,
    streaming: str,
    two_phase: bool,
    origin: str,
    messages: bool = False,
) -> PgoutputOptions:
    """Return the options that PostgreSQL's subscriber sends (worker.c, set_stream_options).

    Options that an old publisher does not know are left out. ``streaming``: off, on, parallel.
    ``messages``: an option that PostgreSQL's subscribers never send.
    """
    proto_version = next(
        (v for since, v in _PROTO_VERSIONS.items() if publisher_version >= since), 1
    )
    options = PgoutputOptions(
        proto_version=proto_version,
        publication_names=tuple(publications),
        binary=binary,
        two_phase=two_phase and proto_version >= _TWO_PHASE_SINCE,
        # Older publishers send everything.
        origin=origin if publisher_version >= _ORIGIN_SINCE else None,
        messages=messages,
    )
    if streaming == "off" or proto_version < _STREAMING_SINCE["on"]:
        return options
    parallel = streaming == "parallel" and proto_version >= _STREAMING_SINCE["parallel"]
    return replace(options, streaming="parallel" if parallel else "on")


def committed_only(options: PgoutputOptions) -> PgoutputOptions:
    """Return the options for committed transactions only, which need no streaming."""
    return replace(options, proto_version=1, streaming=None, two_phase=False)


# Parsing of the options of START_REPLICATION and the slot functions.

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
    """Read a number as strtoul does: empty text is 0, and a minus sign negates the number."""
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
    if not names and version < 17:
        raise InvalidParameterValue(f"{name} parameter missing")
    return names


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
