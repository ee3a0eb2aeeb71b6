"""How far the tables of subscriptions are compared with their publishers in the background.

In: a connection inside a transaction. Out: frozen rows. A table is compared range by range; one
*pass* is all ranges of it. A row is of one membership of the table (``sync_id``): a table that is
copied again, or comes back, begins anew. Details of each range are in the lake's table
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
    """Times are seconds since 1970. ``began``: the pass under way, None between two; ``next_key``:
    where its next range begins, by the values of ``key_column``; ``partial``: 1 where it has left
    columns out so far. ``result`` of the last comparison: ``equal``, ``partial`` or ``different``,
    at ``lsn``. ``checked`` and ``verified``: when the last pass that has ended, and the last that
    found all equal, began."""

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
        """Those of all subscriptions, by the sync ids of their tables."""
        names = [field.name for field in fields(TableVerification)]
        rows = self._connection.execute(select(*(_TABLE.c[name] for name in names)))
        return {row[0]: TableVerification(*row) for row in rows}

    def save(self, row: TableVerification) -> None:
        """Write a row, in the place of that of its membership."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.sync_id == row.sync_id))
        self._connection.execute(_TABLE.insert().values(**asdict(row)))

    def forget(self, subid: int) -> None:
        """Take all tables of a subscription as never compared."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.subid == subid))

    def forget_others(self, sync_ids: frozenset[str]) -> None:
        """Remove rows of memberships that have ended."""
        for sync_id in set(self.all()) - sync_ids:
            self._connection.execute(_TABLE.delete().where(_TABLE.c.sync_id == sync_id))
