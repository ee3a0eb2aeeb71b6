"""Rows of a query by COPY in binary format, many at a time (libpqrcv_exec of copy_table).

A query runs in an idle session or walsender. Blocks of rows are returned as they arrive, or the
error with which the server or the network has ended the copy.

libpq returns one row for each call. So without encryption this file reads libpq's socket itself,
after libpq has logged in and while libpq runs no command: to libpq the session seems idle. An
unfinished copy closes the session, because libpq could not read the rest. In an encrypted session,
libpq returns the messages.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import psycopg
from psycopg.pq import ExecStatus

from penstock.errors import ConnectionFailure, ProtocolViolation
from penstock.protocol.backend_messages import message_fields
from penstock.protocol.copy_block import HEAD, TRAILER, CopyBlock, block_of, file_header, whole_rows
from penstock.protocol.framing import LENGTH_SIZE, frame
from penstock.walreceiver.connection import Connection, wait
from penstock.walreceiver.libpq_errors import result_failure, server_failure

_PAUSE_S: Final = 0.0002
"""Seconds to sleep once the socket is empty, so that the next read finds more data."""

_READY: Final = frame(b"Z", b"I")
_BINARY: Final = b"\1"
_IGNORED: Final = b"NSA"
"""The types of messages that are skipped: notices, parameters, notifications."""
_LONGEST: Final = (1 << 30) + LENGTH_SIZE
"""The largest length of a message (MaxAllocSize), as its length field counts."""
_AFTER_A_NOTICE: Final = 16 << 10
"""Bytes to search for rows after a skipped message; they double each time that rows are found.
Otherwise, if each row has a notice, the whole buffer would be searched for each row."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """PostgreSQL's words before the server's message: ``starting`` until COPY has begun,
    ``reading`` after."""

    starting: str
    reading: str


class SocketCopy:
    """A copy read from the session's socket. ``ended``: all rows have been returned, and the
    command has ended without an error.

    ``_buffer[_at:_filled]`` holds the bytes not yet returned, from the start of a message.
    """

    def __init__(
        self,
        connection: Connection,
        query: str,
        fields: int,
        *,
        block_bytes: int,
        prefixes: Prefixes,
    ) -> None:
        """Start the copy. ``fields``: the number of the query's columns; ``block_bytes``: the size
        up to which messages are collected; a larger row makes a larger block. Raises
        ConnectionFailure."""
        self.ended = False
        self._connection = connection
        self._fd = connection.socket
        self._fields = fields
        self._block_bytes = max(block_bytes, HEAD)
        self._prefixes = prefixes
        self._buffer = np.empty(self._block_bytes, np.uint8)
        self._at = self._filled = 0
        self._begun = self._header = self._trailer = self._done = self._complete = False
        self._window = self._block_bytes
        self._over: str | None = None
        """The reason why the copy ended; earlier rows are still returned."""

        try:
            self._send(frame(b"Q", f"COPY ({query}) TO STDOUT (FORMAT binary)".encode() + b"\0"))
        except OSError as error:
            self.close()
            raise self._lost(_text(error)) from None

    def read(self, timeout_s: float, patience_s: float) -> CopyBlock:
        """Return the rows that have arrived, which are valid until the next call; none after
        ``timeout_s``, and at the end. After the first byte, go on reading until no byte arrives for
        ``patience_s``.

        Raises ProtocolViolation, ConnectionFailure, and the query's errors.
        """
        try:
            rows = self._next_rows()
            if rows is None and not self.ended:
                self._fill(timeout_s, patience_s)
                rows = self._next_rows()
        except BaseException:
            self.close()
            raise
        return CopyBlock.none() if rows is None else rows

    def close(self) -> None:
        """Close the session, unless the copy has come to its end."""
        if not self.ended:
            self._connection.close()
            self._over, self._fd = "connection not open", -1  # another file may get the number

    def _next_rows(self) -> CopyBlock | None:
        """Handle the messages before the next rows, and return these rows; None if no whole row is
        here."""
        while not self.ended:
            size = self._whole_message()
            if size is None:
                break
            if self._header and len(rows := self._rows(size)):
                return rows
            self.ended = self._take(size)
        return None

    def _send(self, message: bytes) -> None:
        while message:
            try:
                message = message[os.write(self._fd, message) :]
            except BlockingIOError:
                wait(self._fd, select.POLLOUT, None)

    def _fill(self, timeout_s: float, patience_s: float) -> None:
        """Read more bytes until the block is full, the copy may be over, or no byte arrives for
        ``timeout_s``, or for ``patience_s`` after the first byte."""
        if self._over is not None:
            raise self._lost(self._over)
        self._make_room()
        view = self._buffer.data
        before, busy = self._filled, False
        while self._filled < len(self._buffer):
            try:
                count = os.readv(self._fd, [view[self._filled :]])
            except BlockingIOError:
                if busy and self._may_be_over():
                    return
                left_s = timeout_s if self._filled == before else patience_s
                if busy:
                    time.sleep(_PAUSE_S)
                elif not wait(self._fd, select.POLLIN, left_s):
                    return
                busy = False
                continue
            except OSError as error:
                self._over = _text(error)
                return
            if count == 0:
                self._over = "server closed the connection unexpectedly"
                return
            self._filled += count
            busy = True

    def _make_room(self) -> None:
        left = self._buffer[self._at : self._filled]
        size = max(self._block_bytes, self._message_size() or 0)
        if size != len(self._buffer):
            buffer = np.empty(size, np.uint8)
            buffer[: len(left)] = left
            self._buffer = buffer
        else:
            self._buffer[: len(left)] = left
        self._at, self._filled = 0, len(left)

    def _may_be_over(self) -> bool:
        tail = self._buffer[max(self._at, self._filled - len(_READY)) : self._filled].tobytes()
        return tail[:-1] == _READY[:-1]

    def _rows(self, first: int) -> CopyBlock:
        """Return the adjacent rows from here on. ``first``: the size of the first message in
        bytes."""
        end = min(self._filled, self._at + max(first, self._window))
        block = whole_rows(self._buffer, self._at, end, self._fields)
        if len(block):
            self._at += int(block.end[-1])
            self._window = min(2 * self._window, self._block_bytes)
        return block

    def _message_size(self) -> int | None:
        """Return the size of the first message, with its type byte; None if its head is not here.
        Raises ConnectionFailure."""
        head = self._buffer[self._at : min(self._at + HEAD, self._filled)].tobytes()
        if len(head) < HEAD:
            return None
        length = int.from_bytes(head[1:], "big")
        if not LENGTH_SIZE <= length <= _LONGEST:
            raise self._lost(
                "lost synchronization with server: "
                f'got message type "{head[:1].decode("latin-1")}", length {length}'
            )
        return 1 + length

    def _whole_message(self) -> int | None:
        size = self._message_size()
        return size if size is not None and self._at + size <= self._filled else None

    def _take(self, size: int) -> bool:
        """Handle the first message, which is not a row of the query. Return True if the session
        accepts commands again."""
        kind = self._buffer[self._at : self._at + 1].tobytes()
        contents = self._buffer[self._at + HEAD : self._at + size]
        if kind == b"d" and not self._header:
            self._header = True
            self._take_header(contents, size)
            return False
        self._at += size
        match kind:
            case b"H":
                self._begun = True
                if contents[:1].tobytes() != _BINARY:
                    raise ProtocolViolation(self._prefix + "the copy is not in binary format")
            case b"d":
                if contents.tobytes() != TRAILER or self._trailer:
                    raise ProtocolViolation(
                        self._prefix + f"a row of the copy does not have {self._fields} fields"
                    )
                self._trailer = True
            case b"c":
                self._done = True
            case b"C":
                self._complete = True
            case b"E":
                raise server_failure(message_fields(contents.tobytes()), self._prefix)
            case b"Z":
                if not (self._trailer and self._done and self._complete):
                    raise ProtocolViolation(self._prefix + "the copy has no end")
                return True
            case _ if kind in _IGNORED:
                self._window = min(_AFTER_A_NOTICE, self._block_bytes)
            case _:
                raise self._lost(f'unexpected message type "{kind.decode("latin-1")}"')
        return False

    def _take_header(self, contents: np.ndarray, size: int) -> None:
        """Skip the file's header. If a row follows in the same message, give the row a message head
        of its own."""
        header = file_header(contents)
        if header is None:
            raise ProtocolViolation(self._prefix + "COPY file header is not whole")
        self._at += header
        if header == size - HEAD:
            self._at += HEAD
            return
        head = b"d" + (size - 1 - header).to_bytes(LENGTH_SIZE, "big")
        self._buffer[self._at : self._at + HEAD] = np.frombuffer(head, np.uint8)

    @property
    def _prefix(self) -> str:
        return self._prefixes.reading if self._begun else self._prefixes.starting

    def _lost(self, text: str) -> ConnectionFailure:
        return self._connection.broken(text, self._prefix)


def _text(error: OSError) -> str:
    return os.strerror(error.errno or 0)


# A COPY in binary format whose messages libpq returns, for sessions that only it can read.

_AT_ONCE: Final = 1000
"""The number of messages that are joined at once. With more, Python's garbage collector would scan
as many objects repeatedly. Other messages wait in libpq."""


class LibpqCopy:
    """A copy read by libpq. ``ended``: all rows have been returned, and the command has ended
    without an error."""

    def __init__(
        self, connection: Connection, query: str, *, block_bytes: int, prefixes: Prefixes
    ) -> None:
        """Start the copy, and wait for its beginning. ``block_bytes``: the size up to which rows
        are collected; the last row may exceed it. Raises the query's errors, ConnectionFailure."""
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
        """Return the rows that have arrived; none after ``timeout_s``, and at the end. After the
        first row, go on reading until no byte arrives for ``patience_s``.

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


# Rows of a query by COPY in binary format, many at a time (libpqrcv_exec of copy_table).

_LARGEST: Final = 64 << 20
"""The most bytes of a block, unless a row is larger."""
_LINGER_S: Final = 0.2
"""Seconds without a byte after which the present rows are returned."""


def start_copy(
    connection: Connection,
    query: str,
    fields: int,
    *,
    by_libpq: bool,
    block_bytes: int,
    prefixes: Prefixes,
) -> SocketCopy | LibpqCopy:
    """Start a copy of a query with ``fields`` columns, at least 1.

    ``by_libpq``: the result of ``is_encrypted``. ``block_bytes``: the size up to which messages are
    collected, at most 64 MB; a larger row makes a larger block. Raises ConnectionFailure, and the
    query's errors.
    """
    block_bytes = min(block_bytes, _LARGEST)
    if by_libpq:
        return LibpqCopy(connection, query, block_bytes=block_bytes, prefixes=prefixes)
    return SocketCopy(connection, query, fields, block_bytes=block_bytes, prefixes=prefixes)


def blocks_of(
    copy: SocketCopy | LibpqCopy, interrupt: Callable[[], None] | None = None
) -> Generator[CopyBlock]:
    """Yield the rows of a copy; each block is valid until the next one is asked for. The caller
    must close the generator.

    ``interrupt`` is called before each read; if it raises, the copy ends. Raises ProtocolViolation,
    ConnectionFailure, and the query's errors.
    """
    try:
        while not copy.ended:
            if interrupt is not None:
                interrupt()
            if len(rows := copy.read(_LINGER_S, _LINGER_S)):
                yield rows
    finally:
        copy.close()
