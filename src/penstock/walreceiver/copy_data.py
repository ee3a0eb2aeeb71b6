"""CopyData messages of a connection, many at a time (libpqrcv_receive, but not one by one).

In: a connection in COPY BOTH or COPY OUT. Out: whole messages that are here now. Never waits for
the network longer than it takes to read in large portions; waiting for the first byte, answering
and the end of the copy are the caller's.

Why there are pauses: a walsender sends each message by itself. A reader that takes every one as it
comes makes the kernel send, wake and acknowledge each; one that comes back a little later finds
them joined. With 1 M small transactions over loopback TCP that is 5 s of a walsender's time instead
of 13 s.
"""

from __future__ import annotations

import select
import time
from typing import Final

import psycopg
from psycopg.pq.abc import PGconn

from penstock.walreceiver.connection import wait

_FULL_READ: Final = 15_000
"""Bytes: libpq reads 16 kB at once, so a read that brought less has emptied the socket; with TLS it
reads a record, which has 8 kB at most."""

_HEADER: Final = 1 + 4
"""Bytes of each message that libpq reads and does not hand out: type and length."""

_BUSY_S: Final = 0.005
"""A stream that brought something so short a time ago is worth a pause."""

_PAUSE_S: Final = 0.0005
_LOCAL_PAUSE_S: Final = 0.0001
"""A unix socket holds only some 280 messages of any size: longer, and the sender would wait."""

_LINGER_S: Final = 0.02
"""Seconds that one call of ``read`` takes at most."""


class CopyReader:
    """``error``: why the copy is over, once it is; messages that came before are handed out."""

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._pause_s = _LOCAL_PAUSE_S if pgconn.host[:1] in (b"/", b"@") else _PAUSE_S
        self._encrypted = pgconn.ssl_in_use or pgconn.used_gssapi
        self._last_at = -_BUSY_S
        self.error: psycopg.Error | None = None
        self.ended = False
        """The copy has come to its end (CopyDone, or an error of the server)."""

    def read(self, *, max_bytes: int, max_messages: int) -> list[bytes]:
        """Messages that libpq has or that the socket holds, up to the limits; perhaps none."""
        messages: list[bytes] = []
        if self.ended or self.error is not None:
            return messages
        began = time.monotonic()
        try:
            self._fill(messages, max_bytes, max_messages, began)
        except psycopg.Error as error:
            self.error = error
        if messages:
            self._last_at = time.monotonic()
        return messages

    def _fill(self, messages: list[bytes], max_bytes: int, max_messages: int, began: float) -> None:
        busy = began - self._last_at < _BUSY_S
        size = came = 0
        before = -1
        get, append = self._pgconn.get_copy_data, messages.append
        while size < max_bytes and len(messages) < max_messages:
            length, data = get(1)
            if length > 0:
                append(bytes(data))
                size += length
                came += length + _HEADER
                continue
            if length < 0:
                self.ended = True
                return
            if before >= 0 and came - before < _FULL_READ and not self._more_is_here(came - before):
                if came == before or not busy or time.monotonic() - began >= _LINGER_S:
                    return
                time.sleep(self._pause_s)
            before = came
            self._pgconn.consume_input()

    def _more_is_here(self, came: int) -> bool:
        return self._encrypted and came > 0 and bool(wait(self._pgconn.socket, select.POLLIN, 0))
