"""Prepared transactions of publishers that wait for their second phase (twophase.c).

In: a connection inside a transaction. Out: frozen rows. A row exists from the publisher's PREPARE
TRANSACTION until the rows of its COMMIT PREPARED are in a cut, or until it is rolled back. The
transaction's changes are kept in the warehouse, in ``folder``; nobody reads them before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    RowMapping,
    String,
    Table,
    Text,
    select,
)

from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.lsn import Lsn

_TABLE = Table(
    "penstock_prepared_xact",
    METADATA,
    Column("subid", BigInteger, primary_key=True, autoincrement=False),
    Column("xid", BigInteger, primary_key=True, autoincrement=False),
    Column("gid", String(200), nullable=False),
    Column("prepare_end_lsn", LsnColumn, nullable=False),
    Column("prepare_time", BigInteger, nullable=False),
    Column("folder", String, nullable=False),
    Column("runs", Text, nullable=False),
    Column("relations", Text, nullable=False),
    Column("finish_lsn", LsnColumn),
    Column("prepare_lsn", LsnColumn),
    Column("commit_lsn", LsnColumn),
    Column("skipped", Boolean),
)


@dataclass(frozen=True, slots=True)
class PreparedXact:
    """A prepared transaction. ``xid`` and ``gid`` are the publisher's. ``prepare_time``:
    microseconds since 1970. ``runs``: the number of frames in each file of the folder;
    ``relations``: OIDs of the relations that these frames define. ``prepare_lsn``: the end of its
    PREPARE, for SKIP; None if an older node wrote the row. ``commit_lsn``, ``finish_lsn``: start
    and end of its COMMIT PREPARED, once that has arrived. ``skipped``: its rows are left out."""

    subid: int
    xid: int
    gid: str
    prepare_end_lsn: Lsn
    prepare_time: int
    folder: str
    runs: tuple[int, ...]
    relations: tuple[int, ...]
    finish_lsn: Lsn | None = None
    prepare_lsn: Lsn | None = None
    commit_lsn: Lsn | None = None
    skipped: bool = False

    @property
    def local_gid(self) -> str:
        """The name that PostgreSQL's subscriber gives it (TwoPhaseTransactionGid), since several
        publishers may have chosen the same ``gid``."""
        return f"pg_gid_{self.subid}_{self.xid}"


class PgPreparedXacts:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, subid: int | None = None) -> tuple[PreparedXact, ...]:
        """Return the prepared transactions of one subscription, or of all."""
        query = select(_TABLE).order_by(_TABLE.c.subid, _TABLE.c.prepare_end_lsn)
        if subid is not None:
            query = query.where(_TABLE.c.subid == subid)
        return tuple(_xact(row) for row in self._connection.execute(query).mappings())

    def find(self, subid: int, xid: int) -> PreparedXact | None:
        """Return a subscription's transaction by its xid, or None."""
        query = select(_TABLE).where(_TABLE.c.subid == subid, _TABLE.c.xid == xid)
        row = self._connection.execute(query).mappings().one_or_none()
        return None if row is None else _xact(row)

    def put(self, xact: PreparedXact) -> None:
        """Insert a transaction, or replace the one of the same subscription and xid."""
        self.delete(xact.subid, xact.xid)
        self._connection.execute(_TABLE.insert().values(**_values(xact)))

    def delete(self, subid: int, xid: int) -> None:
        """Delete a transaction; no effect when it is gone."""
        gone = _TABLE.delete().where(_TABLE.c.subid == subid, _TABLE.c.xid == xid)
        self._connection.execute(gone)

    def delete_all(self, subid: int) -> None:
        """Delete the transactions of a subscription that is dropped."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.subid == subid))


def _values(xact: PreparedXact) -> dict[str, Any]:
    return {
        "subid": xact.subid,
        "xid": xact.xid,
        "gid": xact.gid,
        "prepare_end_lsn": xact.prepare_end_lsn,
        "prepare_time": xact.prepare_time,
        "folder": xact.folder,
        "runs": json.dumps(xact.runs),
        "relations": json.dumps(xact.relations),
        "finish_lsn": xact.finish_lsn,
        "prepare_lsn": xact.prepare_lsn,
        "commit_lsn": xact.commit_lsn,
        "skipped": xact.skipped,
    }


def _xact(row: RowMapping) -> PreparedXact:
    return PreparedXact(
        subid=row["subid"],
        xid=row["xid"],
        gid=row["gid"],
        prepare_end_lsn=row["prepare_end_lsn"],
        prepare_time=row["prepare_time"],
        folder=row["folder"],
        runs=tuple(json.loads(row["runs"])),
        relations=tuple(json.loads(row["relations"])),
        finish_lsn=row["finish_lsn"],
        prepare_lsn=row["prepare_lsn"],
        commit_lsn=row["commit_lsn"],
        skipped=bool(row["skipped"]),
    )
