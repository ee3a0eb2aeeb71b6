"""Connections by which units of an initial copy read, through the ADBC driver.

In: a connection string, and which round of copies asks. Out: a connection. The driver reads the
server's types, all of pg_attribute, by a session of its own, which takes longer than another
session takes to begin: once for each round in a process, and not for each unit. Within a round
nothing changes about them: the tables are locked. Of another round nothing is true for sure, as it
may be of another server.
"""

from __future__ import annotations

import threading
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql


class _Known(threading.local):
    """The driver's database of this thread's last round."""

    round: str = ""
    database: Any = None


_known = _Known()


class _Kept:
    """What a connection closes in place of a database that others use after it."""

    def close(self) -> None:
        """Nothing."""


def connect(conninfo: str, round_: str) -> Any:
    """A connection, which is closed with its cursors by ``close``. ``round_``: of those that share
    what is known of types; '' with none. Raises the driver's errors."""
    # Brings pyarrow.dataset and, where it is installed, pandas: a fifth of a program's start.
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415

    if not round_:
        return dbapi.connect(conninfo, autocommit=True)
    if _known.round != round_:
        _known.round, _known.database = "", None
        _known.database = adbc_driver_postgresql.connect(conninfo)
        _known.round = round_
    connection = adbc_driver_manager.AdbcConnection(_known.database)
    kept: Any = _Kept()
    return dbapi.Connection(kept, connection, autocommit=True)
