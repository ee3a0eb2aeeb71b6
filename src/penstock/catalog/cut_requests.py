"""Positions at which somebody wants a cut: ``penstock verify`` asks a running worker for them.

While a row exists the subscription's worker makes no batch that reaches beyond its position, and
makes a cut there. Whoever asked removes the row; a worker removes a row that has held it up for too
long, as the asker may have been killed. PostgreSQL has nothing like it: there a snapshot reads a
table at any position.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Final

from sqlalchemy import BigInteger, Column, String

from penstock.catalog.metadata import LsnColumn, StoredTable, TableAccess
from penstock.lsn import Lsn


@dataclass(frozen=True, slots=True)
class CutRequest:
    """A request for a cut at ``lsn``, which may move on. ``id`` names whoever asks, ``subid`` the
    subscription."""

    id: Annotated[str, Column("id", String(36), primary_key=True)]
    subid: Annotated[int, Column("subid", BigInteger, nullable=False)]
    lsn: Annotated[Lsn, Column("lsn", LsnColumn, nullable=False)]


_TABLE: Final = StoredTable("penstock_cut_request", CutRequest)


class CutRequests(TableAccess):
    """The table, within one transaction."""

    def all(self, subid: int) -> tuple[CutRequest, ...]:
        """Return the requests for one subscription."""
        return _TABLE.all(self.connection, _TABLE.c.subid == subid)

    def ask(self, subid: int, lsn: Lsn, own: str | None = None) -> CutRequest:
        """Insert a request. ``own``: its id; it replaces a request of that id that a crash left."""
        request = CutRequest(own or str(uuid.uuid4()), subid, lsn)
        self.forget(request.id)
        _TABLE.insert(self.connection, request)
        return request

    def move(self, request_id: str, lsn: Lsn) -> bool:
        """Move a request to another position. False if it is gone, and no longer holds up the
        worker."""
        change = _TABLE.table.update().where(_TABLE.c.id == request_id).values(lsn=lsn)
        return self.connection.execute(change).rowcount == 1

    def forget(self, request_id: str) -> None:
        """Delete a request; no effect when it is gone."""
        _TABLE.delete(self.connection, _TABLE.c.id == request_id)

    def forget_all(self, subid: int) -> None:
        """Delete the requests for a subscription that is dropped."""
        _TABLE.delete(self.connection, _TABLE.c.subid == subid)
