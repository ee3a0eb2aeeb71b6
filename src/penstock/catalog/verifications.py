"""The progress of comparing subscriptions' tables with their publishers in the background.

A table is compared range by range; a *pass* covers all its ranges. A row belongs to one membership
of the table (``sync_id``): a table that is copied again, or comes back, begins anew. Details of
each range are in the lake's table ``verifications``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sqlalchemy import BigInteger, Column, Float, String

from penstock.catalog.metadata import LsnColumn, StoredTable, TableAccess
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The progress of one table. Times are seconds since 1970. ``began``: the start of the pass
    under way, None between two. ``next_key``: the value of ``key_column`` at which the pass's next
    range begins. ``partial``: 1 if the pass has left columns out so far. ``result``: the last
    comparison's, ``equal``, ``partial`` or ``different``, at ``lsn``. ``checked``, ``verified``:
    the start of the last finished pass, and of the last one that found all equal."""

    sync_id: Annotated[str, Column("sync_id", String(36), primary_key=True)]
    subid: Annotated[int, Column("subid", BigInteger, nullable=False)]
    began: Annotated[float | None, Column("began", Float(53))] = None
    next_key: Annotated[int | None, Column("next_key", BigInteger)] = None
    key_column: Annotated[str | None, Column("key_column", String(63))] = None
    partial: Annotated[int, Column("partial", BigInteger)] = 0
    result: Annotated[str | None, Column("result", String(9))] = None
    checked: Annotated[float | None, Column("checked", Float(53))] = None
    verified: Annotated[float | None, Column("verified", Float(53))] = None
    lsn: Annotated[Lsn | None, Column("lsn", LsnColumn)] = None


_TABLE: Final = StoredTable("penstock_verification", TableVerification)


class Verifications(TableAccess):
    """The table, within one transaction."""

    def all(self) -> dict[str, TableVerification]:
        """Return the rows of all subscriptions, by the sync ids of their tables."""
        return {row.sync_id: row for row in _TABLE.all(self.connection)}

    def save(self, row: TableVerification) -> None:
        """Write a row, replacing the one of the same membership."""
        _TABLE.delete(self.connection, _TABLE.c.sync_id == row.sync_id)
        _TABLE.insert(self.connection, row)

    def forget(self, subid: int) -> None:
        """Treat all tables of a subscription as never compared."""
        _TABLE.delete(self.connection, _TABLE.c.subid == subid)

    def forget_others(self, sync_ids: frozenset[str]) -> None:
        """Remove rows of memberships that have ended."""
        for sync_id in set(self.all()) - sync_ids:
            _TABLE.delete(self.connection, _TABLE.c.sync_id == sync_id)
