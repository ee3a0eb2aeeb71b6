"""Dates, times and intervals as PostgreSQL counts, prints and reads them (datetime.c).

Days or microseconds since the Unix epoch become the text that date_out and timestamp_out print with
``datestyle=ISO``. Such text is read back as the number. Every year of PostgreSQL's range is
supported. The calendar is proleptic Gregorian, as in PostgreSQL; year 0 is 1 BC. Python's own dates
cover only the years 1 to 9999.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.kernel import part

MICROSECONDS: Final = 1_000_000
DAY: Final = 86_400 * MICROSECONDS
"""Microseconds of a day."""
EPOCH_DAYS: Final = 10_957
"""Days from 1970-01-01 to 2000-01-01, PostgreSQL's epoch."""
EPOCH_MICROSECONDS: Final = EPOCH_DAYS * DAY
FIRST_DAY: Final = -719_162
"""0001-01-01, the first day that the lake's types hold."""
LAST_DAY: Final = 2_932_896
"""9999-12-31, the last day that the lake's types hold."""
LOWEST_DAY: Final = -2_440_588
"""4714-11-24 BC, the first day of PostgreSQL's types."""
HIGHEST_DAY: Final = 2_145_042_905
"""5874897-12-31, the last day of PostgreSQL's date."""

_ZERO, _HYPHEN, _PLUS, _COLON, _POINT = map(ord, "0-+:.")
_DATE = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)( BC)?")
_TIMESTAMP = re.compile(
    rb"(\d{4,}-\d\d-\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?"
    rb"(?:([-+])(\d\d)(?::(\d\d)(?::(\d\d))?)?)?( BC)?"
)


@part
def days_from_civil(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a proleptic Gregorian date.

    Years are counted from March, which makes the leap day their last day.
    """
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@part
def civil_from_days(days: int) -> tuple[int, int, int]:
    """Return year (0 is 1 BC), month and day of a number of days since 1970-01-01."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


@part
def read_digits(buffer: NDArray[np.uint8], at: int, end: int, count: int) -> int:
    """Return the number of exactly ``count`` digits at ``at``, -1 if they are not there."""
    if at + count > end:
        return -1
    number = 0
    for index in range(count):
        digit = int(np.int64(buffer[at + index])) - _ZERO
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
    return number


@part
def read_date(buffer: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Read a date of the years 1 to 99999: for kernels. Return the days since 1970-01-01, and the
    position behind it, -1 if there is no such date."""
    year = read_digits(buffer, at, end, 4)
    at += 4
    if year >= 0 and at < end and buffer[at] != _HYPHEN:
        digit = read_digits(buffer, at, end, 1)
        year = -1 if digit < 0 else year * 10 + digit
        at += 1
    month, day = read_digits(buffer, at + 1, end, 2), read_digits(buffer, at + 4, end, 2)
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 31:
        return 0, -1
    if buffer[at] != _HYPHEN or buffer[at + 3] != _HYPHEN:
        return 0, -1
    days = days_from_civil(year, month, day)
    following = days_from_civil(year + month // 12, month % 12 + 1, 1)
    return (days, at + 6) if days < following else (0, -1)


@part
def read_time(buffer: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Read a time of day: for kernels. Return microseconds, and the position behind it, -1 if there
    is no time."""
    hour, minute = read_digits(buffer, at, end, 2), read_digits(buffer, at + 3, end, 2)
    second = read_digits(buffer, at + 6, end, 2)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return 0, -1
    if buffer[at + 2] != _COLON or buffer[at + 5] != _COLON:
        return 0, -1
    fraction = 0
    at += 8
    if at < end and buffer[at] == _POINT:
        at, unit = at + 1, MICROSECONDS
        while at < end and unit > 1 and _ZERO <= buffer[at] <= _ZERO + 9:
            unit //= 10
            fraction += (int(np.int64(buffer[at])) - _ZERO) * unit
            at += 1
        if unit == MICROSECONDS:
            return 0, -1
    return (hour * 3600 + minute * 60 + second) * MICROSECONDS + fraction, at


@part
def read_zone(buffer: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Read a zone such as ``+01``, ``-03:30`` or ``+00:19:32``: for kernels. Return the seconds
    east of Greenwich, and the position behind it, -1 if there is no zone."""
    if at >= end or (buffer[at] != _PLUS and buffer[at] != _HYPHEN):
        return 0, -1
    sign = 1 if buffer[at] == _PLUS else -1
    seconds, unit = 0, 3600
    while unit and (unit == 3600 or (at < end and buffer[at] == _COLON)):
        number = read_digits(buffer, at + 1, end, 2)
        if number < 0:
            return 0, -1
        seconds += number * unit
        unit //= 60
        at += 3
    return sign * seconds, at


@part
def write_digits(out: NDArray[np.uint8], at: int, number: int, count: int) -> int:
    """Write the last ``count`` digits of a number from 0 to 2**31, and return the position behind
    them."""
    for index in range(at + count - 1, at - 1, -1):
        tens = number * 3_435_973_837 >> 35  # number // 10, in a third of the time
        out[index] = _ZERO + number - 10 * tens
        number = tens
    return at + count


@part
def write_date(out: NDArray[np.uint8], at: int, days: int) -> tuple[int, bool]:
    """Write a date without its era: for kernels. Return the position behind it, and whether it is
    before the year 1."""
    year, month, day = civil_from_days(days)
    shown = year if year > 0 else 1 - year
    digits, limit = 4, 10_000
    while shown >= limit:
        digits += 1
        limit *= 10
    at = write_digits(out, at, shown, digits)
    out[at] = _HYPHEN
    at = write_digits(out, at + 1, month, 2)
    out[at] = _HYPHEN
    return write_digits(out, at + 1, day, 2), year <= 0


@part
def write_time(out: NDArray[np.uint8], at: int, microseconds: int) -> int:
    """Write a time of day: for kernels. Return the position behind it."""
    seconds, fraction = divmod(microseconds, MICROSECONDS)
    at = write_digits(out, at, seconds // 3600, 2)
    out[at] = _COLON
    at = write_digits(out, at + 1, seconds // 60 % 60, 2)
    out[at] = _COLON
    at = write_digits(out, at + 1, seconds % 60, 2)
    if fraction:
        out[at] = _POINT
        at = write_digits(out, at + 1, fraction, 6)
        while out[at - 1] == _ZERO:
            at -= 1
    return at


def parse_date(raw: bytes) -> int | None:
    """Return the days since 1970-01-01; None if the text is no date."""
    match = _DATE.fullmatch(raw)
    if match is None:
        return None
    year, month, day = (int(match[group]) for group in (1, 2, 3))
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    days = days_from_civil(1 - year if match[4] else year, month, day)
    return days if civil_from_days(days)[1:] == (month, day) else None


def parse_timestamp(raw: bytes, zone: bool) -> int | None:
    """Return the microseconds since the epoch (UTC if ``zone``); None if it is no timestamp.

    A zone's offset may have seconds: before standard time, local mean time was used.
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
    """Print days since 1970-01-01 as date_out does."""
    year, month, day = civil_from_days(days)
    return _date_text(year, month, day) + _era_text(year)


def print_timestamp(microseconds: int, zone: bool) -> str:
    """Print microseconds since the epoch as timestamp_out does, in UTC."""
    days, clock = divmod(microseconds, DAY)
    year, month, day = civil_from_days(days)
    date = _date_text(year, month, day)
    return f"{date} {print_time(clock)}{'+00' if zone else ''}{_era_text(year)}"


def print_time(microseconds: int) -> str:
    """Print microseconds since midnight as time_out does."""
    seconds, fraction = divmod(microseconds, MICROSECONDS)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{clock}.{fraction:06}".rstrip("0") if fraction else clock


def print_interval(months: int, days: int, microseconds: int) -> str:
    """Print an interval as interval_out does with ``intervalstyle=postgres`` (EncodeInterval)."""
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    parts, before = [], False
    for count, unit in ((years, "year"), (months - 12 * years, "mon"), (days, "day")):
        if count:
            sign = "+" if before and count > 0 else ""
            parts.append(f"{sign}{count} {unit}{'' if count == 1 else 's'}")
            before = count < 0
    if microseconds or not parts:
        sign = "-" if microseconds < 0 else "+" if before else ""
        parts.append(sign + print_time(abs(microseconds)))
    return " ".join(parts)


def _date_text(year: int, month: int, day: int) -> str:
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}"


def _era_text(year: int) -> str:
    """Return what ends the text of a date or timestamp: " BC" for years before 1."""
    return "" if year > 0 else " BC"
