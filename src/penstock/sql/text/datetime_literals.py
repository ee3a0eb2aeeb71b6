"""Read dates and timestamps in literals: ISO forms only, time zone UTC (datetime.c).

A literal becomes the text that date_out and timestamp_out print with ``datestyle=ISO``. Forms that
depend on settings or on the clock (``now``, ``01/02/2003``, names of zones) are refused: a row
filter must mean the same tomorrow.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from penstock.civil import (
    DAY,
    HIGHEST_DAY,
    LOWEST_DAY,
    MICROSECONDS,
    civil_from_days,
    days_from_civil,
    print_date,
    print_timestamp,
)
from penstock.errors import FeatureNotSupported
from penstock.sqlstate import (
    DatetimeFieldOverflow,
    InvalidDatetimeFormat,
    InvalidTimeZoneDisplacementValue,
)

_ISO: Final = re.compile(
    r"(?P<year>\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:(?:\s+|[tT])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})"
    r"(?:\.(?P<fraction>\d{0,9}))?)?)?"
    r"\s*+(?P<zone>(?:[zZ]|[uU][tT][cC]|[gG][mM][tT])(?![a-zA-Z])|(?P<sign>[+-])(?P<zh>\d{1,2})(?::?(?P<zm>\d{2}))?"
    r"(?::(?P<zs>\d{2}))?)?(?:\s*+(?P<era>[bB][cC]|[aA][dD]))?",
    re.ASCII,
)
_MONTH: Final = re.compile(r"\d{1,2}", re.ASCII)
_COMPACT: Final = re.compile(r"(\d{4})(\d{2})(\d{2})", re.ASCII)
_SPECIAL: Final = {"infinity": "infinity", "-infinity": "-infinity", "+infinity": "infinity"}
_WORDS: Final = ("infinity", "epoch", "now", "today", "tomorrow", "yesterday")
_END_TIMESTAMP: Final = days_from_civil(294_277, 1, 1) * DAY
"""END_TIMESTAMP, the first moment beyond the range of timestamps."""
_MAX_OFFSET: Final = 16 * 3600
"""MAX_TZDISP_HOUR"""
_MAX_SIXTIETH: Final = 59
_ZONE_UNITS: Final = (("zh", 3600), ("zm", 60), ("zs", 1))
_SQL_NAMES: Final = {
    "timestamp": "timestamp",
    "timestamptz": "timestamp with time zone",
    "date": "date",
}


def read_date(text: str) -> str:
    """Return a date literal as date_out prints it."""
    fields = _fields(text, "date")
    if isinstance(fields, str):
        return fields
    days, _, _ = fields
    if not LOWEST_DAY <= days <= HIGHEST_DAY:
        raise DatetimeFieldOverflow(f'date out of range: "{text}"')
    return print_date(days)


def read_timestamp(text: str, *, zone: bool) -> str:
    """Return a timestamp literal as timestamp_out prints it, ignoring its zone unless ``zone``."""
    fields = _fields(text, "timestamptz" if zone else "timestamp")
    if isinstance(fields, str):
        return fields
    days, clock, offset = fields
    moment = days * DAY + clock - (offset * MICROSECONDS if zone else 0)
    if not LOWEST_DAY * DAY <= moment < _END_TIMESTAMP:
        raise DatetimeFieldOverflow(f'timestamp out of range: "{text}"')
    return print_timestamp(moment, zone)


def _refuse_month(text: str, digits: str, name: str) -> NoReturn:
    """Raise the error for a month alone, which PostgreSQL checks first (ValidateDate)."""
    if not 1 <= int(digits) <= 12:
        raise DatetimeFieldOverflow(f'date/time field value out of range: "{text}"')
    raise InvalidDatetimeFormat(f'invalid input syntax for type {_SQL_NAMES[name]}: "{text}"')


def _fields(text: str, name: str) -> str | tuple[int, int, int]:
    """Return days since the epoch, microseconds of the day, seconds east; or a special value."""
    stripped = text.strip()
    if stripped.lower() in _SPECIAL:
        return _SPECIAL[stripped.lower()]
    if stripped.lower() == "epoch":
        stripped = "1970-01-01"
    if compact := _COMPACT.fullmatch(stripped):
        stripped = "-".join(compact.groups())
    match = _ISO.fullmatch(stripped)
    if match is None or _is_part_of_date(match):
        if _MONTH.fullmatch(stripped):
            _refuse_month(text, stripped, name)
        if re.search(r"\d", stripped) or any(word in stripped.lower() for word in _WORDS):
            raise FeatureNotSupported(
                f'"{text}" is not supported as a constant of type {_SQL_NAMES[name]}',
                hint="Write dates as YYYY-MM-DD and times as HH:MM:SS.",
            )
        raise InvalidDatetimeFormat(f'invalid input syntax for type {_SQL_NAMES[name]}: "{text}"')
    year, month, day = (int(match[group]) for group in ("year", "month", "day"))
    if match["era"] and match["era"].lower() == "bc":
        year = 1 - year
    hour, minute, second = (int(match[group] or 0) for group in ("hour", "minute", "second"))
    clock = (hour * 3600 + minute * 60 + second) * MICROSECONDS + _fraction(match["fraction"])
    if minute > _MAX_SIXTIETH or second > 60 or clock > DAY:
        raise DatetimeFieldOverflow(f'date/time field value out of range: "{text}"')
    offset = _offset(match)
    beyond = max(int(match["zm"] or 0), int(match["zs"] or 0)) > _MAX_SIXTIETH
    if abs(offset) >= _MAX_OFFSET or beyond:
        raise InvalidTimeZoneDisplacementValue(f'time zone displacement out of range: "{text}"')
    days = days_from_civil(year, month, day) if 1 <= month <= 12 and day <= 31 else 0
    if civil_from_days(days) != (year, month, day) or match["year"] == "0000":
        raise DatetimeFieldOverflow(f'date/time field value out of range: "{text}"')
    return days, clock, offset


def _is_part_of_date(zone: re.Match[str]) -> bool:
    """Return whether the server takes a zone's minus and digits for a fourth part of the date."""
    before = zone.string[: max(zone.start("zone"), 0)]
    return zone["sign"] == "-" and zone["hour"] is None and not before[-1].isspace()


def _fraction(digits: str | None) -> int:
    return round(float(f"0.{digits}") * MICROSECONDS) if digits else 0


def _offset(match: re.Match[str]) -> int:
    east = sum(int(match[part] or 0) * unit for part, unit in _ZONE_UNITS)
    return -east if match["sign"] == "-" else east
