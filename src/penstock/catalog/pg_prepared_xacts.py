"""Prepared transactions of publishers that wait for their second phase (twophase.c).

In: a connection inside a transaction. Out: frozen rows. A row is there from the publisher's PREPARE
TRANSACTION on until the rows of its COMMIT PREPARED are in a cut, or it was rolled back. What the
transaction did is kept in the warehouse, in ``folder``; nobody reads it before.
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
    """``xid`` and ``gid``: the publisher's. ``prepare_time``: microseconds since 1970. ``runs``:
    how many frames each file of the folder has; ``relations``: OIDs that are defined among them.
    ``prepare_lsn``: where its PREPARE finishes, for SKIP; None: an older node has kept it.
    ``commit_lsn``, ``finish_lsn``: where its COMMIT PREPARED begins and ends, once that has come.
    ``skipped``: whether its rows are left out."""

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
        """As PostgreSQL's subscriber names it (TwoPhaseTransactionGid): publishers may have chosen
        the same name."""
        return f"pg_gid_{self.subid}_{self.xid}"


class PgPreparedXacts:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, subid: int | None = None) -> tuple[PreparedXact, ...]:
        """Those of one subscription, or of all."""
        query = select(_TABLE).order_by(_TABLE.c.subid, _TABLE.c.prepare_end_lsn)
        if subid is not None:
            query = query.where(_TABLE.c.subid == subid)
        return tuple(_xact(row) for row in self._connection.execute(query).mappings())

    def find(self, subid: int, xid: int) -> PreparedXact | None:
        """One of them; None: it is not there."""
        query = select(_TABLE).where(_TABLE.c.subid == subid, _TABLE.c.xid == xid)
        row = self._connection.execute(query).mappings().one_or_none()
        return None if row is None else _xact(row)

    def put(self, xact: PreparedXact) -> None:
        """Insert one, or replace the one of that subscription and xid."""
        self.delete(xact.subid, xact.xid)
        self._connection.execute(_TABLE.insert().values(**_values(xact)))

    def delete(self, subid: int, xid: int) -> None:
        """No effect when it is gone."""
        gone = _TABLE.delete().where(_TABLE.c.subid == subid, _TABLE.c.xid == xid)
        self._connection.execute(gone)

    def delete_all(self, subid: int) -> None:
        """Those of a subscription that goes."""
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
