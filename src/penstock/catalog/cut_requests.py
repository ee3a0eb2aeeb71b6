"""Positions at which somebody wants a cut: what ``penstock verify`` asks of a running worker.

In: a connection inside a transaction. Out: frozen rows. While a row is there the subscription's
worker makes no batch that reaches beyond its position, and a cut at it. Who has asked removes the
row; a worker removes one that has held it up for too long, whose asker may have been killed.
PostgreSQL has nothing like it: there every position of a table is read by a snapshot.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Connection, RowMapping, String, Table, select

from penstock.catalog.metadata import METADATA, LsnColumn
from penstock.lsn import Lsn

_TABLE = Table(
    "penstock_cut_request",
    METADATA,
    Column("id", String(36), primary_key=True),
    Column("subid", BigInteger, nullable=False),
    Column("lsn", LsnColumn, nullable=False),
)


@dataclass(frozen=True, slots=True)
class CutRequest:
    """``id``: of who asks; the position may move on. ``subid``: of the subscription."""

    id: str
    subid: int
    lsn: Lsn


class CutRequests:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self, subid: int) -> tuple[CutRequest, ...]:
        """Those for one subscription."""
        query = select(_TABLE).where(_TABLE.c.subid == subid).order_by(_TABLE.c.id)
        return tuple(_request(row) for row in self._connection.execute(query).mappings())

    def ask(self, subid: int, lsn: Lsn, own: str | None = None) -> CutRequest:
        """Insert one. ``own``: its id, in place of a request of that id that a crash has left."""
        request = CutRequest(own or str(uuid.uuid4()), subid, lsn)
        self.forget(request.id)
        self._connection.execute(_TABLE.insert().values(id=request.id, subid=subid, lsn=lsn))
        return request

    def move(self, request_id: str, lsn: Lsn) -> bool:
        """Ask for another position; False: the request is gone, and with it what it held up."""
        change = _TABLE.update().where(_TABLE.c.id == request_id).values(lsn=lsn)
        return self._connection.execute(change).rowcount == 1

    def forget(self, request_id: str) -> None:
        """No effect when it is gone."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.id == request_id))

    def forget_all(self, subid: int) -> None:
        """Those for a subscription that goes."""
        self._connection.execute(_TABLE.delete().where(_TABLE.c.subid == subid))


def _request(row: RowMapping) -> CutRequest:
    return CutRequest(row["id"], row["subid"], row["lsn"])
