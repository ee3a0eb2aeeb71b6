"""Read intervals in literals (interval_in, DecodeInterval of datetime.c).

A literal becomes months, days and microseconds, and the text that interval_out prints for them with
``intervalstyle=postgres``. It may have numbers with units, each unit once, and then a time of day.
Other forms (ISO 8601's ``P1Y2M``, ``1-2`` years and months, infinity) are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_DOWN, ROUND_HALF_EVEN, Decimal, localcontext
from typing import Final

from penstock.civil import DAY, print_interval
from penstock.errors import FeatureNotSupported
from penstock.sqlstate import DatetimeFieldOverflow, InvalidDatetimeFormat

_UNITS: Final = {
    "us usec usecs useconds microsecond microseconds": ("us", 1),
    "ms msec msecs mseconds millisecond milliseconds": ("us", 1_000),
    "s sec secs second seconds": ("us", 1_000_000),
    "m min mins minute minutes": ("us", 60_000_000),
    "h hr hrs hour hours": ("us", 3_600_000_000),
    "d day days": ("day", 1),
    "w week weeks": ("day", 7),
    "mon mons month months": ("month", 1),
    "y yr yrs year years": ("month", 12),
    "dec decs decade decades": ("month", 120),
    "c cent century centuries": ("month", 1_200),
    "mil mils millennia millennium": ("month", 12_000),
}
_UNIT: Final = {
    name: (names.split()[0], *unit) for names, unit in _UNITS.items() for name in names.split()
}
_SECOND_PARTS: Final = ("s", "ms", "us")
_CLOCK: Final = ("h", "m", *_SECOND_PARTS)
_NUMBER: Final = r"[-+]?\d+(?:\.\d+)?"
_FIELD: Final = re.compile(rf"({_NUMBER}) ?([a-z]+)", re.ASCII)
_ENDING: Final = r"(?<![a-z])(?:[dhmsy]|mon|dec)(?=[+\d])"
"""Units behind which a number needs no blank: those that are also words of dates (datetktbl)."""
_WHOLE: Final = re.compile(
    rf"(?:@ ?)?(?P<fields>(?:{_NUMBER} ?(?:{_ENDING}|[a-z]+(?: |$)))*)"
    r"(?:(?P<days>[-+]?\d+) )?"
    r"(?P<clock>[-+]?\d+:[0-5]?\d(?::[0-5]?\d(?:\.\d{1,6})?)?)?(?P<ago> ?ago)?",
    re.ASCII,
)
_SECONDS: Final = re.compile(_NUMBER, re.ASCII)
_DAYS_PER_MONTH: Final = 30
_FIELD_OVERFLOW: Final = "22015"
_MOST: Final = 1 << 63
_PRECISION: Final = 100
"""Digits of sums: a number of 64 bits, times the microseconds of the largest unit, and a fraction.
"""
_OUT_OF_RANGE: Final = "interval out of range"


@dataclass(frozen=True)
class IntervalValue:
    """An interval as PostgreSQL's ``Interval``."""

    months: int
    days: int
    microseconds: int

    def __str__(self) -> str:
        return print_interval(self.months, self.days, self.microseconds)

    def plus(self, other: IntervalValue) -> IntervalValue:
        """Add an interval (interval_pl). Raises DatetimeFieldOverflow (22008)."""
        return checked(
            self.months + other.months,
            self.days + other.days,
            self.microseconds + other.microseconds,
        )

    def minus(self, other: IntervalValue) -> IntervalValue:
        """Subtract an interval (interval_mi). Raises DatetimeFieldOverflow (22008)."""
        return checked(
            self.months - other.months,
            self.days - other.days,
            self.microseconds - other.microseconds,
        )

    def negated(self) -> IntervalValue:
        """Return the negative (interval_um). Raises DatetimeFieldOverflow (22008)."""
        return IntervalValue(0, 0, 0).minus(self)

    def times(self, factor: float) -> IntervalValue:
        """Multiply the interval (interval_mul). Raises DatetimeFieldOverflow (22008)."""
        return self._scaled(lambda part: part * factor)

    def divided(self, factor: float) -> IntervalValue:
        """Divide the interval (interval_div). Raises DatetimeFieldOverflow (22008)."""
        return self._scaled(lambda part: part / factor)

    def _scaled(self, scaled: Callable[[int], float]) -> IntervalValue:
        try:
            return self._rounded(scaled)
        except (OverflowError, ValueError):
            raise DatetimeFieldOverflow(_OUT_OF_RANGE) from None

    def _rounded(self, scaled: Callable[[int], float]) -> IntervalValue:
        months, days = int(scaled(self.months)), int(scaled(self.days))
        rest = _rounded((scaled(self.months) - months) * _DAYS_PER_MONTH)
        seconds = (scaled(self.days) - days + rest - int(rest)) * (DAY // 1_000_000)
        seconds = _rounded(seconds)
        if abs(seconds) >= DAY // 1_000_000:
            days += int(seconds / (DAY // 1_000_000))
            seconds -= int(seconds / (DAY // 1_000_000)) * (DAY // 1_000_000)
        microseconds = round(scaled(self.microseconds) + seconds * 1_000_000)
        return checked(months, days + int(rest), microseconds)


def read_interval(text: str) -> IntervalValue:
    """Read an interval.

    Raises InvalidDatetimeFormat (22007), DatetimeFieldOverflow (22008); FeatureNotSupported for
    forms that PostgreSQL may read and this file does not.
    """
    lowered = " ".join(text.lower().split())
    if _SECONDS.fullmatch(lowered):
        lowered += " s"
    match = _WHOLE.fullmatch(lowered)
    if match is None or not (match["fields"] or match["clock"]):
        raise _unread(text, lowered)
    total = {"month": Decimal(0), "day": Decimal(0), "us": Decimal(0)}
    fields = _FIELD.findall(match["fields"])
    if match["days"]:
        fields.append((match["days"], "d"))
    if any(unit not in _UNIT for _, unit in fields):
        raise _unread(text, lowered)
    said = [name for number, unit in fields for name in _said(number, _UNIT[unit][0])]
    said += _CLOCK if match["clock"] else ()
    if len(set(said)) < len(said):
        raise _invalid(text)
    message = f'interval field value out of range: "{text}"'
    with localcontext(prec=_PRECISION):
        for number, unit in fields:
            _, kind, factor = _UNIT[unit]
            if abs(int(Decimal(number))) >= _MOST:
                raise DatetimeFieldOverflow(message, sqlstate=_FIELD_OVERFLOW)
            _add(total, Decimal(number), kind, factor)
        if match["clock"]:
            total["us"] += _clock(match["clock"])
    sign = -1 if match["ago"] else 1
    microseconds = int(total["us"])
    months, days = int(total["month"]) * sign, int(total["day"]) * sign
    return checked(months, days, microseconds * sign, message, sqlstate=_FIELD_OVERFLOW)


def _said(number: str, name: str) -> tuple[str, ...]:
    """Return the fields that a number sets; fractional seconds also set fields below a second."""
    return _SECOND_PARTS if name == "s" and "." in number else (name,)


def _add(total: dict[str, Decimal], number: Decimal, kind: str, factor: int) -> None:
    """Add a number of a unit. Its fraction becomes smaller units; for years, whole months only.

    Follows AdjustFractYears, AdjustFractDays, AdjustFractMicroseconds.
    """
    value = number * factor
    if kind == "month" and factor > 1:
        total["month"] += int(number) * factor
        rest = (number - int(number)) * factor
        total["month"] += rest.quantize(Decimal(1), ROUND_HALF_EVEN)
        return
    whole = value.quantize(Decimal(1), ROUND_HALF_DOWN) if kind == "us" else Decimal(int(value))
    total[kind] += whole
    if kind == "month":
        _add(total, (value - whole) * _DAYS_PER_MONTH, "day", 1)
    elif kind == "day":
        _add(total, (value - whole) * DAY, "us", 1)


def _clock(clock: str) -> Decimal:
    """Read ``hours:minutes[:seconds]``."""
    hours, minutes, seconds = [*clock.lstrip("+-").split(":"), "0"][:3]
    found = ((int(hours) * 60 + int(minutes)) * 60 + Decimal(seconds)) * 1_000_000
    return -found if clock.startswith("-") else found


def _rounded(seconds: float) -> float:
    """Round to microseconds (TSROUND)."""
    return round(seconds * 1e6) / 1e6


def checked(
    months: int,
    days: int,
    microseconds: int,
    message: str = _OUT_OF_RANGE,
    sqlstate: str | None = None,
) -> IntervalValue:
    """Return an interval. Raises DatetimeFieldOverflow if a field has no room for its number."""
    fields = ((months, 31), (days, 31), (microseconds, 63))
    if any(not -(1 << bits) <= field < 1 << bits for field, bits in fields):
        raise DatetimeFieldOverflow(message, sqlstate=sqlstate)
    return IntervalValue(months, days, microseconds)


def _unread(text: str, lowered: str) -> Exception:
    """Return the error for an unread text: 0A000 if PostgreSQL may read it, else 22007."""
    if re.search(r"\d|infinity|\.", lowered):
        return FeatureNotSupported(
            f'"{text}" is not supported as a constant of type interval',
            hint="Write numbers with units, as in '1 day 2 hours'.",
        )
    return _invalid(text)


def _invalid(text: str) -> InvalidDatetimeFormat:
    return InvalidDatetimeFormat(f'invalid input syntax for type interval: "{text}"')
