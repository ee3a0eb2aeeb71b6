"""Dates and timestamps as PostgreSQL prints them, and the check that it can hold them (datetime.c).

In: date32 and timestamp columns, which other writers may have filled beyond the years 0001 to 9999.
Out: texts with ``datestyle=ISO`` and the zone UTC, or ValueNotRepresentable (22008) for values that
the server would refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.civil import (
    DAY,
    FIRST_DAY,
    HIGHEST_DAY,
    LAST_DAY,
    LOWEST_DAY,
    print_date,
    print_timestamp,
)
from penstock.errors import ValueNotRepresentable

_FRACTION: Final = r"\.?0+$"
_UTC: Final = "+00"


def date_text(array: pa.Array) -> pa.Array:
    """Return the text of each date. Raises ValueNotRepresentable."""
    check_dates(array)
    days = array.cast(pa.int32())
    return _printed(array, days, FIRST_DAY, LAST_DAY, _plain_date, print_date)


def timestamp_text(array: pa.Array) -> pa.Array:
    """Return the text of each timestamp. Raises ValueNotRepresentable."""
    check_timestamps(array)
    zoned = array.type.tz is not None
    moments = array.cast(pa.int64())
    return _printed(
        moments.cast(pa.timestamp("us")),
        moments,
        FIRST_DAY * DAY,
        (LAST_DAY + 1) * DAY - 1,
        _plain_timestamp_utc if zoned else _plain_timestamp,
        lambda moment: print_timestamp(moment, zoned),
    )


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


def _printed(
    array: pa.Array,
    numbers: pa.Array,
    lowest: int,
    highest: int,
    plain: Callable[[pa.Array], pa.Array],
    one: Callable[[int], str],
) -> pa.Array:
    """Print most years with ``plain``, Arrow's way, and the few others with ``one``."""
    inside = pc.and_(pc.greater_equal(numbers, lowest), pc.less_equal(numbers, highest))
    if pc.all(inside, min_count=0).as_py():
        return plain(array)
    ours = pc.fill_null(inside, True)
    text = plain(pc.if_else(ours, array, pa.scalar(None, array.type)))
    outside = np.flatnonzero(~np.asarray(ours))
    texts = pa.array([one(numbers[int(at)].as_py()) for at in outside], pa.string())
    return pc.replace_with_mask(text, pc.invert(ours), texts)


def _plain_date(array: pa.Array) -> pa.Array:
    return pc.cast(array, pa.string())


def _plain_timestamp(array: pa.Array) -> pa.Array:
    # PostgreSQL prints no fraction of zero, and no trailing zeros of a fraction.
    return pc.replace_substring_regex(pc.cast(array, pa.string()), _FRACTION, "")


def _plain_timestamp_utc(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(_plain_timestamp(array), _UTC, "")
