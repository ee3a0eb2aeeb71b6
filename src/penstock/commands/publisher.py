"""What commands ask of the publisher (walreceiver.h, the functions that subscriptioncmds.c uses).

In: nothing. Out: Protocols. ``penstock.walreceiver.publisher.Publisher.connect`` is the factory in
a real node; ``penstock.node`` joins the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.relation import TableName
from penstock.walreceiver.publisher import SystemIdentity


class PublisherSession(Protocol):
    """An open session on the publisher."""

    def identify_system(self) -> SystemIdentity:
        """IDENTIFY_SYSTEM."""

    def database(self) -> tuple[int, bool]:
        """The database's OID, and whether the server is in recovery."""

    def missing_publications(self, names: Sequence[str]) -> list[str]:
        """Those of the names that do not exist."""

    def tables(self, names: Sequence[str]) -> dict[TableName, int]:
        """All tables in the publications with their OIDs."""

    def tables_without_replica_identity(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """(schema, table) of those whose updates and deletes the publisher refuses."""

    def create_slot(self, name: str) -> object:
        """Create a persistent logical slot for pgoutput."""

    def drop_slot(self, name: str, *, missing_ok: bool = False) -> bool:
        """Drop a slot; waits while somebody streams from it. False: there was none."""

    def sync_slots(self, app_id: str) -> list[str]:
        """Temporary slots of copies that run for a subscription."""

    def close(self) -> None:
        """End the session."""


class PublisherFactory(Protocol):
    """Opens sessions."""

    def __call__(self, conninfo: str, application_name: str) -> PublisherSession:
        """Raises SqlSyntaxError, ConnectionFailure, AuthenticationFailure."""
