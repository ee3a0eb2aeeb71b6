"""date, timestamp, timestamp with time zone (date.c, timestamp.c).

The target holds the years 0001 to 9999. Other years and infinity, which PostgreSQL allows, raise
ValueNotRepresentable; they are never clamped. Text must be in ``datestyle=ISO``, and may be in any
time zone of the session.
"""

from __future__ import annotations

import datetime
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import civil
from penstock.cells import Cells, write_bytes
from penstock.civil import (
    DAY,
    EPOCH_DAYS,
    EPOCH_MICROSECONDS,
    FIRST_DAY,
    HIGHEST_DAY,
    LAST_DAY,
    LOWEST_DAY,
    MICROSECONDS,
    read_date,
    read_time,
    read_zone,
    write_date,
    write_time,
)
from penstock.errors import ValueNotRepresentable
from penstock.kernel import BYTES, FLAGS, NUMBERS, PLACES, kernel
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family
from penstock.pgtypes.gather import fixed, nulls, numbers_of, primitive, written

_OVERFLOW = "22008"
_INFINITE = (b"infinity", b"-infinity")
_UNIX_EPOCH = datetime.datetime(1970, 1, 1)


class DateFamily(Family):
    """Int32 days since 2000-01-01 in binary; ``YYYY-MM-DD`` in text."""

    name = "date"
    oids = (pg_type.DATE,)

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.date32()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        days = np.zeros(len(cells), np.int32)
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        self.check_text(cells, _read_dates(*where, days), typmod)
        return primitive(days, cells.null, pa.date32())

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, ">i4")
        if values is None:
            raise self.malformed_binary()
        days = values.astype(np.int64) + EPOCH_DAYS
        self._check(primitive(days, cells.null, pa.int64()))
        return primitive(days.astype(np.int32), cells.null, pa.date32())

    def text_value(self, raw: bytes, typmod: int) -> datetime.date:
        days = civil.parse_date(raw)
        if raw in _INFINITE or (days is not None and not _day_fits(days)):
            raise self.unfit(raw, _OVERFLOW)
        if days is None:
            raise self.malformed_text(raw)
        return _UNIX_EPOCH.date() + datetime.timedelta(days)

    def binary_value(self, raw: bytes, typmod: int) -> datetime.date:
        if len(raw) != 4:
            raise self.malformed_binary()
        days = int.from_bytes(raw, "big", signed=True) + EPOCH_DAYS
        if not _day_fits(days):
            self._refuse(days)
        return _UNIX_EPOCH.date() + datetime.timedelta(days)

    def _check(self, days: pa.Array) -> None:
        for day in _out_of_range(days, civil.FIRST_DAY, civil.LAST_DAY):
            self._refuse(day)

    def _refuse(self, days: int) -> NoReturn:
        infinity = _infinity(days - EPOCH_DAYS, 32)
        raise self.unfit(infinity or civil.print_date(days), _OVERFLOW)


class TimestampFamily(Family):
    """Int64 microseconds since 2000-01-01 in binary; ``YYYY-MM-DD HH:MM:SS.ffffff`` in text."""

    def __init__(self, oid: int) -> None:
        self.name = pg_type.types()[oid].sql_name
        self.oids = (oid,)
        self._zone = zone = oid == pg_type.TIMESTAMPTZ
        self._type = pa.timestamp("us", "UTC" if zone else None)

    def arrow(self, typmod: int) -> pa.DataType:
        return self._type

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        moments = np.zeros(len(cells), np.int64)
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        row = -1
        while (row := _read_timestamps(*where, row + 1, self._zone, moments)) >= 0:
            # uncommon, such as a year BC that a zone moves into the year 1, or an error
            value = self.text_value(cells.raw(row) or b"", typmod)
            moments[row] = pa.scalar(value, self._type).value
        return primitive(moments, cells.null, self._type)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        values = fixed(cells, ">i8")
        if values is None:
            raise self.malformed_binary()
        since_2000 = primitive(values, cells.null, pa.int64())
        shift = EPOCH_MICROSECONDS
        for value in _out_of_range(since_2000, _FIRST - shift, _LAST - shift):
            self._refuse(value + shift)
        values += shift
        return primitive(values, cells.null, self._type)

    def text_value(self, raw: bytes, typmod: int) -> datetime.datetime:
        value = civil.parse_timestamp(raw, self._zone)
        if raw in _INFINITE or (value is not None and not _FIRST <= value <= _LAST):
            raise self.unfit(raw, _OVERFLOW)
        if value is None:
            raise self.malformed_text(raw)
        return self._datetime(value)

    def binary_value(self, raw: bytes, typmod: int) -> datetime.datetime:
        if len(raw) != 8:
            raise self.malformed_binary()
        value = int.from_bytes(raw, "big", signed=True) + EPOCH_MICROSECONDS
        if not _FIRST <= value <= _LAST:
            self._refuse(value)
        return self._datetime(value)

    def _datetime(self, microseconds: int) -> datetime.datetime:
        value = _UNIX_EPOCH + datetime.timedelta(microseconds=microseconds)
        return value.replace(tzinfo=datetime.UTC) if self._zone else value

    def _check(self, microseconds: pa.Array) -> None:
        for value in _out_of_range(microseconds, _FIRST, _LAST):
            self._refuse(value)

    def _refuse(self, microseconds: int) -> NoReturn:
        infinity = _infinity(microseconds - EPOCH_MICROSECONDS, 64)
        text = infinity or civil.print_timestamp(microseconds, self._zone)
        raise self.unfit(text, _OVERFLOW)


_FIRST = civil.FIRST_DAY * DAY
_LAST = (civil.LAST_DAY + 1) * DAY - 1


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int32[::1])")
def _read_dates(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    days: NDArray[np.int32],
) -> int:
    """Read dates; return the first row that is none of the target's, -1 if there is none."""
    for row in range(len(start)):
        if len(null) and null[row]:
            continue
        end = np.int64(start[row]) + length[row]
        day, at = read_date(buffer, start[row], end)
        if at != end or day < FIRST_DAY or day > LAST_DAY:
            return row
        days[row] = day
    return -1


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int64, boolean, int64[::1])")
def _read_timestamps(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    first: int,
    zone: bool,
    moments: NDArray[np.int64],
) -> int:
    """Read timestamps from row ``first`` on; return the first that is not read, -1 if all are."""
    for row in range(first, len(start)):
        if len(null) and null[row]:
            continue
        end = np.int64(start[row]) + length[row]
        day, at = read_date(buffer, start[row], end)
        if at < 0 or at >= end or buffer[at] != _BLANK:
            return row
        time, at = read_time(buffer, at + 1, end)
        east = 0
        if zone and at >= 0:
            east, at = read_zone(buffer, at, end)
        moment = day * DAY + time - east * MICROSECONDS
        if at != end or moment < _FIRST or moment > _LAST:
            return row
        moments[row] = moment
    return -1


_BLANK = ord(" ")


def check_range(array: pa.Array) -> None:
    """Check dates or timestamps that another writer has made.

    Raises ValueNotRepresentable (22008).
    """
    if pa.types.is_date(array.type):
        DateFamily()._check(array.view(pa.int32()).cast(pa.int64()))
    else:
        oid = pg_type.TIMESTAMP if array.type.tz is None else pg_type.TIMESTAMPTZ
        TimestampFamily(oid)._check(array.view(pa.int64()))


def _day_fits(days: int) -> bool:
    return civil.FIRST_DAY <= days <= civil.LAST_DAY


def _out_of_range(values: pa.Array, low: int, high: int) -> tuple[int, ...]:
    """Return the smallest and the largest value if they are out of range; NULLs do not count."""
    ends: dict[str, Any] = pc.min_max(values).as_py()
    return tuple(v for v in (ends["min"], ends["max"]) if v is not None and not low <= v <= high)


def _infinity(since_2000: int, bits: int) -> str | None:
    """Name the infinity that a number stands for, None for others.

    The infinities are the ends of the integers. The modulus finds them even if moving the epoch
    wrapped them.
    """
    return {(1 << bits - 1) - 1: "infinity", 1 << bits - 1: "-infinity"}.get(
        since_2000 % (1 << bits)
    )


# Dates and timestamps as PostgreSQL prints them, and the check that it can hold them
# (datetime.c).

_LONGEST_DATE: Final = len("5874897-12-31 BC")
_LONGEST_TIMESTAMP: Final = len("294276-12-31 23:59:59.999999+00 BC")
_ERA: Final = np.frombuffer(b" BC", np.uint8)
_UTC: Final = np.frombuffer(b"+00", np.uint8)


def date_text(array: pa.Array) -> pa.Array:
    """Return the text of each date. Raises ValueNotRepresentable."""
    check_dates(array)
    days = numbers_of(array, np.int32)
    return written(array, pa.string(), len(array) * _LONGEST_DATE, _print_dates, days)


def timestamp_text(array: pa.Array) -> pa.Array:
    """Return the text of each timestamp. Raises ValueNotRepresentable."""
    check_timestamps(array)
    given = numbers_of(array, np.int64), array.type.tz is not None
    most = len(array) * _LONGEST_TIMESTAMP
    return written(array, pa.string(), most, _print_timestamps, *given)


@kernel(f"void({PLACES}, {FLAGS}, int32[::1], uint8[::1])")
def _print_dates(
    days: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    at = 0
    for row in range(len(days)):
        if not (len(null) and null[row]):
            at, before = write_date(out, at, int(days[row]))
            if before:
                at = write_bytes(_ERA, out, at)
        offsets[row + 1] = at


@kernel(f"void({NUMBERS}, boolean, {FLAGS}, int32[::1], uint8[::1])")
def _print_timestamps(
    moments: NDArray[np.int64],
    zone: bool,
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    at = 0
    for row in range(len(moments)):
        if not (len(null) and null[row]):
            day, time = divmod(moments[row], DAY)
            at, before = write_date(out, at, day)
            out[at] = _BLANK
            at = write_time(out, at + 1, time)
            if zone:
                at = write_bytes(_UTC, out, at)
            if before:
                at = write_bytes(_ERA, out, at)
        offsets[row + 1] = at


def check_dates(array: pa.Array) -> None:
    """Raise ValueNotRepresentable for a day that the server refuses."""
    _check(array.cast(pa.int32()), LOWEST_DAY, HIGHEST_DAY, "date")


def check_timestamps(array: pa.Array) -> None:
    """Raise ValueNotRepresentable for a moment that is too early for the server.

    There is no upper check: the server holds every later moment of 64 bits.
    """
    _check(array.cast(pa.int64()), LOWEST_DAY * DAY, (1 << 63) - 1, "timestamp")


def _check(numbers: pa.Array, lowest: int, highest: int, name: str) -> None:
    limits = pc.min_max(numbers).as_py()
    if limits["min"] is not None and not lowest <= limits["min"] <= limits["max"] <= highest:
        raise ValueNotRepresentable(f"{name} out of range", sqlstate="22008")
