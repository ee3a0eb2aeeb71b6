"""The session that keeps a snapshot open while tables are copied at it (tablesync.c, SNAPSHOT
'export').

The session creates a temporary slot. The caller gets the slot's consistent point and the snapshot's
name. Any number of sessions may import the snapshot while this one is idle and alive. PostgreSQL
drops the slot and the snapshot when the session ends for any reason.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import ConnectionFailure
from penstock.lsn import Lsn
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.slots import create_slot


class SnapshotHolder:
    """A new slot, and the session that holds its snapshot.

    The slot is temporary by default, and then only marks the consistent point. A permanent slot
    stays after ``close`` and can stream from exactly this point.
    """

    def __init__(
        self,
        conninfo: ConnInfo,
        slot_name: str,
        *,
        temporary: bool = True,
        check_server: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """``check_server``: raises an error if the session is on a wrong server."""
        self._check_server = check_server
        self._conninfo = conninfo
        self.slot_name = slot_name
        self._temporary = temporary
        self._connection: Connection | None = None

    def open(self, interrupt: Callable[[], None] | None = None) -> tuple[str, Lsn]:
        """Create the slot and return (snapshot name, consistent point). A change that commits at or
        after the point is not in the snapshot and is sent by the slot. Raises the errors of
        ``create_slot``.

        This waits for all transactions that write on the publisher, unless ``interrupt`` raises."""
        connection = Connection.connect(self._conninfo, self.slot_name, interrupt=interrupt)
        try:
            self._check_server(connection)
            slot = create_slot(
                connection, self.slot_name, snapshot="export", temporary=self._temporary
            )
            if slot.snapshot_name is None:
                raise ConnectionFailure("the publisher did not export a snapshot")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return slot.snapshot_name, slot.consistent_point

    def check(self) -> None:
        """Raise ConnectionFailure if the session is gone, and the snapshot with it. Send nothing:
        any command would end the export."""
        connection = self._connection
        if connection is None or not connection.is_open:
            raise lost_snapshot()
        try:
            connection.check()
        except ConnectionFailure as error:
            raise lost_snapshot(error.message) from None

    @property
    def backend_pid(self) -> int:
        """The process id, on the publisher, of the session that holds the snapshot."""
        assert self._connection is not None
        return self._connection.backend_pid

    @property
    def alive(self) -> bool:
        try:
            self.check()
        except ConnectionFailure:
            return False
        return True

    def close(self) -> None:
        """End the session, and with it the snapshot and a temporary slot."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> SnapshotHolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lost_snapshot(reason: str | None = None) -> ConnectionFailure:
    """Return the retryable error of a lost snapshot: the copy starts again at a new snapshot."""
    return ConnectionFailure(
        "the session that held the exported snapshot is gone",
        detail=reason,
        hint="The copy starts again at a new snapshot.",
    )
