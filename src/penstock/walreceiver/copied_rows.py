"""Rows of one bytea column of a COPY, one message each: for values of any length.

In: a session of any kind and a query. Out: the values that are here now.
"""

from __future__ import annotations

import time
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from penstock.errors import ConnectionFailure, ProtocolViolation
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.copy_data import CopyReader
from penstock.walreceiver.libpq_errors import result_failure

_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_FILE_HEADER: Final = len(_SIGNATURE) + 4 + 4
_ROW: Final = b"\0\1"
_TRAILER: Final = b"\xff\xff"
_DATA_AT: Final = 2 + 4
"""Field count and the length of the only field."""


class CopiedRows:
    """``ended``: all rows have been handed out, and the command has ended well."""

    def __init__(self, connection: Connection, sql: str, prefix: str) -> None:
        """Start the COPY, which waits for its beginning. ``prefix``: before the server's messages.

        Raises whatever the query fails with, ConnectionFailure."""
        self._connection = connection
        self._prefix = prefix
        result = connection.execute(f"COPY ({sql}) TO STDOUT (FORMAT binary)", prefix=prefix)
        if result.status != ExecStatus.COPY_OUT:
            raise ConnectionFailure(prefix + "COPY did not start")
        self._reader = CopyReader(connection.pgconn)
        self.ended = False

    def read(self, timeout_s: float, *, max_bytes: int, max_rows: int) -> list[bytes]:
        """Values, up to the limits; [] after ``timeout_s`` and at the end.

        Raises ProtocolViolation, ConnectionFailure, and whatever the query fails with.
        """
        deadline = time.monotonic() + timeout_s
        values = self._rows(max_bytes, max_rows)
        while not values and not self._over():
            if not self._connection.wait_readable(max(0.0, deadline - time.monotonic())):
                break
            values = self._rows(max_bytes, max_rows)
        if self._reader.error is not None:
            raise self._connection.broken(str(self._reader.error), self._prefix)
        if self._reader.ended:
            self._see_how_it_ended()
        return values

    def _over(self) -> bool:
        return self._reader.ended or self._reader.error is not None

    def _rows(self, max_bytes: int, max_rows: int) -> list[bytes]:
        rows = self._reader.read(max_bytes=max_bytes, max_messages=max_rows)
        if rows and rows[0].startswith(_SIGNATURE):
            rows[0] = rows[0][_FILE_HEADER:]
        if rows and rows[-1] == _TRAILER:
            rows.pop()
        if not all(row.startswith(_ROW) for row in rows):
            raise ProtocolViolation("unexpected row in a copy of changes")
        return [row[_DATA_AT:] for row in rows]

    def _see_how_it_ended(self) -> None:
        self.ended = True
        try:
            while (result := self._connection.next_result()) is not None:
                if result.status == ExecStatus.FATAL_ERROR:
                    raise result_failure(result, self._prefix)
        except psycopg.Error as error:
            raise self._connection.broken(str(error), self._prefix) from None
