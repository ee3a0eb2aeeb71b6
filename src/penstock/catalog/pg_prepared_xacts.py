"""Prepared transactions of publishers that wait for their second phase (twophase.c).

In: a connection inside a transaction. Out: frozen rows. A row exists from the publisher's PREPARE
TRANSACTION until the rows of its COMMIT PREPARED are in a cut, or until it is rolled back. The
transaction's changes are kept in the warehouse, in ``folder``; nobody reads them before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from sqlalchemy import BigInteger, Boolean, Column, Connection, String, Text

from penstock.catalog.metadata import LIST, LsnColumn, StoredTable
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class PreparedXact:
    """A prepared transaction. ``xid`` and ``gid`` are the publisher's. ``prepare_time``:
    microseconds since 1970. ``runs``: the number of frames in each file of the folder;
    ``relations``: OIDs of the relations that these frames define. ``prepare_lsn``: the end of its
    PREPARE, for SKIP; None if an older node wrote the row. ``commit_lsn``, ``finish_lsn``: start
    and end of its COMMIT PREPARED, once that has arrived. ``skipped``: its rows are left out."""

    subid: Annotated[int, Column("subid", BigInteger, primary_key=True, autoincrement=False)]
    xid: Annotated[int, Column("xid", BigInteger, primary_key=True, autoincrement=False)]
    gid: Annotated[str, Column("gid", String(200), nullable=False)]
    prepare_end_lsn: Annotated[Lsn, Column("prepare_end_lsn", LsnColumn, nullable=False)]
    prepare_time: Annotated[int, Column("prepare_time", BigInteger, nullable=False)]
    folder: Annotated[str, Column("folder", String, nullable=False)]
    runs: Annotated[tuple[int, ...], Column("runs", Text, nullable=False), LIST]
    relations: Annotated[tuple[int, ...], Column("relations", Text, nullable=False), LIST]
    finish_lsn: Annotated[Lsn | None, Column("finish_lsn", LsnColumn)] = None
    prepare_lsn: Annotated[Lsn | None, Column("prepare_lsn", LsnColumn)] = None
    commit_lsn: Annotated[Lsn | None, Column("commit_lsn", LsnColumn)] = None
    skipped: Annotated[bool, Column("skipped", Boolean)] = False

    @property
    def local_gid(self) -> str:
        """The name that PostgreSQL's subscriber gives it (TwoPhaseTransactionGid), since several
        publishers may have chosen the same ``gid``."""
        return f"pg_gid_{self.subid}_{self.xid}"


_TABLE: Final = StoredTable("penstock_prepared_xact", PreparedXact)


class PgPreparedXacts:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, subid: int | None = None) -> tuple[PreparedXact, ...]:
        """Return the prepared transactions of one subscription, or of all."""
        where = () if subid is None else (_TABLE.c.subid == subid,)
        order = (_TABLE.c.subid, _TABLE.c.prepare_end_lsn)
        return _TABLE.all(self._connection, *where, order_by=order)

    def find(self, subid: int, xid: int) -> PreparedXact | None:
        """Return a subscription's transaction by its xid, or None."""
        return _TABLE.find(self._connection, _TABLE.c.subid == subid, _TABLE.c.xid == xid)

    def put(self, xact: PreparedXact) -> None:
        """Insert a transaction, or replace the one of the same subscription and xid."""
        self.delete(xact.subid, xact.xid)
        _TABLE.insert(self._connection, xact)

    def delete(self, subid: int, xid: int) -> None:
        """Delete a transaction; no effect when it is gone."""
        _TABLE.delete(self._connection, _TABLE.c.subid == subid, _TABLE.c.xid == xid)

    def delete_all(self, subid: int) -> None:
        """Delete the transactions of a subscription that is dropped."""
        _TABLE.delete(self._connection, _TABLE.c.subid == subid)
