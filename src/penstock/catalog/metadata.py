"""What all tables of the state store share: their collection and their column types.

In: nothing. Out: ``METADATA`` and types. Tables bear the prefix ``penstock_``, since a PostgreSQL
that keeps the state has catalogs of its own by the names of ours.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Dialect, MetaData
from sqlalchemy.types import TypeDecorator

from penstock.lsn import Lsn

METADATA = MetaData()


class LsnColumn(TypeDecorator[Lsn]):
    """A position as a signed 64-bit number: enough for 8 EiB of WAL, more is refused (0A000)."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Lsn | None, dialect: Dialect) -> int | None:
        return None if value is None else Lsn(value).signed()

    def process_result_value(self, value: Any, dialect: Dialect) -> Lsn | None:
        return None if value is None else Lsn(value)
