"""A server that seems to be far away: a TCP proxy that passes everything on a little later.

In: a port of this machine. Out: another one.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

_BLOCK: Final = 256 << 10
_UNDER_WAY: Final = 256
"""Blocks of one direction that have been read and not passed on; more wait in the socket."""

_Blocks = queue.Queue[tuple[float, bytes]]


@contextlib.contextmanager
def distant(port: int, round_trip: float) -> Iterator[int]:
    """A port that leads to ``port`` of this machine, with a round trip of so many seconds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(
            target=_accept, args=(listener, port, round_trip / 2), name="distance", daemon=True
        ).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, port: int, delay: float) -> None:
    with contextlib.suppress(OSError):  # the block has ended
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for source, sink in ((client, server), (server, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                blocks = _Blocks(_UNDER_WAY)
                for run in (_read, _write):
                    end = source if run is _read else sink
                    threading.Thread(target=run, args=(end, blocks, delay), daemon=True).start()


def _read(source: socket.socket, blocks: _Blocks, delay: float) -> None:
    data = b"-"
    while data:
        try:
            data = source.recv(_BLOCK)
        except OSError:
            data = b""
        blocks.put((time.monotonic() + delay, data))


def _write(sink: socket.socket, blocks: _Blocks, _delay: float) -> None:
    with contextlib.suppress(OSError):  # the other side has gone
        while True:
            due, data = blocks.get()
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            sink.sendall(data)
    while blocks.get()[1]:
        pass
