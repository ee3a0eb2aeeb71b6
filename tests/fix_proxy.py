"""Fixture ``proxy``: a TCP proxy between us and a server that stalls, cuts and refuses on demand.

``proxy = make_proxy(server.port)``; connect to ``proxy.port``. ``stall()`` lets nothing through in
either direction (a deaf peer: connections stay open), ``stall_after(data)`` does so once a client
has sent that, ``cut()`` resets all connections now, ``cut_after(n)`` closes them once n more bytes
of the server have gone through (mid-message), ``refuse()`` resets new connections at once,
``keep()`` lets nobody see that the other side has closed; ``resume()`` ends all that.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Pair:
    """One client and its connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.waiting: dict[socket.socket, bytes] = {}
        """What a side has not taken yet; nothing more is read for it meanwhile, and nobody else
        waits for it."""
        self.kept: set[socket.socket] = set()
        """Sides that have closed, which the others are not to see."""
        for side in (client, server):
            side.setblocking(False)

    def reset(self) -> None:
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            side.close()

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Forwards 127.0.0.1:``port`` to 127.0.0.1:``target`` in one thread."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.bytes_from_server = 0
        self.connections = 0
        self._pairs: list[_Pair] = []
        self._stalled = self._refusing = self._closed = False
        self._keeping = False
        self._cut_at: int | None = None
        self._awaited: bytes | None = None
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    def stall(self) -> None:
        """Forward nothing from now on; connections stay open."""
        self._set(stalled=True)

    def stall_after(self, data: bytes) -> None:
        """As ``stall``, once a client has sent something that contains ``data``: the server gets
        that, and nobody its answer."""
        self._awaited = data

    def refuse(self) -> None:
        """Reset every new connection."""
        self._set(refusing=True)

    def keep(self) -> None:
        """Close no connection that a side has closed, as when a host goes away."""
        self._set(keeping=True)

    def resume(self) -> None:
        """Forward again."""
        self._set(stalled=False, refusing=False, keeping=False)

    def cut(self) -> None:
        """Reset all connections now."""
        self._end(_Pair.reset)

    def _end(self, how: Callable[[_Pair], None]) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
            for pair in pairs:
                how(pair)
        self._wake.send(b"x")

    def cut_after(self, server_bytes: int) -> None:
        """Close all connections once that many more bytes of the server have been forwarded."""
        with self._lock:
            self._cut_at = self.bytes_from_server + server_bytes

    @property
    def stalled(self) -> bool:
        """Whether nothing goes through."""
        return self._stalled

    def conninfo(self, conninfo: str) -> str:
        """The same connection string through this proxy."""
        return f"{conninfo} host=127.0.0.1 port={self.port}"

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.send(b"x")
        self._thread.join()
        for pair in self._pairs:
            pair.close()
        for end in (self._listener, self._wake, self._woken):
            end.close()

    def _set(self, **states: bool) -> None:
        with self._lock:
            for name, value in states.items():
                setattr(self, f"_{name}", value)
        self._wake.send(b"x")

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                routes = {} if self._stalled else self._routes()
                late = {} if self._stalled else {s: p for p in self._pairs for s in p.waiting}
            waiting = [self._listener, self._woken, *routes]
            with contextlib.suppress(OSError, ValueError):  # a socket was cut meanwhile
                ready, writable, _ = select.select(waiting, list(late), [], 1.0)
                if self._woken in ready:
                    self._woken.recv(64)
                with self._lock:
                    if self._listener in ready:
                        self._accept()
                    for sink in writable:
                        self._send(late[sink], sink, b"")
                    for source in ready:
                        if source in routes and not self._stalled:
                            self._forward(source, *routes[source])

    def _routes(self) -> dict[socket.socket, tuple[socket.socket, _Pair]]:
        routes = {}
        for pair in self._pairs:
            if pair.server not in pair.waiting and pair.client not in pair.kept:
                routes[pair.client] = (pair.server, pair)
            if pair.client not in pair.waiting and pair.server not in pair.kept:
                routes[pair.server] = (pair.client, pair)
        return routes

    def _send(self, pair: _Pair, sink: socket.socket, data: bytes) -> None:
        data = pair.waiting.pop(sink, b"") + data
        try:
            sent = sink.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # its end is seen by reading from it
        if sent < len(data):
            pair.waiting[sink] = data[sent:]

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.connections += 1
        if self._refusing:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        self._pairs.append(_Pair(client, server))

    def _forward(self, source: socket.socket, sink: socket.socket, pair: _Pair) -> None:
        if pair not in self._pairs:
            return
        try:
            data = source.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        from_server = source is pair.server
        cut = False
        if from_server and self._cut_at is not None:
            left = self._cut_at - self.bytes_from_server
            if len(data) >= left:
                data, cut = data[:left], True
        if data:
            self._send(pair, sink, data)
        if not from_server and self._awaited is not None and self._awaited in data:
            self._awaited, self._stalled = None, True
        if from_server:
            self.bytes_from_server += len(data)
        if cut:
            self._cut_at = None
            self._end(_Pair.close)
        elif not data and self._keeping:
            pair.kept.add(source)
        elif not data:
            self._pairs.remove(pair)
            pair.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[[int], Proxy]]:
    """``make_proxy(port)``: a proxy to that port of this machine, closed after the test."""
    with contextlib.ExitStack() as stack:

        def create(target: int) -> Proxy:
            return stack.enter_context(contextlib.closing(Proxy(target)))

        yield create
