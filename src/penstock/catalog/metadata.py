"""Parts that the state store's tables share: their collection, a column type, error columns.

In: nothing. Out: ``METADATA``, ``LsnColumn``, and the five columns that keep the last error of a
subscription or of one of its tables. Tables bear the prefix ``penstock_``, because a PostgreSQL
that keeps the state has catalogs of its own under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Dialect, Float, MetaData, RowMapping, String, Text
from sqlalchemy.types import TypeDecorator

from penstock.lsn import Lsn

METADATA = MetaData()


class LsnColumn(TypeDecorator[Lsn]):
    """A position as a signed 64-bit number. That suffices for 8 EiB of WAL; more is refused
    (0A000)."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Lsn | None, dialect: Dialect) -> int | None:
        return None if value is None else Lsn(value).signed()

    def process_result_value(self, value: Any, dialect: Dialect) -> Lsn | None:
        return None if value is None else Lsn(value)


@dataclass(frozen=True, slots=True)
class RecordedError:
    """The last error. ``time``: seconds since 1970."""

    message: str
    detail: str | None
    hint: str | None
    sqlstate: str
    time: float


def error_columns(prefix: str) -> tuple[Column[Any], ...]:
    """Return the error columns, with ``prefix``, of a table; all are NULL if there is no error."""
    return (
        Column(f"{prefix}error", Text),
        Column(f"{prefix}errordetail", Text),
        Column(f"{prefix}errorhint", Text),
        Column(f"{prefix}errorsqlstate", String(5)),
        Column(f"{prefix}errortime", Float(53)),
    )


def error_values(prefix: str, error: RecordedError | None) -> dict[str, Any]:
    """Return the values of the error columns."""
    return {
        f"{prefix}error": error and error.message,
        f"{prefix}errordetail": error and error.detail,
        f"{prefix}errorhint": error and error.hint,
        f"{prefix}errorsqlstate": error and error.sqlstate,
        f"{prefix}errortime": error and error.time,
    }


def error_of(prefix: str, row: RowMapping) -> RecordedError | None:
    """Return the error of a row, None if it has none."""
    if row[f"{prefix}error"] is None:
        return None
    return RecordedError(
        message=row[f"{prefix}error"],
        detail=row[f"{prefix}errordetail"],
        hint=row[f"{prefix}errorhint"],
        sqlstate=row[f"{prefix}errorsqlstate"],
        time=row[f"{prefix}errortime"],
    )
