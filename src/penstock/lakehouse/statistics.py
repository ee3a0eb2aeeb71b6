"""Statistics of data files (protocol: "Per-file Statistics"), by which readers skip files.

``Collector`` gathers them from the Arrow tables that are written: numRecords, minValues, maxValues
and nullCount of the first 32 columns and of clustering columns. ``bounds`` reads them from the
"stats" of add actions. A bound may be wider than the values, never narrower.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

INDEXED_COLUMNS: Final = 32
"""delta.dataSkippingNumIndexedCols"""
PREFIX: Final = 32
"""The number of characters in a string's bound."""
_LAST_CHARACTER: Final = "\U0010ffff"
_MILLISECOND: Final = timedelta(milliseconds=1)
_OF_A_DOUBLE: Final = Decimal("1e-14")
"""A relative error larger than that of any double or product of doubles."""


@dataclass
class Collector:
    """Statistics of one file, gathered batch by batch. ``indexed``: columns that get statistics
    whatever their position."""

    schema: pa.Schema
    indexed: Sequence[str] = ()
    rows: int = 0
    _low: dict[str, Any] = field(default_factory=dict)
    _high: dict[str, Any] = field(default_factory=dict)
    _nulls: dict[str, int] = field(default_factory=dict)
    _unbounded: set[str] = field(default_factory=set)

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        """Count rows that were written to the file."""
        self.rows += table.num_rows
        first, rest = self.schema.names[:INDEXED_COLUMNS], self.schema.names[INDEXED_COLUMNS:]
        for column in (*first, *(name for name in rest if name in self.indexed)):
            values = table.column(column)
            self._nulls[column] = self._nulls.get(column, 0) + values.null_count
            if column not in self._unbounded and has_order(values.type):
                self._widen(column, values)

    def _widen(self, column: str, values: pa.ChunkedArray) -> None:
        if pa.types.is_floating(values.type) and not _all_finite(values):
            # Spark sorts NaN above all numbers, and JSON has no word for it: leave bounds out
            self._unbounded.add(column)
            return
        found = pc.min_max(values)
        try:
            low, high = found["min"].as_py(), found["max"].as_py()
        except (OverflowError, ValueError):
            self._unbounded.add(column)  # infinity, or a year that Python's dates cannot have
            return
        if low is None:
            return
        self._low[column] = min(low, self._low.get(column, low))
        self._high[column] = max(high, self._high.get(column, high))

    def result(self) -> dict[str, Any]:
        """Return the statistics as a mapping that ``to_json`` renders."""
        bounded = [c for c in self._low if c not in self._unbounded and _has_form(self._high[c])]
        return {
            "numRecords": self.rows,
            "minValues": {c: _low_form(self._low[c]) for c in bounded},
            "maxValues": {c: _high_form(self._high[c]) for c in bounded},
            "nullCount": dict(self._nulls),
        }


def to_json(value: Any) -> str:
    """Return JSON with decimals as exact numbers, which the standard encoder cannot write."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(k)}:{to_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value)


def from_json(text: str | None) -> dict[str, Any]:
    """Parse the "stats" of an add action; fractions become Decimal, so no digit is lost."""
    if not text:
        return {}
    parsed: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return parsed


def bounds(stats: Mapping[str, Any], column: str, arrow: pa.DataType) -> tuple[Any, Any] | None:
    """Return the least and the greatest possible value of a column in a file; None if unknown.

    Values have the Python type of ``pa.Scalar.as_py`` for ``arrow``. If all values are NULL, the
    statistics have no bounds, and the result is None too.
    """
    try:
        low = _parse(stats["minValues"][column], arrow)
        high = _parse(stats["maxValues"][column], arrow)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None
    if pa.types.is_timestamp(arrow):
        # other writers truncate a bound to milliseconds
        last = datetime.max.replace(tzinfo=high.tzinfo)
        return low, last if high > last - _MILLISECOND else high + _MILLISECOND
    if pa.types.is_decimal(arrow):
        # delta-rs writes decimals as doubles
        return low - abs(low) * _OF_A_DOUBLE, high + abs(high) * _OF_A_DOUBLE
    return low, high


def _parse(value: Any, arrow: pa.DataType) -> Any:
    if pa.types.is_timestamp(arrow):
        parsed = datetime.fromisoformat(value)
        if arrow.tz is None:
            return parsed.replace(tzinfo=None)
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    if pa.types.is_date(arrow):
        return date.fromisoformat(value)
    if pa.types.is_decimal(arrow):
        return Decimal(value)
    if pa.types.is_floating(arrow):
        if math.isnan(number := float(value)):
            raise ValueError("NaN compares with nothing")
        return number
    if pa.types.is_integer(arrow):
        return int(value)
    if pa.types.is_string(arrow) and isinstance(value, str):
        return value
    raise ValueError(f"no bounds for {arrow}")


def has_order(arrow: pa.DataType) -> bool:
    """Return whether Spark skips files by values of a type (SkippingEligibleDataType)."""
    return bool(
        pa.types.is_integer(arrow)
        or pa.types.is_floating(arrow)
        or pa.types.is_decimal(arrow)
        or pa.types.is_date(arrow)
        or pa.types.is_timestamp(arrow)
        or pa.types.is_string(arrow)
    )


def _all_finite(values: pa.ChunkedArray) -> bool:
    return pc.all(pc.is_finite(values), min_count=0).as_py() is not False


def _low_form(value: Any) -> Any:
    if isinstance(value, str):
        return value[:PREFIX]
    if isinstance(value, datetime):
        return _timestamp_text(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def _has_form(high: Any) -> bool:
    """Return whether an upper bound can be written. Years have four digits, so no bound is above
    the last millisecond of 9999, and a truncated bound would make readers miss rows."""
    return not (
        isinstance(high, datetime)
        and high.replace(tzinfo=None) > datetime.max.replace(microsecond=999_000)
    )


def _high_form(value: Any) -> Any:
    if isinstance(value, str):
        return _string_above(value)
    if isinstance(value, datetime):
        if value.microsecond % 1000:
            value += _MILLISECOND
        return _timestamp_text(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def _string_above(value: str) -> str:
    """Return a short string that sorts at or above ``value``, by code points, as UTF-8 bytes do."""
    end = PREFIX
    while end < len(value) and value[end] == _LAST_CHARACTER:
        end += 1
    return value if end >= len(value) else value[:end] + _LAST_CHARACTER


def _timestamp_text(value: datetime) -> str:
    """Return ISO 8601 truncated to milliseconds; "Z" for instants, no zone for timestamp_ntz."""
    zone = "Z" if value.tzinfo is not None else ""
    plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return plain.isoformat(timespec="milliseconds") + zone
