"""Between a client's socket and its state machine: one event at a time, with time limits.

In: a socket and a ``ServerSession``. Out: events, and sent bytes. It reads no further ahead than
the state machine's limits allow, so memory per client is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from penstock.backend.client_socket import ClientSocket
from penstock.errors import ConnectionFailure
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event

_TICK_S: Final = 1.0
"""Seconds of one wait at most."""


class ClientLeft(ConnectionFailure):
    """The client has closed its side, or broken off."""


class MessagePump:
    """Owns the reading and writing of one connection."""

    def __init__(self, sock: ClientSocket, session: ServerSession) -> None:
        self._socket = sock
        self._session = session

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        """Raises ConnectionFailure. ``waiting``: called while the client takes nothing."""
        if data:
            self._socket.send(data, waiting)

    def next_event(self, timeout_s: float | None) -> Event | None:
        """The client's next message; None after ``timeout_s`` seconds (None: wait for ever).

        Raises ClientLeft, ConnectionFailure, and what the state machine raises for bad messages.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (event := self._session.next_event()) is None:
            remaining = _TICK_S if deadline is None else deadline - time.monotonic()
            data = self._socket.receive(max(0.0, min(_TICK_S, remaining)))
            if data:
                self._session.feed(data)
            elif data is not None:
                if not self._socket.stopped:  # from this side: the client still listens
                    self._session.end_of_input()
                raise ClientLeft("unexpected EOF on client connection")
            elif deadline is not None and remaining <= 0:
                return None
        return event
