"""A COPY in binary format whose messages libpq hands out, for sessions that only it can read.

In: an idle session of any kind, and a query. Out: what ``socket_copy`` returns, in two or three
times its time.
"""

from __future__ import annotations

import time
from itertools import repeat
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

from penstock.errors import ConnectionFailure, ProtocolViolation
from penstock.protocol.copy_block import TRAILER, CopyBlock, block_of, file_header
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.libpq_errors import result_failure
from penstock.walreceiver.socket_copy import Prefixes

_AT_ONCE: Final = 1000
"""The number of messages that are joined at once. With more, Python's garbage collector would go
through as many objects again and again. Messages that are not taken yet wait in libpq."""


class LibpqCopy:
    """Read a copy by libpq. ``ended``: all rows have been handed out, and the command has ended
    without an error."""

    def __init__(
        self, connection: Connection, query: str, *, block_bytes: int, prefixes: Prefixes
    ) -> None:
        """Start the copy, and wait for its beginning. ``block_bytes``: rows are collected up to
        this; the last may exceed it. Raises the query's errors, ConnectionFailure."""
        self.ended = False
        self._connection = connection
        self._pgconn = connection.pgconn
        self._block_bytes = block_bytes
        self._prefix = prefixes.reading
        self._header = self._trailer = False
        sql = f"COPY ({query}) TO STDOUT (FORMAT binary)"
        result = connection.execute(sql, prefix=prefixes.starting)
        if result.status != ExecStatus.COPY_OUT:
            raise ConnectionFailure(prefixes.starting + "COPY did not start")

    def read(self, timeout_s: float, patience_s: float) -> CopyBlock:
        """Return the rows that have come; none after ``timeout_s``, and at the end. Once there is
        something, more is added as long as it comes within ``patience_s`` each time.

        Raises ProtocolViolation, ConnectionFailure, and the query's errors.
        """
        try:
            return self._read(timeout_s, patience_s)
        except psycopg.Error as error:
            self.close()
            raise self._connection.broken(str(error), self._prefix) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the session, unless the copy has come to its end."""
        if not self.ended:
            self._connection.close()

    def _read(self, timeout_s: float, patience_s: float) -> CopyBlock:
        parts: list[bytes] = []
        sizes: list[int] = []
        size, wait_s = 0, timeout_s
        deadline = time.monotonic() + timeout_s
        get = self._pgconn.get_copy_data
        while size < self._block_bytes and not self.ended:
            messages: list[memoryview] = []
            add, length = messages.append, 0
            for length, data in map(get, repeat(1, _AT_ONCE)):
                if length <= 0:
                    break
                add(data)
            if messages:
                rows = self._rows(messages)
                sizes += map(len, rows)
                parts.append(b"".join(rows))
                size += len(parts[-1])
                wait_s = patience_s
            if length < 0:
                self._end()
            elif length == 0:
                left_s = wait_s if parts else deadline - time.monotonic()
                if not self._connection.wait_readable(max(0.0, left_s)):
                    break
                self._pgconn.consume_input()
        return block_of(b"".join(parts), sizes)

    def _rows(self, messages: list[memoryview]) -> list[memoryview]:
        """Return the rows without the file's header and trailer."""
        if self._trailer:
            raise ProtocolViolation(self._prefix + "a row has come after the copy's end")
        if not self._header:
            self._header = True
            size = file_header(messages[0])
            if size is None:
                raise ProtocolViolation(self._prefix + "COPY file header is not whole")
            messages[0] = messages[0][size:]
            if not messages[0]:  # the header came in a message of its own
                del messages[0]
        if messages and bytes(messages[-1][: len(TRAILER) + 1]) == TRAILER:
            messages.pop()
            self._trailer = True
        return messages

    def _end(self) -> None:
        while (result := self._connection.next_result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                raise result_failure(result, self._prefix)
        if not self._trailer:
            raise ProtocolViolation(self._prefix + "the copy has no end")
        self.ended = True
