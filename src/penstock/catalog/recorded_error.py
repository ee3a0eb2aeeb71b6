"""What went wrong last with a subscription or a table of one, in five columns of its row.

In: the prefix of a catalog's columns. Out: the columns, their values of an error, and the error of
their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Float, RowMapping, String, Text


@dataclass(frozen=True, slots=True)
class RecordedError:
    """What went wrong last. ``time``: seconds since 1970."""

    message: str
    detail: str | None
    hint: str | None
    sqlstate: str
    time: float


def error_columns(prefix: str) -> tuple[Column[Any], ...]:
    """Of a table whose columns begin with ``prefix``; all NULL without an error."""
    return (
        Column(f"{prefix}error", Text),
        Column(f"{prefix}errordetail", Text),
        Column(f"{prefix}errorhint", Text),
        Column(f"{prefix}errorsqlstate", String(5)),
        Column(f"{prefix}errortime", Float(53)),
    )


def error_values(prefix: str, error: RecordedError | None) -> dict[str, Any]:
    """What the columns hold."""
    return {
        f"{prefix}error": error and error.message,
        f"{prefix}errordetail": error and error.detail,
        f"{prefix}errorhint": error and error.hint,
        f"{prefix}errorsqlstate": error and error.sqlstate,
        f"{prefix}errortime": error and error.time,
    }


def error_of(prefix: str, row: RowMapping) -> RecordedError | None:
    """The error of a row, None without one."""
    if row[f"{prefix}error"] is None:
        return None
    return RecordedError(
        message=row[f"{prefix}error"],
        detail=row[f"{prefix}errordetail"],
        hint=row[f"{prefix}errorhint"],
        sqlstate=row[f"{prefix}errorsqlstate"],
        time=row[f"{prefix}errortime"],
    )
