"""PostgreSQL's ISO dates and times as numbers since the Unix epoch, and back (datetime.c).

In: what date_out and timestamp_out print with ``datestyle=ISO``, any year of PostgreSQL's range.
Out: days or microseconds, which may lie outside of what the target holds; and the text of a number
for messages. The calendar is proleptic Gregorian, as PostgreSQL's; 1 BC is year 0.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.civil import DAY, MICROSECONDS, civil_from_days, date_text, days_from_civil, era_text

FIRST_DAY: Final = -719_162
"""0001-01-01, the first day that the target holds."""
LAST_DAY: Final = 2_932_896
"""9999-12-31, the last day that the target holds."""

_DATE = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_TIMESTAMP = re.compile(
    rb"(\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    rb"(?:([-+])(\d\d)(?::(\d\d)(?::(\d\d))?)?)?( BC)?"
)


def parse_date(raw: bytes) -> int | None:
    """Days since 1970-01-01; None where the text is no date."""
    match = _DATE.fullmatch(raw)
    if match is None:
        return None
    year, month, day = (int(match[group]) for group in (1, 2, 3))
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    days = days_from_civil(1 - year if match[4] else year, month, day)
    return days if civil_from_days(days)[1:] == (month, day) else None


def parse_timestamp(raw: bytes, zone: bool) -> int | None:
    """Microseconds since the epoch (UTC where there is a zone); None where it is no timestamp.

    A zone may have seconds: local mean time of the years before standard time.
    """
    match = _TIMESTAMP.fullmatch(raw)
    if match is None or bool(match[6]) != zone:
        return None
    days = parse_date(match[1] + (match[10] or b""))
    if days is None:
        return None
    hour, minute, second = (int(match[group]) for group in (2, 3, 4))
    if hour > 23 or minute > 59 or second > 59:
        return None
    east = sum(int(match[7 + i] or 0) * 3600 // 60**i for i in range(3)) if zone else 0
    seconds = hour * 3600 + minute * 60 + second - (east if match[6] == b"+" else -east)
    return days * DAY + seconds * MICROSECONDS + int((match[5] or b"0").ljust(6, b"0"))


def print_date(days: int) -> str:
    """Days since 1970-01-01 as date_out prints them."""
    year, month, day = civil_from_days(days)
    return date_text(year, month, day) + era_text(year)


def print_timestamp(microseconds: int, zone: bool) -> str:
    """Microseconds since the epoch as timestamp_out prints them, in UTC."""
    days, rest = divmod(microseconds, DAY)
    year, month, day = civil_from_days(days)
    seconds, fraction = divmod(rest, MICROSECONDS)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        clock += f".{fraction:06}".rstrip("0")
    zone_text = "+00" if zone else ""
    return f"{date_text(year, month, day)} {clock}{zone_text}{era_text(year)}"
