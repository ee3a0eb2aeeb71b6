"""One running node per state store, where that is a PostgreSQL.

In: the store's engine and the node's id. Out: a held advisory lock, or an error that another
process runs this node. The lock belongs to a session: it goes with the process, however that dies,
and with the server; ``keep`` takes it again then. A node in its folder is locked by ``claims``
too, which is all that SQLite needs.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Final

from sqlalchemy import Connection, Engine, text

from penstock.catalog.engine import map_errors
from penstock.errors import ObjectInUse

_TRY: Final = text("SELECT pg_try_advisory_lock(:key)")
_HOLDER: Final = text(
    "SELECT a.pid, coalesce(host(a.client_addr), 'local socket') FROM pg_locks l "
    "JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted "
    "AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = :key "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_STILL_THERE: Final = text("SELECT 1")


class NodeLock:
    """Held from ``take`` to ``release``. Without effect where the store is no PostgreSQL."""

    def __init__(self, engine: Engine, node_id: str) -> None:
        self._engine = engine if engine.dialect.name == "postgresql" else None
        digest = hashlib.sha256(f"penstock {node_id}".encode()).digest()
        self._key = int.from_bytes(digest[:8], "big") >> 1
        self._connection: Connection | None = None
        self._guard = threading.Lock()

    def take(self) -> None:
        """Raises ObjectInUse where another process runs the node, StorageError."""
        if self._engine is None:
            return
        with self._guard, map_errors():
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                if not connection.execute(_TRY, {"key": self._key}).scalar_one():
                    raise self._in_use(connection)
            except BaseException:
                connection.invalidate()
                connection.close()
                raise
            self._connection = connection

    def keep(self) -> None:
        """Take it again where the session has ended. Raises as ``take``."""
        if self._engine is None:
            return
        try:
            with self._guard, map_errors():
                if self._connection is not None:
                    self._connection.execute(_STILL_THERE)
                    return
        except BaseException:
            self.release()
            raise
        self.take()

    def release(self) -> None:
        """End the session that holds it."""
        with self._guard:
            held, self._connection = self._connection, None
        if held is not None:
            held.invalidate()
            held.close()

    def _in_use(self, connection: Connection) -> ObjectInUse:
        holder = connection.execute(_HOLDER, {"key": self._key}).first()
        detail = None
        if holder is not None:
            detail = f"Its session in the state store has PID {holder[0]}, from {holder[1]}."
        return ObjectInUse(
            "the node of this state store is already running",
            detail=detail,
            hint="Stop it there first, or give this node a state store of its own.",
        )
