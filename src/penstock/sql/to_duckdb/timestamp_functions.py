"""Functions of dates, timestamps, times and intervals, computed as in timestamp.c and date.c.

A date is its days since 1970-01-01, a timestamp its microseconds since then, in UTC; a time or an
interval is its text. DuckDB calls the functions by the names in ``FUNCTIONS`` (``fmgr``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from penstock.civil import (
    DAY,
    EPOCH_MICROSECONDS,
    HIGHEST_DAY,
    LOWEST_DAY,
    civil_from_days,
    days_from_civil,
    print_interval,
    print_time,
)
from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.sql.text.interval_literals import IntervalValue, checked, read_interval
from penstock.sql.to_duckdb import fmgr
from penstock.sql.to_duckdb.fmgr import PythonFunction
from penstock.sql.to_duckdb.numeric_functions import added, by_zero, numeric_division
from penstock.sqlstate import DatetimeFieldOverflow, NumericValueOutOfRange

_JULIAN: Final = 2_440_588
"""The Julian day of 1970-01-01."""
_END: Final = (1 << 63) - 1
"""DuckDB's timestamps end in the year 294247, 29 years before PostgreSQL's."""
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_UNITS: Final = {
    "microseconds": "us usec usecs usecond useconds microsecon",
    "milliseconds": "ms msec msecs msecond mseconds millisecon",
    "second": "s sec secs second seconds",
    "minute": "m min mins minute minutes",
    "hour": "h hr hrs hour hours",
    "day": "d day days",
    "week": "w week weeks",
    "month": "mon mons month months",
    "quarter": "qtr quarter",
    "year": "y yr yrs year years",
    "decade": "dec decs decade decades",
    "century": "c cent century centuries",
    "millennium": "mil mils millennia millennium",
    "julian": "j jd julian",
    "timezone": "timezone",
    "timezone_hour": "timezone_h",
    "timezone_minute": "timezone_m",
    **{name: name for name in ("dow", "isodow", "doy", "isoyear", "epoch")},
}
_UNIT: Final = {word: name for name, words in _UNITS.items() for word in words.split()}
_SPECIAL: Final = ("dow", "isodow", "doy", "isoyear", "julian", "epoch")
"""Words of dates (datetktbl), which are no units of intervals (deltatktbl)."""
_LONGEST_UNIT: Final = 10
"""TOKMAXLEN"""
_NAMES: Final = {
    "date": "date",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "interval": "interval",
    "time": "time without time zone",
}

_INFINITE: Final = {"infinity": str(1 << 100), "-infinity": str(-1 << 100)}
"""Keys beyond those of all other intervals."""
interval = fmgr.cached(read_interval)


def _unit(word: str, type_: str, known: str) -> str:
    """Return the unit that a word means. ``known``: those that the function has.

    Raises InvalidParameterValue (22023), FeatureNotSupported.
    """
    lowered = word.lower()
    name = _UNIT.get(lowered[:_LONGEST_UNIT])
    if name is None or (known == _TRUNCATED and name in _SPECIAL):
        raise InvalidParameterValue(f'unit "{lowered}" not recognized for type {_NAMES[type_]}')
    if name not in known.split():
        raise FeatureNotSupported(f'unit "{lowered}" not supported for type {_NAMES[type_]}')
    return name


def _timestamp(microseconds: int) -> int:
    if not LOWEST_DAY * DAY <= microseconds < _END:
        raise DatetimeFieldOverflow("timestamp out of range")
    return microseconds


def _month_length(year: int, month: int) -> int:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if leap and month == 2 else _MONTH_DAYS[month - 1]


def _moved(moment: int, by: IntervalValue, sign: int) -> int:
    """Add an interval to a timestamp: first its months, then its days (timestamp_pl_interval)."""
    days, clock = divmod(moment, DAY)
    if by.months:
        year, month, day = civil_from_days(days)
        years, month = divmod(month - 1 + sign * by.months, 12)
        year, month = year + years, month + 1
        days = days_from_civil(year, month, min(day, _month_length(year, month)))
    moved = _timestamp((days + sign * by.days) * DAY + clock)
    return _timestamp(moved + sign * by.microseconds)


def _of_day(day: int, by: str, sign: int) -> int:
    return _moved(_timestamp(day * DAY), interval(by), sign)


def _justified_hours(months: int, days: int, microseconds: int) -> IntervalValue:
    whole = abs(microseconds) // DAY * (1 if microseconds > 0 else -1)
    days, microseconds = days + whole, microseconds - whole * DAY
    if days > 0 > microseconds:
        days, microseconds = days - 1, microseconds + DAY
    elif days < 0 < microseconds:
        days, microseconds = days + 1, microseconds - DAY
    return checked(months, days, microseconds)


def _justified_days(value: IntervalValue) -> IntervalValue:
    whole = abs(value.days) // 30 * (1 if value.days > 0 else -1)
    months, days = value.months + whole, value.days - whole * 30
    if months > 0 > days:
        months, days = months - 1, days + 30
    elif months < 0 < days:
        months, days = months + 1, days - 30
    return checked(months, days, value.microseconds)


def _justified(value: IntervalValue) -> IntervalValue:
    """Return the interval with days below 30 and hours below 24, all of one sign."""
    hours = _justified_hours(value.months, value.days, value.microseconds)
    made = _justified_days(hours)
    months, days, clock = made.months, made.days, made.microseconds
    if months > 0 and (days < 0 or (days == 0 and clock < 0)):
        months, days = months - 1, days + 30
    elif months < 0 and (days > 0 or (days == 0 and clock > 0)):
        months, days = months + 1, days - 30
    if days > 0 > clock:
        days, clock = days - 1, clock + DAY
    elif days < 0 < clock:
        days, clock = days + 1, clock - DAY
    return IntervalValue(months, days, clock)


def _shifted(text: str, microseconds: int) -> str:
    return print_time((_of_clock(text) + microseconds) % DAY)


def _of_clock(text: str) -> int:
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 60 + int(minutes)) * _MINUTE + int(Decimal(seconds) * _SECOND)


def _difference(one: int, other: int) -> str:
    return str(_justified_hours(0, 0, one - other))


def _scaled(
    of: Callable[[IntervalValue, float], IntervalValue],
) -> Callable[[str, float], str]:
    def call(text: str, factor: float) -> str:
        if factor != factor:
            raise DatetimeFieldOverflow("interval out of range")
        if factor == 0 and of is IntervalValue.divided:
            raise by_zero()
        return str(of(interval(text), factor))

    return call


_times: Final = _scaled(IntervalValue.times)


def _interval_key(text: str) -> str:
    """Return the microseconds by which intervals are compared (interval_cmp_value)."""
    if text in _INFINITE:
        return _INFINITE[text]
    value = interval(text)
    return str((value.months * 30 + value.days) * DAY + value.microseconds)


def _precise(moment: int, digits: int) -> int:
    """Round to digits of a second (AdjustTimestampForTypmod)."""
    unit, since = int(10 ** (6 - digits)), moment - EPOCH_MICROSECONDS
    whole = (abs(since) + unit // 2) // unit * unit
    return EPOCH_MICROSECONDS + (whole if since >= 0 else -whole)


def _age(one: int, other: int) -> str:
    """Subtract with years, months and days (timestamp_age)."""
    days1, clock1 = divmod(one, DAY)
    days2, clock2 = divmod(other, DAY)
    (year1, month1, day1), (year2, month2, day2) = civil_from_days(days1), civil_from_days(days2)
    sign = -1 if one < other else 1
    clock = sign * (clock1 - clock2)
    days, months = sign * (day1 - day2), sign * ((year1 - year2) * 12 + month1 - month2)
    if clock < 0:
        clock, days = clock + DAY, days - 1
    while days < 0:
        days += _month_length(*((year1, month1) if sign < 0 else (year2, month2)))
        months -= 1
    return print_interval(sign * months, sign * days, sign * clock)


def _bin(stride: str, moment: int, origin: int) -> int:
    width = interval(stride)
    if width.months:
        raise FeatureNotSupported(
            "timestamps cannot be binned into intervals containing months or years"
        )
    microseconds = width.days * DAY + width.microseconds
    if microseconds <= 0:
        raise DatetimeFieldOverflow("stride must be greater than zero")
    return _timestamp(origin + (moment - origin) // microseconds * microseconds)


# Fields and units

_DATE_FIELDS: Final = (
    "day month quarter week year decade century millennium julian isoyear dow isodow doy epoch"
)
_TIME_FIELDS: Final = "microseconds milliseconds second minute hour"
_FIELDS: Final = {
    "date": _DATE_FIELDS,
    "timestamp": f"{_TIME_FIELDS} {_DATE_FIELDS}",
    "timestamptz": f"{_TIME_FIELDS} {_DATE_FIELDS} timezone timezone_hour timezone_minute",
}


def _iso_week(days: int) -> tuple[int, int]:
    """Return the ISO year and week of a day (date2isoyear, date2isoweek)."""
    thursday = days - (days + 3) % 7 + 3
    year = civil_from_days(thursday)[0]
    return year, (thursday - days_from_civil(year, 1, 1)) // 7 + 1


def _date_field(name: str, days: int) -> int:
    year, month, day = civil_from_days(days)
    match name:
        case "day":
            return day
        case "month":
            return month
        case "quarter":
            return (month - 1) // 3 + 1
        case "week":
            return _iso_week(days)[1]
        case "year":
            return year if year > 0 else year - 1
        case "decade":
            return year // 10
        case "century" | "millennium":
            size = 100 if name == "century" else 1000
            return (year + size - 1) // size if year > 0 else -((size - year) // size)
        case "isoyear":
            iso = _iso_week(days)[0]
            return iso if iso > 0 else iso - 1
        case "dow":
            return (days + 4) % 7
        case "isodow":
            return (days + 3) % 7 + 1
        case "doy":
            return days - days_from_civil(year, 1, 1) + 1
    return days + _JULIAN


def _extract(type_: str) -> Callable[[str, int], str]:
    """Return extract() for dates or timestamps."""

    def extract(field: str, moment: int) -> str:
        name = _unit(field, type_, _FIELDS[type_])
        days, clock = (moment, 0) if type_ == "date" else divmod(moment, DAY)
        if name == "epoch":
            return str(days * 86_400) if type_ == "date" else _decimal(moment, 6)
        if name in _TIME_FIELDS.split():
            return _time_field(name, clock)
        if name.startswith("timezone"):
            return "0"
        whole = _date_field(name, days)
        if name == "julian" and type_ != "date":
            return added(str(whole), numeric_division(str(clock), str(DAY)))
        return str(whole)

    return extract


def _time_field(name: str, clock: int) -> str:
    within = clock % _MINUTE
    match name:
        case "microseconds":
            return str(within)
        case "milliseconds":
            return _decimal(within, 3)
        case "second":
            return _decimal(within, 6)
        case "minute":
            return str(clock // _MINUTE % 60)
    return str(clock // _HOUR)


def _decimal(number: int, scale: int) -> str:
    return f"{Decimal(number).scaleb(-scale):f}"


def _part(type_: str) -> Callable[[str, int], float]:
    """Return date_part(), which computes with floats."""
    extract = _extract(type_)

    def part(field: str, moment: int) -> float:
        name = _unit(field, type_, _FIELDS[type_])
        days, clock = divmod(moment, DAY)
        seconds, fraction = divmod(clock % _MINUTE, _SECOND)
        match name:
            case "microseconds":
                return float(clock % _MINUTE)
            case "milliseconds":
                return seconds * 1000.0 + fraction / 1000.0
            case "second":
                return seconds + fraction / 1_000_000.0
            case "epoch":
                return moment / 1_000_000.0
            case "julian":
                whole = clock // _SECOND + fraction / 1_000_000.0
                return days + _JULIAN + whole / 86_400.0
        return float(extract(field, moment))

    return part


_TRUNCATED: Final = f"{_TIME_FIELDS} day week month quarter year decade century millennium"
_CLOCK_UNITS: Final = {
    "microseconds": 1,
    "milliseconds": 1000,
    "second": _SECOND,
    "minute": _MINUTE,
    "hour": _HOUR,
    "day": DAY,
}


def _truncate(type_: str) -> Callable[[str, int], int]:
    """Return date_trunc() of timestamps (timestamp_trunc)."""

    def truncate(field: str, moment: int) -> int:
        name = _unit(field, type_, _TRUNCATED)
        if name in _CLOCK_UNITS:
            return moment - moment % _CLOCK_UNITS[name]
        days = moment // DAY
        if name == "week":
            return _timestamp((days - (days + 3) % 7) * DAY)
        year, month, _ = civil_from_days(days)
        match name:
            case "month":
                return days_from_civil(year, month, 1) * DAY
            case "quarter":
                return days_from_civil(year, (month - 1) // 3 * 3 + 1, 1) * DAY
            case "decade":
                year = year // 10 * 10
            case "century" | "millennium":
                size = 100 if name == "century" else 1000
                year = (year - 1) // size * size + 1
        return _timestamp(days_from_civil(year, 1, 1) * DAY)

    return truncate


def _interval_field(field: str, text: str) -> str:
    value = interval(text)
    name = _unit(field, "interval", _INTERVAL_FIELDS)
    sign = -1 if value.microseconds < 0 else 1
    clock = abs(value.microseconds)
    if name in ("microseconds", "milliseconds", "second"):
        return _time_field(name, clock) if sign > 0 else _negated(_time_field(name, clock))
    years = int(value.months / 12)
    month = value.months - years * 12
    match name:
        case "minute":
            return str(sign * (clock // _MINUTE % 60))
        case "hour":
            return str(sign * (clock // _HOUR))
        case "day":
            return str(value.days)
        case "week":
            return str(int(value.days / 7))
        case "month":
            return str(month)
        case "quarter":
            return str(month // 3 + 1 if month >= 0 else -(-month // 3 + 1))
        case "epoch":
            days = years * 365.25 + month * 30 + value.days
            return _decimal(int(days * 86_400) * _SECOND + value.microseconds, 6)
        case "year":
            return str(years)
    return str(int(years / {"decade": 10, "century": 100, "millennium": 1000}[name]))


def _negated(number: str) -> str:
    return f"-{number}" if Decimal(number) else number


_INTERVAL_FIELDS: Final = f"{_TRUNCATED} epoch"


# Making values


def _make_date(year: int, month: int, day: int) -> int:
    wrong = DatetimeFieldOverflow(f"date field value out of range: {year}-{month:02}-{day:02}")
    if not year or not 1 <= month <= 12:
        raise wrong
    count = year if year > 0 else year + 1
    if not 1 <= day <= _month_length(count, month):
        raise wrong
    days = days_from_civil(count, month, day)
    if not LOWEST_DAY <= days <= HIGHEST_DAY:
        raise DatetimeFieldOverflow(f"date out of range: {year}-{month:02}-{day:02}")
    return days


def _clock(hour: int, minute: int, second: float) -> int:
    whole = round(second * _SECOND) if second == second and abs(second) < 100 else -1
    total = hour * _HOUR + minute * _MINUTE + whole
    fits = 0 <= hour <= 24 and 0 <= minute <= 59 and 0 <= whole <= _MINUTE and total <= DAY
    if not fits:
        raise DatetimeFieldOverflow(
            f"time field value out of range: {hour}:{minute:02}:{second:02g}"
        )
    return total


def _make_timestamp(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int:
    return _timestamp(_make_date(year, month, day) * DAY + _clock(hour, minute, second))


def _make_interval(
    years: int, months: int, weeks: int, days: int, hours: int, minutes: int, seconds: float
) -> str:
    checked(years * 12, weeks * 7, 0)
    months, days = years * 12 + months, weeks * 7 + days
    checked(months, days, 0)
    microseconds = seconds * 1e6
    if abs(microseconds) == float("inf") and abs(seconds) < float("inf"):
        raise NumericValueOutOfRange("value out of range: overflow")
    if not abs(microseconds) < 1 << 63:
        raise DatetimeFieldOverflow("interval out of range")
    clock = hours * _HOUR + minutes * _MINUTE + round(microseconds)
    return str(checked(months, days, clock))


def _of_seconds(seconds: float) -> int:
    """Return the timestamp of seconds since 1970 (float8_timestamptz)."""
    if seconds != seconds:
        raise DatetimeFieldOverflow("timestamp cannot be NaN")
    beyond = DatetimeFieldOverflow(f'timestamp out of range: "{seconds:g}"')
    if not LOWEST_DAY * 86_400.0 <= seconds < _END / 1e6:
        raise beyond
    since = round((seconds - EPOCH_MICROSECONDS / 1e6) * 1e6) + EPOCH_MICROSECONDS
    if not LOWEST_DAY * DAY <= since < _END:
        raise beyond
    return since


_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "timestamp_pl_interval": lambda moment, by: _moved(moment, interval(by), 1),
    "timestamp_mi_interval": lambda moment, by: _moved(moment, interval(by), -1),
    "interval_pl_timestamp": lambda by, moment: _moved(moment, interval(by), 1),
    "date_pl_interval": lambda day, by: _of_day(day, by, 1),
    "date_mi_interval": lambda day, by: _of_day(day, by, -1),
    "interval_pl_date": lambda by, day: _of_day(day, by, 1),
    "timestamp_mi": _difference,
    "timestamp_age": _age,
    "timestamp_precise": _precise,
    "time": lambda moment: print_time(moment % DAY),
    "timestamp_bin": _bin,
    "interval_key": _interval_key,
    "interval_pl": lambda one, other: str(interval(one).plus(interval(other))),
    "interval_mi": lambda one, other: str(interval(one).minus(interval(other))),
    "interval_um": lambda value: str(interval(value).negated()),
    "interval_mul": _times,
    "interval_div": _scaled(IntervalValue.divided),
    "time_pl_interval": lambda time, by: _shifted(time, interval(by).microseconds),
    "time_mi_interval": lambda time, by: _shifted(time, -interval(by).microseconds),
    "datetime_pl": lambda day, time: _timestamp(day * DAY + _of_clock(time)),
    "mul_d_interval": lambda factor, value: _times(value, factor),
    "justify_hours": lambda text: str(
        _justified_hours(interval(text).months, interval(text).days, interval(text).microseconds)
    ),
    "justify_days": lambda text: str(_justified_days(interval(text))),
    "justify_interval": lambda text: str(_justified(interval(text))),
    "time_mi_time": lambda one, other: print_interval(0, 0, _of_clock(one) - _of_clock(other)),
    "extract_date": _extract("date"),
    "extract_timestamp": _extract("timestamp"),
    "extract_timestamptz": _extract("timestamptz"),
    "extract_interval": _interval_field,
    "timestamp_part": _part("timestamp"),
    "timestamptz_part": _part("timestamptz"),
    "timestamp_trunc": _truncate("timestamp"),
    "timestamptz_trunc": _truncate("timestamptz"),
    "float8_timestamptz": _of_seconds,
    "make_date": _make_date,
    "make_time": lambda hour, minute, second: print_time(_clock(hour, minute, second)),
    "make_timestamp": _make_timestamp,
    "make_interval": _make_interval,
}
FUNCTIONS: Final = {name: PythonFunction(call) for name, call in _CALLS.items()}
