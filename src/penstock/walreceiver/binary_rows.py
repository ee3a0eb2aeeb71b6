"""Rows of one bytea column of a query, many at a time and as they come (libpq's chunked rows mode).

In: an ordinary session and a query. Out: the values that are here now. libpq reads and psycopg's C
code loads some rows at once, which costs a tenth of asking libpq for each row of a COPY.

libpq collects rows up to a number of rows, whatever their size, so the query has to bound their
size: ``bounded`` turns longer values into NULL, which is an error here.
"""

from __future__ import annotations

import time
from itertools import chain
from typing import Final

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from penstock.walreceiver.connection import Connection
from penstock.walreceiver.libpq_errors import result_failure

_ROWS: Final = 64
LONGEST: Final = 1 << 20
"""The most bytes of a value. libpq may hold so much times the rows."""

_LINGER_S: Final = 0.05
"""The most seconds that one call of ``read`` goes on after the first row."""

_PAUSE_S: Final = 0.005
"""Seconds without a byte after which a portion is handed out, as large as it is."""


class TooLong(Exception):
    """A value is longer than ``LONGEST``."""


def bounded(value: str) -> str:
    """Return SQL for a bytea value that is NULL if it is too long."""
    return f"CASE WHEN pg_catalog.octet_length({value}) <= {LONGEST} THEN {value} END"


def available() -> bool:
    """Tell whether libpq can hand out chunks of rows."""
    return psycopg.capabilities.has_stream_chunked()


class BinaryRows:
    """Read the rows of one query. ``ended``: all rows have been handed out."""

    def __init__(self, connection: Connection, sql: str, prefix: str) -> None:
        """Send the query. ``prefix``: the words in front of the server's messages. Raises
        ConnectionFailure."""
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prefix = prefix
        self._transformer = Transformer()
        self.ended = False
        try:
            self._pgconn.send_query_params(sql.encode(), None, result_format=1)
            self._pgconn.set_chunked_rows_mode(_ROWS)
            connection.flush()
        except psycopg.Error as error:
            raise connection.broken(str(error), prefix) from None

    def read(self, timeout_s: float, *, max_bytes: int, max_rows: int) -> list[bytes]:
        """Return values, up to the limits or a little more; [] after ``timeout_s`` and at the end.

        Raises TooLong, ConnectionFailure, and the query's errors.
        """
        try:
            return self._read(timeout_s, max_bytes, max_rows)
        except psycopg.Error as error:
            raise self._connection.broken(str(error), self._prefix) from None

    def _read(self, timeout_s: float, max_bytes: int, max_rows: int) -> list[bytes]:
        values: list[bytes] = []
        size, now = 0, time.monotonic()
        deadline = now + timeout_s
        while not self.ended and size < max_bytes and len(values) < max_rows:
            if not self._pgconn.is_busy():
                came = self._rows(self._pgconn.get_result())
                if came and not values:
                    deadline = time.monotonic() + _LINGER_S
                size += _size(came)
                values += came
                continue
            wait_s = deadline - time.monotonic()
            if values:
                wait_s = min(wait_s, _PAUSE_S)
            over = values and wait_s < 0  # without values, look at least once
            if over or not self._connection.wait_readable(max(0.0, wait_s)):
                break
            self._pgconn.consume_input()
        return values

    def _rows(self, result: PGresult | None) -> list[bytes]:
        if result is None:
            self.ended = True
            return []
        if result.status == ExecStatus.FATAL_ERROR:
            self._to_the_end()
            raise result_failure(result, self._prefix)
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        return list(chain.from_iterable(rows))

    def _to_the_end(self) -> None:
        while self._connection.next_result() is not None:
            pass
        self.ended = True


def _size(values: list[bytes]) -> int:
    try:
        return sum(map(len, values))
    except TypeError:  # a NULL; a search for one would be slower, as it compares every value
        raise TooLong from None
