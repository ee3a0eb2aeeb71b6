"""Prune: choose the data files that may hold a batch's keys, by the files' statistics.

A file is left out only if its statistics or partition values exclude all of the keys; without
statistics it stays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.partition_values import partition_scalar
from penstock.lakehouse.statistics import bounds

EXACT_KEYS: Final = 4096
"""The most keys that are each compared with a file's bounds; of more keys, only the least and the
greatest are compared."""

Test = Callable[[Any, Any], bool]


def candidates(files: Iterable[DataFile], keys: pa.Table) -> list[DataFile]:
    """Return the files with live rows that may hold one of ``keys``, whose columns have their names
    in Delta."""
    tests = {
        name: test for name in keys.column_names if (test := _test(keys.column(name))) is not None
    }
    return [file for file in files if file.live_rows and _may_hold(file, keys.schema, tests)]


def may_be_live(file: DataFile, deleted_at: str | None) -> bool:
    """Return whether the file may hold a row with NULL in ``deleted_at`` (None: no row is dead)."""
    nulls = file.stats.get("nullCount") or {}
    return deleted_at is None or nulls.get(deleted_at) != 0


def integer_bounds(file: DataFile, column: str, schema: pa.Schema) -> tuple[int, int] | None:
    """Return the least and greatest possible value of an integer column in a file, if known."""
    type = schema.field(column).type
    if not pa.types.is_integer(type):
        return None
    if column not in (file.partition_values or ()):
        return bounds(file.stats, column, type)
    value = _partition_value(file, column, type)
    return None if value is None else (value, value)


def in_order(files: Iterable[DataFile], column: str, type: pa.DataType) -> list[DataFile]:
    """Sort files by the least possible value of a column; files where it is unknown come last."""

    def least(file: DataFile) -> tuple[bool, Any]:
        known = bounds(file.stats, column, type)
        return (True, None) if known is None else (False, known[0])

    return sorted(files, key=least) if _bounded(type) else list(files)


def _may_hold(file: DataFile, schema: pa.Schema, tests: dict[str, Test]) -> bool:
    for name, test in tests.items():
        type = schema.field(name).type
        if name in (file.partition_values or ()):
            value = _partition_value(file, name, type)
            if value is None or not test(value, value):
                return False
        else:
            known = bounds(file.stats, name, type)
            if known is not None and not test(*known):
                return False
    return True


def _partition_value(file: DataFile, column: str, type: pa.DataType) -> Any:
    """Return the value that all rows of the file have in a column."""
    return partition_scalar((file.partition_values or {})[column], type).as_py()


def _test(column: pa.ChunkedArray) -> Test | None:
    """Return a test whether any value of the column may lie in [low, high]; None if bounds are
    useless.

    Bounds ignore NULL, and writers order NaN and -0 differently.
    """
    if not _bounded(column.type) or column.null_count:
        return None
    if len(column) <= EXACT_KEYS:
        values = sorted(column.to_pylist())
        return lambda low, high: _any_between(values, low, high)
    found = pc.min_max(column)
    least, greatest = found["min"].as_py(), found["max"].as_py()
    return lambda low, high: bool(greatest >= low and not _above(least, high))


def _any_between(values: list[Any], low: Any, high: Any) -> bool:
    at = bisect_left(values, low)
    return at < len(values) and not _above(values[at], high)


def _above(value: Any, high: Any) -> bool:
    """Return whether ``value`` is above the bound, even if a string's bound is only a prefix of the
    true one."""
    return bool((value[: len(high)] if isinstance(value, str) else value) > high)


def _bounded(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(type)
        or pa.types.is_string(type)
        or pa.types.is_decimal(type)
        or pa.types.is_date(type)
        or pa.types.is_timestamp(type)
    )
