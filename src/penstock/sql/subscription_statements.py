"""Statements on subscriptions that name tables (parsenodes.h has none).

In: what the grammar found. Out: frozen values, as those of ``statements``.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sql.object_names import RangeVar
from penstock.sql.statements import Statement


@dataclass(frozen=True, slots=True)
class AlterSubscriptionRefreshTables(Statement):
    """ALTER SUBSCRIPTION name REFRESH TABLE table [, ...]; ours."""

    name: str
    tables: tuple[RangeVar, ...]
