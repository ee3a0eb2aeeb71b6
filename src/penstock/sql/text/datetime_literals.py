"""Dates and timestamps in literals (datetime.c), ISO forms only, time zone UTC.

In: a literal's text. Out: what date_out and timestamp_out print with ``datestyle=ISO``. Forms that
depend on settings or on the clock (``now``, ``01/02/2003``, names of zones) are refused: a row
filter must mean the same tomorrow.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.civil import civil_from_days, date_text, days_from_civil, era_text
from penstock.errors import FeatureNotSupported
from penstock.sqlstate import DatetimeFieldOverflow, InvalidDatetimeFormat

_MICROSECONDS: Final = 1_000_000
_DAY: Final = 86_400 * _MICROSECONDS
_ISO: Final = re.compile(
    r"(?P<year>\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:(?:\s+|[tT])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})"
    r"(?:\.(?P<fraction>\d{0,9}))?)?)?"
    r"\s*(?P<zone>[zZ]|[uU][tT][cC]|[gG][mM][tT]|(?P<sign>[+-])(?P<zh>\d{1,2})(?::?(?P<zm>\d{2}))?"
    r"(?::(?P<zs>\d{2}))?)?(?:\s*(?P<era>[bB][cC]|[aA][dD]))?",
    re.ASCII,
)
_COMPACT: Final = re.compile(r"(\d{4})(\d{2})(\d{2})", re.ASCII)
_SPECIAL: Final = {"infinity": "infinity", "-infinity": "-infinity", "+infinity": "infinity"}
_FIRST_YEAR: Final = -4712
_LAST_YEARS: Final = {"date": 5_874_897, "timestamp": 294_276, "timestamptz": 294_276}
_ZONE_UNITS: Final = (("zh", 3600), ("zm", 60), ("zs", 1))
_SQL_NAMES: Final = {
    "timestamp": "timestamp",
    "timestamptz": "timestamp with time zone",
    "date": "date",
}


def read_date(text: str) -> str:
    """A date literal as date_out prints it."""
    fields = _fields(text, "date")
    if isinstance(fields, str):
        return fields
    year, month, day, _, _ = fields
    return date_text(year, month, day) + era_text(year)


def read_timestamp(text: str, *, zone: bool) -> str:
    """A timestamp literal as timestamp_out prints it; a zone counts only where it is kept."""
    name = "timestamptz" if zone else "timestamp"
    fields = _fields(text, name)
    if isinstance(fields, str):
        return fields
    year, month, day, clock, offset = fields
    total = (
        days_from_civil(year, month, day) * _DAY + clock - (offset * _MICROSECONDS if zone else 0)
    )
    days, rest = divmod(total, _DAY)
    year, month, day = civil_from_days(days)
    seconds, fraction = divmod(rest, _MICROSECONDS)
    printed = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        printed += f".{fraction:06}".rstrip("0")
    return f"{date_text(year, month, day)} {printed}{'+00' if zone else ''}{era_text(year)}"


def _fields(text: str, name: str) -> str | tuple[int, int, int, int, int]:
    """Year (0 is 1 BC), month, day, microseconds of the day, seconds east; or a special value."""
    stripped = text.strip()
    if stripped.lower() in _SPECIAL:
        return _SPECIAL[stripped.lower()]
    if stripped.lower() == "epoch":
        stripped = "1970-01-01"
    if compact := _COMPACT.fullmatch(stripped):
        stripped = "-".join(compact.groups())
    match = _ISO.fullmatch(stripped)
    if match is None:
        if re.search(r"\d", stripped) or stripped.lower() in (
            "now",
            "today",
            "tomorrow",
            "yesterday",
        ):
            raise FeatureNotSupported(
                f'"{text}" is not supported as a constant of type {_SQL_NAMES[name]}',
                hint="Write dates as YYYY-MM-DD and times as HH:MM:SS.",
            )
        raise InvalidDatetimeFormat(f'invalid input syntax for type {_SQL_NAMES[name]}: "{text}"')
    year, month, day = (int(match[group]) for group in ("year", "month", "day"))
    if match["era"] and match["era"].lower() == "bc":
        year = 1 - year
    hour, minute, second = (int(match[group] or 0) for group in ("hour", "minute", "second"))
    wrong = not 1 <= month <= 12 or not 1 <= day <= _month_days(year, month)
    if wrong or match["year"] == "0000" or hour > 24 or minute > 59 or second > 60:
        raise DatetimeFieldOverflow(f'date/time field value out of range: "{text}"')
    clock = (hour * 3600 + minute * 60 + second) * _MICROSECONDS + _fraction(match["fraction"])
    if clock > _DAY:
        raise DatetimeFieldOverflow(f'date/time field value out of range: "{text}"')
    if not _FIRST_YEAR <= year <= _LAST_YEARS[name]:
        raise DatetimeFieldOverflow(f'{_range_word(name)} out of range: "{text}"')
    return year, month, day, clock, _offset(match)


def _fraction(digits: str | None) -> int:
    return round(float(f"0.{digits}") * _MICROSECONDS) if digits else 0


def _offset(match: re.Match[str]) -> int:
    east = sum(int(match[part] or 0) * unit for part, unit in _ZONE_UNITS)
    return -east if match["sign"] == "-" else east


def _range_word(name: str) -> str:
    return "date" if name == "date" else "timestamp"


def _month_days(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
