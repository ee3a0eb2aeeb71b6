"""Read times of day in literals (DecodeTimeOnly of datetime.c).

The result is the text that time_out and timetz_out print. A date before the time is ignored. A
timetz without a zone is in UTC, the time zone of every session.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.civil import DAY, MICROSECONDS, print_time
from penstock.errors import FeatureNotSupported
from penstock.sqlstate import (
    DatetimeFieldOverflow,
    InvalidDatetimeFormat,
    InvalidTimeZoneDisplacementValue,
)

_SQL_NAMES: Final = {False: "time", True: "time with time zone"}
_TIME: Final = re.compile(
    r"\s*(?:(?P<date>\d{4,}-\d\d-\d\d)(?:\s+|[tT]))?"
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{0,9}))?)?"
    r"(?:\s*(?P<zone>[zZ]|[uU][tT][cC]|(?P<sign>[+-])(?P<zh>\d\d)(?::(?P<zm>\d\d))?"
    r"(?::(?P<zs>\d\d))?))?(?P<era>\s+BC)?\s*",
    re.ASCII,
)
_DATE: Final = re.compile(r"\s*\d{4,}-\d\d-\d\d(?:\s+BC)?\s*", re.ASCII)
_WORDS: Final = ("now", "allballs", "today", "tomorrow", "yesterday", "epoch")
_MAX_OFFSET: Final = 16 * 3600
_MAX_PRECISION: Final = 6


def read_time(text: str, *, zone: bool, digits: int = _MAX_PRECISION) -> str:
    """Read a time of day. ``digits``: the number of digits in the fraction of a second.

    Raises 22007, 22008, 22009, FeatureNotSupported.
    """
    match = _TIME.fullmatch(text)
    if match is None or (match["era"] and not match["date"]):
        raise _unread(text, zone)
    hour, minute, second = (int(match[group] or 0) for group in ("hour", "minute", "second"))
    clock = (hour * 3600 + minute * 60 + second) * MICROSECONDS
    fraction = match["fraction"]
    clock += round(float(f"0.{fraction}") * MICROSECONDS) if fraction else 0
    beyond = DatetimeFieldOverflow(f'date/time field value out of range: "{text}"')
    if minute > 59 or second > 60:
        raise beyond
    offset = _offset(match, text)
    if clock > DAY:
        raise beyond
    unit = 10 ** (_MAX_PRECISION - digits)
    shown = print_time((clock + unit // 2) // unit * unit)
    return shown + offset if zone else shown


def _offset(match: re.Match[str], text: str) -> str:
    hours, minutes, seconds = (int(match[group] or 0) for group in ("zh", "zm", "zs"))
    if hours * 3600 + minutes * 60 + seconds >= _MAX_OFFSET or minutes > 59 or seconds > 59:
        raise InvalidTimeZoneDisplacementValue(f'time zone displacement out of range: "{text}"')
    shown = f"{hours:02}"
    if minutes or seconds:
        shown += f":{minutes:02}"
    if seconds:
        shown += f":{seconds:02}"
    return ("-" if match["sign"] == "-" and (hours or minutes or seconds) else "+") + shown


def _unread(text: str, zone: bool) -> Exception:
    """Return the error for an unread text: 0A000 if PostgreSQL may read it, else 22007."""
    invalid = InvalidDatetimeFormat(f'invalid input syntax for type {_SQL_NAMES[zone]}: "{text}"')
    if _DATE.fullmatch(text):
        return invalid
    if re.search(r"[\d/]", text) or any(word in text.lower() for word in _WORDS):
        return FeatureNotSupported(f'"{text}" is not supported as a {_SQL_NAMES[zone]}')
    return invalid
