"""Compile date and timestamp arithmetic with intervals, and compute with interval constants
(timestamp_pl_interval, interval_mul of timestamp.c).

The result is DuckDB's SQL, or a constant; ``timestamp_functions`` computes with other intervals.
Months are added first and then days, as in PostgreSQL, and the session's time zone is UTC.
"""

from __future__ import annotations

from typing import Final

from penstock.pgtypes.pg_type import DATE, FLOAT8, INTERVAL, TIMESTAMPTZ
from penstock.sql.text.interval_literals import IntervalValue, read_interval
from penstock.sql.to_duckdb.duckdb_values import Value
from penstock.sql.typed.primnodes import Const, FuncExpr, Node, OpExpr, is_cast

_MAX_MONTHS: Final = 12_000
_MAX_DAYS: Final = 365_000
_DAY: Final = 86_400_000_000


def moved(name: str, moment: Value, interval: Node, result: int) -> Value | None:
    """Add an interval to a date or timestamp, or subtract it (``name``: ``+`` or ``-``).

    Returns None for an interval that is not a constant, or is longer than a thousand years: from
    the years 1 to 9999, the result must stay in DuckDB's range.
    """
    constant = evaluated(interval)
    if constant is None:
        return None
    by = constant.times(-1.0) if name == "-" else constant
    if max(abs(by.months) / _MAX_MONTHS, abs(by.days) / _MAX_DAYS) > 1 or (
        abs(by.microseconds) > _MAX_DAYS * _DAY
    ):
        return None
    start = in_utc(moment)
    sql = (
        f"({start} + to_months({by.months}) + to_days({by.days})"
        f" + to_microseconds({by.microseconds}))"
    )
    if result == TIMESTAMPTZ:
        sql = f"make_timestamptz(epoch_us{sql})"
    return Value(sql, result, None, moment.fails)


def in_utc(moment: Value) -> str:
    """Return the moment as a timestamp without time zone."""
    if moment.type == TIMESTAMPTZ:
        return f"make_timestamp(epoch_us({moment.sql}))"
    return f"CAST({moment.sql} AS TIMESTAMP)" if moment.type == DATE else moment.sql


def evaluated(node: Node) -> IntervalValue | None:
    """Return the value of an expression of constants; None for NULL and other expressions."""
    if isinstance(node, Const):
        known = node.type == INTERVAL and node.text is not None
        return read_interval(node.text) if known and node.text is not None else None
    if not isinstance(node, OpExpr) or node.type != INTERVAL:
        return None
    if len(node.arguments) == 1:
        value = evaluated(node.arguments[0])
        return value.times(-1.0) if value is not None and node.name == "-" else None
    left, right = node.arguments
    first, second = evaluated(left), evaluated(right)
    if first is not None and second is not None and node.name in ("+", "-"):
        return first.plus(second if node.name == "+" else second.times(-1.0))
    if node.name == "*" and (first is None) != (second is None):
        factor = _number(right if second is None else left)
        value = first if first is not None else second
        return None if factor is None or value is None else value.times(factor)
    return None


def _number(node: Node) -> float | None:
    if isinstance(node, FuncExpr) and is_cast(node) and node.type == FLOAT8:
        return _number(node.arguments[0])
    if not isinstance(node, Const) or node.text is None or node.type == INTERVAL:
        return None
    value = float(node.text)
    return value if abs(value) < float("inf") else None
