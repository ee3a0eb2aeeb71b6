"""A COPY in binary format whose messages are read from the session's socket, in large portions.

In: an idle session or walsender, and a query. Out: blocks of rows as they come; or the error by
which the server or the network has ended the copy.

libpq hands out one row for each call. If nothing is encrypted, this file reads libpq's socket
instead, once libpq has logged in and while no command of its own runs: to libpq the session is idle
meanwhile. A copy that does not come to its end closes the session, as libpq would not know what to
do with the rest.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.errors import ConnectionFailure, ProtocolViolation
from penstock.protocol.backend_messages import message_fields
from penstock.protocol.copy_block import HEAD, TRAILER, CopyBlock, file_header, whole_rows
from penstock.protocol.framing import LENGTH_SIZE, frame
from penstock.walreceiver.connection import Connection, wait
from penstock.walreceiver.libpq_errors import server_failure

_PAUSE_S: Final = 0.0002
"""Seconds to sleep once the socket is empty, so that the next read finds more than a little."""

_READY: Final = frame(b"Z", b"I")
_BINARY: Final = b"\1"
_IGNORED: Final = b"NSA"
"""The types of messages that are skipped: notices, parameters, notifications."""
_LONGEST: Final = (1 << 30) + LENGTH_SIZE
"""The largest length of a message (MaxAllocSize), as its length field counts."""
_AFTER_A_NOTICE: Final = 16 << 10
"""Bytes that are searched for rows after a skipped message; twice as many each time that rows are
found. If each row brings a notice, the whole buffer would be searched again for each row."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """PostgreSQL's words before the server's message: ``starting`` for errors at once, ``reading``
    for later ones."""

    starting: str
    reading: str


class SocketCopy:
    """Read a copy from the session's socket. ``ended``: all rows have been handed out, and the
    command has ended without an error.

    ``_buffer[_at:_filled]`` holds what has come and is not handed out. It begins with a message.
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
        """Start the copy. ``fields``: the number of the query's columns; ``block_bytes``: messages
        are collected up to this; a larger row makes a larger block. Raises ConnectionFailure."""
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
        """The reason why nothing comes any more; what came before is still handed out."""

        try:
            self._send(frame(b"Q", f"COPY ({query}) TO STDOUT (FORMAT binary)".encode() + b"\0"))
        except OSError as error:
            self.close()
            raise self._lost(_text(error)) from None

    def read(self, timeout_s: float, patience_s: float) -> CopyBlock:
        """Return the rows that have come, which are valid until the next call; none after
        ``timeout_s``, and at the end. Once there is something, more is added as long as it comes
        within ``patience_s`` each time.

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
        """Handle the messages that are here up to the next rows, and return those; None if no whole
        row is here."""
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
        """Read more of what the server sends, until the block is full, the copy may be over, or
        nothing has come for so long."""
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
        """Return the rows that follow one another from here on. ``first``: the size of the first
        message in bytes."""
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
        """Handle the first message, which is not a row of so many fields. Return True if the
        session takes commands again."""
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
        """Skip the file's header. If a row stands in the same message, give it a message head of
        its own."""
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
