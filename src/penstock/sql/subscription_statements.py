"""Statements on subscriptions that name tables or publications (parsenodes.h).

In: what the grammar found. Out: frozen values, as those of ``statements``.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sql.object_names import RangeVar
from penstock.sql.statements import DefElem, Statement


@dataclass(frozen=True, slots=True)
class AlterSubscriptionRefreshTables(Statement):
    """ALTER SUBSCRIPTION name REFRESH TABLE table [, ...]; ours."""

    name: str
    tables: tuple[RangeVar, ...]


@dataclass(frozen=True, slots=True)
class RenameSubscription(Statement):
    """ALTER SUBSCRIPTION name RENAME TO new_name."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AlterSubscriptionPublications(Statement):
    """ALTER SUBSCRIPTION name SET | ADD | DROP PUBLICATION names [WITH (...)].

    ``verb``: in capital letters.
    """

    name: str
    verb: str
    publications: tuple[str, ...]
    options: tuple[DefElem, ...] = ()
