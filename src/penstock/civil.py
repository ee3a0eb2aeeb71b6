"""Dates of the proleptic Gregorian calendar as PostgreSQL counts and prints them (datetime.c).

In: days since 1970-01-01, or year, month and day; year 0 is 1 BC. Out: the other, or text. Python's
own dates end at the years 1 and 9999.
"""

from __future__ import annotations


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a proleptic Gregorian date; years start in March to end on leap."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month, day of a number of days since 1970-01-01."""
    era, of_era = divmod(days + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def date_text(year: int, month: int, day: int) -> str:
    """Without its era, which stands after a time."""
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}"


def era_text(year: int) -> str:
    """What stands at the end of a date or timestamp."""
    return "" if year > 0 else " BC"
