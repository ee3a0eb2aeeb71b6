"""The progress of comparing subscriptions' tables with their publishers in the background.

In: a connection inside a transaction. Out: frozen rows. A table is compared range by range; a
*pass* covers all its ranges. A row belongs to one membership of the table (``sync_id``): a table
that is copied again, or comes back, begins anew. Details of each range are in the lake's table
``verifications``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from sqlalchemy import BigInteger, Column, Connection, Float, String, Table, select

from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.lsn import Lsn

_TABLE = Table(
    "penstock_verification",
    METADATA,
    Column("sync_id", String(36), primary_key=True),
    Column("subid", BigInteger, nullable=False),
    Column("began", Float(53)),
    Column("next_key", BigInteger),
    Column("key_column", String(63)),
    Column("partial", BigInteger),
    Column("result", String(9)),
    Column("checked", Float(53)),
    Column("verified", Float(53)),
    Column("lsn", LsnColumn),
)


@dataclass(frozen=True, slots=True)
class TableVerification:
    """The progress of one table. Times are seconds since 1970. ``began``: the start of the pass
    under way, None between two. ``next_key``: the value of ``key_column`` at which the pass's next
    range begins. ``partial``: 1 if the pass has left columns out so far. ``result``: the last
    comparison's, ``equal``, ``partial`` or ``different``, at ``lsn``. ``checked``, ``verified``:
    the start of the last finished pass, and of the last one that found all equal."""

    sync_id: str
    subid: int
    began: float | None = None
    next_key: int | None = None
    key_column: str | None = None
    partial: int = 0
    result: str | None = None
    checked: float | None = None
    verified: float | None = None
    lsn: Lsn | None = None


class Verifications:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> dict[str, TableVerification]:
        """Return the rows of all subscriptions, by the sync ids of their tables."""
        names = [field.name for field in fields(TableVerification)]
        rows = self._connection.execute(select(*(_TABLE.c[name] for name in names)))
        return {row[0]: TableVerification(*row) for row in rows}

    def save(self, row: TableVerification) -> None:
        """Write a row, replacing the one of the same membership."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.sync_id == row.sync_id))
        self._connection.execute(_TABLE.insert().values(**asdict(row)))

    def forget(self, subid: int) -> None:
        """Treat all tables of a subscription as never compared."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.subid == subid))

    def forget_others(self, sync_ids: frozenset[str]) -> None:
        """Remove rows of memberships that have ended."""
        for sync_id in set(self.all()) - sync_ids:
            self._connection.execute(_TABLE.delete().where(_TABLE.c.sync_id == sync_id))
