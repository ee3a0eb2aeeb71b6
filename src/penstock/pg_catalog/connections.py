"""DuckDB instances for catalog queries, kept between queries: making one takes longer than most
queries.

In: nothing. Out: connections to instances in memory, without access to files, empty except for the
schema ``cat``. ``give_back`` empties them again.
"""

from __future__ import annotations

import threading
from typing import Final

import duckdb

from penstock.sql.to_duckdb import numeric_functions

_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": "1",
    "enable_external_access": "false",
    "memory_limit": "512MB",
    "temp_directory": "",
}
_IDLE: Final = 4
"""The most idle instances that are kept; each takes a few megabytes."""


class Connections:
    """A node's pool; threads may share it."""

    def __init__(self) -> None:
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._lock = threading.Lock()

    def take(self) -> duckdb.DuckDBPyConnection:
        """Return a connection for the caller alone."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = duckdb.connect(":memory:", config=_CONFIG)
        connection.execute("CREATE SCHEMA cat")
        numeric_functions.register(connection)
        return connection

    def close(self) -> None:
        """Close the idle connections; one that is given back later is kept again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def give_back(self, connection: duckdb.DuckDBPyConnection, functions: set[str]) -> None:
        """Drop the tables of ``cat`` and the ``functions``, and keep the connection; close it if
        that fails."""
        try:
            connection.execute("DROP SCHEMA cat CASCADE; CREATE SCHEMA cat")
            for name in functions:
                connection.remove_function(name)
        except duckdb.Error:
            connection.close()
            return
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
        connection.close()
